//! Rules of the pod template that the workload kinds share.

pub mod cron;
pub mod indexes;
pub mod job_spec;
pub mod job_status;
pub mod job_update;
pub mod rolling_update;
pub mod status;
pub mod template;

use crate::pod_spec::{disabled, warnings};
use crate::value::Fields;
use machinery::Value;
use machinery::field::Path;

/// Drops fields of disabled features from the template at `path` (`spec.template`).
pub fn drop_disabled_template_fields(object: &mut Value, old: &Value, path: &str) {
    let old = old.at(path).field("spec");
    if let Some(spec) = object.at_mut(path).and_then(|template| template.field_mut("spec")) {
        disabled::drop_disabled_fields(spec, old);
    }
}

/// Replaces status by its zero form: the fields that are always written.
pub fn zero_status(object: &mut Value, counters: &[&str]) {
    let zeros = counters.iter().map(|name| ((*name).to_owned(), Value::from(0))).collect();
    object.set("status", Value::Object(zeros));
}

/// Copies the template's labels to the object if it has none.
pub fn default_labels_from_template(object: &mut Value, template: &str) {
    let has_labels = object.field("metadata").entries("labels").is_some_and(|labels| !labels.is_empty());
    let labels = object.at(template).field("metadata").field("labels");
    if has_labels || labels.as_object().is_none_or(|labels| labels.is_empty()) {
        return;
    }
    let labels = labels.clone();
    object.child_mut("metadata").set("labels", labels);
}

/// `prepare_status_update` of most workload kinds: restores spec.
pub fn keep_spec(new: &mut Value, old: &Value) {
    match old.field("spec") {
        Value::Null => {
            new.unset("spec");
        }
        spec if new.field("spec") == spec => {}
        spec => new.set("spec", spec.clone()),
    }
}

/// Restores a field of metadata.
pub fn keep_metadata(new: &mut Value, old: &Value, name: &str) {
    match old.field("metadata").field(name) {
        Value::Null => {
            new.child_mut("metadata").unset(name);
        }
        previous => new.child_mut("metadata").set(name, previous.clone()),
    }
}

/// Warnings about a new or changed template at `path` (`spec.template`), and about a new object's name.
pub fn template_warnings(new: &Value, old: Option<&Value>, path: &str, warn_name: bool) -> Vec<String> {
    let mut found = Vec::new();
    match old {
        None if warn_name => found.extend(warnings::warn_name(new, "Pod names and hostnames")),
        Some(old)
            if old.field("spec") == new.field("spec") && old.field("template") == new.field("template") =>
        {
            return found;
        }
        _ => {}
    }
    let template = new.at(path);
    if !template.is_null() {
        found.extend(warnings::warnings_for(template, true, &Path::new(path)));
    }
    found
}
