//! Replays recorded creations and updates of core and networking objects without a server: defaults, preparation,
//! allocation and validation must produce the recorded fields or causes.

use api::allocation::ip::IpRange;
use api::allocation::port::PortRange;
use api::allocation::service::{AllocationError, Allocators, plan};
use api::value::Fields;
use api::{Kind, kinds};
use machinery::Value;
use machinery::codec::typed::normalize;
use machinery::field::show_str;
use serde_json::json;

const KINDS: &[&Kind] = &[
    &kinds::config_map::KIND,
    &kinds::endpoint_slice::KIND,
    &kinds::endpoints::KIND,
    &kinds::event::KIND,
    &kinds::event::EVENTS_KIND,
    &kinds::ingress::KIND,
    &kinds::ingress_class::KIND,
    &kinds::ip_address::KIND,
    &kinds::limit_range::KIND,
    &kinds::namespace::KIND,
    &kinds::network_policy::KIND,
    &kinds::node::KIND,
    &kinds::persistent_volume::KIND,
    &kinds::persistent_volume_claim::KIND,
    &kinds::resource_quota::KIND,
    &kinds::secret::KIND,
    &kinds::service::KIND,
    &kinds::service_account::KIND,
    &kinds::service_cidr::KIND,
];

/// Fields whose values are chosen by a server.
const SERVER_CHOSEN: &[&str] =
    &["clusterIP", "clusterIPs", "lastPhaseTransitionTime", "nodePort", "healthCheckNodePort"];

/// Areas whose responses depend on more than the kinds' own rules.
const OTHER_AREAS: &[&str] = &["admission", "crd", "map", "negotiation", "rbac", "vap"];

#[test]
fn recorded_core_writes_match() {
    let mut failures = Vec::new();
    let mut steps = 0;
    for (name, recording) in reference::RECORDINGS.values() {
        let area = name.split('/').next().unwrap_or_default();
        if OTHER_AREAS.contains(&area) {
            continue;
        }
        let mut replay = Replay::new();
        for step in recording["steps"].as_array().into_iter().flatten() {
            if matches!(step["method"].as_str(), Some("DELETE" | "PATCH")) {
                // Later steps may depend on it.
                break;
            }
            let Some(kind) = kind_of(step) else {
                continue;
            };
            steps += 1;
            if let Err(problem) = replay.step(kind, step) {
                failures.push(format!("{name}: {} {}\n{problem}", step["body"], step["mutate"]));
            }
        }
    }
    println!("{steps} recorded writes, {} differ", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Kind written by a step, if it is tested here and its response depends on its rules alone.
fn kind_of(step: &Value) -> Option<&'static Kind> {
    let update = step["method"] == "PUT" && step["body"] == "${obj}";
    let create = step["method"] == "POST" && step["body"].is_object();
    let decided = matches!(step["want"]["code"].as_i64(), Some(200 | 201 | 422));
    if !(create || update) || !step["headers"].is_null() || !decided || !step["want"]["body"].is_object() {
        return None;
    }
    let path = step["path"].as_str()?.split('?').next()?;
    let (group_version, rest) = match path.strip_prefix("/apis/") {
        Some(rest) => {
            let mut parts = rest.splitn(3, '/');
            (format!("{}/{}", parts.next()?, parts.next()?), parts.next()?)
        }
        None => ("v1".to_owned(), path.strip_prefix("/api/v1/")?),
    };
    let parts: Vec<&str> = rest.split('/').collect();
    let resource = match parts.as_slice() {
        ["namespaces", _, resource] if create => resource,
        ["namespaces", _, resource, _] if update => resource,
        [resource] if create => resource,
        [resource, _] if update => resource,
        _ => return None,
    };
    KINDS.iter().copied().find(|kind| {
        let own = if kind.group.is_empty() {
            kind.version.to_owned()
        } else {
            format!("{}/{}", kind.group, kind.version)
        };
        own == group_version && kind.resource == *resource
    })
}

/// State of the replay of one recording.
struct Replay {
    allocators: Allocators,
    captured: Option<Value>,
}

impl Replay {
    fn new() -> Self {
        let range = IpRange::parse("10.0.0.0/16").expect("a valid range");
        Self { allocators: Allocators::new(vec![range], PortRange::DEFAULT, 1), captured: None }
    }

    fn step(&mut self, kind: &Kind, step: &Value) -> Result<(), String> {
        let dry_run = step["query"]["dryRun"] == "All";
        let want = filled_in(&step["want"]["body"]);
        let (mut object, old) = if step["method"] == "PUT" {
            let Some(old) = self.captured.clone() else {
                return Ok(());
            };
            (mutated(&old, &step["mutate"]), Some(old))
        } else {
            (filled_in(&step["body"]), None)
        };
        if kind.scope == api::Scope::Namespaced {
            object.child_mut("metadata").set("namespace", "ad-u");
        }
        let rejected = self.write(kind, &mut object, old.as_ref(), dry_run)?;
        if step["capture"].get("obj").is_some() {
            self.captured = Some(object.clone());
        }
        if step["want"]["code"] != 422 {
            if !rejected.is_empty() {
                return Err(format!("rejected: {rejected:?}"));
            }
            let warnings = (kind.warnings)(&object, old.as_ref());
            same_warnings(&warnings, &step["want"]["headers"]["warning"])?;
            return covers(&object, &want, "");
        }
        let causes = want["details"]["causes"].as_array().into_iter().flatten();
        let wanted: Vec<(String, String)> = causes
            .map(|cause| (cause.text("field").to_owned(), cause.text("message").to_owned()))
            .filter(|(field, _)| is_own(field))
            .collect();
        // Recordings number the addresses chosen by a server, and distinguish empty lists from absent ones.
        let chosen = old.map(|old| old.field("spec").text("clusterIP").to_owned()).unwrap_or_default();
        let alike = |message: String| {
            let message = if chosen.is_empty() { message } else { message.replace(&chosen, "<ip:1>") };
            message.replace("value: []:", "value: null:")
        };
        let own = rejected.into_iter().filter(|(field, _)| is_own(field));
        let got: Vec<(String, String)> = own.map(|(field, message)| (field, alike(message))).collect();
        let wanted: Vec<(String, String)> =
            wanted.into_iter().map(|(field, message)| (field, alike(message))).collect();
        if got == wanted { Ok(()) } else { Err(format!("got  {got:?}\nwant {wanted:?}")) }
    }

    /// Steps of the server between decoding and storing; the error has the causes of a rejection.
    fn write(
        &mut self,
        kind: &Kind,
        object: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
    ) -> Result<Vec<(String, String)>, String> {
        let schema = api::schema::schema().kind(kind.group, kind.version, kind.kind).ok_or("no schema")?;
        normalize(object, schema).map_err(|error| error.to_string())?;
        (kind.default)(object);
        let mut errors = Vec::new();
        if kind.kind == "Service" {
            match plan(object, old, &mut self.allocators, dry_run) {
                Ok(plan) if old.is_some() => self.allocators.revert(&plan),
                Ok(_) => {}
                Err(AllocationError::Invalid(rejected)) => errors = rejected,
                Err(AllocationError::Internal(text)) => return Err(text),
            }
        }
        if errors.is_empty() {
            errors = match old {
                None => {
                    (kind.prepare_create)(object);
                    (kind.validate)(object)
                }
                Some(old) => {
                    (kind.prepare_update)(object, old);
                    // Versions and uids of recordings are placeholders: metadata is tested elsewhere.
                    (kind.validate_update)(object, old)
                        .into_iter()
                        .filter(|error| is_own(&error.field))
                        .collect()
                }
            };
        }
        if errors.is_empty() {
            (kind.canonicalize)(object);
            normalize(object, schema).map_err(|error| error.to_string())?;
        }
        Ok(errors.iter().map(|error| (error.field.clone(), error.body())).collect())
    }
}

fn filled_in(value: &Value) -> Value {
    let text = value.to_string().replace("${ns}", "ad-u").replace("${u}", "u").replace("<U>", "u");
    serde_json::from_str(&text).expect("still JSON")
}

/// The captured object after a step's edits.
fn mutated(object: &Value, edits: &Value) -> Value {
    let mut object = object.clone();
    for edit in edits.as_array().into_iter().flatten() {
        let path: Vec<String> =
            edit.text("path").split('/').skip(1).map(|part| part.replace("~1", "/")).collect();
        let Some((last, parents)) = path.split_last() else {
            continue;
        };
        let mut target = &mut object;
        for part in parents {
            let index = part.parse::<usize>().ok().filter(|_| target.is_array());
            target = match index {
                Some(index) => &mut target[index],
                None if target.has(part) => &mut target[part],
                None => target.child_mut(part),
            };
        }
        let index = last.parse::<usize>().ok().filter(|_| target.is_array());
        match (index, edit.text("op")) {
            (None, "remove") => {
                target.unset(last);
            }
            (None, _) if target.is_array() => {
                target.as_array_mut().expect("a list").push(filled_in(edit.field("value")));
            }
            (None, _) => target.set(last, filled_in(edit.field("value"))),
            (Some(index), _) => target[index] = filled_in(edit.field("value")),
        }
    }
    object
}

/// Warnings of the kind's own rules, without those of decoding and deprecated versions.
fn same_warnings(got: &[String], want: &Value) -> Result<(), String> {
    let got: Vec<String> = got.iter().map(|text| format!("299 - {}", show_str(text))).collect();
    let foreign = ["unknown field", "duplicate field", "v1 Endpoints is deprecated", "metadata.finalizers"];
    let want: Vec<String> = want
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter(|text| !foreign.iter().any(|other| text.contains(other)))
        .map(str::to_owned)
        .collect();
    if got == want { Ok(()) } else { Err(format!("warns {got:?}\nwant  {want:?}")) }
}

/// Metadata is checked by the registry.
fn is_own(field: &str) -> bool {
    !field.starts_with("metadata.")
        || field.starts_with("metadata.taints")
        || field.starts_with("metadata.annotations[")
}

/// True if the object has exactly the recorded fields, except metadata.
fn covers(got: &Value, want: &Value, path: &str) -> Result<(), String> {
    match (got, want) {
        (Value::Object(got), Value::Object(want)) => {
            for (key, value) in want {
                if (path.is_empty() && key == "metadata") || SERVER_CHOSEN.contains(&key.as_str()) {
                    continue;
                }
                if path == ".spec" && key == "taints" && is_admissions(got.get(key), value) {
                    continue;
                }
                covers(got.get(key).unwrap_or(&Value::Null), value, &format!("{path}.{key}"))?;
            }
            let extra = got.iter().find(|(key, _)| !want.contains_key(*key));
            extra.map_or(Ok(()), |(key, value)| Err(format!("{path}.{key} is {value}, want nothing")))
        }
        (Value::Array(got), Value::Array(want)) if got.len() == want.len() => {
            got.iter().zip(want).try_for_each(|(got, want)| covers(got, want, path))
        }
        _ if got == want => Ok(()),
        _ => Err(format!("{path} is {got}, want {want}")),
    }
}

/// Admission adds a taint to every new node.
fn is_admissions(got: Option<&Value>, want: &Value) -> bool {
    let mut all = got.and_then(Value::as_array).cloned().unwrap_or_default();
    all.push(json!({"effect": "NoSchedule", "key": "node.kubernetes.io/not-ready"}));
    want.as_array() == Some(&all)
}
