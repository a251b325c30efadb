//! Replays recorded writes: managedFields, merged objects and conflicts of Kubernetes.

use machinery::Value;
use machinery::apply::{Context, Reset, apply, update};
use machinery::status::Status;
use std::collections::HashMap;

const NOW: &str = "<time>";

/// Kinds whose creation adds fields after managedFields are computed: the response does not show the request.
const COMPLETED_LATER: [&str; 9] = [
    "Job",
    "Namespace",
    "Node",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "Service",
    "TokenRequest",
    "VolumeAttributesClass",
];
/// Recordings that depend on other features: user agents, mutating policies, conversion between versions, fields that
/// a subresource resets after managedFields are computed.
const EXCLUDED: [&str; 7] = [
    "map/",
    "autoscaling/conversion",
    "ssa/manager-names",
    "services/",
    "subresources/namespaces-finalize",
    "subresources/pods-ephemeralcontainers",
    "subresources/scale",
];

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// Recorded entries are in another order, because their times are masked.
fn sorted_entries(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let mut entries: Vec<String> = entries.map(Value::to_string).collect();
    entries.sort();
    entries
}

/// Computed response of the step; `None` if there is nothing to compute.
fn replay(step: &Value, before: Option<&Value>) -> Option<Result<Value, Status>> {
    let (method, path) = (text(step, "/method"), text(step, "/path"));
    let is_apply = step["headers"].to_string().contains("apply-patch");
    let answer = &step["want"]["body"];
    let typed = if is_apply { &step["body"] } else { answer };
    let (api_version, kind) = (text(typed, "/apiVersion"), text(typed, "/kind"));
    let (group, version) = machinery::gvk::split_api_version(api_version);
    let schema = api::schema::schema().kind(group, version, kind)?;
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let skipped = if parts[0] == "api" { 2 } else { 3 }
        + if parts.contains(&"namespaces") && kind != "Namespace" { 2 } else { 0 };
    let (resource, subresource) = (parts.get(skipped)?, parts.get(skipped + 2).unwrap_or(&""));
    let row = api::kinds::KINDS.iter().find(|row| (row.group, row.resource) == (group, *resource));
    let reset = row.map_or(Reset::Nothing, |row| api::Rules::reset_fields(row, subresource));
    let manager = match text(step, "/query/fieldManager") {
        "" => "apidiff",
        name => name,
    };
    let context = Context {
        schema: Some(schema),
        api_version,
        kind,
        subresource,
        reset: &reset,
        manager,
        now: NOW,
        converter: None,
    };
    if is_apply {
        let force = text(step, "/query/force") == "true";
        return Some(apply(before, typed, force, &context).map_err(Status::from));
    }
    if !matches!(method, "POST" | "PUT" | "PATCH") || (method == "POST" && COMPLETED_LATER.contains(&kind)) {
        return None;
    }
    let mut object = answer.clone();
    object["metadata"].as_object_mut()?.remove("managedFields");
    update(before, &mut object, &context);
    Some(Ok(object))
}

#[test]
fn recorded_writes_produce_same_managed_fields() {
    let recordings = reference::RECORDINGS.values();
    let (mut replayed, mut wrong) = (0, Vec::new());
    for (name, recording) in recordings.iter().filter(|(n, _)| !EXCLUDED.iter().any(|e| n.starts_with(e))) {
        let mut live: HashMap<String, Value> = HashMap::new();
        for (i, step) in recording["steps"].as_array().into_iter().flatten().enumerate() {
            let want = &step["want"]["body"];
            let code = step["want"]["code"].as_u64().unwrap_or(0);
            let object = (200..300).contains(&code) && !text(want, "/metadata/uid").is_empty();
            let path = text(step, "/path").replace("${u}", "<U>");
            let before = path.rsplit('/').take(2).find_map(|part| live.get(part)).cloned();
            let conflict = code == 409 && text(want, "/message").starts_with("Apply failed");
            if !(object || conflict) || step["query"]["dryRun"].is_string() {
                continue;
            }
            let got = replay(step, if text(step, "/method") == "POST" { None } else { before.as_ref() });
            if object && text(want, "/kind") != "PartialObjectMetadata" {
                live.insert(text(want, "/metadata/name").to_owned(), want.clone());
            }
            let Some(got) = got else { continue };
            replayed += 1;
            let same = match &got {
                Ok(got) => {
                    let field = |o: &Value, pointer: &str| match o.pointer(pointer) {
                        Some(Value::Object(map)) if !map.is_empty() => Value::from(map.clone()),
                        _ => Value::Null,
                    };
                    let equal = |pointer: &str| field(got, pointer) == field(want, pointer);
                    object
                        && sorted_entries(got) == sorted_entries(want)
                        && (text(want, "/kind") != "ConfigMap"
                            || ["/data", "/metadata/labels", "/metadata/annotations"].into_iter().all(equal))
                }
                Err(status) => {
                    let status = status.to_value();
                    status["message"] == want["message"] && status["details"] == want["details"]
                }
            };
            if !same {
                let got = match got {
                    Ok(object) => sorted_entries(&object).join("\n       "),
                    Err(status) => status.to_value().to_string(),
                };
                let want = if object { sorted_entries(want).join("\n       ") } else { want.to_string() };
                wrong.push(format!("{name} step {i} {}\n  want {want}\n  have {got}", text(step, "/path")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {replayed} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(replayed > 300, "only {replayed} steps replayed");
}
