//! Types of a custom resource for server-side apply and typed decoding, from its compiled schema.

use super::node::{Additional, Node, NodeType};
use machinery::schema::{Field, KindKey, Node as TypeNode, NodeId, Schema, Shape};
use std::collections::HashMap;
use std::sync::Arc;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Builds the types of a kind. The root is the type of the kind.
pub fn build(root: &Node, kind: KindKey) -> Schema {
    let mut builder = Builder::default();
    let id = builder.node(root, false, true);
    if let Some(node) = builder.schema.nodes.get_mut(id.0 as usize) {
        node.gvks.push(kind.clone());
    }
    builder.schema.kinds.insert(kind, id);
    builder.schema.finish();
    builder.schema.nodes.shrink_to_fit();
    builder.schema
}

#[derive(Default)]
struct Builder {
    schema: Schema,
    /// Types by the address of their node and by inherited preservation of unknown fields.
    made: HashMap<(usize, bool), NodeId>,
    meta: Option<NodeId>,
}

impl Builder {
    /// Type of a node. A node that preserves unknown fields makes all nodes below it preserve theirs, as in
    /// Kubernetes' types for server-side apply.
    fn node(&mut self, node: &Node, keeps: bool, is_resource: bool) -> NodeId {
        let keeps = keeps || node.preserve_unknown;
        let key = (std::ptr::from_ref(node).addr(), keeps);
        if let Some(id) = self.made.get(&key).filter(|_| !is_resource) {
            return *id;
        }
        let mut made = TypeNode::of(shape(node, is_resource));
        made.nullable = node.nullable;
        made.atomic = node.atomic_map;
        match made.shape {
            Shape::Object => {
                let allows = node.additional_properties == Additional::Allowed;
                made.preserve_unknown = keeps || allows;
                made.fields = self.fields(node, keeps, is_resource || node.embedded);
            }
            Shape::Map => made.element = node.additional.as_ref().map(|of| self.node(of, keeps, false)),
            Shape::List => {
                made.element = node.items.as_ref().map(|of| self.node(of, keeps, false));
                made.list_type = node.list_type;
                made.has_list_type = node.has_list_type;
                made.map_keys = node.map_keys().to_vec();
            }
            // Free-form data merges field by field; an integer or a string is one value.
            Shape::Any => made.preserve_unknown = !node.int_or_string,
            _ => {}
        }
        let id = self.schema.push(made);
        if !is_resource {
            self.made.insert(key, id);
        }
        id
    }

    fn fields(&mut self, node: &Node, keeps: bool, is_resource: bool) -> Vec<Field> {
        let mut fields = Vec::with_capacity(node.properties.len() + 3);
        for property in &node.properties {
            if is_resource && property.name.as_ref() == "metadata" {
                continue;
            }
            let id = self.node(&property.node, keeps, false);
            let mut field = Field::new(&property.name, id);
            field.name = property.name.clone();
            field.required = node.checks().required.contains(&property.name);
            field.default = property.node.default.as_deref().cloned();
            fields.push(field);
        }
        if is_resource {
            fields.push(Field::new("metadata", self.meta()));
            for name in ["apiVersion", "kind"] {
                if node.property(name).is_none() {
                    let text = self.schema.push(TypeNode::of(Shape::String));
                    fields.push(Field::new(name, text));
                }
            }
        }
        fields
    }

    /// Type of metadata, copied from the built-in types.
    fn meta(&mut self) -> NodeId {
        if let Some(id) = self.meta {
            return id;
        }
        let builtin = crate::schema::schema();
        let id = match builtin.named(OBJECT_META) {
            Some(meta) => self.copy(builtin, meta.id, &mut HashMap::new()),
            None => self.schema.push(TypeNode::of(Shape::Any)),
        };
        self.meta = Some(id);
        id
    }

    fn copy(&mut self, from: &Schema, id: NodeId, copied: &mut HashMap<NodeId, NodeId>) -> NodeId {
        if let Some(id) = copied.get(&id) {
            return *id;
        }
        let node = from.at(id).node().clone();
        let made = self.schema.push(TypeNode::of(node.shape));
        copied.insert(id, made);
        let mut node = node;
        for field in &mut node.fields {
            field.node = self.copy(from, field.node, copied);
        }
        node.element = node.element.map(|of| self.copy(from, of, copied));
        for nested in &mut node.nested {
            nested.node = self.copy(from, nested.node, copied);
        }
        if !node.name.is_empty() {
            self.schema.names.insert(Arc::clone(&node.name), made);
        }
        if let Some(slot) = self.schema.nodes.get_mut(made.0 as usize) {
            *slot = node;
        }
        made
    }
}

fn shape(node: &Node, is_resource: bool) -> Shape {
    match node.kind {
        _ if node.int_or_string => Shape::Any,
        NodeType::Object | NodeType::Any if is_resource || node.embedded || !node.properties.is_empty() => {
            Shape::Object
        }
        NodeType::Object if node.additional_properties == Additional::Forbidden => Shape::Object,
        NodeType::Object => Shape::Map,
        NodeType::Array => Shape::List,
        NodeType::String => Shape::String,
        NodeType::Integer => Shape::Int64,
        NodeType::Number => Shape::Number,
        NodeType::Boolean => Shape::Boolean,
        NodeType::Any => Shape::Any,
    }
}

#[cfg(test)]
mod tests {
    use super::super::compile;
    use super::super::schema::Schema as Written;
    use super::*;
    use machinery::Value;
    use machinery::schema::ListType;
    use serde_json::json;

    fn types(schema: &Value) -> Schema {
        let root = compile::schema(Written(schema), true);
        build(&root, (Arc::from("g"), Arc::from("v1"), Arc::from("K")))
    }

    #[test]
    fn list_and_map_types_are_in_apply_schema() {
        let item = json!({"type": "object", "properties": {
            "name": {"type": "string"}, "protocol": {"type": "string", "default": "TCP"}}});
        let schema = types(
            &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "ports": {"type": "array", "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name", "protocol"], "items": item},
                "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "list": {"type": "array", "items": {"type": "string"}},
                "atomic": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}}},
                "map": {"type": "object", "additionalProperties": {"type": "integer"}},
                "free": {"type": "object"},
                "any": {"x-kubernetes-preserve-unknown-fields": true},
                "port": {"x-kubernetes-int-or-string": true},
            }}}}),
        );
        let root = schema.kind("g", "v1", "K").expect("the kind");
        assert_eq!(root.field("metadata").map(|meta| meta.type_name()).as_deref(), Some("v1.ObjectMeta"));
        assert_eq!(root.field("kind").map(|kind| kind.shape()), Some(Shape::String));
        let spec = root.field("spec").expect("spec");
        let of = |name: &str| spec.field(name).expect(name);
        let ports = of("ports");
        assert_eq!((ports.list_type(), ports.map_keys().len()), (ListType::Map, 2));
        let protocol = ports.element().and_then(|port| port.field_decl("protocol"));
        assert_eq!(protocol.and_then(|field| field.default.clone()), Some(json!("TCP")));
        assert_eq!(of("set").list_type(), ListType::Set);
        assert!(of("list").is_atomic() && of("atomic").is_atomic() && of("port").is_atomic());
        assert!(!of("map").is_atomic() && !of("free").is_atomic());
        assert_eq!(of("map").element().map(|of| of.shape()), Some(Shape::Int64));
        assert!(of("any").node().preserve_unknown && !of("port").node().preserve_unknown);
    }

    #[test]
    fn equal_nodes_share_one_type() {
        let part =
            json!({"type": "object", "properties": {"x": {"type": "string"}, "y": {"type": "string"}}});
        let few = types(&json!({"type": "object", "properties": {"a": part}}));
        let many = types(&json!({"type": "object", "properties": {"a": part, "b": part, "c": part}}));
        assert_eq!(few.nodes.len(), many.nodes.len());
    }
}
