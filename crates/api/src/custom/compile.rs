//! Compilation of source schemas to nodes.

use super::intern;
use super::node::{Additional as AdditionalKind, Checks, Node, NodeType, Property};
use super::programs;
use super::schema::{Additional, Schema};
use super::values::is_format;
use expressions::openapi::declare;
use machinery::schema::ListType;
use std::sync::Arc;

/// Compiles a schema. `is_resource`: values are whole resources.
pub fn schema(schema: Schema<'_>, is_resource: bool) -> Arc<Node> {
    Compiler { rules: true }.node(schema, is_resource)
}

/// Compiles a schema without its validation rules.
pub fn schema_without_rules(schema: Schema<'_>) -> Arc<Node> {
    Compiler { rules: false }.node(schema, false)
}

#[derive(Clone, Copy)]
struct Compiler {
    rules: bool,
}

impl Compiler {
    fn node(self, schema: Schema<'_>, is_resource: bool) -> Arc<Node> {
        let is_resource = is_resource || schema.is_embedded();
        let rules = self.rules.then(|| programs::compile(schema, is_resource)).flatten();
        let mut properties: Vec<Property> = schema
            .properties()
            .map(|(name, of)| Property { name: intern::name(name), node: self.property(of) })
            .collect();
        properties.sort_by(|one, other| one.name.cmp(&other.name));
        let list_type = match schema.list_type() {
            Some("set") => ListType::Set,
            Some("map") => ListType::Map,
            _ => ListType::Atomic,
        };
        let additional_properties = match schema.additional() {
            None => AdditionalKind::Unset,
            Some(Additional::Allowed(true)) => AdditionalKind::Allowed,
            Some(Additional::Allowed(false)) => AdditionalKind::Forbidden,
            Some(Additional::Of(_)) => AdditionalKind::Schema,
        };
        let node = Node {
            kind: NodeType::of(schema.kind()),
            nullable: schema.flag("nullable"),
            int_or_string: schema.is_int_or_string(),
            embedded: schema.is_embedded(),
            preserve_unknown: schema.preserves_unknown(),
            atomic_map: schema.map_type() == Some("atomic"),
            has_list_type: schema.list_type().is_some(),
            list_type,
            additional_properties,
            properties: properties.into(),
            items: schema.items().map(|of| self.node(of, false)),
            additional: schema.additional_schema().map(|of| self.node(of, false)),
            default: schema.default().map(|value| Arc::new(value.clone())),
            checks: self.checks(schema).map(Arc::new),
            rules: rules.map(Arc::new),
            ..Node::default()
        };
        intern::node(node.finished())
    }

    /// Fields without a CEL type have no rules, nor has anything below them.
    fn property(self, schema: Schema<'_>) -> Arc<Node> {
        let node = self.node(schema, false);
        if node.below.rules && declare(schema.0, schema.is_embedded(), "").is_none() {
            return Self { rules: false }.node(schema, false);
        }
        node
    }

    fn checks(self, schema: Schema<'_>) -> Option<Checks> {
        // Rules below a junctor are not supported.
        let below = Self { rules: false };
        let list = |field: &str| schema.list(field).map(|of| below.node(of, false)).collect();
        let number = |field: &str| schema.field(field).as_f64();
        let format = schema.text("format");
        let pattern = schema.text("pattern");
        let checks = Checks {
            format: (!format.is_empty()).then(|| intern::name(format)),
            format_is_known: !format.is_empty() && is_format(schema.kind(), format),
            pattern: (!pattern.is_empty()).then(|| intern::pattern(pattern)),
            enumeration: schema
                .field("enum")
                .as_array()
                .map_or_else(Box::default, |values| values.clone().into_boxed_slice()),
            required: schema.required().map(intern::name).collect(),
            map_keys: schema.map_keys().map(intern::name).collect(),
            minimum: number("minimum"),
            maximum: number("maximum"),
            multiple_of: number("multipleOf"),
            exclusive_minimum: schema.flag("exclusiveMinimum"),
            exclusive_maximum: schema.flag("exclusiveMaximum"),
            unique_items: schema.flag("uniqueItems"),
            min_length: schema.limit("minLength"),
            max_length: schema.limit("maxLength"),
            min_items: schema.limit("minItems"),
            max_items: schema.limit("maxItems"),
            min_properties: schema.limit("minProperties"),
            max_properties: schema.limit("maxProperties"),
            all_of: list("allOf"),
            any_of: list("anyOf"),
            one_of: list("oneOf"),
            not: schema.child("not").map(|of| below.node(of, false)),
        };
        (checks != Checks::default()).then_some(checks)
    }
}
