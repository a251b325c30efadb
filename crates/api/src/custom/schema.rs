//! Source schema of a definition.

use crate::value::Fields;
use machinery::Value;

/// One node of a schema: the content of `openAPIV3Schema`, or a part of it.
#[derive(Clone, Copy, Debug)]
pub struct Schema<'a>(pub &'a Value);

/// Value of `additionalProperties`.
#[derive(Clone, Copy, Debug)]
pub enum Additional<'a> {
    Allowed(bool),
    Of(Schema<'a>),
}

impl<'a> Schema<'a> {
    pub fn kind(self) -> &'a str {
        self.0.text("type")
    }

    pub fn text(self, field: &str) -> &'a str {
        self.0.text(field)
    }

    pub fn flag(self, field: &str) -> bool {
        self.0.flag(field)
    }

    pub fn has(self, field: &str) -> bool {
        self.0.has(field)
    }

    pub fn field(self, field: &str) -> &'a Value {
        self.0.field(field)
    }

    /// A limit: `maxItems`, `minLength`, …
    pub fn limit(self, field: &str) -> Option<i64> {
        self.0.opt_int(field)
    }

    /// A schema in a field.
    pub fn child(self, field: &str) -> Option<Schema<'a>> {
        Some(self.0.field(field)).filter(|of| of.is_object()).map(Schema)
    }

    /// Schemas of a junctor (`allOf`, `anyOf`, `oneOf`), or of `items` if that is a list.
    pub fn list(self, field: &str) -> impl Iterator<Item = Schema<'a>> {
        self.0.items(field).iter().map(Schema)
    }

    /// Schemas of a map, by name: `properties`, `definitions`, …
    pub fn map(self, field: &str) -> impl Iterator<Item = (&'a str, Schema<'a>)> {
        self.0.entries(field).into_iter().flatten().map(|(name, of)| (name.as_str(), Schema(of)))
    }

    pub fn properties(self) -> impl Iterator<Item = (&'a str, Schema<'a>)> {
        self.map("properties")
    }

    pub fn property(self, name: &str) -> Option<Schema<'a>> {
        self.0.entries("properties")?.get(name).map(Schema)
    }

    pub fn has_properties(self) -> bool {
        self.0.entries("properties").is_some_and(|properties| !properties.is_empty())
    }

    /// Schema of every item of a list.
    pub fn items(self) -> Option<Schema<'a>> {
        self.child("items")
    }

    pub fn additional(self) -> Option<Additional<'a>> {
        match self.0.field("additionalProperties") {
            Value::Bool(allowed) => Some(Additional::Allowed(*allowed)),
            of @ Value::Object(_) => Some(Additional::Of(Schema(of))),
            _ => None,
        }
    }

    /// Schema of additional properties.
    pub fn additional_schema(self) -> Option<Schema<'a>> {
        self.child("additionalProperties")
    }

    pub fn default(self) -> Option<&'a Value> {
        Some(self.0.field("default")).filter(|value| !value.is_null())
    }

    pub fn required(self) -> impl Iterator<Item = &'a str> {
        crate::value::texts(self.0.items("required"))
    }

    pub fn is_embedded(self) -> bool {
        self.flag("x-kubernetes-embedded-resource")
    }

    pub fn preserves_unknown(self) -> bool {
        self.flag("x-kubernetes-preserve-unknown-fields")
    }

    pub fn is_int_or_string(self) -> bool {
        self.flag("x-kubernetes-int-or-string")
    }

    pub fn list_type(self) -> Option<&'a str> {
        self.0.opt_text("x-kubernetes-list-type")
    }

    pub fn map_type(self) -> Option<&'a str> {
        self.0.opt_text("x-kubernetes-map-type")
    }

    pub fn map_keys(self) -> impl Iterator<Item = &'a str> {
        crate::value::texts(self.0.items("x-kubernetes-list-map-keys"))
    }

    pub fn rules(self) -> &'a [Value] {
        self.0.items("x-kubernetes-validations")
    }

    /// True if the predicate holds for the schema or any nested schema.
    pub fn any(self, holds: &dyn Fn(Schema<'_>) -> bool) -> bool {
        if holds(self) {
            return true;
        }
        let singles = ["items", "not", "additionalProperties", "additionalItems"];
        let lists = ["items", "allOf", "anyOf", "oneOf"];
        let maps = ["properties", "patternProperties", "definitions", "dependencies"];
        singles.iter().filter_map(|field| self.child(field)).any(|of| of.any(holds))
            || lists.iter().any(|field| self.list(field).any(|of| of.any(holds)))
            || maps.iter().any(|field| self.map(field).any(|(_, of)| of.0.is_object() && of.any(holds)))
    }
}

/// Identifying fields of a resource, which schemas need not describe.
pub const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];
