//! Merge behaviour of a value in server-side apply: a leaf, a struct, a map, a set or a list with keys.

use super::path::PathElement;
use crate::schema::{Field, ListType, Presence, SchemaRef, Shape};
use serde_json::{Map, Value};
use std::sync::{Arc, LazyLock};

/// The type of a value: from a schema, or deduced from the value itself (maps merge, lists are atomic).
#[derive(Clone, Copy, Debug)]
pub enum Type<'a> {
    Known(SchemaRef<'a>),
    Deduced,
}

/// Merge behaviour of a value.
#[derive(Clone, Copy)]
pub(super) enum MergeType<'a> {
    /// Replaced as a whole.
    Leaf,
    /// A struct or map: merges member by member.
    Map(Members<'a>),
    /// A list of distinct scalars.
    Set,
    /// A list whose items have keys.
    Keyed(SchemaRef<'a>),
}

/// Source of the types of a struct's or map's members.
#[derive(Clone, Copy)]
pub(super) enum Members<'a> {
    Struct(SchemaRef<'a>),
    Every(Type<'a>),
}

static EMPTY_MAP: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));
static EMPTY_STRING: Value = Value::String(String::new());
static FALSE: Value = Value::Bool(false);
static ZERO: LazyLock<Value> = LazyLock::new(|| Value::from(0));
static ZERO_QUANTITY: LazyLock<Value> = LazyLock::new(|| Value::from("0"));
static ZERO_DURATION: LazyLock<Value> = LazyLock::new(|| Value::from("0s"));
pub(super) static NULL: Value = Value::Null;

impl<'a> Type<'a> {
    /// Merge behaviour of a value of this type. Deduced types depend on the value.
    pub(super) fn kind(self, value: Option<&Value>) -> MergeType<'a> {
        let schema = match self {
            Type::Known(schema) if schema.shape() != Shape::Any => schema,
            // Free-form data of built-in kinds is replaced as a whole; that of custom resources merges.
            Type::Known(schema) if !schema.node().preserve_unknown => return MergeType::Leaf,
            _ => {
                return match value {
                    Some(Value::Object(_)) => MergeType::Map(Members::Every(Type::Deduced)),
                    _ => MergeType::Leaf,
                };
            }
        };
        if schema.is_atomic() {
            return MergeType::Leaf;
        }
        match schema.shape() {
            Shape::Object => MergeType::Map(Members::Struct(schema)),
            Shape::Map => MergeType::Map(Members::Every(schema.element().map_or(Type::Deduced, Type::Known))),
            Shape::List if schema.list_type() == ListType::Set => MergeType::Set,
            Shape::List => MergeType::Keyed(schema),
            _ => MergeType::Leaf,
        }
    }
}

impl<'a> Members<'a> {
    /// The type of a member.
    pub(super) fn of(self, name: &str) -> Type<'a> {
        match self {
            Members::Struct(schema) => schema.field(name).map_or(Type::Deduced, Type::Known),
            Members::Every(element) => element,
        }
    }

    /// A declared field of a struct, as opposed to a key of a map.
    pub(super) fn declares(self, name: &str) -> bool {
        matches!(self, Members::Struct(schema) if schema.field_decl(name).is_some())
    }
}

/// Value of an absent struct field: the zero value for fields that are always written.
pub(super) fn zero(schema: SchemaRef<'_>, field: &Field) -> Option<&'static Value> {
    if field.presence != Presence::Always {
        return None;
    }
    if field.pointer {
        return Some(&NULL);
    }
    Some(match schema.of_field(field).shape() {
        Shape::Object => &EMPTY_MAP,
        Shape::String => &EMPTY_STRING,
        Shape::Int32 | Shape::Int64 | Shape::Number | Shape::IntOrString => &ZERO,
        Shape::Boolean => &FALSE,
        Shape::Quantity => &ZERO_QUANTITY,
        Shape::Duration => &ZERO_DURATION,
        _ => &NULL,
    })
}

/// The path element of a list's item.
pub(super) fn item_element(kind: MergeType<'_>, item: &Value) -> Result<PathElement, String> {
    match kind {
        MergeType::Keyed(list) => keyed_element(list, item),
        _ => match item {
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".to_owned())
            }
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null".to_owned())
            }
            scalar => Ok(PathElement::Value(scalar.clone())),
        },
    }
}

fn keyed_element(list: SchemaRef<'_>, item: &Value) -> Result<PathElement, String> {
    let fields = match item {
        Value::Object(fields) => fields,
        Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let names = list.map_keys();
    let element = list.element();
    let mut keys: Vec<(Arc<str>, Value)> = Vec::with_capacity(names.len());
    for name in names {
        let default = || element.and_then(|e| e.field_decl(name)).and_then(|f| f.default.as_ref());
        if let Some(value) = fields.get(name.as_ref()).or_else(default) {
            keys.push((name.clone(), value.clone()));
        }
    }
    if keys.is_empty() && !names.is_empty() {
        let quoted: Vec<String> = names.iter().map(|n| format!("{n:?}")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
            quoted.join(" ")
        ));
    }
    keys.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(PathElement::Key(keys))
}

pub(super) fn as_list(value: Option<&Value>) -> Option<&Vec<Value>> {
    value.and_then(Value::as_array)
}

pub(super) fn as_map(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}
