//! Validation of job updates.

use super::template::show_selector;
use crate::pod_spec::checks::{IMMUTABLE, immutable};
use crate::pod_spec::layout;
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

/// Validates differences between two jobs; the new one itself is validated elsewhere.
pub fn validate_changes(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let (spec, old_spec) = (new.field("spec"), old.field("spec"));
    validate_completions(spec, old_spec, &path.child("completions"), errors);
    if spec.field("selector") != old_spec.field("selector") {
        let shown = show_selector(spec.field("selector"));
        errors.push(FieldError::invalid_shown(&path.child("selector"), shown, IMMUTABLE));
    }
    validate_template(spec, old_spec, may_change_template(old), &path, errors);
    immutable_field(spec, old_spec, "completionMode", &path, errors);
    immutable_struct(spec, old_spec, "podFailurePolicy", "PodFailurePolicy", &path, errors);
    immutable_field(spec, old_spec, "backoffLimitPerIndex", &path, errors);
    immutable_field(spec, old_spec, "managedBy", &path, errors);
    immutable_struct(spec, old_spec, "successPolicy", "SuccessPolicy", &path, errors);
}

fn immutable_field(new: &Value, old: &Value, name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if new.field(name) != old.field(name) {
        errors.push(FieldError::invalid(&path.child(name), new.field(name), IMMUTABLE));
    }
}

fn immutable_struct(
    new: &Value,
    old: &Value,
    name: &str,
    kind: &str,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let value = new.field(name);
    if value != old.field(name) {
        let shown = if value.is_null() { "null".to_owned() } else { layout::internal_json(kind, value) };
        errors.push(FieldError::invalid_shown(&path.child(name), shown, IMMUTABLE));
    }
}

/// Only the completions of an indexed job may change, together with its parallelism.
fn validate_completions(new: &Value, old: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let completions = new.field("completions");
    if completions == old.field("completions") {
        return;
    }
    if new.text("completionMode") != "Indexed" {
        immutable(completions, old.field("completions"), path, errors);
        if completions.is_null() || old.field("completions").is_null() {
            // Zero and absent are different here.
            if errors.last().is_none_or(|error| error.field != path.to_string()) {
                errors.push(FieldError::invalid(path, completions, IMMUTABLE));
            }
        }
    } else if !completions.is_null() && completions != new.field("parallelism") {
        let detail = "can only be modified in tandem with spec.parallelism";
        errors.push(FieldError::invalid(path, completions, detail));
    }
}

/// True if the job is suspended and has not started, or all its pods have terminated.
fn may_change_template(old: &Value) -> bool {
    let status = old.field("status");
    let suspended =
        |condition: &Value| condition.text("type") == "Suspended" && condition.text("status") == "True";
    let stopped = !status.has("startTime") || status.items("conditions").iter().any(suspended);
    old.field("spec").flag("suspend") && stopped && status.int("active") == 0
}

fn validate_template(new: &Value, old: &Value, may_change: bool, path: &Path<'_>, errors: &mut ErrorList) {
    let template = new.field("template");
    let mut old_template = old.field("template").clone();
    if !may_change {
        if *template != old_template {
            let shown = layout::internal_json("PodTemplateSpec", template);
            errors.push(FieldError::invalid_shown(&path.child("template"), shown, IMMUTABLE));
        }
        return;
    }
    // Scheduling directives and resources of the pods may still change.
    allow_scheduling(template, &mut old_template);
    let pod = template.field("spec");
    let old_pod = old_template.child_mut("spec");
    for list in ["containers", "initContainers"] {
        if pod.items(list).len() != old_pod.items(list).len() {
            continue;
        }
        for (container, new) in old_pod.items_mut(list).iter_mut().zip(pod.items(list)) {
            if container.text("name") == new.text("name") {
                crate::pod::update::restore(container, new, "resources");
            }
        }
    }
    if pod != old_pod {
        let shown = layout::internal_json("PodSpec", pod);
        errors.push(FieldError::invalid_shown(&path.child("template.spec"), shown, IMMUTABLE));
    }
}

fn allow_scheduling(template: &Value, old: &mut Value) {
    let new_affinity = template.field("spec").field("affinity");
    let pod = old.child_mut("spec");
    match (new_affinity.is_null(), pod.has("affinity")) {
        (true, true) => {
            let affinity = pod.child_mut("affinity");
            affinity.unset("nodeAffinity");
            if crate::value::is_zero(affinity) {
                pod.unset("affinity");
            }
        }
        (false, _) => {
            crate::pod::update::restore(pod.child_mut("affinity"), new_affinity, "nodeAffinity");
        }
        (true, false) => {}
    }
    for name in ["nodeSelector", "tolerations", "schedulingGates"] {
        crate::pod::update::restore(pod, template.field("spec"), name);
    }
    let metadata = template.field("metadata");
    for name in ["annotations", "labels"] {
        crate::pod::update::restore(old.child_mut("metadata"), metadata, name);
    }
}
