//! Memory of compiled definitions, and of validating hostile objects. A single test, so that nothing else allocates
//! meanwhile.

use api::custom::{CompiledVersion, Malformed, compile};
use machinery::schema::{SchemaRef, Shape};
use serde_json::{Map, Value, json};

/// Number of compiled definitions.
const DEFINITIONS: usize = 100;
/// Memory limit of one definition. Kubernetes takes more than a megabyte for a definition with a pod template.
const MAX_BYTES: u64 = 64 << 10;
/// Memory limit of validating one object.
const MAX_VALIDATION: u64 = 256 << 20;

fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with(field)).expect("a line");
    let kilobytes = line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
    kilobytes.expect("a number") << 10
}

/// Schema of a built-in type in the form embedded in definitions.
fn written(of: SchemaRef<'_>, depth: usize) -> Value {
    let node = of.node();
    let element = || of.element().map_or(json!({"type": "string"}), |of| written(of, depth + 1));
    match of.shape() {
        Shape::Object if depth < 12 => {
            let fields = of.fields().iter();
            let properties: Map<String, Value> = fields
                .map(|field| (field.name.to_string(), written(of.of_field(field), depth + 1)))
                .collect();
            json!({"type": "object", "properties": properties, "description": "d".repeat(200)})
        }
        Shape::Map if depth < 12 => json!({"type": "object", "additionalProperties": element()}),
        Shape::List if depth < 12 => {
            let keys: Vec<&str> = node.map_keys.iter().map(|key| &**key).collect();
            let list_type = if keys.is_empty() { "atomic" } else { "map" };
            json!({"type": "array", "items": element(), "x-kubernetes-list-type": list_type,
                "x-kubernetes-list-map-keys": keys})
        }
        Shape::Boolean => json!({"type": "boolean"}),
        Shape::Int32 => json!({"type": "integer", "format": "int32"}),
        Shape::Int64 => json!({"type": "integer", "format": "int64"}),
        Shape::IntOrString | Shape::Quantity => json!({"x-kubernetes-int-or-string": true,
            "pattern": "^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE])?$"}),
        Shape::String => {
            json!({"type": "string", "minLength": 0, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"})
        }
        _ => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
    }
}

fn definition(number: usize, template: &Value) -> Value {
    // Every definition has fields of its own besides the shared parts.
    let own: Map<String, Value> = (0..50)
        .map(|field| (format!("own{number}x{field}"), json!({"type": "string", "maxLength": number + field})))
        .collect();
    let spec = json!({"type": "object", "properties": {"template": template, "own": {"type": "object", "properties": own}},
        "x-kubernetes-validations": [{"rule": format!("has(self.own) && {number} >= 0")}]});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    json!({"spec": {"group": "example.com", "names": {"kind": format!("Kind{number}")},
        "versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}})
}

#[test]
fn definitions_and_hostile_objects_stay_within_memory_limits() {
    let pod = api::schema::schema().named("io.k8s.api.core.v1.PodTemplateSpec").expect("a type");
    let template = written(pod, 0);
    let compiled_one = |number: usize| compile(&definition(number, &template), "v1").expect("a version");
    let first = compiled_one(0);
    let before = memory("VmRSS");
    let compiled: Vec<CompiledVersion> = (1..=DEFINITIONS).map(compiled_one).collect();
    let each = memory("VmRSS").saturating_sub(before) / DEFINITIONS as u64;
    println!("{each} bytes for each of {} definitions", compiled.len());
    assert!(each < MAX_BYTES, "{each} bytes for each definition");
    drop(compiled);
    hostile(&first);
}

/// Objects and schemas that make naive validation take memory or time out of proportion.
fn hostile(template: &CompiledVersion) {
    let before = memory("VmHWM");
    // A list with an error in every item.
    let containers: Vec<Value> = (0..10_000).map(|_| json!({"name": 1, "image": "UPPER"})).collect();
    let mut object = json!({"metadata": {}, "spec": {"template": {"spec": {"containers": containers}}}});
    template.decode(&mut object, Malformed::Refuse).expect("decoded");
    let errors = template.validate(&object, Some(&object));
    assert!(errors.is_empty(), "an unchanged object is ratcheted: {} errors", errors.len());
    assert!(template.validate(&object, None).len() >= 10_000);
    // A schema and an object of the maximum depth of the decoder.
    let (mut schema, mut value) = (json!({"type": "string", "maxLength": 1}), json!("too long"));
    for _ in 0..50 {
        schema = json!({"type": "object", "properties": {"a": schema}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
        value = json!({"a": value});
    }
    let deep = json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}});
    let deep = compile(&deep, "v1").expect("a version");
    assert_eq!(deep.validate(&value, None).len(), 1);
    assert!(deep.validate(&value, Some(&value)).is_empty());
    // A set of many equal items.
    let set = json!({"type": "object", "properties": {"set": {"type": "array", "x-kubernetes-list-type": "set",
        "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}});
    let set = json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": set}}]}});
    let set = compile(&set, "v1").expect("a version");
    let items: Vec<String> = (0..50_000).map(|number| number.to_string()).collect();
    let (old, new) = (json!({"set": items}), json!({"set": items.iter().rev().collect::<Vec<_>>()}));
    let errors = set.validate(&new, Some(&old));
    assert!(errors.is_empty(), "{errors:?}");
    let used = memory("VmHWM").saturating_sub(before);
    assert!(used < MAX_VALIDATION, "{used} bytes for hostile objects");
}
