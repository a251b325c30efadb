//! Values and their schemas, with the messages of Kubernetes.

use super::*;
use crate::custom::compile;
use crate::custom::schema::Schema;
use serde_json::json;

fn errors_of(value: &Value, schema: &Value) -> String {
    let node = compile::schema(Schema(schema), false);
    let errors = check_default(value, &node, &Path::new("d"));
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[test]
fn default_values_are_validated_by_their_schema() {
    for (schema, value, want) in [
        (json!({"type": "string"}), json!("a"), ""),
        (
            json!({"type": "string"}),
            json!(1),
            r#"d: Invalid value: "integer":  in body must be of type string: "integer""#,
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}),
            json!({"a": ["x", 1]}),
            r#"d.a[1]: Invalid value: "integer": a[1] in body must be of type string: "integer""#,
        ),
        (json!({"type": "object", "required": ["must"]}), json!({}), "d.must: Required value"),
        (
            json!({"type": "object", "maxProperties": 2, "additionalProperties": {"type": "integer"}}),
            json!({"a": 1, "b": 2, "c": "x"}),
            r#"d: Too many: 3: must have at most 2 items; d.c: Invalid value: "string": .c in body must be of type integer: "string""#,
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("c"),
            r#"d: Unsupported value: "c": supported values: "a", "b""#,
        ),
        (
            json!({"type": "integer", "minimum": 0}),
            json!(-1),
            "d: Invalid value: -1:  in body should be greater than or equal to 0",
        ),
        (json!({"type": "integer"}), json!(1.0), ""),
        (
            json!({"type": "number", "maximum": 1.5}),
            json!(2),
            "d: Invalid value: 2:  in body should be less than or equal to 1",
        ),
        (
            json!({"type": "string", "maxLength": 2}),
            json!("abc"),
            "d: Too long: may not be more than 2 bytes",
        ),
        (
            json!({"type": "string", "pattern": "^a"}),
            json!("b"),
            r#"d: Invalid value: "b":  in body should match '^a'"#,
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("x"),
            r#"d: Invalid value: "x":  in body must be of type date-time: "x""#,
        ),
        (json!({"x-kubernetes-int-or-string": true}), json!(true), ""),
        (
            json!({"type": "integer", "minimum": 1.5}),
            json!(1),
            "d: Invalid value: \"\": Minimum boundary value must be of type integer (default format) in ; d: Invalid value: 1:  in body should be greater than or equal to 1.5",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({}),
            r#"d: Invalid value: "": "" must validate one and only one schema (oneOf). Found none valid; d.a: Required value"#,
        ),
        (json!({"type": "string", "nullable": true}), json!(null), ""),
        (
            json!({"type": "string"}),
            json!(null),
            r#"d: Invalid value: "null":  in body must be of type string: "null""#,
        ),
    ] {
        assert_eq!(errors_of(&value, &schema), want, "{value} by {schema}");
    }
}
