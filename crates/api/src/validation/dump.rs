//! Structs in messages: Kubernetes prints its internal Go types, with Go's field names in Go's order, including
//! absent fields.

use crate::value::Fields;
use machinery::Value;
use machinery::field::{json, show_named};

/// Form of a field, present or absent.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// The unmodified value; `null` if absent (pointers, lists and maps of plain values).
    Optional,
    Text,
    Int,
    Flag,
    /// A struct, present even if empty.
    Struct(&'static [Field]),
    /// A struct, `null` if absent.
    Pointer(&'static [Field]),
    /// A list of structs, `null` if absent.
    List(&'static [Field]),
}

/// A field by its name in JSON and its name in Go.
pub type Field = (&'static str, &'static str, Shape);

/// A struct of these fields.
pub fn dump(value: &Value, fields: &[Field]) -> String {
    let mut out = String::new();
    write_struct(&mut out, value, fields);
    out
}

fn write_struct(out: &mut String, value: &Value, fields: &[Field]) {
    out.push('{');
    for (index, (json, go, shape)) in fields.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&format!("\"{go}\":"));
        write_value(out, value.field(json), *shape);
    }
    out.push('}');
}

fn write_value(out: &mut String, value: &Value, shape: Shape) {
    match shape {
        Shape::Text => out.push_str(&show_named(value.as_str().unwrap_or(""))),
        Shape::Int => out.push_str(&value.as_i64().unwrap_or(0).to_string()),
        Shape::Flag => out.push_str(if value.as_bool() == Some(true) { "true" } else { "false" }),
        Shape::Struct(fields) => write_struct(out, value, fields),
        Shape::Optional => out.push_str(&json(value)),
        Shape::Pointer(_) | Shape::List(_) if value.is_null() => out.push_str("null"),
        Shape::Pointer(fields) => write_struct(out, value, fields),
        Shape::List(fields) => {
            out.push('[');
            for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_struct(out, item, fields);
            }
            out.push(']');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn absent_fields_are_shown() {
        const INNER: &[Field] = &[("name", "Name", Shape::Text)];
        const OUTER: &[Field] = &[
            ("size", "Size", Shape::Int),
            ("apiGroups", "APIGroups", Shape::Optional),
            ("inner", "Inner", Shape::Struct(INNER)),
            ("pointer", "Pointer", Shape::Pointer(INNER)),
            ("list", "List", Shape::List(INNER)),
        ];
        assert_eq!(
            dump(&json!({"list": [{"name": "a"}, {}]}), OUTER),
            r#"{"Size":0,"APIGroups":null,"Inner":{"Name":""},"Pointer":null,"List":[{"Name":"a"},{"Name":""}]}"#
        );
    }
}
