//! Selector and pod template of a workload kind.

use crate::pod_spec::{layout, relaxed, validate_template};
use crate::validation::label_selector;
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::selector::LabelSelector;
use machinery::{Value, names};

/// What a kind says where others say its name.
pub struct Wording {
    /// `empty selector is invalid for …`.
    pub empty_selector: &'static str,
    /// `activeDeadlineSeconds in … is not Supported`.
    pub deadline: &'static str,
}

/// `spec.selector` as messages show it.
pub fn show_selector(selector: &Value) -> String {
    if selector.is_null() { "null".to_owned() } else { layout::internal_json("LabelSelector", selector) }
}

/// A selector that must be there and select something.
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

/// Whether the selector can be used at all.
pub fn is_usable(selector: &Value) -> bool {
    LabelSelector::from_object(Some(selector)).is_ok()
}

/// The template must carry labels that the selector selects. An empty selector is not asked.
pub fn validate_match(selector: &Value, template: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let Ok(selector) = LabelSelector::from_object(Some(selector)) else { return };
    let labels = template.at("metadata.labels");
    if !selector.is_empty() && !selector.matches(&labels.as_object()) {
        errors.push(mismatch(labels, path));
    }
}

/// What is said of a template at `path` whose labels are not those of the selector.
pub fn mismatch(labels: &Value, path: &Path<'_>) -> FieldError {
    let metadata = path.child("metadata");
    let detail = "`selector` does not match template `labels`";
    FieldError::invalid(&metadata.child("labels"), labels, detail)
}

/// The template's own rules; what the `old` one breaks already may stay.
pub fn validate_pod_template(template: &Value, old: Option<&Value>, path: &Path<'_>, errors: &mut ErrorList) {
    let kept = old.map(|old| (old.field("spec"), old.at("metadata.annotations")));
    relaxed::with_old(false, kept, errors, |options, errors| {
        validate_template(template, options, path, errors);
    });
}

/// Pods that a controller replaces restart for ever and have no deadline.
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

/// The selector may not change.
pub fn validate_selector_unchanged(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (new, old) = (new.at("spec.selector"), old.at("spec.selector"));
    if new != old {
        let path = Path::new("spec");
        let detail = "field is immutable";
        errors.push(FieldError::invalid_shown(&path.child("selector"), show_selector(new), detail));
    }
}
