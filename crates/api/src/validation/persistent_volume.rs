//! Spec of a PersistentVolume, also inside another object.

use super::checks::{dns_label, dns_subdomain, one_of};
use super::resource_names::quantities;
use crate::pod_spec::{affinity, paths, volume_sources};
use crate::value::{Fields, texts};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

pub const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// Sources in the order of their checks, with the paths of their errors.
const SOURCES: &[(&str, &str)] = &[
    ("hostPath", "hostPath"),
    ("gcePersistentDisk", "persistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore"),
    ("glusterfs", "glusterfs"),
    ("flocker", "flocker"),
    ("nfs", "nfs"),
    ("rbd", "rbd"),
    ("quobyte", "quobyte"),
    ("cephfs", "cephfs"),
    ("iscsi", "iscsi"),
    ("cinder", "cinder"),
    ("fc", "fc"),
    ("flexVolume", "flexVolume"),
    ("azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk"),
    ("scaleIO", "scaleIO"),
    ("local", "local"),
    ("storageos", "storageos"),
    ("csi", "csi"),
];

/// Strictness of the validation of a spec.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The spec is inside another object (a VolumeAttachment), without a volume of its own.
    pub inline: bool,
    /// The old object's node affinity has label values that the current rules reject.
    pub allow_bad_label_values: bool,
}

/// Sources of a spec.
pub fn sources(spec: &Value) -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|(name, _)| *name).filter(move |name| spec.has(name))
}

pub fn validate_spec(spec: &Value, volume_name: &str, options: Options, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if options.inline {
        errors.extend(validate_inline(spec, path));
    }
    errors.extend(validate_access_modes(spec, path));
    if !options.inline {
        errors.extend(validate_capacity(spec, path));
    }
    let policy_path = path.child("persistentVolumeReclaimPolicy");
    let policy = spec.text("persistentVolumeReclaimPolicy");
    if options.inline && !matches!(policy, "" | "Retain") {
        errors
            .push(FieldError::forbidden(&policy_path, "may only be Retain in the context of inline volumes"));
    } else if !options.inline && !policy.is_empty() {
        errors.extend(one_of(&policy_path, policy, &["Delete", "Recycle", "Retain"]));
    }
    errors.extend(validate_affinity(spec, options, path));
    errors.extend(validate_sources(spec, volume_name, options, path));
    let at_root = spec.has("hostPath") && clean(spec.field("hostPath").text("path")) == "/";
    if at_root && policy == "Recycle" {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.push(FieldError::forbidden(&policy_path, detail));
    }
    errors.extend(validate_classes(spec, options, path));
    errors
}

fn validate_inline(spec: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    for field in ["claimRef", "capacity"] {
        if !crate::value::is_zero(spec.field(field)) || (field == "claimRef" && spec.has(field)) {
            let detail = "may not be specified in the context of inline volumes";
            errors.push(FieldError::forbidden(&path.child(field), detail));
        }
    }
    if !spec.has("csi") {
        let detail = "has to be specified in the context of inline volumes";
        errors.push(FieldError::required(&path.child("csi"), detail));
    }
    errors
}

fn validate_access_modes(spec: &Value, path: &Path<'_>) -> ErrorList {
    let path = path.child("accessModes");
    let modes: Vec<&str> = texts(spec.items("accessModes")).collect();
    let mut errors = Vec::new();
    if modes.is_empty() {
        errors.push(FieldError::required(&path, ""));
    }
    for mode in &modes {
        errors.extend(one_of(&path, mode, ACCESS_MODES));
    }
    let single = "ReadWriteOncePod";
    if modes.contains(&single) && modes.iter().any(|mode| *mode != single && ACCESS_MODES.contains(mode)) {
        errors.push(FieldError::forbidden(&path, "may not use ReadWriteOncePod with other access modes"));
    }
    errors
}

fn validate_capacity(spec: &Value, path: &Path<'_>) -> ErrorList {
    let path = path.child("capacity");
    let capacity = spec.field("capacity");
    let entries = spec.entries("capacity").map_or(0, serde_json::Map::len);
    let mut errors = Vec::new();
    if entries == 0 {
        errors.push(FieldError::required(&path, ""));
    }
    if !capacity.has("storage") || entries > 1 {
        errors.push(FieldError::not_supported(&path, capacity, &["storage"]));
    }
    for (name, amount) in quantities(spec, "capacity") {
        let path = path.key(name);
        errors.extend(basic_quantity(&path, amount.value()));
        if amount.sign() <= 0 {
            errors.push(FieldError::invalid_str(&path, &amount.to_string(), "must be greater than zero"));
        }
    }
    errors
}

/// A non-negative amount, shown as an integer.
pub fn basic_quantity(path: &Path<'_>, amount: i64) -> Option<FieldError> {
    (amount < 0)
        .then(|| FieldError::invalid_shown(path, amount.to_string(), "must be a valid resource quantity"))
}

fn validate_affinity(spec: &Value, options: Options, path: &Path<'_>) -> ErrorList {
    let node_affinity = spec.field("nodeAffinity");
    let path = path.child("nodeAffinity");
    if node_affinity.is_null() {
        return Vec::new();
    }
    if options.inline {
        return vec![FieldError::forbidden(&path, "may not be specified in the context of inline volumes")];
    }
    let required_path = path.child("required");
    if !node_affinity.has("required") {
        return vec![FieldError::required(&required_path, "must specify required node constraints")];
    }
    let mut errors = Vec::new();
    let selector = node_affinity.field("required");
    affinity::validate_node_selector(selector, options.allow_bad_label_values, &required_path, &mut errors);
    errors
}

fn validate_sources(spec: &Value, volume_name: &str, options: Options, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let mut found = false;
    for (name, reported) in SOURCES.iter().filter(|(name, _)| spec.has(name)) {
        if found && *name != "flexVolume" {
            let name = if *name == "cephfs" { "cephFS" } else { name };
            errors.push(FieldError::forbidden(&path.child(name), "may not specify more than 1 volume type"));
            continue;
        }
        found = true;
        errors.extend(validate_source(name, spec.field(name), volume_name, &path.child(reported)));
        if *name == "local" && (options.inline || !spec.has("nodeAffinity")) {
            let detail = "Local volume requires node affinity";
            errors.push(FieldError::required(&path.child("nodeAffinity"), detail));
        }
    }
    if !found {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
    errors
}

/// Sources whose rules differ from those of pod volumes.
fn validate_source(name: &str, source: &Value, volume_name: &str, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let required =
        |field: &str| source.text(field).is_empty().then(|| FieldError::required(&path.child(field), ""));
    match name {
        "glusterfs" => {
            volume_sources::validate(name, source, path, &mut errors);
            let namespace_path = path.child("endpointsNamespace");
            match source.opt_text("endpointsNamespace") {
                Some("") => {
                    let detail = "if the endpointnamespace is set, it must be a valid namespace name";
                    errors.push(FieldError::invalid_str(&namespace_path, "", detail));
                }
                Some(namespace) => errors.extend(dns_label(&namespace_path, namespace)),
                None => {}
            }
        }
        "iscsi" => validate_iscsi(source, volume_name, path, &mut errors),
        "cinder" => {
            errors.extend(required("volumeID"));
            errors.extend(complete_reference(source, "secretRef", path));
        }
        "azureFile" => {
            volume_sources::validate(name, source, path, &mut errors);
            if source.opt_text("secretNamespace") == Some("") {
                errors.push(FieldError::required(&path.child("secretNamespace"), ""));
            }
        }
        "local" => {
            errors.extend(required("path"));
            paths::no_backsteps(source.text("path"), &path.child("path"), &mut errors);
        }
        "storageos" => {
            match source.text("volumeName") {
                "" => errors.extend(required("volumeName")),
                name => errors.extend(dns_label(&path.child("volumeName"), name)),
            }
            if !source.text("volumeNamespace").is_empty() {
                errors.extend(dns_label(&path.child("volumeNamespace"), source.text("volumeNamespace")));
            }
            errors.extend(complete_reference(source, "secretRef", path));
        }
        "csi" => {
            volume_sources::validate_csi_driver_name(
                source.text("driver"),
                &path.child("driver"),
                &mut errors,
            );
            errors.extend(required("volumeHandle"));
            let references = [
                "controllerPublishSecretRef",
                "controllerExpandSecretRef",
                "nodePublishSecretRef",
                "nodeExpandSecretRef",
            ];
            for field in references {
                if source.has(field) {
                    errors.extend(valid_reference(source.field(field), &path.child(field)));
                }
            }
        }
        _ => volume_sources::validate(name, source, path, &mut errors),
    }
    errors
}

fn validate_iscsi(source: &Value, volume_name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    volume_sources::validate("iscsi", source, path, errors);
    for error in errors.iter_mut().filter(|error| error.detail.starts_with("must be valid format")) {
        error.detail = "must be valid format".to_owned();
    }
    let portal = source.text("targetPortal");
    if source.has("initiatorName") && volume_name.len() + 1 + portal.len() > 64 {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                      iscsi.initiatorName is specified.";
        let at = usize::from(portal.is_empty());
        errors.insert(at, FieldError::invalid_str(&path.child("targetportal"), portal, detail));
    }
    let reference = source.field("secretRef");
    if !reference.is_null() && reference.text("name").is_empty() {
        let initiator = path.child("initiatorname").to_string();
        let at = errors.iter().position(|error| error.field == initiator).unwrap_or(errors.len());
        let path = path.child("secretRef");
        errors.insert(at, FieldError::required(&path.child("name"), ""));
    }
}

/// Requires name and namespace in a secret reference, if present.
fn complete_reference(source: &Value, field: &str, path: &Path<'_>) -> ErrorList {
    let reference = source.field(field);
    if reference.is_null() {
        return Vec::new();
    }
    let path = path.child(field);
    let empty = ["name", "namespace"].into_iter().filter(|part| reference.text(part).is_empty());
    empty.map(|part| FieldError::required(&path.child(part), "")).collect()
}

fn valid_reference(reference: &Value, path: &Path<'_>) -> ErrorList {
    let name_path = path.child("name");
    let namespace_path = path.child("namespace");
    let mut errors = match reference.text("name") {
        "" => vec![FieldError::required(&name_path, "")],
        name => dns_subdomain(&name_path, name),
    };
    errors.extend(match reference.text("namespace") {
        "" => vec![FieldError::required(&namespace_path, "")],
        namespace => dns_label(&namespace_path, namespace),
    });
    errors
}

fn validate_classes(spec: &Value, options: Options, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let class_path = path.child("storageClassName");
    match spec.text("storageClassName") {
        "" => {}
        _ if options.inline => {
            let detail = "may not be specified in the context of inline volumes";
            errors.push(FieldError::forbidden(&class_path, detail));
        }
        class => errors.extend(dns_subdomain(&class_path, class)),
    }
    let mode_path = path.child("volumeMode");
    match spec.opt_text("volumeMode") {
        Some(mode) if options.inline && mode != "Filesystem" => {
            let detail = "may not specify volumeMode other than Filesystem in the context of inline volumes";
            errors.push(FieldError::forbidden(&mode_path, detail));
        }
        Some(mode) if !options.inline => errors.extend(one_of(&mode_path, mode, &["Block", "Filesystem"])),
        _ => {}
    }
    if let Some(class) = spec.opt_text("volumeAttributesClassName").filter(|_| !options.inline) {
        let path_of_class = path.child("volumeAttributesClassName");
        if class.is_empty() {
            errors.push(FieldError::required(&path_of_class, "an empty string is disallowed"));
        } else {
            errors.extend(dns_subdomain(&path_of_class, class));
        }
        if !spec.has("csi") {
            let detail = "has to be specified when using volumeAttributesClassName";
            errors.push(FieldError::required(&path.child("csi"), detail));
        }
    }
    errors
}

/// Normalizes a path: no empty, `.` or `..` segments.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(spec: Value) -> Vec<String> {
        let errors = validate_spec(&spec, "pv", Options::default(), &Path::new("spec"));
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn volume_needs_capacity_and_one_source() {
        let base = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}});
        let with = |extra: Value| {
            let mut spec = base.clone();
            for (key, value) in extra.as_object().into_iter().flatten() {
                spec.set(key, value.clone());
            }
            spec
        };
        let cases = [
            (with(json!({"hostPath": {"path": "/x"}})), vec![]),
            (base.clone(), vec!["spec: Required value: must specify a volume type"]),
            (
                with(json!({"hostPath": {"path": "/x"}, "nfs": {"server": "s", "path": "/p"}})),
                vec!["spec.nfs: Forbidden: may not specify more than 1 volume type"],
            ),
            (
                with(json!({"local": {"path": "/x"}})),
                vec!["spec.nodeAffinity: Required value: Local volume requires node affinity"],
            ),
            (with(json!({"csi": {"driver": "d"}})), vec!["spec.csi.volumeHandle: Required value"]),
            (
                with(json!({"hostPath": {"path": "/x"}, "capacity": {"storage": "-1"}})),
                vec![
                    "spec.capacity[storage]: Invalid value: -1: must be a valid resource quantity",
                    r#"spec.capacity[storage]: Invalid value: "-1": must be greater than zero"#,
                ],
            ),
            (
                with(json!({"hostPath": {"path": "/"}, "persistentVolumeReclaimPolicy": "Recycle"})),
                vec![
                    "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'",
                ],
            ),
        ];
        for (spec, want) in cases {
            assert_eq!(messages(spec), want);
        }
    }
}
