//! Whole versions: validation, ratcheting, rules, columns, hostile values.

mod ratcheting;
mod rules;

use super::*;
use crate::kind::CellContext;
use serde_json::json;

pub(super) fn version(schema: &Value) -> CompiledVersion {
    compile(&definition(schema, &json!({})), "v1").expect("a version")
}

fn definition(schema: &Value, more: &Value) -> Value {
    let mut version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    for (name, value) in more.as_object().expect("fields") {
        version[name] = value.clone();
    }
    json!({"spec": {"group": "example.com", "names": {"kind": "Widget", "plural": "widgets"}, "versions": [version]}})
}

fn texts(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Errors of an object with one field of a schema.
fn errors_of(field: &Value, value: &Value) -> Vec<String> {
    let schema = json!({"type": "object", "properties": {"field": field}});
    texts(&version(&schema).validate(&json!({"field": value}), None))
}

#[test]
fn unknown_versions_and_unsupported_schemas_do_not_compile() {
    let definition = definition(&json!({"type": "object", "properties": {"a": {"$ref": "#/x"}}}), &json!({}));
    assert_eq!(compile(&definition, "v2").err(), Some(CompileError::NoVersion("v2".to_owned())));
    let reason = "OpenAPIV3Schema '$ref' is not supported".to_owned();
    assert_eq!(
        compile(&definition, "v1").err(),
        Some(CompileError::Schema { version: "v1".to_owned(), reason })
    );
}

#[test]
fn version_without_schema_keeps_every_field() {
    let bare =
        json!({"spec": {"group": "example.com", "names": {"kind": "Widget"}, "versions": [{"name": "v1"}]}});
    let version = compile(&bare, "v1").expect("a version");
    let mut object = json!({"kind": "Widget", "spec": {"x": [1]}});
    assert!(version.prune(&mut object).is_empty() && version.validate(&object, None).is_empty());
    assert_eq!(object["spec"]["x"], json!([1]));
    assert!(version.type_of().is_some_and(|of| of.preserves_unknown()));
}

#[test]
fn values_of_other_types_are_invalid() {
    let wrong = |shown: &str, wanted: &str| {
        vec![format!(
            "field: Invalid value: \"{shown}\": field in body must be of type {wanted}: \"{shown}\""
        )]
    };
    let object = json!({"type": "object"});
    for (value, shown) in [
        (json!("foo"), "string"),
        (json!(42), "integer"),
        (json!(true), "boolean"),
        (json!(1.2), "number"),
        (json!([]), "array"),
        (json!(null), "null"),
    ] {
        assert_eq!(errors_of(&object, &value), wrong(shown, "object"), "{value}");
    }
    let either = json!({"x-kubernetes-int-or-string": true});
    for (value, shown) in
        [(json!(null), "null"), (json!(true), "boolean"), (json!(1.2), "number"), (json!([]), "array")]
    {
        assert_eq!(errors_of(&either, &value), wrong(shown, "integer,string"), "{value}");
    }
    for (schema, values) in [
        (object, vec![json!({})]),
        (json!({"type": "object", "nullable": true}), vec![json!(null), json!({})]),
        (json!({"nullable": true}), vec![json!(null), json!("foo"), json!(1.2), json!([])]),
        (either, vec![json!(42), json!("foo")]),
        (json!({"type": "integer"}), vec![json!(1), json!(1.0)]),
        (json!({"type": "number"}), vec![json!(1), json!(1.5)]),
    ] {
        for value in values {
            assert_eq!(errors_of(&schema, &value), Vec::<String>::new(), "{value} by {schema}");
        }
    }
}

#[test]
fn alternatives_report_the_best_failure() {
    let any_of = json!([{"type": "integer"}, {"type": "string"}]);
    let schema = json!({"nullable": true, "x-kubernetes-int-or-string": true, "anyOf": any_of});
    assert_eq!(
        errors_of(&schema, &json!(true)),
        [
            r#"field: Invalid value: "boolean": field in body must be of type integer,string: "boolean""#,
            r#"<nil>: Invalid value: "": "field" must validate at least one schema (anyOf)"#,
            r#"field: Invalid value: "boolean": field in body must be of type integer: "boolean""#,
        ]
    );
    assert_eq!(
        errors_of(&schema, &json!(1.2)),
        [
            r#"field: Invalid value: "number": field in body must be of type integer,string: "number""#,
            r#"<nil>: Invalid value: "": "field" must validate at least one schema (anyOf)"#,
            r#"field: Invalid value: "number": field in body must be of type integer: "number""#,
            r#"<nil>: Invalid value: "": Checked value must be of type integer (default format) in field"#,
        ]
    );
    let schema = json!({"nullable": true, "x-kubernetes-int-or-string": true, "allOf": [{"anyOf": any_of}]});
    assert_eq!(
        errors_of(&schema, &json!([])),
        [
            r#"field: Invalid value: "array": field in body must be of type integer,string: "array""#,
            r#"<nil>: Invalid value: "": "field" must validate at least one schema (anyOf)"#,
            r#"field: Invalid value: "array": field in body must be of type integer: "array""#,
            r#"<nil>: Invalid value: "": "field" must validate all the schemas (allOf). None validated"#,
        ]
    );
    let schema =
        json!({"type": "string", "oneOf": [{"pattern": "^a"}, {"maxLength": 3}], "not": {"enum": ["bad"]}});
    assert_eq!(
        errors_of(&schema, &json!("abc")),
        [
            r#"<nil>: Invalid value: "": "field" must validate one and only one schema (oneOf). Found 2 valid alternatives"#
        ]
    );
    assert_eq!(
        errors_of(&schema, &json!("bad")),
        [r#"<nil>: Invalid value: "": "field" must not validate the schema (not)"#]
    );
}

/// Asserts the only error of each value.
#[track_caller]
fn assert_violations<const N: usize>(cases: [(Value, Value, &str); N]) {
    for (schema, value, want) in cases {
        assert_eq!(errors_of(&schema, &value), [want], "{value} by {schema}");
    }
}

#[test]
fn text_limit_violations_return_kubernetes_messages() {
    assert_violations([
        (
            json!({"type": "string", "pattern": "+"}),
            json!("foo"),
            "field: Invalid value: \"foo\": field in body should match '+, but pattern is invalid: error parsing regexp: missing argument to repetition operator: `+`'",
        ),
        (
            json!({"type": "string", "pattern": "^[a-z]+$"}),
            json!("A"),
            "field: Invalid value: \"A\": field in body should match '^[a-z]+$'",
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("c"),
            r#"field: Unsupported value: "c": supported values: "a", "b""#,
        ),
        (
            json!({"type": "string", "maxLength": 2}),
            json!("ä漢x"),
            "field: Too long: may not be more than 2 bytes",
        ),
        (
            json!({"type": "string", "minLength": 4}),
            json!("ä漢x"),
            "field: Invalid value: \"ä漢x\": field in body should be at least 4 chars long",
        ),
        (
            json!({"type": "string", "format": "ipv4"}),
            json!("x"),
            r#"field: Invalid value: "x": field in body must be of type ipv4: "x""#,
        ),
    ]);
    // An unrecognized format is ignored.
    assert_eq!(errors_of(&json!({"type": "string", "format": "strange"}), &json!("x")), Vec::<String>::new());
}

#[test]
fn number_limit_violations_return_kubernetes_messages() {
    assert_violations([
        (
            json!({"type": "integer", "enum": [1, 2]}),
            json!(3),
            r#"field: Unsupported value: 3: supported values: "1", "2""#,
        ),
        (
            json!({"type": "integer", "multipleOf": 3}),
            json!(4),
            "field: Invalid value: 4: field in body should be a multiple of 3",
        ),
        (
            json!({"type": "integer", "maximum": 3, "exclusiveMaximum": true}),
            json!(3),
            "field: Invalid value: 3: field in body should be less than 3",
        ),
        (
            json!({"type": "integer", "minimum": 9007199254740993_i64}),
            json!(9007199254740991_i64),
            "field: Invalid value: 9007199254740991: field in body should be greater than or equal to 9007199254740992",
        ),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(2147483648_i64),
            "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in field",
        ),
    ]);
}

#[test]
fn collection_limit_violations_return_kubernetes_messages() {
    let map = json!({"type": "object", "maxProperties": 2, "additionalProperties": {"type": "boolean"}});
    assert_violations([
        (json!({"type": "object", "required": ["nested"]}), json!({}), "field.nested: Required value"),
        (map, json!({"a": true, "b": true, "c": true}), "field: Too many: 3: must have at most 2 items"),
        (
            json!({"type": "object", "minProperties": 1}),
            json!({}),
            "field: Invalid value: 0: field in body should have at least 1 properties",
        ),
        (
            json!({"type": "array", "maxItems": 1, "items": {"type": "string"}}),
            json!(["a", "b"]),
            "field: Too many: 2: must have at most 1 item",
        ),
        (
            json!({"type": "array", "minItems": 2, "items": {"type": "string"}}),
            json!(["a"]),
            "field: Invalid value: 1: field in body should have at least 2 items",
        ),
        (
            json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}}),
            json!(["a", "a"]),
            r#"field: Invalid value: "": field in body shouldn't contain duplicates"#,
        ),
        (
            json!({"type": "object", "additionalProperties": false}),
            json!({"x": 1}),
            r#"field: Invalid value: "x": field.x in body is a forbidden property"#,
        ),
    ]);
}

#[test]
fn decoding_drops_and_reports_unknown_fields() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "a": {"type": "string"},
        "pod": {"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true},
    }}}});
    let submitted = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "odd": 1},
        "spec": {"a": null, "b": 1, "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "odd": 1}}}});
    let mut object = submitted.clone();
    let unknown = version(&schema).decode(&mut object, Malformed::Refuse);
    let want = ["metadata.odd", "spec.b", "spec.pod.metadata.odd"].map(str::to_owned).to_vec();
    assert_eq!(unknown, Ok(want));
    assert_eq!(
        object,
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"},
            "spec": {"pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}}})
    );
    let mut retained = definition(&schema, &json!({}));
    retained["spec"]["preserveUnknownFields"] = json!(true);
    let mut object = submitted;
    let unknown = compile(&retained, "v1").expect("a version").prune(&mut object);
    assert!(unknown.is_empty() && object["spec"]["b"] == 1);
}

#[test]
fn column_cells_have_declared_types() {
    let column = |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let more = json!({"additionalPrinterColumns": [
        column("Text", "string", ".spec.text"), column("Object", "string", ".spec.object"),
        column("Int", "integer", ".spec.int"), column("Float", "integer", ".spec.float"),
        column("Number", "number", ".spec.int"), column("Flag", "boolean", ".spec.flag"),
        column("Age", "date", ".metadata.creationTimestamp"), column("Bad", "date", ".spec.text"),
        column("Wrong", "integer", ".spec.text"), column("None", "string", ".spec.none"),
        column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
    ]});
    let version = compile(&definition(&schema, &more), "v1").expect("a version");
    let object = json!({"metadata": {"creationTimestamp": "1970-01-01T00:00:00Z"},
        "spec": {"text": "x", "object": {"a": 1}, "int": 3, "float": 2.7, "flag": true},
        "status": {"conditions": [{"type": "Other", "status": "no"}, {"type": "Ready", "status": "True"}]}});
    let cells: Vec<Value> =
        version.columns.iter().map(|column| column.cell(&object, CellContext { now: 60 })).collect();
    let want = json!(["x", "{\"a\":1}", 3, 2, 3.0, true, "60s", "<invalid>", null, null, "True"]);
    assert_eq!(Value::from(cells), want);
    let version = compile(&definition(&schema, &json!({})), "v1").expect("a version");
    let names: Vec<&str> = version.columns.iter().map(|column| &*column.name).collect();
    assert_eq!(names, ["Age"]);
}

#[test]
fn status_updates_validate_the_status_only() {
    let limited = json!({"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}});
    let schema = json!({"type": "object", "properties": {"spec": limited, "status": limited}});
    let version =
        compile(&definition(&schema, &json!({"subresources": {"status": {}}})), "v1").expect("a version");
    assert!(version.has_status && version.scale.is_none());
    let object = |spec: i64, status: i64| json!({"spec": {"n": spec}, "status": {"n": status}});
    let errors = version.validate_status(&object(9, 9), &object(9, 2));
    assert_eq!(texts(&errors), ["status.n: Invalid value: 9: n in body should be less than or equal to 3"]);
    assert!(version.validate_status(&object(9, 9), &object(9, 9)).is_empty());
    assert_eq!(version.validate(&object(9, 9), None).len(), 2);
}

#[test]
fn equal_nodes_of_all_versions_are_shared() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 7},
        "b": {"type": "array", "items": {"type": "string", "maxLength": 7}}}});
    let (one, other) = (version(&schema), version(&schema));
    assert!(Arc::ptr_eq(one.root(), other.root()));
    let a = one.root().property("a").expect("a");
    let items = one.root().property("b").and_then(|b| b.items.as_ref()).expect("items");
    assert!(Arc::ptr_eq(a, items));
}
