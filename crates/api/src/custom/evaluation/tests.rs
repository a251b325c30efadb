//! Rules on values.

use super::*;
use crate::custom::compile;
use crate::custom::schema::Schema;
use serde_json::json;

fn within(value: &Value, old: Option<&Value>, schema: &Value, mut budget: u64) -> ErrorList {
    let node = compile::schema(Schema(schema), false);
    check(&node, value, old, Ratchet::default(), &mut budget, &Path::new("v")).errors
}

fn errors_of(value: &Value, old: Option<&Value>, schema: &Value) -> String {
    let errors = within(value, old, schema, BUDGET);
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[test]
fn failed_rules_report_message_reason_and_path() {
    let schema = json!({"type": "object",
        "x-kubernetes-validations": [
            {"rule": "self.min <= self.max", "message": "min first", "fieldPath": ".min"},
            {"rule": "self.name == oldSelf.name", "reason": "FieldValueForbidden"},
        ],
        "properties": {
            "min": {"type": "integer"}, "max": {"type": "integer"},
            "name": {"type": "string", "x-kubernetes-validations": [
                {"rule": "self.size() < 5", "messageExpression": "'too long: ' + self"}]},
            "at": {"type": "string", "format": "date-time", "x-kubernetes-validations": [
                {"rule": "self > timestamp('2020-01-01T00:00:00Z')"}]},
            "odd-name": {"type": "number", "x-kubernetes-validations": [{"rule": "self < 1.5"}]},
        },
    });
    let good = json!({"min": 1, "max": 2, "name": "abc", "at": "2021-01-01T00:00:00Z", "odd-name": 1});
    assert_eq!(errors_of(&good, None, &schema), "");
    assert_eq!(errors_of(&good, Some(&good), &schema), "");
    let bad = json!({"min": 3, "max": 2, "name": "abcdef", "at": "2019-01-01T00:00:00Z", "odd-name": 2});
    assert_eq!(
        errors_of(&bad, Some(&good), &schema),
        [
            "v.min: Invalid value: min first",
            "v: Forbidden: failed rule: self.name == oldSelf.name",
            r#"v.at: Invalid value: "2019-01-01T00:00:00Z": failed rule: self > timestamp('2020-01-01T00:00:00Z')"#,
            r#"v.name: Invalid value: "abcdef": too long: abcdef"#,
            "v.odd-name: Invalid value: 2: failed rule: self < 1.5",
        ]
        .join("; ")
    );
}

#[test]
fn rules_beyond_the_budget_are_not_evaluated() {
    let schema = json!({"type": "array", "items": {"type": "integer"},
        "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x <= y || y <= x))"}]});
    let value = json!((0..60).collect::<Vec<_>>());
    assert_eq!(errors_of(&value, None, &schema), "");
    let errors = within(&value, None, &schema, 100);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].to_string().contains("running out of cost budget"), "{}", errors[0]);
}
