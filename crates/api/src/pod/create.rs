//! Creation of a pod: its initial status, derived fields, and validation.

use super::{app_armor, qos, validate_annotations_and_spec};
use crate::pod_spec::{Options, annotations, disabled};
use crate::value::{Fields, texts};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Map, Value};
use serde_json::json;

pub fn prepare(pod: &mut Value) {
    let submitted = pod.field("status").text("qosClass");
    let class =
        if submitted.is_empty() { qos::compute(pod.field("spec")).to_owned() } else { submitted.to_owned() };
    let mut status = json!({"phase": "Pending", "qosClass": class});
    if !pod.field("spec").items("schedulingGates").is_empty() {
        status.set(
            "conditions",
            json!([{
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": null,
                "lastTransitionTime": crate::clock::now_text(),
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }]),
        );
    }
    pod.set("status", status);
    if let Some(spec) = pod.field_mut("spec") {
        disabled::drop_disabled_fields(spec, &Value::Null);
    }
    merge_label_keys(pod);
    app_armor::sync(pod);
}

/// `matchLabelKeys` and `mismatchLabelKeys` become requirements on the pod's own label values.
fn merge_label_keys(pod: &mut Value) {
    let labels = pod.at("metadata.labels").as_object().cloned().unwrap_or_default();
    let Some(spec) = pod.field_mut("spec") else { return };
    if let Some(affinity) = spec.field_mut("affinity") {
        for name in ["podAffinity", "podAntiAffinity"] {
            let Some(pods) = affinity.field_mut(name) else { continue };
            for weighted in pods.items_mut("preferredDuringSchedulingIgnoredDuringExecution") {
                if let Some(term) = weighted.field_mut("podAffinityTerm") {
                    merge_term(term, &labels);
                }
            }
            for term in pods.items_mut("requiredDuringSchedulingIgnoredDuringExecution") {
                merge_term(term, &labels);
            }
        }
    }
    for constraint in spec.items_mut("topologySpreadConstraints") {
        merge_term(constraint, &labels);
    }
}

fn merge_term(term: &mut Value, labels: &Map<String, Value>) {
    if !term.has("labelSelector") {
        return;
    }
    let mut added = Vec::new();
    for (name, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in texts(term.items(name)) {
            if let Some(value) = labels.get(key) {
                added.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    if added.is_empty() {
        return;
    }
    let selector = term.child_mut("labelSelector");
    match selector.field_mut("matchExpressions") {
        Some(Value::Array(expressions)) => expressions.extend(added),
        _ => selector.set("matchExpressions", added),
    }
}

pub fn validate(pod: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let options = Options { is_pod: true, ..Options::default() };
    validate_annotations_and_spec(pod, &options, &mut errors);
    let spec = pod.field("spec");
    let path = Path::new("spec");
    if !spec.items("ephemeralContainers").is_empty() {
        errors.push(FieldError::forbidden(&path.child("ephemeralContainers"), "cannot be set on create"));
    }
    if !spec.text("nodeName").is_empty() && !spec.items("schedulingGates").is_empty() {
        let detail = "cannot be set until all schedulingGates have been cleared";
        errors.push(FieldError::forbidden(&path.child("nodeName"), detail));
    }
    annotations::validate_profiles_match(pod.at("metadata.annotations"), spec, &path, &mut errors);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn match_label_keys_are_merged_into_selector() {
        let mut pod = json!({
            "metadata": {"labels": {"a": "1"}},
            "spec": {"topologySpreadConstraints": [{"matchLabelKeys": ["a", "b"], "labelSelector": {}}],
                "schedulingGates": [{"name": "x"}]},
        });
        prepare(&mut pod);
        assert_eq!(
            pod["spec"]["topologySpreadConstraints"][0]["labelSelector"],
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]})
        );
        assert_eq!(pod["status"]["conditions"][0]["reason"], "SchedulingGated");
        assert!(pod["status"]["conditions"][0]["lastTransitionTime"].is_string());
        assert_eq!(pod["status"]["qosClass"], "BestEffort");
    }
}
