//! Values in CEL: formats are types, field names are escaped.

use super::node::{Node, NodeType};
use expressions::openapi::escape;
use expressions::{Identity, List, Map as TypedMap, Text, Typing, Value as Typed, formatted};
use machinery::schema::ListType;
use machinery::{Map, Value};
use std::sync::Arc;

/// A value with the types of its schema. Elements of lists and maps are typed when expressions access them.
pub fn typed<'a>(node: &'a Node, value: &'a Value) -> Typed<'a> {
    match value {
        _ if node.int_or_string => Typed::from(value),
        Value::Array(items) if node.items.is_some() => Typed::List(List::Typed(items, node)),
        Value::Object(fields) if !node.properties.is_empty() || node.additional.is_some() => {
            Typed::Map(TypedMap::Typed(fields, node))
        }
        Value::Number(number) if node.kind == NodeType::Number => {
            Typed::Double(number.as_f64().unwrap_or(f64::NAN))
        }
        Value::String(text) if node.checks.is_some() => {
            formatted(node.format(), text).unwrap_or_else(|| Typed::from(value))
        }
        _ => Typed::from(value),
    }
}

impl Node {
    /// Node of a field, if the schema has one.
    fn typed_field<'a>(&'a self, name: &str, value: &'a Value) -> Typed<'a> {
        self.member(name).map_or_else(|| Typed::from(value), |node| typed(node, value))
    }

    /// True if fields have declared names, as opposed to keys of a map.
    fn names_fields(&self) -> bool {
        !self.properties.is_empty()
    }
}

impl Typing for Node {
    fn item<'a>(&'a self, item: &'a Value) -> Typed<'a> {
        self.items.as_ref().map_or_else(|| Typed::from(item), |node| typed(node, item))
    }

    fn field<'a>(&'a self, fields: &'a Map<String, Value>, name: &str) -> Option<Typed<'a>> {
        if self.names_fields() && name.contains("__") {
            let is_escaped = |known: &Arc<str>| escape(known).as_deref() == Some(name);
            let known = self.properties.iter().find(|property| is_escaped(&property.name))?;
            return Some(typed(&known.node, fields.get(known.name.as_ref())?));
        }
        Some(self.typed_field(name, fields.get(name)?))
    }

    fn entry<'a>(&'a self, name: &'a str, value: &'a Value) -> Option<(Text<'a>, Typed<'a>)> {
        let shown =
            if self.names_fields() { Text::Shared(Arc::from(escape(name)?)) } else { Text::Borrowed(name) };
        Some((shown, self.typed_field(name, value)))
    }

    fn identity(&self) -> Identity<'_> {
        match self.list_type {
            ListType::Atomic => Identity::Index,
            ListType::Set => Identity::Value,
            ListType::Map => Identity::Keys(self.map_keys()),
        }
    }
}
