//! OpenAPI of a custom resource: its schema with the fields that every object has.

use super::known::EntrySource;
use crate::openapi::{Dialect, Types};
use api::custom::DefinitionSource;
use api::docs::Docs;
use api::value::Fields;
use machinery::Value;
use serde_json::{Map, json};
use std::sync::{Arc, OnceLock};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const CONVENTIONS: &str =
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";

/// Types of one version over the built-in ones.
pub struct CustomTypes {
    name: Arc<str>,
    list_name: Arc<str>,
    group: String,
    version: String,
    kind: String,
    list_kind: String,
    plural: String,
    source: Arc<EntrySource>,
    base: Arc<dyn Types>,
}

impl CustomTypes {
    pub fn new(definition: &Value, version: &str, source: &Arc<EntrySource>, base: Arc<dyn Types>) -> Self {
        let spec = definition.field("spec");
        let names = spec.field("names");
        let group = spec.text("group");
        Self {
            name: model_name(group, version, names.text("kind")),
            list_name: model_name(group, version, names.text("listKind")),
            group: group.to_owned(),
            version: version.to_owned(),
            kind: names.text("kind").to_owned(),
            list_kind: names.text("listKind").to_owned(),
            plural: names.text("plural").to_owned(),
            source: Arc::clone(source),
            base,
        }
    }

    /// The schema; absent if all unknown fields are preserved.
    fn schema(&self) -> Option<Value> {
        let mut definition = self.source.definition();
        let versions = definition.get_mut("spec")?.get_mut("versions")?.as_array_mut()?;
        let version = versions.iter_mut().find(|known| known.text("name") == self.version)?;
        let schema = version.get_mut("schema")?.get_mut("openAPIV3Schema")?;
        schema.is_object().then(|| std::mem::take(schema))
    }

    fn object(&self, dialect: Dialect) -> Value {
        let mut out = match self.schema() {
            None => json!({"type": "object"}),
            Some(schema) if dialect == Dialect::V2 && schema.flag("x-kubernetes-preserve-unknown-fields") => {
                json!({"type": "object"})
            }
            Some(mut schema) => {
                publish(&mut schema, dialect);
                let properties = schema.child_mut("properties");
                let description = format!("Standard object's metadata. More info: {CONVENTIONS}#metadata");
                properties.set("metadata", reference(dialect, OBJECT_META, &description));
                add_type_meta(properties);
                schema
            }
        };
        out.set("x-kubernetes-group-version-kind", self.kinds(&self.kind));
        out
    }

    fn list(&self, dialect: Dialect) -> Value {
        let items = format!("List of {}. More info: {CONVENTIONS}", self.plural);
        let metadata = format!("Standard list metadata. More info: {CONVENTIONS}#types-kinds");
        let mut properties = json!({
            "items": {"description": items, "type": "array", "items": {"$ref": dialect.reference(&self.name)}},
            "metadata": reference(dialect, LIST_META, &metadata),
        });
        add_type_meta(&mut properties);
        json!({
            "description": format!("{} is a list of {}", self.list_kind, self.kind),
            "type": "object",
            "required": ["items"],
            "properties": properties,
            "x-kubernetes-group-version-kind": self.kinds(&self.list_kind),
        })
    }

    fn kinds(&self, kind: &str) -> Value {
        json!([{"group": self.group, "kind": kind, "version": self.version}])
    }
}

impl Types for CustomTypes {
    fn name_of(&self, group: &str, version: &str, kind: &str) -> Option<Arc<str>> {
        let own = (group, version) == (&*self.group, &*self.version);
        match kind {
            kind if own && kind == self.kind => Some(Arc::clone(&self.name)),
            kind if own && kind == self.list_kind => Some(Arc::clone(&self.list_name)),
            // Lists of the kind are looked up by their conventional name.
            kind if own && kind.strip_suffix("List") == Some(&self.kind) => Some(Arc::clone(&self.list_name)),
            kind => self.base.name_of(group, version, kind),
        }
    }

    /// Documentation of operations and of the common types. Inflating all documentation would take longer than
    /// writing the rest of a document.
    fn docs(&self) -> Arc<Docs> {
        static EXCERPT: OnceLock<Arc<Docs>> = OnceLock::new();
        let is_needed = |name: &str| {
            ["parameters", "io.k8s.apimachinery.", "io.k8s.api.autoscaling.v1.Scale"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        };
        Arc::clone(EXCERPT.get_or_init(|| Arc::new(self.base.docs().excerpt(is_needed))))
    }

    fn mentioned(&self, name: &str) -> Vec<Arc<str>> {
        match name {
            name if *name == *self.name => vec![Arc::from(OBJECT_META)],
            name if *name == *self.list_name => vec![Arc::clone(&self.name), Arc::from(LIST_META)],
            name => self.base.mentioned(name),
        }
    }

    fn definition(
        &self,
        name: &str,
        dialect: Dialect,
        document: Option<(&str, &str)>,
        docs: &Docs,
    ) -> Option<Value> {
        match name {
            name if *name == *self.name => Some(self.object(dialect)),
            name if *name == *self.list_name => Some(self.list(dialect)),
            name => self.base.definition(name, dialect, document, docs),
        }
    }
}

/// `com.example.v1.Widget`.
fn model_name(group: &str, version: &str, kind: &str) -> Arc<str> {
    let mut parts: Vec<&str> = group.split('.').collect();
    parts.reverse();
    Arc::from(format!("{}.{version}.{kind}", parts.join(".")))
}

fn reference(dialect: Dialect, name: &str, description: &str) -> Value {
    match dialect {
        Dialect::V2 => json!({"description": description, "$ref": dialect.reference(name)}),
        Dialect::V3 => json!({"description": description, "allOf": [{"$ref": dialect.reference(name)}]}),
    }
}

fn add_type_meta(properties: &mut Value) {
    properties.set("apiVersion", json!({"type": "string", "description": format!("APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: {CONVENTIONS}#resources")}));
    properties.set("kind", json!({"type": "string", "description": format!("Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: {CONVENTIONS}#types-kinds")}));
}

/// Converts a schema of a definition to a dialect. Version 2 has no `allOf`, `anyOf`, `oneOf`, `not` and `nullable`,
/// and its clients treat the listed properties as complete.
fn publish(schema: &mut Value, dialect: Dialect) {
    let Some(map) = schema.as_object_mut() else { return };
    if map.get("x-kubernetes-int-or-string").and_then(Value::as_bool) == Some(true) {
        map.remove("type");
        if dialect == Dialect::V3 && !map.contains_key("anyOf") && !map.contains_key("allOf") {
            map.insert("anyOf".to_owned(), json!([{"type": "integer"}, {"type": "string"}]));
        }
    }
    if dialect == Dialect::V2 {
        simplify(map);
    }
    for field in ["items", "additionalProperties"] {
        if let Some(below) = map.get_mut(field) {
            publish(below, dialect);
        }
    }
    if let Some(properties) = map.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(|below| publish(below, dialect));
    }
    let embeds = map.get("x-kubernetes-embedded-resource").and_then(Value::as_bool) == Some(true);
    let keeps = map.get("x-kubernetes-preserve-unknown-fields").and_then(Value::as_bool) == Some(true);
    if embeds && !(keeps && dialect == Dialect::V2) {
        embed(schema, dialect);
    }
}

fn simplify(map: &mut Map<String, Value>) {
    for junctor in ["allOf", "anyOf", "oneOf", "not"] {
        map.remove(junctor);
    }
    let nullable: Vec<String> = map
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(_, of)| of.flag("nullable"))
        .map(|(name, _)| name.clone())
        .collect();
    if let Some(required) = map.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !nullable.iter().any(|nullable| name == nullable));
        if required.is_empty() {
            map.remove("required");
        }
    }
    let is = |map: &Map<String, Value>, field: &str| map.get(field).and_then(Value::as_bool) == Some(true);
    if is(map, "nullable") {
        for field in ["type", "nullable", "items", "properties"] {
            map.remove(field);
        }
    }
    if is(map, "x-kubernetes-preserve-unknown-fields") {
        map.remove("items");
        map.remove("properties");
        if map.get("type").and_then(Value::as_str) == Some("object") {
            map.remove("type");
        }
    }
    if !map.contains_key("items") && map.get("type").and_then(Value::as_str) == Some("array") {
        map.remove("type");
    }
}

/// Adds the fields of embedded resources.
fn embed(schema: &mut Value, dialect: Dialect) {
    let properties = schema.child_mut("properties");
    let description = format!("Standard object's metadata. More info: {CONVENTIONS}#metadata");
    properties.set("metadata", reference(dialect, OBJECT_META, &description));
    properties.set("apiVersion", json!({"type": "string", "description": format!("apiVersion defines the versioned schema of this representation of an object. More info: {CONVENTIONS}#resources")}));
    properties.set("kind", json!({"type": "string", "description": format!("kind is a string value representing the type of this object. In CamelCase. More info: {CONVENTIONS}#types-kinds")}));
    let mut required: Vec<Value> = schema.items("required").to_vec();
    for name in ["kind", "apiVersion"] {
        if !required.iter().any(|known| known == name) {
            required.push(name.into());
        }
    }
    schema.set("required", Value::Array(required));
}
