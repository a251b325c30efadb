//! Replays recorded creates and updates of the policy-like kinds against their rules: the same objects must be
//! accepted, and rejections must have the same fields and messages.

use api::kinds::KINDS;
use api::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta, names};
use std::collections::HashMap;

const GROUPS: &[&str] = &[
    "rbac.authorization.k8s.io",
    "admissionregistration.k8s.io",
    "coordination.k8s.io",
    "storage.k8s.io",
    "node.k8s.io",
    "scheduling.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "certificates.k8s.io",
    "apiregistration.k8s.io",
    "resource.k8s.io",
    "apiextensions.k8s.io",
];

/// Rejections that need a CEL compiler or the schemas of custom resources.
const EXCLUDED: &[&str] =
    &["compilation failed", "must evaluate to", "CEL", "openAPIV3Schema", "selectableFields"];

#[test]
fn recorded_policy_writes_match() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for (name, text) in reference::RECORDINGS.records() {
        let text = text.replace("${u}", "uuu").replace("<U>", "uuu").replace("${ns}", "ad-uuu");
        let recording: Value = serde_json::from_str(&text).expect("JSON");
        replay(&recording, &name, &mut checked, &mut wrong);
    }
    assert!(wrong.is_empty(), "{} of {checked} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(checked > 0);
}

fn replay(recording: &Value, file: &str, checked: &mut usize, wrong: &mut Vec<String>) {
    let mut stored: HashMap<String, Value> = HashMap::new();
    for (index, step) in recording["steps"].as_array().into_iter().flatten().enumerate() {
        let path = step["path"].as_str().unwrap_or("");
        let Some((kind, subresource)) = kind_of(path) else { continue };
        let code = step["want"]["code"].as_u64().unwrap_or(0);
        let answer = &step["want"]["body"];
        let is_object = answer["kind"] == kind.kind;
        let key = match step["method"].as_str() {
            Some("POST") => format!("{path}/{}", meta::name(answer)),
            _ => path.to_owned(),
        };
        let old = stored.get(&key).cloned();
        if code < 300 && is_object && subresource.is_empty() {
            stored.insert(key, answer.clone());
        }
        if !subresource.is_empty() || !step["body"].is_object() || step["body"]["kind"] != kind.kind {
            continue;
        }
        let mut new = step["body"].clone();
        (kind.default)(&mut new);
        let errors = match (step["method"].as_str(), code, old) {
            (Some("POST"), 201 | 422, _) => {
                (kind.prepare_create)(&mut new);
                let path = Path::new("metadata");
                let namespaced = kind.scope == Scope::Namespaced;
                if namespaced && meta::namespace(&new).is_empty() {
                    meta::metadata_mut(&mut new).insert("namespace".to_owned(), "ad-uuu".into());
                }
                let metadata = new["metadata"].clone();
                if metadata["name"].as_str().is_none_or(str::is_empty) {
                    continue;
                }
                let validate_meta = if kind.any_finalizer {
                    names::validate_generic_object_meta
                } else {
                    names::validate_object_meta
                };
                let mut errors = validate_meta(&metadata, namespaced, kind.validate_name, &path);
                errors.extend((kind.validate)(&new));
                errors
            }
            (Some("PUT"), 200 | 422, Some(old)) => {
                (kind.prepare_update)(&mut new, &old);
                (kind.validate_update)(&new, &old)
            }
            _ => continue,
        };
        let expected = if code == 422 { answer["message"].as_str().unwrap_or("") } else { "" };
        let expected = expected.split_once(" is invalid: ").map_or("", |(_, errors)| errors);
        if EXCLUDED.iter().any(|text| expected.contains(text))
            || expected.contains("metadata.resourceVersion")
        {
            continue;
        }
        *checked += 1;
        let ours = summary(&errors);
        if ours != expected {
            wrong.push(format!("{file} step {index}\n  want {expected}\n  have {ours}"));
        }
    }
}

fn summary(errors: &ErrorList) -> String {
    let mut texts: Vec<String> = Vec::new();
    for text in errors.iter().map(FieldError::to_string) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    if texts.len() == 1 {
        texts.remove(0)
    } else if texts.is_empty() {
        String::new()
    } else {
        format!("[{}]", texts.join(", "))
    }
}

/// Kind and subresource of a path, if the kind is tested here.
fn kind_of(path: &str) -> Option<(&'static Kind, String)> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let ["apis", group, version, rest @ ..] = &parts[..] else { return None };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let (resource, subresource) = match rest {
        [resource] | [resource, _] => (resource, ""),
        [resource, _, subresource, ..] => (resource, *subresource),
        [] => return None,
    };
    let ours = GROUPS.contains(group);
    let kind = KINDS.iter().find(|kind| {
        ours && kind.group == *group && kind.version == *version && kind.resource == *resource
    })?;
    Some((kind, subresource.to_owned()))
}
