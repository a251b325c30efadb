//! Definitions of built-in types: schema and documentation, in either version of OpenAPI.

use super::{Dialect, Types};
use api::docs::Docs;
use api::resources::GROUP_VERSIONS;
use machinery::schema::{Field, ListType, Node, Schema, SchemaRef, Shape};
use serde_json::{Map, Value, json};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Required fields are ordered by protobuf number, except in these types.
const REQUIRED_OTHERWISE: &[(&str, &[&str])] = &[
    ("io.k8s.api.networking.v1.HTTPIngressPath", &["pathType", "backend"]),
    (
        "io.k8s.apimachinery.pkg.apis.meta.v1.APIResource",
        &["name", "singularName", "namespaced", "kind", "verbs"],
    ),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference", &["apiVersion", "kind", "name", "uid"]),
    (
        "io.k8s.apimachinery.pkg.version.Info",
        &[
            "major",
            "minor",
            "gitVersion",
            "gitCommit",
            "gitTreeState",
            "buildDate",
            "goVersion",
            "compiler",
            "platform",
        ],
    ),
];

/// Byte fields that Kubernetes declares as atomic lists.
const ATOMIC_BYTES: (&str, &str) =
    ("io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIServiceSpec", "caBundle");

/// A union type: its name, the discriminator, fields and their values.
type Union = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const UNIONS: &[Union] = &[
    ("io.k8s.api.core.v1.AppArmorProfile", "type", &[("localhostProfile", "LocalhostProfile")]),
    ("io.k8s.api.core.v1.PodSchedulingGroup", "", &[("podGroupName", "PodGroupName")]),
    ("io.k8s.api.core.v1.SeccompProfile", "type", &[("localhostProfile", "LocalhostProfile")]),
    ("io.k8s.api.flowcontrol.v1.LimitResponse", "type", &[("queuing", "Queuing")]),
    (
        "io.k8s.api.flowcontrol.v1.PriorityLevelConfigurationSpec",
        "type",
        &[("exempt", "Exempt"), ("limited", "Limited")],
    ),
    (
        "io.k8s.api.flowcontrol.v1.Subject",
        "kind",
        &[("group", "Group"), ("serviceAccount", "ServiceAccount"), ("user", "User")],
    ),
];

/// Kinds that belong to every group version of Kubernetes, served or not.
const COMMON_KINDS: &[&str] = &[
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent",
];

/// The built-in types.
#[derive(Debug)]
pub struct BuiltIn {
    schema: &'static Schema,
    /// Documentation, loaded while documents are built.
    docs: Mutex<Weak<Docs>>,
}

impl BuiltIn {
    pub fn new(schema: &'static Schema) -> Self {
        BuiltIn { schema, docs: Mutex::new(Weak::new()) }
    }

    /// The named type of a usage: its own, or the element type of a list or map.
    fn named_below(&self, mut usage: SchemaRef<'static>) -> Option<Arc<str>> {
        while usage.node().name.is_empty() {
            usage = usage.element()?;
        }
        Some(usage.node().name.clone())
    }
}

impl Types for BuiltIn {
    fn name_of(&self, group: &str, version: &str, kind: &str) -> Option<Arc<str>> {
        self.schema.kind(group, version, kind).map(|found| found.node().name.clone())
    }

    fn docs(&self) -> Arc<Docs> {
        let mut cached = self.docs.lock().unwrap_or_else(PoisonError::into_inner);
        cached.upgrade().unwrap_or_else(|| {
            let docs = Arc::new(Docs::load());
            *cached = Arc::downgrade(&docs);
            docs
        })
    }

    fn mentioned(&self, name: &str) -> Vec<Arc<str>> {
        let fields = self.schema.named(name).map(SchemaRef::fields).unwrap_or_default();
        fields.iter().filter_map(|field| self.named_below(self.schema.at(field.node))).collect()
    }

    fn definition(
        &self,
        name: &str,
        dialect: Dialect,
        document: Option<(&str, &str)>,
        docs: &Docs,
    ) -> Option<Value> {
        let found = self.schema.named(name)?;
        let writer = Writer { schema: self.schema, dialect, docs };
        Some(writer.definition(found, document))
    }
}

struct Writer<'a> {
    schema: &'static Schema,
    dialect: Dialect,
    docs: &'a Docs,
}

impl Writer<'_> {
    fn definition(&self, found: SchemaRef<'static>, document: Option<(&str, &str)>) -> Value {
        let node = found.node();
        let mut out = Map::new();
        if let Some(text) = self.docs.of_type(&node.name) {
            out.insert("description".to_owned(), Value::String(text));
        }
        self.special_or_object(node, &mut out);
        let required = required(node);
        if !required.is_empty() {
            out.insert("required".to_owned(), json!(required));
        }
        if !node.fields.is_empty() {
            let properties =
                node.fields.iter().map(|field| (field.name.to_string(), self.property(&node.name, field)));
            out.insert("properties".to_owned(), Value::Object(properties.collect()));
        }
        if node.atomic {
            out.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
        }
        if let Some((_, discriminator, fields)) = UNIONS.iter().find(|(name, ..)| **name == *node.name) {
            out.insert("x-kubernetes-unions".to_owned(), union(discriminator, fields));
        }
        let kinds = kinds(node, document);
        if !kinds.is_empty() {
            out.insert("x-kubernetes-group-version-kind".to_owned(), Value::Array(kinds));
        }
        Value::Object(out)
    }

    /// `type` and `format` of a named type.
    fn special_or_object(&self, node: &Node, out: &mut Map<String, Value>) {
        match (node.shape, self.dialect) {
            (Shape::Quantity, Dialect::V3) => {
                out.insert("oneOf".to_owned(), json!([{"type": "string"}, {"type": "number"}]));
            }
            (Shape::IntOrString, Dialect::V3) => {
                out.insert("oneOf".to_owned(), json!([{"type": "integer"}, {"type": "string"}]));
                out.insert("format".to_owned(), json!("int-or-string"));
            }
            (Shape::Any, _) if free_form(&node.name) => {}
            (Shape::Any, _) => {
                out.insert("type".to_owned(), json!("object"));
            }
            (shape, _) => type_and_format(shape, out),
        }
    }

    /// One property of an object.
    fn property(&self, owner: &str, field: &Field) -> Value {
        let node = self.schema.at(field.node).node();
        let mut out = self.usage(node, field.default.as_ref());
        if let Some(text) = self.docs.of_field(owner, &field.name) {
            out.insert("description".to_owned(), Value::String(text));
        }
        if node.shape == Shape::List && node.name.is_empty() && node.has_list_type {
            let list_type_text = match node.list_type {
                ListType::Atomic => "atomic",
                ListType::Set => "set",
                ListType::Map => "map",
            };
            out.insert("x-kubernetes-list-type".to_owned(), json!(list_type_text));
        }
        if (owner, field.name.as_ref()) == ATOMIC_BYTES {
            out.insert("x-kubernetes-list-type".to_owned(), json!("atomic"));
        }
        if !node.map_keys.is_empty() {
            out.insert("x-kubernetes-list-map-keys".to_owned(), json!(node.map_keys));
        }
        if field.atomic || field.granular {
            let list_type_text = if field.atomic { "atomic" } else { "granular" };
            out.insert("x-kubernetes-map-type".to_owned(), json!(list_type_text));
        }
        let strategies: Vec<&str> = [
            (field.patch.merge, "merge"),
            (field.patch.replace, "replace"),
            (field.patch.retain_keys, "retainKeys"),
        ]
        .into_iter()
        .filter_map(|(is, list_type_text)| is.then_some(list_type_text))
        .collect();
        if !strategies.is_empty() {
            out.insert("x-kubernetes-patch-strategy".to_owned(), json!(strategies.join(",")));
        }
        if let Some(key) = &field.merge_key {
            out.insert("x-kubernetes-patch-merge-key".to_owned(), json!(key));
        }
        // Version 3 allows no siblings of a reference: it moves into `allOf`.
        if self.dialect == Dialect::V3
            && out.len() > 1
            && let Some(reference) = out.remove("$ref")
        {
            out.insert("allOf".to_owned(), json!([{"$ref": reference}]));
        }
        Value::Object(out)
    }

    /// A usage of a type: a reference to a named one, or its shape.
    fn usage(&self, node: &Node, default: Option<&Value>) -> Map<String, Value> {
        let mut out = Map::new();
        if node.name.is_empty() {
            type_and_format(node.shape, &mut out);
        } else {
            out.insert("$ref".to_owned(), json!(self.dialect.reference(&node.name)));
        }
        if let Some(default) = default
            && self.dialect == Dialect::V3
        {
            out.insert("default".to_owned(), default.clone());
        }
        if !node.enumeration.is_empty() {
            out.insert("enum".to_owned(), json!(node.enumeration));
        }
        let element = node.element.filter(|_| node.name.is_empty());
        if let Some(element) = element {
            // Lists wrapped by protobuf are lists of strings, whose default is the empty string.
            let empty = Value::String(String::new());
            let default = node.element_default.as_ref().or(node.wrapped.then_some(&empty));
            let mut inner = self.usage(self.schema.at(element).node(), default);
            if self.dialect == Dialect::V3
                && inner.len() > 1
                && let Some(reference) = inner.remove("$ref")
            {
                inner.insert("allOf".to_owned(), json!([{"$ref": reference}]));
            }
            let key = if node.shape == Shape::List { "items" } else { "additionalProperties" };
            out.insert(key.to_owned(), Value::Object(inner));
        }
        out
    }
}

/// Reports whether a type accepts any JSON.
fn free_form(name: &str) -> bool {
    name.strip_prefix("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON").is_some()
}

fn type_and_format(shape: Shape, out: &mut Map<String, Value>) {
    let (kind, format) = match shape {
        Shape::Any | Shape::Object | Shape::Map => ("object", ""),
        Shape::List => ("array", ""),
        Shape::String | Shape::Duration | Shape::Quantity => ("string", ""),
        Shape::Bytes => ("string", "byte"),
        Shape::Int32 => ("integer", "int32"),
        Shape::Int64 => ("integer", "int64"),
        Shape::Number => ("number", "double"),
        Shape::Boolean => ("boolean", ""),
        Shape::IntOrString => ("string", "int-or-string"),
        Shape::Time | Shape::MicroTime => ("string", "date-time"),
    };
    out.insert("type".to_owned(), json!(kind));
    if !format.is_empty() {
        out.insert("format".to_owned(), json!(format));
    }
}

fn required(node: &Node) -> Vec<&str> {
    if let Some((_, names)) = REQUIRED_OTHERWISE.iter().find(|(name, _)| **name == *node.name) {
        return names.to_vec();
    }
    let mut fields: Vec<&Field> = node.fields.iter().filter(|field| field.required).collect();
    fields.sort_by_key(|field| field.proto.number);
    fields.into_iter().map(|field| field.name.as_ref()).collect()
}

fn union(discriminator: &str, fields: &[(&str, &str)]) -> Value {
    let values: Map<String, Value> =
        fields.iter().map(|(field, value)| ((*field).to_owned(), json!(value))).collect();
    let mut union = json!({"fields-to-discriminateBy": values});
    if !discriminator.is_empty() {
        union["discriminator"] = json!(discriminator);
    }
    json!([union])
}

/// Group version kinds of a type, in a document of one group version or of all.
fn kinds(node: &Node, document: Option<(&str, &str)>) -> Vec<Value> {
    let kind =
        |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    if !COMMON_KINDS.contains(&node.name.as_ref()) {
        return node.gvks.iter().map(|(group, version, name)| kind(group, version, name)).collect();
    }
    let name = node.name.rsplit('.').next().unwrap_or_default();
    let all = GROUP_VERSIONS.iter().flat_map(|(group, versions)| versions.iter().map(move |v| (*group, *v)));
    match document {
        None => all.map(|(group, version)| kind(group, version, name)).collect(),
        Some(own) => {
            let core = ("", "v1");
            let own = Some(own).filter(|own| *own != core);
            [core].into_iter().chain(own).map(|(group, version)| kind(group, version, name)).collect()
        }
    }
}
