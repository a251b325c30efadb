//! What storing does to an object: Kubernetes keeps its own kinds in protobuf, which knows no empty lists and maps,
//! so fields that are always written come back as `null`.

use crate::schema::{Presence, SchemaRef, Shape};
use serde_json::Value;

/// Turns empty lists and maps of a normalised value into `null`.
pub fn forget_empty(value: &mut Value, schema: SchemaRef<'_>) {
    match (schema.shape(), value) {
        (Shape::Object, Value::Object(map)) => {
            let fields = schema.fields();
            // Keys and fields are both sorted: one pass over both finds every declaration.
            let mut next = 0;
            for (key, value) in map.iter_mut() {
                while next < fields.len() && fields[next].name.as_ref() < key.as_str() {
                    next += 1;
                }
                let Some(field) = fields.get(next).filter(|field| field.name.as_ref() == key.as_str()) else {
                    continue;
                };
                let of_field = schema.of_field(field);
                let empty = match &*value {
                    Value::Array(items) => items.is_empty(),
                    Value::Object(map) => map.is_empty(),
                    _ => continue,
                };
                let plain = matches!(of_field.shape(), Shape::List | Shape::Map);
                if empty && plain && field.presence == Presence::Always {
                    *value = Value::Null;
                } else if !empty {
                    forget_empty(value, of_field);
                }
            }
        }
        (Shape::Map, Value::Object(map)) => {
            if let Some(element) = schema.element() {
                map.values_mut().for_each(|value| forget_empty(value, element));
            }
        }
        (Shape::List, Value::Array(items)) => {
            if let Some(element) = schema.element() {
                items.iter_mut().for_each(|value| forget_empty(value, element));
            }
        }
        _ => {}
    }
}
