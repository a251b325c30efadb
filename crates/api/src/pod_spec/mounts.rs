//! Volume mounts and devices of a container.

use super::paths;
use crate::pod_spec::checks::{one_of, required_text};
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

/// Validates mounts. `volumes` are the pod's valid volumes.
pub fn validate_mounts(container: &Value, volumes: &[&Value], path: &Path<'_>, errors: &mut ErrorList) {
    let mounts = container.items("volumeMounts");
    let devices = container.items("volumeDevices");
    let path = path.child("volumeMounts");
    for (index, mount) in mounts.iter().enumerate() {
        let item = path.index(index);
        let (name, mount_path) = (mount.text("name"), mount.text("mountPath"));
        let (name_path, mount_path_path) = (item.child("name"), item.child("mountPath"));
        required_text(mount, "name", &item, errors);
        if !volumes.iter().any(|volume| volume.text("name") == name) {
            errors.push(FieldError::not_found(&name_path, &Value::from(name)));
        }
        required_text(mount, "mountPath", &item, errors);
        if mounts[..index].iter().any(|other| other.text("mountPath") == mount_path) {
            errors.push(FieldError::invalid_str(&mount_path_path, mount_path, "must be unique"));
        }
        if devices.iter().any(|device| device.text("name") == name) {
            let detail = "must not already exist in volumeDevices";
            errors.push(FieldError::invalid_str(&name_path, name, detail));
        }
        if has_last(devices, "devicePath", mount_path) {
            let detail = "must not already exist as a path in volumeDevices";
            errors.push(FieldError::invalid_str(&mount_path_path, mount_path, detail));
        }
        validate_sub_paths(mount, &item, &path, errors);
        validate_propagation(mount, container, &path, errors);
        validate_recursive_read_only(mount, &path, errors);
    }
}

/// True if the last entry of a volume name has this path: Kubernetes looks up names in a map.
fn has_last(entries: &[Value], field: &str, path: &str) -> bool {
    entries.iter().enumerate().any(|(index, entry)| {
        let later = &entries[index + 1..];
        entry.text(field) == path && !later.iter().any(|other| other.text("name") == entry.text("name"))
    })
}

fn validate_sub_paths(mount: &Value, item: &Path<'_>, list: &Path<'_>, errors: &mut ErrorList) {
    let (sub_path, expression) = (mount.text("subPath"), mount.text("subPathExpr"));
    if !sub_path.is_empty() {
        paths::local_descending(sub_path, &list.child("subPath"), errors);
    }
    if expression.is_empty() {
        return;
    }
    if !sub_path.is_empty() {
        let detail = "subPathExpr and subPath are mutually exclusive";
        errors.push(FieldError::invalid_str(&item.child("subPathExpr"), expression, detail));
    }
    paths::local_descending(expression, &list.child("subPathExpr"), errors);
}

fn validate_propagation(mount: &Value, container: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let Some(propagation) = mount.opt_text("mountPropagation") else { return };
    let path = path.child("mountPropagation");
    one_of(propagation, &["Bidirectional", "HostToContainer", "None"], &path, errors);
    if propagation == "Bidirectional" && !container.field("securityContext").flag("privileged") {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(FieldError::forbidden(&path, detail));
    }
}

fn validate_recursive_read_only(mount: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let Some(mode) = mount.opt_text("recursiveReadOnly") else { return };
    let path = path.child("recursiveReadOnly");
    match mode {
        "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !mount.flag("readOnly") {
                errors.push(FieldError::forbidden(&path, "may only be specified when readOnly is true"));
            }
            if mount.opt_text("mountPropagation").is_some_and(|propagation| propagation != "None") {
                let detail = "may only be specified when mountPropagation is None or not specified";
                errors.push(FieldError::forbidden(&path, detail));
            }
        }
        _ => one_of(mode, &["Disabled", "Enabled", "IfPossible"], &path, errors),
    }
}

pub fn validate_devices(container: &Value, volumes: &[&Value], path: &Path<'_>, errors: &mut ErrorList) {
    let devices = container.items("volumeDevices");
    let mounts = container.items("volumeMounts");
    let path = path.child("volumeDevices");
    let earlier = |index: usize, field: &str, text: &str| {
        devices[..index].iter().any(|other: &Value| other.text(field) == text)
    };
    for (index, device) in devices.iter().enumerate() {
        let item = path.index(index);
        let (name, device_path) = (device.text("name"), device.text("devicePath"));
        let (name_path, device_path_path) = (item.child("name"), item.child("devicePath"));
        let volume = volumes.iter().find(|volume| volume.text("name") == name);
        required_text(device, "name", &item, errors);
        if !name.is_empty() && earlier(index, "name", name) {
            errors.push(FieldError::invalid_str(&name_path, name, "must be unique"));
        }
        match volume {
            Some(volume) if !volume.has("persistentVolumeClaim") && !volume.has("ephemeral") => {
                let detail =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(FieldError::invalid_str(&name_path, name, detail));
            }
            Some(_) => {}
            None => errors.push(FieldError::not_found(&name_path, &Value::from(name))),
        }
        required_text(device, "devicePath", &item, errors);
        let backsteps = paths::has_backsteps(device_path);
        if !backsteps && earlier(index, "devicePath", device_path) {
            errors.push(FieldError::invalid_str(&device_path_path, device_path, "must be unique"));
        }
        if backsteps {
            let detail = "can not contain backsteps ('..')";
            errors.push(FieldError::invalid_str(&device_path_path, device_path, detail));
        }
        if mounts.iter().any(|mount| mount.text("name") == name) {
            let detail = "must not already exist in volumeMounts";
            errors.push(FieldError::invalid_str(&name_path, name, detail));
        }
        if has_last(mounts, "mountPath", device_path) {
            let detail = "must not already exist as a path in volumeMounts";
            errors.push(FieldError::invalid_str(&device_path_path, device_path, detail));
        }
    }
}
