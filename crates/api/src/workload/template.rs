//! Selector and pod template of a workload kind.

use crate::pod_spec::{layout, relaxed, validate_template};
use crate::validation::label_selector;
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::selector::LabelSelector;
use machinery::{Value, names};

/// Names of a kind in messages.
pub struct Wording {
    /// `empty selector is invalid for …`.
    pub empty_selector: &'static str,
    /// `activeDeadlineSeconds in … is not Supported`.
    pub deadline: &'static str,
}

/// `spec.selector` in the form shown in messages.
pub fn show_selector(selector: &Value) -> String {
    if selector.is_null() { "null".to_owned() } else { layout::internal_json("LabelSelector", selector) }
}

/// Requires a non-empty selector.
pub fn validate_selector(selector: &Value, wording: &Wording, path: &Path<'_>, errors: &mut ErrorList) {
    if selector.is_null() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    errors.extend(names::validate_label_selector(selector, false, path));
    if label_selector::is_empty(selector) {
        let detail = format!("empty selector is invalid for {}", wording.empty_selector);
        errors.push(FieldError::invalid_shown(path, show_selector(selector), detail));
    }
}

/// True if the selector is valid.
pub fn is_usable(selector: &Value) -> bool {
    LabelSelector::from_object(Some(selector)).is_ok()
}

/// Requires template labels that match the selector. An empty selector is not checked.
pub fn validate_match(selector: &Value, template: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let Ok(selector) = LabelSelector::from_object(Some(selector)) else { return };
    let labels = template.at("metadata.labels");
    if !selector.is_empty() && !selector.matches(&labels.as_object()) {
        errors.push(mismatch(labels, path));
    }
}

/// Error of a template at `path` whose labels do not match the selector.
pub fn mismatch(labels: &Value, path: &Path<'_>) -> FieldError {
    let metadata = path.child("metadata");
    let detail = "`selector` does not match template `labels`";
    FieldError::invalid(&metadata.child("labels"), labels, detail)
}

/// Validates the template; violations of the `old` one are tolerated.
pub fn validate_pod_template(template: &Value, old: Option<&Value>, path: &Path<'_>, errors: &mut ErrorList) {
    let old_pod = old.map(|old| (old.field("spec"), old.at("metadata.annotations")));
    relaxed::with_old(false, old_pod, errors, |options, errors| {
        validate_template(template, options, path, errors);
    });
}

/// Requires `restartPolicy: Always` and no deadline for pods that a controller replaces.
pub fn validate_runs_forever(template: &Value, wording: &Wording, path: &Path<'_>, errors: &mut ErrorList) {
    let spec = template.field("spec");
    let path = path.child("spec");
    let policy = spec.text("restartPolicy");
    if policy != "Always" {
        let path = path.child("restartPolicy");
        errors.push(FieldError::not_supported(&path, &Value::from(policy), &["Always"]));
    }
    if spec.has("activeDeadlineSeconds") {
        let detail = format!("activeDeadlineSeconds in {} is not Supported", wording.deadline);
        errors.push(FieldError::forbidden(&path.child("activeDeadlineSeconds"), detail));
    }
}

/// Messages of ReplicaSets, which Deployments share.
const REPLICATED: Wording = Wording { empty_selector: "deployment", deadline: "ReplicaSet" };

/// Validates `spec.selector` and `spec.template` of a Deployment or ReplicaSet.
pub fn validate_replicated(object: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let (path, spec) = (Path::new("spec"), object.field("spec"));
    let (selector, selector_path) = (spec.field("selector"), path.child("selector"));
    validate_selector(selector, &REPLICATED, &selector_path, errors);
    if !is_usable(selector) {
        let shown = show_selector(selector);
        errors.push(FieldError::invalid_shown(&selector_path, shown, "invalid label selector"));
        return;
    }
    let (template, template_path) = (spec.field("template"), path.child("template"));
    validate_match(selector, template, &template_path, errors);
    validate_pod_template(template, old.map(|old| old.at("spec.template")), &template_path, errors);
    validate_runs_forever(template, &REPLICATED, &template_path, errors);
}

/// Rejects a changed selector.
pub fn validate_selector_unchanged(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (new, old) = (new.at("spec.selector"), old.at("spec.selector"));
    if new != old {
        let path = Path::new("spec");
        let detail = "field is immutable";
        errors.push(FieldError::invalid_shown(&path.child("selector"), show_selector(new), detail));
    }
}
