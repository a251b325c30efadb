//! Unchanged values do not fail updates.

use super::{texts, version};
use machinery::Value;
use serde_json::json;

/// Errors and warnings of an update.
fn update(schema: &Value, old: &Value, new: &Value) -> (Vec<String>, Vec<String>) {
    let found = version(schema).validate_with_warnings(new, Some(old));
    (texts(&found.errors), found.warnings)
}

#[test]
fn schema_errors_of_unchanged_values_are_dropped() {
    let small = json!({"type": "number", "maximum": 50});
    let object = json!({"type": "object", "properties": {
        "small": small, "medium": {"type": "number", "minimum": 50, "maximum": 10000}}});
    let item = json!({"type": "object", "properties": {"key": {"type": "string"}, "n": small}});
    let list = |list_type: &str| {
        json!({"type": "array", "x-kubernetes-list-type": list_type, "x-kubernetes-list-map-keys": ["key"],
            "items": item})
    };
    let schema = json!({"type": "object", "properties": {
        "nested": object, "map": {"type": "object", "additionalProperties": object},
        "keyed": list("map"), "atomic": list("atomic"), "kind": {"type": "string", "maxLength": 1},
        "int": {"type": "integer", "format": "int32"},
        "one": {"type": "object", "properties": {"a": {"type": "string"}}, "allOf": [{"required": ["b"]}]},
    }});
    let same = |value: Value| (value.clone(), value);
    for ((old, new), is_valid) in [
        (same(json!({"nested": {"small": 500}})), true),
        ((json!({"nested": {"small": 501, "medium": 500}}), json!({"nested": {"small": 501}})), true),
        ((json!({"nested": {"small": 501}}), json!({"nested": {"small": 500}})), false),
        ((json!({"map": {"k": {"small": 500}}}), json!({"map": {"k": {"small": 500}, "l": {}}})), true),
        ((json!({"map": {"k": {"small": 500}}}), json!({"map": {"l": {"small": 500}}})), false),
        // Items of lists of type map have old values by key.
        (
            (
                json!({"keyed": [{"key": "a", "n": 99}, {"key": "b", "n": 1}]}),
                json!({"keyed": [{"key": "c", "n": 1}, {"key": "a", "n": 99}]}),
            ),
            true,
        ),
        ((json!({"keyed": [{"key": "a", "n": 99}]}), json!({"keyed": [{"key": "b", "n": 99}]})), false),
        (same(json!({"atomic": [{"key": "a", "n": 99}]})), true),
        (
            (
                json!({"atomic": [{"key": "a", "n": 99}]}),
                json!({"atomic": [{"key": "a", "n": 99}, {"key": "b", "n": 1}]}),
            ),
            false,
        ),
        ((json!({"int": 2147483648_i64}), json!({"int": 2147483648_i64, "nested": {}})), true),
        ((json!({"int": 2147483648_i64}), json!({"int": 2147483649_i64})), false),
        // The kind is not ratcheted on its own.
        ((json!({"kind": "Long"}), json!({"kind": "Long", "int": 1})), false),
        (same(json!({"one": {"a": "x"}})), true),
        ((json!({"one": {"a": "x"}}), json!({"one": {"a": "y"}})), false),
        // Fields that the schema does not describe count as changed.
        (same(json!({"one": {"a": "x", "unknown": 1}})), false),
    ] {
        let (errors, warnings) = update(&schema, &old, &new);
        assert_eq!(errors.is_empty(), is_valid, "{old} to {new}: {errors:?}");
        assert!(warnings.is_empty());
    }
}

#[test]
fn rules_that_unchanged_values_fail_are_warnings() {
    let baz = |message: &str| json!({"type": "string", "x-kubernetes-validations": [{"rule": "self == 'baz'", "message": message}]});
    let item =
        json!({"type": "object", "properties": {"key": {"type": "string"}, "value": baz("gotta be baz")}});
    let list = |list_type: &str| {
        json!({"type": "array", "x-kubernetes-list-type": list_type, "x-kubernetes-list-map-keys": ["key"],
            "items": item})
    };
    let schema = json!({"type": "object", "properties": {
        "other": {"type": "string"}, "foo": baz("gotta be bar"), "keyed": list("map"), "atomic": list("atomic"),
        "map": {"type": "object", "properties": {"foo": baz("gotta be baz"), "bar": baz("gotta be baz")}},
    }});
    let keyed = |pairs: &[(&str, &str)]| -> Value {
        pairs.iter().map(|(key, value)| json!({"key": key, "value": value})).collect()
    };
    for (old, new, errors, warnings) in [
        (json!({"foo": "x"}), json!({"foo": "x"}), vec![], vec![r#"foo: Invalid value: "x": gotta be bar"#]),
        (json!({"foo": "y"}), json!({"foo": "x"}), vec![r#"foo: Invalid value: "x": gotta be bar"#], vec![]),
        (
            json!({"other": "a", "atomic": keyed(&[("a", "x")])}),
            json!({"other": "b", "atomic": keyed(&[("a", "x")])}),
            vec![],
            vec![r#"atomic[0].value: Invalid value: "x": gotta be baz"#],
        ),
        (
            json!({"atomic": keyed(&[("a", "x")])}),
            json!({"atomic": keyed(&[("a", "x"), ("b", "baz")])}),
            vec![r#"atomic[0].value: Invalid value: "x": gotta be baz"#],
            vec![],
        ),
        (
            json!({"keyed": keyed(&[("foo", "notbaz"), ("bar", "notbaz")])}),
            json!({"keyed": keyed(&[("foo", "notbaz"), ("bar", "other"), ("baz", "baz")])}),
            vec![r#"keyed[1].value: Invalid value: "other": gotta be baz"#],
            vec![r#"keyed[0].value: Invalid value: "notbaz": gotta be baz"#],
        ),
        (
            json!({"map": {"foo": "baz", "bar": "notbaz"}}),
            json!({"map": {"foo": "notbaz", "bar": "notbaz"}}),
            vec![r#"map.foo: Invalid value: "notbaz": gotta be baz"#],
            vec![r#"map.bar: Invalid value: "notbaz": gotta be baz"#],
        ),
    ] {
        let found = update(&schema, &old, &new);
        let owned = |texts: Vec<&str>| texts.into_iter().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(found, (owned(errors), owned(warnings)), "{old} to {new}");
    }
}

#[test]
fn duplicates_of_old_lists_are_tolerated() {
    let schema = json!({"type": "object", "properties": {
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}});
    let (good, bad) = (json!({"set": ["a", "b"]}), json!({"set": ["a", "a"]}));
    assert_eq!(update(&schema, &good, &bad).0, [r#"set[1]: Duplicate value: "a""#]);
    assert!(update(&schema, &bad, &json!({"set": ["a", "a", "a", "c", "c"]})).0.is_empty());
}
