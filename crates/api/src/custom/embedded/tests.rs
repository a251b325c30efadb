//! Embedded resources.

use super::super::compile;
use super::super::schema::Schema;
use super::*;
use serde_json::json;
use std::sync::Arc;

fn node() -> Arc<Node> {
    let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"type": "object", "properties": {
        "one": embedded, "list": {"type": "array", "items": embedded},
        "map": {"type": "object", "additionalProperties": embedded}}});
    compile::schema(Schema(&schema), true)
}

fn pod(metadata: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
}

#[test]
fn unknown_metadata_fields_are_dropped_and_reported() {
    let mut value = json!({"one": pod(json!({"name": "a", "x": 1})), "list": [pod(json!({"y": 1}))],
        "map": {"k": pod(json!({"labels": {"a": "b"}, "z": {}}))}});
    let mut unknown = Vec::new();
    let coerced = coerce(&mut value, &node(), Malformed::Refuse, &Path::ROOT, &mut unknown);
    assert_eq!(coerced, Ok(()));
    unknown.sort();
    assert_eq!(unknown, ["list[0].metadata.y", "map[k].metadata.z", "one.metadata.x"]);
    let want = json!({"one": pod(json!({"name": "a"})), "list": [pod(json!({}))],
        "map": {"k": pod(json!({"labels": {"a": "b"}}))}});
    assert_eq!(value, want);
}

#[test]
fn malformed_metadata_is_rejected_or_dropped() {
    let object = json!({"one": {"apiVersion": 1, "kind": "Pod"}});
    let mut unknown = Vec::new();
    let error = coerce(&mut object.clone(), &node(), Malformed::Refuse, &Path::ROOT, &mut unknown);
    assert_eq!(
        error.map_err(|error| error.to_string()),
        Err("one.apiVersion: Invalid value: 1: must be a string".to_owned())
    );
    let mut value = object;
    assert_eq!(coerce(&mut value, &node(), Malformed::Drop, &Path::ROOT, &mut unknown), Ok(()));
    assert_eq!(value, json!({"one": {"kind": "Pod"}}));
    let object = json!({"one": pod(json!({"name": "a", "labels": {"a": 1}}))});
    let error = coerce(&mut object.clone(), &node(), Malformed::Refuse, &Path::ROOT, &mut unknown);
    let message = error.map_err(|error| error.to_string()).expect_err("labels are strings");
    assert!(message.starts_with("one.metadata: Invalid value: "), "{message}");
    assert!(message.contains("cannot unmarshal number into Go struct field"), "{message}");
    let mut value = object;
    assert_eq!(coerce(&mut value, &node(), Malformed::Drop, &Path::ROOT, &mut unknown), Ok(()));
    assert_eq!(value, json!({"one": pod(json!({"name": "a"}))}));
}

#[test]
fn embedded_resource_needs_version_kind_and_valid_metadata() {
    let value = json!({"one": {"apiVersion": "a/b/c"}, "list": [{"apiVersion": "", "kind": "po d"}],
        "map": {"k": pod(json!({"name": "a/b", "labels": {"!": "x"}}))}});
    let errors = check(&value, &node(), false, &Path::ROOT);
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 6, "{texts:#?}");
    for (text, want) in texts.iter().zip([
        r#"list[0].apiVersion: Invalid value: "": must not be empty"#,
        r#"list[0].kind: Invalid value: "po d": may have mixed case, but should otherwise match: "#,
        r#"map[k].metadata.name: Invalid value: "a/b": "#,
        r#"map[k].metadata.labels: Invalid value: "!": "#,
        "one.kind: Required value",
        r#"one.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c"#,
    ]) {
        assert!(text.starts_with(want), "{text}\nis not\n{want}");
    }
}
