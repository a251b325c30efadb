//! The `resize` subresource: CPU and memory of a running pod.

use super::ephemeral::keep_metadata;
use super::update::restore;
use super::{qos, validate_annotations_and_spec};
use crate::pod_spec::annotations::MIRROR_POD;
use crate::pod_spec::{disabled, is_sidecar, relaxed};
use crate::value::{Fields, is_zero};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Map, Value};

/// Restores everything from the old pod but resources and resize policies. A different set of containers is retained,
/// for validation to reject.
pub fn prepare(new: &mut Value, old: &Value) {
    let (old_spec, lists) = (old.field("spec"), ["containers", "initContainers"]);
    let same_length = |list: &&str| new.field("spec").items(list).len() == old_spec.items(list).len();
    if !lists.iter().all(same_length) {
        return;
    }
    let mut spec = old_spec.clone();
    for list in lists {
        let containers = new.field("spec").items(list);
        let renamed = containers
            .iter()
            .zip(old_spec.items(list))
            .any(|(new, old)| new.text("name") != old.text("name"));
        if renamed {
            spec.set(list, containers.to_vec());
            continue;
        }
        for (container, new) in spec.items_mut(list).iter_mut().zip(containers) {
            restore(container, new, "resources");
            restore(container, new, "resizePolicy");
        }
    }
    restore(&mut spec, new.field("spec"), "resources");
    disabled::drop_disabled_fields(&mut spec, old_spec);
    new.set("spec", spec);
    restore(new, old, "status");
    keep_metadata(new, old);
}

pub fn validate(new: &Value, old: &Value) -> ErrorList {
    // A path without a name has the form of an index.
    let reject = |detail: &str| vec![FieldError::forbidden(&Path::new("[]"), detail)];
    if old.at("metadata.annotations").has(MIRROR_POD) {
        return reject("static pods cannot be resized");
    }
    if old.at("spec.os").text("name") == "windows" {
        return reject("windows pods cannot be resized");
    }
    let mut errors = Vec::new();
    let old_pod = Some((old.field("spec"), old.at("metadata.annotations")));
    relaxed::with_old(true, old_pod, &mut errors, |options, errors| {
        validate_annotations_and_spec(new, options, errors);
    });
    validate_resize(new, old, &mut errors);
    errors
}

fn validate_resize(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let (new_spec, old_spec) = (new.field("spec"), old.field("spec"));
    let old_class = match old.field("status").text("qosClass") {
        "" => qos::compute(old_spec),
        class => class,
    };
    if old_class != qos::compute(new_spec) {
        let class = new.field("status").text("qosClass");
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid_str(&path, class, detail));
    }
    let running = |status: &&Value| status.field("state").has("running");
    let first_running = old.field("status").items("containerStatuses").iter().find(running);
    if first_running.is_some_and(|status| !status.has("resources")) {
        errors.push(FieldError::forbidden(&path, "Pod running on node without support for resize"));
    }
    let mut rest = new_spec.clone();
    validate_pod_level(new_spec, old_spec, &mut rest, &path, errors);
    if !old.field("status").items("nodeAllocatableResourceClaimStatuses").is_empty() {
        let detail = "pods with node allocatable resource claims cannot be resized";
        errors.push(FieldError::forbidden(&path, detail));
    }
    if !validate_order(new_spec, old_spec, &path, errors) {
        return;
    }
    for list in ["initContainers", "containers"] {
        let path = path.child(list);
        for (index, (new, old)) in new_spec.items(list).iter().zip(old_spec.items(list)).enumerate() {
            let item = path.index(index);
            let path = item.child("resources");
            reject_removal(new.field("resources"), old.field("resources"), "resource", &path, errors);
        }
    }
    for (container, old) in rest.items_mut("containers").iter_mut().zip(old_spec.items("containers")) {
        mask(container, old);
        if container != old {
            errors.push(FieldError::forbidden(&path, "only cpu and memory resources are mutable"));
        }
    }
    let init_path = path.child("initContainers");
    let new_init = new_spec.items("initContainers");
    for (index, old) in old_spec.items("initContainers").iter().enumerate() {
        let Some(container) = rest.items_mut("initContainers").get_mut(index) else { break };
        mask(container, old);
        let item = init_path.index(index);
        if container != old {
            let detail = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.push(FieldError::forbidden(&item, detail));
        }
        if new_init[index] != *old && !is_sidecar(container) {
            for policy in container.items("resizePolicy") {
                if policy.text("restartPolicy") == "RestartContainer" {
                    let detail = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                    errors.push(FieldError::forbidden(&item, detail));
                }
            }
        }
    }
    if errors.is_empty() && rest != *old_spec {
        errors.push(FieldError::forbidden(&path, "only cpu and memory resources are mutable"));
    }
}

fn validate_pod_level(new: &Value, old: &Value, rest: &mut Value, path: &Path<'_>, errors: &mut ErrorList) {
    let (new_resources, old_resources) = (new.field("resources"), old.field("resources"));
    let set =
        |resources: &Value| !is_zero(resources.field("requests")) || !is_zero(resources.field("limits"));
    if !set(new_resources) && !set(old_resources) {
        return;
    }
    let resources_path = path.child("resources");
    if !old_resources.is_null() {
        if new_resources.is_null() {
            errors.push(FieldError::forbidden(&resources_path, "pod-level resources cannot be removed"));
            return;
        }
        reject_removal(new_resources, old_resources, "pod-level resource", &resources_path, errors);
    }
    if let Some(resources) = rest.field_mut("resources") {
        mask_amounts(resources, old_resources);
        if old_resources.is_null() && is_zero(resources) {
            rest.unset("resources");
        }
    }
    if rest.field("resources") != old_resources {
        errors.push(FieldError::forbidden(path, "only cpu and memory resources are mutable at pod-level"));
    }
}

/// Containers may not be added, removed, renamed or reordered. False stops the validation.
fn validate_order(new: &Value, old: &Value, path: &Path<'_>, errors: &mut ErrorList) -> bool {
    let before = errors.len();
    for list in ["containers", "initContainers"] {
        let (containers, old) = (new.items(list), old.items(list));
        let path = path.child(list);
        if containers.len() != old.len() {
            errors
                .push(FieldError::forbidden(&path, format!("{list} may not be added or removed on resize")));
            continue;
        }
        for (index, (new, old)) in containers.iter().zip(old).enumerate() {
            if new.text("name") != old.text("name") {
                let item = path.index(index);
                let detail = format!("{list} may not be renamed or reordered on resize");
                errors.push(FieldError::forbidden(&item.child("name"), detail));
            }
        }
    }
    errors.len() == before
}

fn reject_removal(new: &Value, old: &Value, what: &str, path: &Path<'_>, errors: &mut ErrorList) {
    for list in ["requests", "limits"] {
        let removed = old.entries(list).into_iter().flatten().any(|(name, _)| !new.field(list).has(name));
        if removed {
            errors.push(FieldError::forbidden(&path.child(list), format!("{what} {list} cannot be removed")));
        }
    }
}

/// Restores a container's old CPU and memory. Claims are removed: they may not be present on both sides.
fn mask(container: &mut Value, old: &Value) {
    let resources = container.child_mut("resources");
    resources.unset("claims");
    mask_amounts(resources, old.field("resources"));
}

fn mask_amounts(resources: &mut Value, old: &Value) {
    for list in ["requests", "limits"] {
        let mut amounts = match resources.unset(list) {
            Some(Value::Object(amounts)) => amounts,
            _ => Map::new(),
        };
        for name in ["cpu", "memory"] {
            match old.field(list).field(name) {
                Value::Null => amounts.remove(name),
                amount => amounts.insert(name.to_owned(), amount.clone()),
            };
        }
        if !amounts.is_empty() {
            resources.set(list, Value::Object(amounts));
        }
    }
}
