//! Validation rules on whole objects.

use super::{texts, version};
use machinery::Value;
use serde_json::json;

fn errors_of(schema: &Value, new: &Value, old: Option<&Value>) -> Vec<String> {
    texts(&version(schema).validate(new, old))
}

fn with_rule(mut field: Value, rule: Value) -> Value {
    field["x-kubernetes-validations"] = Value::Array(vec![rule]);
    json!({"type": "object", "properties": {"field": field}})
}

#[test]
fn transition_rules_need_an_old_value() {
    let schema = with_rule(json!({"type": "string"}), json!({"rule": "self == oldSelf"}));
    let (x, y) = (json!({"field": "x"}), json!({"field": "y"}));
    assert!(errors_of(&schema, &y, None).is_empty());
    assert!(errors_of(&schema, &y, Some(&json!({}))).is_empty());
    assert!(errors_of(&schema, &x, Some(&x)).is_empty());
    assert_eq!(
        errors_of(&schema, &y, Some(&x)),
        [r#"field: Invalid value: "y": failed rule: self == oldSelf"#]
    );
    let item = json!({"type": "object", "properties": {"k1": {"type": "string"}, "k2": {"type": "string"},
        "v1": {"type": "number", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]}}});
    let schema = json!({"type": "object", "properties": {"field": {"type": "array", "items": item,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k1", "k2"]}}});
    let of = |value: f64| json!({"field": [{"k1": "z", "k2": "z"}, {"k1": "a", "k2": "b", "v1": value}]});
    assert!(errors_of(&schema, &of(1.2), Some(&of(1.0))).is_empty());
    assert_eq!(
        errors_of(&schema, &of(0.9), Some(&of(1.0))),
        ["field[1].v1: Invalid value: 0.9: failed rule: self >= oldSelf"]
    );
}

#[test]
fn optional_old_self_is_evaluated_on_creation() {
    let rule = json!({"rule": "oldSelf.hasValue() || self == 'new'", "optionalOldSelf": true});
    let schema = with_rule(json!({"type": "string"}), rule);
    assert!(errors_of(&schema, &json!({"field": "new"}), None).is_empty());
    assert_eq!(errors_of(&schema, &json!({"field": "old"}), None).len(), 1);
    assert!(errors_of(&schema, &json!({"field": "old"}), Some(&json!({"field": "x"}))).is_empty());
}

#[test]
fn failed_rule_error_has_message_reason_and_path_of_rule() {
    let object = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}});
    for (rule, want) in [
        (json!({"rule": "self.a > 1"}), "field: Invalid value: failed rule: self.a > 1"),
        (json!({"rule": "self.a > 1", "message": " too small "}), "field: Invalid value: too small"),
        (
            json!({"rule": "self.a > 1", "messageExpression": "'a is ' + string(self.a)"}),
            "field: Invalid value: a is 1",
        ),
        (
            json!({"rule": "self.a > 1", "message": "plain", "messageExpression": "self.b"}),
            "field: Invalid value: plain",
        ),
        (
            json!({"rule": "self.a > 1", "fieldPath": ".a", "reason": "FieldValueForbidden"}),
            "field.a: Forbidden: failed rule: self.a > 1",
        ),
        (
            json!({"rule": "self.a > 1", "fieldPath": ".b", "reason": "FieldValueRequired", "message": "m"}),
            "field.b: Required value: m",
        ),
        (json!({"rule": "self.a > 1", "reason": "FieldValueDuplicate"}), "field: Duplicate value"),
        (
            json!({"rule": "self.b == 'x'"}),
            "field: Invalid value: \"object\": no such key: b evaluating rule: self.b == 'x'",
        ),
    ] {
        let schema = with_rule(object.clone(), rule.clone());
        assert_eq!(errors_of(&schema, &json!({"field": {"a": 1}}), None), [want], "{rule}");
    }
}

#[test]
fn root_rules_refer_to_metadata() {
    let spec = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let rule = "self.metadata.name.startsWith('w') && self.spec.n < 5";
    let schema =
        json!({"type": "object", "properties": {"spec": spec}, "x-kubernetes-validations": [{"rule": rule}]});
    let object = |name: &str, n: i64| json!({"metadata": {"name": name}, "spec": {"n": n}});
    assert!(errors_of(&schema, &object("w1", 1), None).is_empty());
    for bad in [object("x1", 1), object("w1", 9)] {
        let want = format!("<nil>: Invalid value: failed rule: {rule}");
        assert_eq!(errors_of(&schema, &bad, None), [want], "{bad}");
    }
}

#[test]
fn blocking_errors_skip_rule_evaluation() {
    let mut schema = with_rule(json!({"type": "string"}), json!({"rule": "self == 'x'"}));
    schema["required"] = json!(["must"]);
    assert_eq!(
        errors_of(&schema, &json!({"field": "y"}), None),
        [
            "must: Required value",
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
        ]
    );
}

#[test]
fn sets_and_keyed_lists_compare_regardless_of_order() {
    let item = json!({"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}});
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    let keyed = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": item});
    let atomic = json!({"type": "array", "items": {"type": "string"}});
    for (field, rule, old, new, holds) in [
        (&set, "self == oldSelf", json!(["a", "b"]), json!(["b", "a"]), true),
        (&set, "self == oldSelf", json!(["a", "b"]), json!(["a", "c"]), false),
        (&set, "self == oldSelf + ['c', 'a']", json!(["a", "b"]), json!(["c", "b", "a"]), true),
        (&set, "oldSelf + self == self", json!(["a"]), json!(["b", "a"]), true),
        (&atomic, "self == oldSelf", json!(["a", "b"]), json!(["b", "a"]), false),
        (
            &keyed,
            "self == oldSelf",
            json!([{"k": "a", "v": 1}, {"k": "b", "v": 2}]),
            json!([{"k": "b", "v": 2}, {"k": "a", "v": 1}]),
            true,
        ),
        (&keyed, "self == oldSelf", json!([{"k": "a", "v": 1}]), json!([{"k": "a", "v": 2}]), false),
        (
            &keyed,
            "(oldSelf + self).size() == 2",
            json!([{"k": "a", "v": 1}]),
            json!([{"k": "a", "v": 2}, {"k": "b", "v": 1}]),
            true,
        ),
    ] {
        let schema = with_rule(field.clone(), json!({"rule": rule}));
        let errors = errors_of(&schema, &json!({"field": new}), Some(&json!({"field": old})));
        assert_eq!(errors.is_empty(), holds, "{rule} on {old} and {new}: {errors:?}");
    }
}

#[test]
fn names_and_formats_are_typed() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "a-b": {"type": "string"}, "namespace": {"type": "string"}, "at": {"type": "string", "format": "date-time"},
        "for": {"type": "string", "format": "duration"}, "data": {"type": "string", "format": "byte"},
        "n": {"type": "number"}, "port": {"x-kubernetes-int-or-string": true},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    }, "x-kubernetes-validations": [
        {"rule": "self.a__dash__b == 'x'"}, {"rule": "self.__namespace__ == 'ns'"},
        {"rule": "self.at.getFullYear() == 2020"}, {"rule": "self.__for__ == duration('1h')"},
        {"rule": "self.data == b'hi'"}, {"rule": "self.n == 1.0"},
        {"rule": "type(self.port) == int ? self.port == 80 : self.port == 'http'"},
        {"rule": "self.map.all(k, self.map[k] > 0) && self.map['x-y'] == 1"},
        {"rule": "!has(self.absent)"},
    ]}}});
    let object = json!({"spec": {"a-b": "x", "namespace": "ns", "at": "2020-01-01T00:00:00Z", "for": "1h",
        "data": "aGk=", "n": 1, "port": "http", "map": {"x-y": 1}}});
    let errors = errors_of(&schema, &object, None);
    // The last rule refers to a field that the schema lacks.
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert!(errors[0].contains("rule compile error: compilation failed"), "{errors:?}");
    assert!(errors[0].contains("absent"), "{errors:?}");
}

#[test]
fn cost_limits_apply_per_rule_and_per_object() {
    let list = json!({"type": "array", "items": {"type": "integer"}});
    let rule = "self.all(x, self.all(y, x + y >= 0))";
    let object = json!({"field": (0..2000).collect::<Vec<i64>>()});
    let errors = errors_of(&with_rule(list.clone(), json!({"rule": rule})), &object, None);
    let want = format!(
        "field: Invalid value: \"array\": 'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: {rule}"
    );
    assert_eq!(errors, [want]);
    // Many rules that are each within their limit.
    let mut item = list;
    item["x-kubernetes-validations"] = json!([{"rule": "self.all(x, x >= 0)"}]);
    let schema = json!({"type": "object", "properties": {"field": {"type": "array", "items": item}}});
    let object = json!({"field": vec![(0..2000).collect::<Vec<i64>>(); 2000]});
    let errors = errors_of(&schema, &object, None);
    assert_eq!(errors.len(), 1, "{errors:?}");
    let want = "running out of cost budget, no further validation rules will be run";
    assert!(errors[0].ends_with(want), "{errors:?}");
}
