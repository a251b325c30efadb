//! Replays recorded creates and updates of pods and workload kinds against their rules: accepted objects must have
//! the same spec, rejections must have the same fields and messages.

use api::kinds::KINDS;
use api::value::Fields;
use api::{Kind, schema};
use machinery::{Value, meta};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};

const KIND_NAMES: [&str; 12] = [
    "ControllerRevision",
    "CronJob",
    "DaemonSet",
    "Deployment",
    "HorizontalPodAutoscaler",
    "Job",
    "Pod",
    "PodDisruptionBudget",
    "PodTemplate",
    "ReplicaSet",
    "ReplicationController",
    "StatefulSet",
];

/// Differences of one recording, for the report.
#[derive(Default)]
struct RecordedOutcome {
    checked: usize,
    wrong: Vec<String>,
}

#[test]
fn recorded_workload_writes_match() {
    let mut outcome = RecordedOutcome::default();
    // Changes by admission are not made by the kinds.
    for (name, text) in reference::RECORDINGS.records() {
        if name.starts_with("admission/") {
            continue;
        }
        let text = text
            .replace("<gen>", "zzzzz")
            .replace("<U>", "uuu")
            .replace("${u}", "uuu")
            .replace("${ns}", "ad-uuu");
        let text = (1..20).fold(text, |text, n| {
            text.replace(&format!("<uid:{n}>"), &format!("uid-{n}")).replace(&format!("<gen:{n}>"), "zzzzz")
        });
        let recording: Value = serde_json::from_str(&text).expect("JSON");
        replay(&recording, &name, &mut outcome);
    }
    eprintln!("{} steps checked, {} differ", outcome.checked, outcome.wrong.len());
    assert!(outcome.wrong.is_empty(), "{}", outcome.wrong.join("\n"));
    assert!(outcome.checked > 300);
}

fn replay(recording: &Value, file: &str, outcome: &mut RecordedOutcome) {
    let mut captured: HashMap<String, Value> = HashMap::new();
    for (index, step) in recording.items("steps").iter().enumerate() {
        let answer = step.at("want.body");
        let before = captured.clone();
        for (name, path) in step.entries("capture").into_iter().flatten() {
            if path == "" && answer.is_object() {
                captured.insert(name.clone(), answer.clone());
            }
        }
        let Some(kind) = kind_of(step) else { continue };
        let code = step.at("want.code").as_u64().unwrap_or(0);
        let is_patch_or_other = !matches!(step.text("method"), "POST" | "PUT");
        if is_patch_or_other || !matches!(code, 200 | 201 | 422) {
            continue;
        }
        let Some(mut new) = body(step, &before) else { continue };
        if new.text("kind") != kind.kind || new.has("items") {
            continue;
        }
        if !decode(&mut new, kind) {
            continue;
        }
        let errors = match step.text("method") {
            "POST" => create(&mut new, kind, answer),
            _ => {
                let Some(old) = before.values().find(|old| meta::uid(old) == meta::uid(&new)) else {
                    continue;
                };
                let mut old = old.clone();
                if !decode(&mut old, kind) {
                    continue;
                }
                (kind.prepare_update)(&mut new, &old);
                if kind.kind == "HorizontalPodAutoscaler" && kind.version == "v1" {
                    continue;
                }
                (kind.validate_update)(&new, &old)
            }
        };
        outcome.checked += 1;
        let where_ = format!("{file} step {index}");
        let own = errors.iter().filter(|error| error.field != "metadata.name");
        let ours: Vec<(String, String)> = own.map(|error| (error.field.clone(), error.body())).collect();
        let (ours, want) = (sorted(ours), sorted(causes(answer)));
        if ours != want {
            outcome.wrong.push(format!("{where_}\n  want {want:#?}\n  have {ours:#?}"));
        } else if step.text("method") == "POST"
            && code < 300
            && answer.has("spec")
            && new.field("spec") != &expected_spec(kind, answer, &new)
        {
            let (want, have) = (expected_spec(kind, answer, &new), new.field("spec"));
            outcome.wrong.push(format!("{where_}\n  want spec {want}\n  have spec {have}"));
        }
    }
}

/// Object sent by a step: its body, or a captured one with changes.
fn body(step: &Value, captured: &HashMap<String, Value>) -> Option<Value> {
    let mut object = match step.field("body") {
        Value::Object(_) => step.field("body").clone(),
        Value::String(name) => captured.get(name.strip_prefix("${")?.strip_suffix('}')?)?.clone(),
        _ => return None,
    };
    for change in step.items("mutate") {
        let path = change.text("path");
        let (parent, last) = path.rsplit_once('/')?;
        if change.has("op") || change.flag("remove") || !change.as_object()?.contains_key("value") {
            return None;
        }
        let value = change.field("value").clone();
        match object.pointer_mut(parent)? {
            Value::Array(items) => *items.get_mut(last.parse::<usize>().ok()?)? = value,
            holder => holder.set(&last.replace("~1", "/").replace("~0", "~"), value),
        }
    }
    Some(object)
}

fn decode(object: &mut Value, kind: &Kind) -> bool {
    let Some(schema) = schema::schema().kind(kind.group, kind.version, kind.kind) else { return false };
    // Recorded times are placeholders.
    if let Some(metadata) = object.field_mut("metadata") {
        for name in ["creationTimestamp", "managedFields", "deletionTimestamp"] {
            metadata.unset(name);
        }
    }
    if machinery::codec::typed::normalize(object, schema).is_err() {
        return false;
    }
    (kind.default)(object);
    true
}

fn create(new: &mut Value, kind: &Kind, answer: &Value) -> Vec<machinery::field::FieldError> {
    let name = meta::name(answer);
    if !name.is_empty() && meta::name(new).is_empty() {
        new.child_mut("metadata").set("name", name);
    }
    let uid = if meta::uid(answer).is_empty() { "uid-1" } else { meta::uid(answer) };
    new.child_mut("metadata").set("uid", uid);
    if kind.kind == "Pod" {
        // Admission sets a service account and a priority on every pod.
        let spec = new.child_mut("spec");
        spec.default_to("serviceAccountName", "default");
        (kind.default)(new);
    }
    (kind.prepare_create)(new);
    if kind.version == "v1" && kind.kind == "HorizontalPodAutoscaler" {
        let v2 = api::kinds::horizontal_pod_autoscaler::from_v1(new);
        let errors = (api::kinds::horizontal_pod_autoscaler::KIND.validate)(&v2);
        *new = api::kinds::horizontal_pod_autoscaler::to_v1(&v2);
        return errors;
    }
    (kind.validate)(new)
}

/// The recorded spec without the fields that admission adds to pods.
fn expected_spec(kind: &Kind, answer: &Value, ours: &Value) -> Value {
    let mut spec = answer.field("spec").clone();
    if kind.kind != "Pod" {
        return spec;
    }
    for name in ["priority", "preemptionPolicy"] {
        if !ours.field("spec").has(name) {
            spec.unset(name);
        }
    }
    let is_token = |volume: &Value| volume.text("name").starts_with("kube-api-access-");
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in spec.items_mut(list) {
            retain(container, "volumeMounts", |mount| !is_token(mount));
        }
    }
    retain(&mut spec, "volumes", |volume| !is_token(volume));
    let own = ours.field("spec").items("tolerations").to_vec();
    retain(&mut spec, "tolerations", |toleration| {
        !toleration.text("key").starts_with("node.kubernetes.io/") || own.contains(toleration)
    });
    spec
}

fn retain(holder: &mut Value, list: &str, keep: impl Fn(&Value) -> bool) {
    if let Some(Value::Array(items)) = holder.field_mut(list) {
        items.retain(|item| keep(item));
        if items.is_empty() {
            holder.unset(list);
        }
    }
}

/// Causes of a rejection, except in metadata, which is not validated by the kinds.
fn causes(answer: &Value) -> Vec<(String, String)> {
    let causes = answer.at("details.causes").as_array().cloned().unwrap_or_default();
    let own = |cause: &&Value| {
        let field = cause.text("field");
        !field.starts_with("metadata") || field.starts_with("metadata.annotations[")
    };
    let pair = |cause: &Value| (cause.text("field").to_owned(), cause.text("message").to_owned());
    causes.iter().filter(own).map(pair).collect()
}

/// Errors about maps are in any order, and those about metadata are left out.
fn sorted(causes: Vec<(String, String)>) -> BTreeMap<(String, String), usize> {
    let mut counted = BTreeMap::new();
    for cause in causes {
        *counted.entry(cause).or_default() += 1;
    }
    counted
}

fn kind_of(step: &Value) -> Option<&'static Kind> {
    let path = step.text("path").trim_matches('/');
    let parts: Vec<&str> = path.split('/').collect();
    let (group, version, rest) = match &parts[..] {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let ["namespaces", _, resource, rest @ ..] = rest else { return None };
    if rest.len() > 1 {
        return None;
    }
    KINDS.iter().copied().find(|kind| {
        KIND_NAMES.contains(&kind.kind)
            && (kind.group, kind.version, kind.resource) == (group, version, *resource)
    })
}

#[test]
fn pod_validation_cost_is_printed() {
    let kind = KINDS.iter().find(|kind| kind.kind == "Pod").expect("pods are a kind");
    let mut pod = json!({
        "metadata": {"name": "x", "namespace": "n", "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "nginx", "ports": [{"containerPort": 80}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}}]},
    });
    (kind.default)(&mut pod);
    let rounds = 2000;
    let start = std::time::Instant::now();
    for _ in 0..rounds {
        (kind.default)(&mut pod);
        assert!((kind.validate)(&pod).is_empty());
    }
    eprintln!("default and validate: {:?} each", start.elapsed() / rounds);
}
