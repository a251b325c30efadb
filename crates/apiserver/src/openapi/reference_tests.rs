//! Compares every document with what a stock Kubernetes API server publishes.

use super::*;
use std::path::{Path, PathBuf};

/// Fields whose values Ferry explains in its own words: everything else must be the same to the letter.
const OWN_WORDS: &[(&str, &str)] = &[
    ("io.k8s.api.admissionregistration.v1.MatchResources", "matchPolicy"),
    ("io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicySpec", "failurePolicy"),
    ("io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicySpec", "reinvocationPolicy"),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", "failurePolicy"),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", "matchPolicy"),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", "reinvocationPolicy"),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", "sideEffects"),
    ("io.k8s.api.admissionregistration.v1.Mutation", "patchType"),
    ("io.k8s.api.admissionregistration.v1.NamedRuleWithOperations", "scope"),
    ("io.k8s.api.admissionregistration.v1.RuleWithOperations", "scope"),
    ("io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec", "failurePolicy"),
    ("io.k8s.api.admissionregistration.v1.ValidatingWebhook", "failurePolicy"),
    ("io.k8s.api.admissionregistration.v1.ValidatingWebhook", "matchPolicy"),
    ("io.k8s.api.admissionregistration.v1.ValidatingWebhook", "sideEffects"),
    ("io.k8s.api.batch.v1.JobSpec", "completionMode"),
    ("io.k8s.api.batch.v1.JobSpec", "podReplacementPolicy"),
    ("io.k8s.api.batch.v1.PodFailurePolicyRule", "action"),
    ("io.k8s.api.core.v1.AppArmorProfile", "type"),
    ("io.k8s.api.core.v1.HostPathVolumeSource", "type"),
    ("io.k8s.api.core.v1.ModifyVolumeStatus", "status"),
    ("io.k8s.api.core.v1.PersistentVolumeClaimSpec", "volumeMode"),
    ("io.k8s.api.core.v1.PersistentVolumeSpec", "volumeMode"),
    ("io.k8s.api.core.v1.PodSecurityContext", "fsGroupChangePolicy"),
    ("io.k8s.api.core.v1.PodSecurityContext", "supplementalGroupsPolicy"),
    ("io.k8s.api.core.v1.PodSpec", "preemptionPolicy"),
    ("io.k8s.api.core.v1.ScopedResourceSelectorRequirement", "scopeName"),
    ("io.k8s.api.core.v1.SecurityContext", "procMount"),
    ("io.k8s.api.core.v1.ServiceSpec", "externalTrafficPolicy"),
    ("io.k8s.api.core.v1.ServiceSpec", "internalTrafficPolicy"),
    ("io.k8s.api.core.v1.ServiceSpec", "ipFamilyPolicy"),
    ("io.k8s.api.core.v1.TopologySpreadConstraint", "nodeAffinityPolicy"),
    ("io.k8s.api.core.v1.TopologySpreadConstraint", "nodeTaintsPolicy"),
    ("io.k8s.api.core.v1.VolumeMount", "mountPropagation"),
    ("io.k8s.api.networking.v1.HTTPIngressPath", "pathType"),
    ("io.k8s.api.resource.v1.DeviceTaint", "effect"),
    ("io.k8s.api.resource.v1.DeviceToleration", "effect"),
    ("io.k8s.api.scheduling.v1.PriorityClass", "preemptionPolicy"),
    ("io.k8s.api.storage.v1.StorageClass", "volumeBindingMode"),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.ValidationRule", "reason"),
];

/// Parameters that Ferry explains in its own words.
const OWN_PARAMETERS: &[&str] = &["shardSelector", "stream", "tailLines"];

fn reference() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/reference/openapi");
    folder.is_dir().then_some(folder)
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("the file reads"))
        .expect("reference documents are JSON")
}

fn parsed(document: &Document) -> Value {
    serde_json::from_slice(&document.json()).expect("our documents are JSON")
}

/// Paths at which two values differ.
fn differences(path: &str, got: &Value, want: &Value, out: &mut Vec<String>) {
    match (got, want) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let below = format!("{path}/{key}");
                let name = a.get("name").and_then(Value::as_str).unwrap_or_default();
                if key == "description" && OWN_PARAMETERS.contains(&name) && b.contains_key(key) {
                    continue;
                }
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => differences(&below, a, b, out),
                    (Some(_), None) => out.push(format!("{below}: too much")),
                    _ => out.push(format!("{below}: missing")),
                }
            }
        }
        (a, b) if a == b => {}
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}/{index}"), a, b, out);
            }
        }
        (a, b) => {
            let short = |value: &Value| value.to_string().chars().take(120).collect::<String>();
            out.push(format!("{path}: got {} want {}", short(a), short(b)));
        }
    }
}

#[test]
fn v3_equals_the_reference() {
    let Some(folder) = reference() else {
        eprintln!("skipped: no reference data");
        return;
    };
    let openapi = OpenApi::built_in();
    let index = read(&folder.join("v3-index.json"));
    let got = parsed(&openapi.v3_index());
    let names =
        |index: &Value| index["paths"].as_object().expect("paths").keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&got), names(&index));
    let mut wrong = Vec::new();
    for name in names(&index) {
        let want = read(&folder.join(format!("v3/{}.json", name.replace('/', "__"))));
        let document = openapi.v3_group_version(&name).expect("listed documents exist");
        differences(&name, &parsed(&document), &want, &mut wrong);
    }
    report("v3", &wrong);
}

#[test]
fn v2_equals_the_reference() {
    let Some(folder) = reference() else {
        eprintln!("skipped: no reference data");
        return;
    };
    let want = read(&folder.join("v2.json"));
    let mut wrong = Vec::new();
    differences("", &parsed(&OpenApi::built_in().v2_json()), &want, &mut wrong);
    report("v2", &wrong);
}

/// Fails on every difference but in the texts that are Ferry's own.
fn report(what: &str, wrong: &[String]) {
    let own = |line: &&String| {
        let mut fields =
            OWN_WORDS.iter().map(|(name, field)| format!("/{name}/properties/{field}/description: got"));
        fields.any(|place| line.contains(&place))
    };
    let (ours, wrong): (Vec<&String>, Vec<&String>) = wrong.iter().partition(own);
    for line in &wrong {
        eprintln!("{what} {line}");
    }
    eprintln!("{what}: {} texts in our own words", ours.len());
    assert!(wrong.is_empty(), "{what}: {} differences", wrong.len());
}
