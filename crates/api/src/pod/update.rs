//! Validation of pod updates: nearly all fields are immutable.

use super::{gated, validate_annotations_and_spec};
use crate::pod_spec::annotations::{self, APP_ARMOR_PREFIX, MIRROR_POD};
use crate::pod_spec::{Options, diff, layout, relaxed, tolerations};
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
    `spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` \
    (allow it to be set to 1 if it was previously negative)";

pub fn validate(new: &Value, old: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let old_pod = Some((old.field("spec"), old.at("metadata.annotations")));
    relaxed::with_old(true, old_pod, &mut errors, |options, errors| {
        validate_annotations_and_spec(new, options, errors);
        validate_annotation_changes(new, old, options, errors);
    });
    let relaxed_tolerations = Options { is_pod: true, comparing_tolerations: true, ..Options::default() };
    validate_spec_changes(new.field("spec"), old.field("spec"), &relaxed_tolerations, &mut errors);
    errors
}

/// Immutable annotations of existing pods, and rules of the others.
pub fn validate_annotation_changes(new: &Value, old: &Value, options: &Options, errors: &mut ErrorList) {
    let metadata = Path::new("metadata");
    let path = metadata.child("annotations");
    let (new_map, old_map) = (new.at("metadata.annotations"), old.at("metadata.annotations"));
    for (key, value) in old_map.as_object().into_iter().flatten() {
        if new_map.field(key) == value {
            continue;
        }
        if key.starts_with(APP_ARMOR_PREFIX) {
            errors
                .push(FieldError::forbidden(&path.key(key), "may not remove or update AppArmor annotations"));
        }
        if key == MIRROR_POD {
            errors.push(FieldError::forbidden(
                &path.key(key),
                "may not remove or update mirror pod annotation",
            ));
        }
    }
    for (key, _) in new_map.as_object().into_iter().flatten() {
        if old_map.has(key) {
            continue;
        }
        if key.starts_with(APP_ARMOR_PREFIX) {
            errors.push(FieldError::forbidden(&path.key(key), "may not add AppArmor annotations"));
        }
        if key == MIRROR_POD {
            errors.push(FieldError::forbidden(&path.key(key), "may not add mirror pod annotation"));
        }
    }
    annotations::validate_annotations(new_map, new.field("spec"), options, &path, errors);
}

fn validate_spec_changes(new: &Value, old: &Value, options: &Options, errors: &mut ErrorList) {
    let path = Path::new("spec");
    for list in ["containers", "initContainers"] {
        let containers = new.items(list);
        let path = path.child(list);
        if containers.len() != old.items(list).len() {
            errors.push(FieldError::forbidden(&path, "pod updates may not add or remove containers"));
            return;
        }
        for (index, container) in containers.iter().enumerate() {
            let item = path.index(index);
            let image = container.text("image");
            if image.is_empty() {
                errors.push(FieldError::required(&item.child("image"), ""));
            }
            if image.trim().len() != image.len() {
                let detail = "must not have leading or trailing whitespace";
                errors.push(FieldError::invalid_str(&item.child("image"), image, detail));
            }
        }
    }
    if !validate_deadline(new, old, &path.child("activeDeadlineSeconds"), errors) {
        return;
    }
    validate_toleration_changes(new, old, options, &path.child("tolerations"), errors);
    validate_gate_changes(new, old, &path.child("schedulingGates"), errors);
    if new == old {
        return;
    }
    let mut munged = with_old_values(new, old);
    if !old.items("schedulingGates").is_empty() {
        gated::allow_narrowing(&mut munged, old, &path, errors);
    }
    if munged != *old {
        show_emptied_lists(&mut munged, old);
        let before = layout::internal_json_lines("PodSpec", old);
        let after = layout::internal_json_lines("PodSpec", &munged);
        let difference = diff::unified(&before, &after);
        let detail = format!("pod updates may not change fields other than {UPDATABLE}\n{difference}");
        errors.push(FieldError::forbidden(&path, detail));
    }
}

/// The deadline may be set or shortened. False stops the validation.
fn validate_deadline(new: &Value, old: &Value, path: &Path<'_>, errors: &mut ErrorList) -> bool {
    let previous = old.opt_int("activeDeadlineSeconds");
    let Some(deadline) = new.opt_int("activeDeadlineSeconds") else {
        if previous.is_some() {
            let detail = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(path, &Value::Null, detail));
        }
        return true;
    };
    let max = i64::from(i32::MAX);
    let detail = if !(0..=max).contains(&deadline) {
        names::range_error(0, max)
    } else if previous.is_some_and(|previous| previous < deadline) {
        "must be less than or equal to previous value".to_owned()
    } else {
        return true;
    };
    errors.push(FieldError::invalid(path, &Value::from(deadline), detail));
    false
}

/// Tolerations may be added, and their duration may change.
fn validate_toleration_changes(
    new: &Value,
    old: &Value,
    options: &Options,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let (new_list, old_list) = (new.items("tolerations"), old.items("tolerations"));
    let same = |a: &Value, b: &Value| {
        ["key", "operator", "value", "effect"].iter().all(|name| a.text(name) == b.text(name))
    };
    if !old_list.iter().all(|old| new_list.iter().any(|new| same(new, old))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(path, detail));
        return;
    }
    tolerations::validate_tolerations(new_list, options, path, errors);
}

/// Scheduling gates may only be removed.
fn validate_gate_changes(new: &Value, old: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let old_gates = old.items("schedulingGates");
    for (index, gate) in new.items("schedulingGates").iter().enumerate() {
        let name = gate.text("name");
        if !old_gates.iter().any(|old| old.text("name") == name) {
            let item = path.index(index);
            let detail = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.push(FieldError::forbidden(&item.child("name"), detail));
        }
    }
}

/// The new spec with the old values of all mutable fields.
fn with_old_values(new: &Value, old: &Value) -> Value {
    let mut munged = new.clone();
    for list in ["containers", "initContainers"] {
        for (container, old) in munged.items_mut(list).iter_mut().zip(old.items(list)) {
            restore(container, old, "image");
        }
    }
    for name in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        restore(&mut munged, old, name);
    }
    let was_negative = old.opt_int("terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0);
    if was_negative && munged.opt_int("terminationGracePeriodSeconds") == Some(1) {
        restore(&mut munged, old, "terminationGracePeriodSeconds");
    }
    munged
}

/// A list that was emptied is omitted from objects like an absent one, but messages show it. Volumes and pull secrets
/// are also set by admission: a client that omits them has not removed them, unless something still mounts them.
fn show_emptied_lists(munged: &mut Value, old: &Value) {
    let mounts =
        munged.items("containers").iter().any(|container| !container.items("volumeMounts").is_empty());
    for (name, value) in old.as_object().into_iter().flatten() {
        let submitted = match name.as_str() {
            "volumes" => mounts,
            "imagePullSecrets" => false,
            _ => true,
        };
        if submitted && value.is_array() && !munged.has(name) {
            munged.set(name, Vec::<Value>::new());
        }
    }
}

/// Restores the old value of a field.
pub fn restore(new: &mut Value, old: &Value, name: &str) {
    match old.field(name) {
        Value::Null => {
            new.unset(name);
        }
        // The field is usually unchanged, and comparing is cheaper than copying.
        value if new.field(name) != value => new.set(name, value.clone()),
        _ => {}
    }
}
