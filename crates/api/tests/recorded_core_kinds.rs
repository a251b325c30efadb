//! Replays, without a server, what Kubernetes answered to creations of core and networking objects:
//! defaults, preparation, allocation and validation must give the recorded fields or the recorded causes.

use api::allocation::ip::IpRange;
use api::allocation::port::PortRange;
use api::allocation::service::{AllocationError, Allocators, plan};
use api::value::Fields;
use api::{Kind, kinds};
use machinery::Value;
use machinery::field::FieldError;
use std::path::{Path, PathBuf};

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
    &kinds::resource_quota::KIND,
    &kinds::secret::KIND,
    &kinds::service::KIND,
    &kinds::service_account::KIND,
    &kinds::service_cidr::KIND,
];

/// Fields that only a server fills in.
const SERVERS_OWN: &[&str] =
    &["clusterIP", "clusterIPs", "lastPhaseTransitionTime", "nodePort", "healthCheckNodePort"];

#[test]
fn recorded_creations() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/tools/apidiff/golden");
    if !golden.is_dir() {
        println!("skipped: no reference data");
        return;
    }
    let mut failures = Vec::new();
    let mut steps = 0;
    for file in recordings(&golden) {
        let text = std::fs::read_to_string(&file).expect("a readable recording");
        let recording: Value = serde_json::from_str(&text).expect("a JSON recording");
        let mut allocators = Allocators::new(
            vec![IpRange::parse("10.0.0.0/16").expect("a valid range")],
            PortRange::DEFAULT,
            1,
        );
        for step in recording["steps"].as_array().into_iter().flatten() {
            if matches!(step["method"].as_str(), Some("DELETE" | "PATCH")) {
                // What follows may depend on it.
                break;
            }
            let Some(kind) = kind_of(step) else {
                continue;
            };
            steps += 1;
            if let Err(problem) = replay(kind, step, &mut allocators) {
                let name = file.strip_prefix(&golden).unwrap_or(&file).display();
                failures.push(format!("{name}: {}\n{problem}", step["body"]));
            }
        }
    }
    println!("{steps} recorded creations, {} differ", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn recordings(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for area in std::fs::read_dir(folder).expect("a folder of areas").flatten() {
        // Cluster set-up of these is more than the kinds' own rules.
        if matches!(
            area.file_name().to_str(),
            Some("admission" | "crd" | "vap" | "map" | "rbac" | "negotiation")
        ) {
            continue;
        }
        for file in std::fs::read_dir(area.path()).expect("a folder of recordings").flatten() {
            files.push(file.path());
        }
    }
    files.sort();
    files
}

/// The kind that a step creates, if it is one of ours and its answer depends on its rules alone.
fn kind_of(step: &Value) -> Option<&'static Kind> {
    if step["method"] != "POST" || !step["body"].is_object() || step.get("edit").is_some() {
        return None;
    }
    if !step["headers"].is_null() || !matches!(step["want"]["code"].as_i64(), Some(201 | 422)) {
        return None;
    }
    if step["body"].get("unknownField").is_some() || !step["want"]["body"].is_object() {
        return None;
    }
    let path = step["path"].as_str()?.split('?').next()?;
    let body = &step["body"];
    let group_version = body["apiVersion"].as_str()?;
    KINDS.iter().copied().find(|kind| {
        let own = if kind.group.is_empty() {
            kind.version.to_owned()
        } else {
            format!("{}/{}", kind.group, kind.version)
        };
        own == group_version && body["kind"] == kind.kind && path.ends_with(&format!("/{}", kind.resource))
    })
}

fn replay(kind: &Kind, step: &Value, allocators: &mut Allocators) -> Result<(), String> {
    let filled_in = |value: &Value| -> Value {
        let text = value.to_string().replace("${ns}", "ad-u").replace("${u}", "u").replace("<U>", "u");
        serde_json::from_str(&text).expect("still JSON")
    };
    let mut object = filled_in(&step["body"]);
    if kind.scope == api::Scope::Namespaced {
        object["metadata"]["namespace"] = "ad-u".into();
    }
    let dry_run = step["query"]["dryRun"] == "All";
    (kind.default)(&mut object);
    let mut errors = Vec::new();
    if kind.kind == "Service" {
        match plan(&mut object, None, allocators, dry_run) {
            Ok(_) => {}
            Err(AllocationError::Invalid(refused)) => errors = refused,
            Err(AllocationError::Internal(text)) => return Err(text),
        }
    }
    if errors.is_empty() {
        (kind.prepare_create)(&mut object);
        errors = (kind.validate)(&object);
    }
    let want = &filled_in(&step["want"]["body"]);
    if step["want"]["code"] == 201 {
        if !errors.is_empty() {
            return Err(format!("refused: {errors:?}"));
        }
        (kind.canonicalize)(&mut object);
        if kind.kind == "Node" {
            // Admission says so of every new node.
            let taint = serde_json::json!({"effect": "NoSchedule", "key": "node.kubernetes.io/not-ready"});
            let spec = object.child_mut("spec");
            match spec.field_mut("taints") {
                Some(Value::Array(taints)) => taints.push(taint),
                _ => spec.set("taints", serde_json::json!([taint])),
            }
        }
        return covers(&object, want, "");
    }
    let got: Vec<(String, String)> = errors.iter().map(cause).filter(|(field, _)| is_own(field)).collect();
    let causes = want["details"]["causes"].as_array().into_iter().flatten();
    let want: Vec<(String, String)> = causes
        .map(|cause| {
            let text = |key: &str| cause[key].as_str().unwrap_or("").to_owned();
            (text("field"), text("message"))
        })
        .filter(|(field, _)| is_own(field))
        .collect();
    if got == want { Ok(()) } else { Err(format!("got  {got:?}\nwant {want:?}")) }
}

fn cause(error: &FieldError) -> (String, String) {
    (error.field.clone(), error.body())
}

/// Metadata is checked by the registry.
fn is_own(field: &str) -> bool {
    !field.starts_with("metadata.")
        || field.starts_with("metadata.taints")
        || field.starts_with("metadata.annotations[")
}

/// Whether the object has what Kubernetes shows of it, metadata aside.
fn covers(got: &Value, want: &Value, path: &str) -> Result<(), String> {
    match (got, want) {
        (Value::Object(got), Value::Object(want)) => {
            for (key, value) in want {
                if (path.is_empty() && key == "metadata") || SERVERS_OWN.contains(&key.as_str()) {
                    continue;
                }
                let own = got.get(key).unwrap_or(&Value::Null);
                // The codec, not the kind, writes fields that are always there.
                let empty = match value {
                    Value::Object(map) => map.is_empty(),
                    Value::String(text) => text.is_empty(),
                    _ => value.is_null(),
                };
                if own.is_null() && empty {
                    continue;
                }
                covers(own, value, &format!("{path}.{key}"))?;
            }
            let extra = got.iter().find(|(key, value)| {
                let shown = want.contains_key(*key) || (path.is_empty() && *key == "metadata");
                !shown && !api::value::is_zero(value)
            });
            extra.map_or(Ok(()), |(key, value)| Err(format!("{path}.{key} is {value}, want nothing")))
        }
        (Value::Array(got), Value::Array(want)) if got.len() == want.len() => {
            got.iter().zip(want).try_for_each(|(got, want)| covers(got, want, path))
        }
        _ if got == want || is_same_quantity(got, want) => Ok(()),
        _ => Err(format!("{path} is {got}, want {want}")),
    }
}

fn is_same_quantity(got: &Value, want: &Value) -> bool {
    use machinery::quantity::Quantity;
    let parse = |value: &Value| match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    };
    parse(got).is_some() && parse(got) == parse(want)
}
