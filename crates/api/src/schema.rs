//! Schema of every built-in kind, read once from the generated tables.
//!
//! `schema.txt` has one line per type and, indented, one per field: name, presence letter with protobuf number, type
//! expression, then attributes of this usage. `cargo run -p xtask -- schema` writes it.

use machinery::schema::{
    Field, ListType, Nested, Node, NodeId, PatchStrategy, Presence, ProtoType, Schema, SchemaRef, Shape,
    Union,
};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

const SERVED: &str = include_str!("schema.txt");
const OPTIONAL: &str = include_str!("optional.txt");
const LEGACY: &str = include_str!("legacy.txt");

/// Types that are not encoded as structs.
const SPECIAL: &[(&str, Shape)] = &[
    ("io.k8s.apimachinery.pkg.apis.meta.v1.Time", Shape::Time),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime", Shape::MicroTime),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.Duration", Shape::Duration),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1", Shape::Any),
    ("io.k8s.apimachinery.pkg.api.resource.Quantity", Shape::Quantity),
    ("io.k8s.apimachinery.pkg.util.intstr.IntOrString", Shape::IntOrString),
    ("io.k8s.apimachinery.pkg.runtime.RawExtension", Shape::Any),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON", Shape::Any),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray", Shape::Any),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool", Shape::Any),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray", Shape::Any),
];

/// Types of all API versions served by default.
pub fn schema() -> &'static Schema {
    shared()
}

/// [`schema`] with a reference count of its own, for holders of types of several schemas.
pub fn shared() -> &'static Arc<Schema> {
    static SCHEMA: LazyLock<Arc<Schema>> =
        LazyLock::new(|| Arc::new(Builder::default().read(SERVED).finish()));
    &SCHEMA
}

/// [`schema`] and the types of versions that are off by default. Built when such a version is first used.
pub fn extended() -> &'static Arc<Schema> {
    static SCHEMA: LazyLock<Arc<Schema>> =
        LazyLock::new(|| Arc::new(Builder::default().read(SERVED).read(OPTIONAL).finish()));
    &SCHEMA
}

/// Schema with the types of a version: [`extended`] for alpha and beta versions.
pub fn of_version(version: &str) -> &'static Arc<Schema> {
    if version.contains("alpha") || version.contains("beta") { extended() } else { shared() }
}

/// Type of a kind in any version that can be served.
pub fn kind(group: &str, version: &str, kind: &str) -> Option<SchemaRef<'static>> {
    of_version(version).kind(group, version, kind)
}

/// [`schema`] with the alpha, beta and retired versions: for codecs, never served.
pub fn legacy() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> =
        LazyLock::new(|| Builder::default().read(SERVED).read(OPTIONAL).read(LEGACY).finish());
    &SCHEMA
}

/// Parses lines into nodes. The input is a generated file, so any malformed line is a bug that the tests of this
/// module find.
#[derive(Default)]
struct Builder {
    schema: Schema,
    prefixes: Vec<(&'static str, &'static str)>,
    /// Short and full type names.
    named: HashMap<&'static str, NodeId>,
    /// Usages of scalars, lists and maps by the text after the field's number: equal ones share a node.
    usages: HashMap<&'static str, NodeId>,
    texts: HashMap<&'static str, Arc<str>>,
    current: Option<NodeId>,
}

impl Builder {
    fn read(mut self, text: &'static str) -> Self {
        for line in text.lines() {
            let mut columns = line.split('\t');
            let first = columns.next().unwrap_or("");
            if let Some(letter) = first.strip_prefix('@') {
                self.prefixes.push((letter, columns.next().expect("a prefix")));
            } else if let Some(name) = first.strip_prefix(' ') {
                self.field(name, line);
            } else if first == "+" {
                let number = columns.next().and_then(|n| n.parse().ok()).expect("a number");
                let node = self.named(columns.next().expect("a nested type"));
                self.current().nested.push(Nested { number, node });
            } else {
                self.type_line(first, columns);
            }
        }
        self
    }

    fn finish(mut self) -> Schema {
        self.schema.finish();
        self.schema
    }

    fn current(&mut self) -> &mut Node {
        let id = self.current.expect("a type line before its fields");
        &mut self.schema.nodes[id.0 as usize]
    }

    fn text(&mut self, text: &'static str) -> Arc<str> {
        self.texts.entry(text).or_insert_with(|| Arc::from(text)).clone()
    }

    fn type_line(&mut self, name: &'static str, columns: std::str::Split<'static, char>) {
        let id = self.named(name);
        self.current = Some(id);
        for column in columns {
            match column {
                "atomic" => self.current().atomic = true,
                "hidden" => self.current().hidden = true,
                _ => {
                    let kinds = column.strip_prefix("gvk=").expect("a known word");
                    for kind in kinds.split(',') {
                        let mut parts = kind.split('/').map(|part| self.text(part));
                        let (Some(group), Some(version), Some(kind)) =
                            (parts.next(), parts.next(), parts.next())
                        else {
                            panic!("group/version/kind of {name}");
                        };
                        drop(parts);
                        let gvk = (group, version, kind);
                        self.schema.kinds.insert(gvk.clone(), id);
                        self.current().gvks.push(gvk);
                    }
                }
            }
        }
    }

    /// Node of a named type, created on first use.
    fn named(&mut self, short: &'static str) -> NodeId {
        if let Some(id) = self.named.get(short) {
            return *id;
        }
        let (letter, rest) = short.split_once(':').expect("a prefixed type name");
        let prefix = self.prefixes.iter().find(|(l, _)| *l == letter).expect("a known prefix").1;
        let full = format!("{prefix}{rest}");
        let shape = SPECIAL.iter().find(|(name, _)| *name == full).map_or(Shape::Object, |(_, shape)| *shape);
        let mut node = Node::of(shape);
        node.name = Arc::from(full.as_str());
        node.union = match rest {
            "JSONSchemaPropsOrArray" => Some(Union::SchemaOrArray),
            "JSONSchemaPropsOrBool" => Some(Union::SchemaOrBool),
            "JSONSchemaPropsOrStringArray" => Some(Union::SchemaOrStrings),
            _ => None,
        };
        let name = node.name.clone();
        let union = node.union.is_some();
        let id = self.schema.push(node);
        self.named.insert(short, id);
        self.schema.names.insert(name, id);
        if union {
            let element = self.named("x:JSONSchemaProps");
            self.schema.nodes[id.0 as usize].element = Some(element);
        }
        id
    }

    fn field(&mut self, name: &'static str, line: &'static str) {
        let rest = line.split_once('\t').expect("a presence").1;
        let (code, usage) = rest.split_once('\t').expect("a type");
        let node = self.usage(usage);
        let mut field = Field::new("", node);
        field.name = self.text(name);
        let (presence, pointer) = match code.as_bytes()[0] {
            b'z' => (Presence::OmitZero, false),
            b'p' => (Presence::OmitAbsent, true),
            b'n' => (Presence::Always, true),
            b'a' => (Presence::Always, false),
            other => panic!("presence {other} of {name}"),
        };
        field.presence = presence;
        field.pointer = pointer;
        field.proto.number = code[1..].parse().expect("a protobuf number");
        field.proto.wire = wire_type(self.schema.nodes[node.0 as usize].shape);
        for column in usage.split('\t').skip(1) {
            match column.split_once('=') {
                None if column == "!" => field.required = true,
                None if column == "atomic" => field.atomic = true,
                None if column == "granular" => field.granular = true,
                Some(("", default)) => field.default = Some(json(default)),
                Some(("p", strategies)) => {
                    field.patch = PatchStrategy {
                        merge: strategies.contains("merge"),
                        replace: strategies.contains("replace"),
                        retain_keys: strategies.contains("retainKeys"),
                    };
                }
                Some(("m", key)) => field.merge_key = Some(self.text(key)),
                _ => {}
            }
        }
        self.current().fields.push(field);
    }

    /// The node of a type expression with its attributes.
    fn usage(&mut self, usage: &'static str) -> NodeId {
        if let Some(id) = self.usages.get(usage) {
            return *id;
        }
        let mut columns = usage.split('\t');
        let expression = columns.next().unwrap_or("");
        let attributes: Vec<&'static str> = columns.collect();
        let id = self.expression(expression, &attributes);
        self.usages.insert(usage, id);
        id
    }

    fn expression(&mut self, expression: &'static str, attributes: &[&'static str]) -> NodeId {
        let (alias, expression) = match expression.strip_prefix('(') {
            Some(rest) => rest.split_once(')').expect("a closed alias"),
            None => ("", expression),
        };
        let (wrapped, expression) = match expression.strip_prefix("w[") {
            Some(_) => (true, &expression[1..]),
            None => (false, expression),
        };
        let mut node = match expression {
            "s" => Node::of(Shape::String),
            "b" => Node::of(Shape::Boolean),
            "i" => Node::of(Shape::Int32),
            "l" => Node::of(Shape::Int64),
            "d" => Node::of(Shape::Number),
            "y" => Node::of(Shape::Bytes),
            "any" => Node::of(Shape::Any),
            _ => match expression.as_bytes()[0] {
                b'[' => self.container(Shape::List, &expression[1..], attributes),
                b'{' => self.container(Shape::Map, &expression[1..], attributes),
                _ => return self.named(expression),
            },
        };
        node.alias = self.text(alias);
        node.wrapped = wrapped;
        for attribute in attributes {
            if let Some(values) = attribute.strip_prefix("e=")
                && node.element.is_none()
            {
                node.enumeration = values.split('|').map(|value| self.text(value)).collect();
            }
        }
        self.schema.push(node)
    }

    fn container(&mut self, shape: Shape, element: &'static str, attributes: &[&'static str]) -> Node {
        let mut node = Node::of(shape);
        let of_element: Vec<&'static str> =
            attributes.iter().copied().filter(|a| a.starts_with("e=")).collect();
        let element =
            if of_element.is_empty() { self.usage(element) } else { self.expression(element, &of_element) };
        node.element = Some(element);
        node.has_list_type = attributes.iter().any(|attribute| attribute.starts_with("t="));
        for attribute in attributes {
            match attribute.split_once('=') {
                Some(("t", "set")) => node.list_type = ListType::Set,
                Some(("t", "map")) => node.list_type = ListType::Map,
                Some(("k", keys)) => node.map_keys = keys.split(',').map(|key| self.text(key)).collect(),
                Some(("d", default)) => node.element_default = Some(json(default)),
                None if *attribute == "atomic" && shape == Shape::Map => node.atomic = true,
                _ => {}
            }
        }
        node
    }
}

fn json(text: &str) -> machinery::Value {
    serde_json::from_str(text).expect("a JSON default")
}

fn wire_type(shape: Shape) -> ProtoType {
    match shape {
        Shape::String => ProtoType::String,
        Shape::Bytes => ProtoType::Bytes,
        Shape::Boolean => ProtoType::Bool,
        Shape::Int32 => ProtoType::Int32,
        Shape::Int64 => ProtoType::Int64,
        Shape::Number => ProtoType::Double,
        _ => ProtoType::Message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_served_resource_has_a_type() {
        for resource in crate::resources::all() {
            let found = kind(resource.group, resource.version, resource.kind);
            assert!(found.is_some(), "{}/{}/{}", resource.group, resource.version, resource.kind);
            let list = format!("{}List", resource.kind);
            if resource.verbs.contains(&"list") {
                assert!(kind(resource.group, resource.version, &list).is_some(), "{list}");
            }
        }
        for kind in
            ["Status", "DeleteOptions", "WatchEvent", "Eviction", "Scale", "TokenRequest", "PodLogOptions"]
        {
            assert!(schema().kinds.keys().any(|(_, _, k)| k.as_ref() == kind), "{kind}");
        }
    }

    #[test]
    fn field_usages_have_schema_attributes() {
        let service = schema().kind("", "v1", "Service").unwrap();
        let spec = service.field("spec").unwrap();
        let ports = spec.field("ports").unwrap();
        assert_eq!(ports.list_type(), ListType::Map);
        assert_eq!(ports.map_keys().iter().map(AsRef::as_ref).collect::<Vec<_>>(), ["port", "protocol"]);
        assert_eq!(spec.field_decl("ports").unwrap().merge_key.as_deref(), Some("port"));
        assert!(spec.field("selector").unwrap().is_atomic());
        let port = ports.element().unwrap();
        let protocol = port.field_decl("protocol").unwrap();
        assert_eq!(protocol.default, Some(json("\"TCP\"")));
        assert_eq!(port.of_field(protocol).node().enumeration.len(), 3);
        assert_eq!(port.of_field(protocol).type_name(), "v1.Protocol");
        assert_eq!(ports.type_name(), "[]v1.ServicePort");
        let volume = schema().named("io.k8s.api.core.v1.Volume").unwrap();
        assert_eq!(volume.node().nested[0].number, 2);
        assert_eq!(volume.field_decl("secret").unwrap().proto.number, 0);
    }

    #[test]
    fn legacy_types_are_not_in_served_schema() {
        assert!(schema().kind("apps", "v1beta1", "Deployment").is_none());
        assert!(legacy().kind("apps", "v1beta1", "Deployment").is_some());
        assert!(legacy().kind("apps", "v1", "Deployment").is_some());
    }

    #[test]
    fn schema_is_small_and_every_struct_has_fields() {
        assert!(schema().nodes.len() < 3000, "{} nodes", schema().nodes.len());
        for node in &schema().nodes {
            for field in &node.fields {
                assert!((field.node.0 as usize) < schema().nodes.len());
            }
        }
    }
}
