//! Volume sources whose checks depend only on their own fields.

use super::{claim_spec, paths};
use crate::pod_spec::checks::{dns_label, invalid_texts, one_of, required_text};
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

pub const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// Checks the source called `name`.
pub fn validate(name: &str, source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    match name {
        "hostPath" => validate_host_path(source, path, errors),
        "gitRepo" => {
            required_text(source, "repository", path, errors);
            paths::local_descending(source.text("directory"), &path.child("directory"), errors);
        }
        "gcePersistentDisk" => {
            required_text(source, "pdName", path, errors);
            validate_partition(source, path, errors);
        }
        "awsElasticBlockStore" => {
            required_text(source, "volumeID", path, errors);
            validate_partition(source, path, errors);
        }
        "secret" => validate_files(source, "secretName", path, errors),
        "configMap" => validate_files(source, "name", path, errors),
        "nfs" => {
            required_text(source, "server", path, errors);
            required_text(source, "path", path, errors);
            let directory = source.text("path");
            if !directory.starts_with('/') {
                let path = path.child("path");
                errors.push(FieldError::invalid_str(&path, directory, "must be an absolute path"));
            }
        }
        "iscsi" => validate_iscsi(source, path, errors),
        "glusterfs" => {
            required_text(source, "endpoints", path, errors);
            required_text(source, "path", path, errors);
        }
        "flocker" => validate_flocker(source, path, errors),
        "persistentVolumeClaim" => required_text(source, "claimName", path, errors),
        "rbd" => {
            required_list(source, "monitors", path, errors);
            required_text(source, "image", path, errors);
        }
        "cinder" => {
            required_text(source, "volumeID", path, errors);
            validate_secret_ref(source, path, errors);
        }
        "cephfs" => required_list(source, "monitors", path, errors),
        "quobyte" => validate_quobyte(source, path, errors),
        "fc" => validate_fibre_channel(source, path, errors),
        "flexVolume" => validate_flex(source, path, errors),
        "azureFile" => {
            required_text(source, "secretName", path, errors);
            required_text(source, "shareName", path, errors);
        }
        "vsphereVolume" => required_text(source, "volumePath", path, errors),
        "photonPersistentDisk" => required_text(source, "pdID", path, errors),
        "portworxVolume" => required_text(source, "volumeID", path, errors),
        "azureDisk" => validate_azure_disk(source, path, errors),
        "storageos" => {
            required_text(source, "volumeName", path, errors);
            for name in ["volumeName", "volumeNamespace"] {
                if !source.text(name).is_empty() {
                    dns_label(source.text(name), &path.child(name), errors);
                }
            }
            validate_secret_ref(source, path, errors);
        }
        "scaleIO" => {
            for name in ["gateway", "system", "volumeName"] {
                required_text(source, name, path, errors);
            }
        }
        "csi" => validate_csi(source, path, errors),
        "ephemeral" => validate_ephemeral(source, path, errors),
        _ => {}
    }
}

fn required_list(source: &Value, name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if source.items(name).is_empty() {
        errors.push(FieldError::required(&path.child(name), ""));
    }
}

fn validate_secret_ref(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if source.has("secretRef") {
        required_text(source.field("secretRef"), "name", &path.child("secretRef"), errors);
    }
}

fn validate_partition(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let partition = source.int("partition");
    if !(0..=255).contains(&partition) {
        let detail = names::range_error(1, 255);
        errors.push(FieldError::invalid(&path.child("partition"), &Value::from(partition), detail));
    }
}

/// A field with permission bits.
pub fn validate_mode(source: &Value, name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(mode) = source.opt_int(name).filter(|mode| !(0..=0o777).contains(mode)) {
        errors.push(FieldError::invalid(&path.child(name), &Value::from(mode), FILE_MODE));
    }
}

/// A secret or config map volume.
fn validate_files(source: &Value, name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(source, name, path, errors);
    validate_mode(source, "defaultMode", path, errors);
    let items = path.child("items");
    for (index, item) in source.items("items").iter().enumerate() {
        validate_key_to_path(item, &items.index(index), errors);
    }
}

pub fn validate_key_to_path(item: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(item, "key", path, errors);
    required_text(item, "path", path, errors);
    paths::local_non_reserved(item.text("path"), &path.child("path"), errors);
    validate_mode(item, "mode", path, errors);
}

fn validate_host_path(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let host_path = source.text("path");
    if host_path.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
        return;
    }
    paths::no_backsteps(host_path, &path.child("path"), errors);
    if let Some(kind) = source.opt_text("type") {
        let supported = [
            "",
            "BlockDevice",
            "CharDevice",
            "Directory",
            "DirectoryOrCreate",
            "File",
            "FileOrCreate",
            "Socket",
        ];
        one_of(kind, &supported, &path.child("type"), errors);
    }
}

fn validate_iscsi(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(source, "targetPortal", path, errors);
    let iqn = source.text("iqn");
    if iqn.is_empty() {
        errors.push(FieldError::required(&path.child("iqn"), ""));
    } else {
        validate_initiator(iqn, &path.child("iqn"), errors);
    }
    let lun = source.int("lun");
    if !(0..=255).contains(&lun) {
        let detail = names::range_error(0, 255);
        errors.push(FieldError::invalid(&path.child("lun"), &Value::from(lun), detail));
    }
    if (source.flag("chapAuthDiscovery") || source.flag("chapAuthSession")) && !source.has("secretRef") {
        errors.push(FieldError::required(&path.child("secretRef"), ""));
    }
    if let Some(initiator) = source.opt_text("initiatorName") {
        validate_initiator(initiator, &path.child("initiatorname"), errors);
    }
}

fn validate_initiator(name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let alphanumeric =
        |text: &str, length: usize| text.len() == length && text.bytes().all(|b| b.is_ascii_alphanumeric());
    // The character after the type is arbitrary, because Kubernetes' patterns do not escape their dot.
    let after_type = |name: &str| name.chars().nth(3).map(|c| name[3 + c.len_utf8()..].to_owned());
    let valid = match name.get(..3) {
        Some("iqn") => is_iqn(name),
        Some("eui") => after_type(name).is_some_and(|rest| alphanumeric(&rest, 16)),
        Some("naa") => after_type(name).is_some_and(|rest| alphanumeric(&rest, 32)),
        _ => {
            let detail = "must be valid format starting with iqn, eui, or naa";
            errors.push(FieldError::invalid_str(path, name, detail));
            return;
        }
    };
    if !valid {
        errors.push(FieldError::invalid_str(path, name, "must be valid format"));
    }
}

/// `iqn.YYYY-MM.domain:name`.
fn is_iqn(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("iqn.") else { return false };
    let Some((date, rest)) = rest.split_at_checked(8) else { return false };
    let date_ok = date.bytes().enumerate().all(|(i, b)| match i {
        4 => b == b'-',
        7 => b == b'.',
        _ => b.is_ascii_digit(),
    });
    let Some((domain, label)) = rest.split_once(':') else { return false };
    date_ok
        && !domain.is_empty()
        && domain.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
        && !label.is_empty()
        && !label.contains(|c: char| c.is_ascii_whitespace() || ",;*&$|".contains(c))
}

fn validate_fibre_channel(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let names_path = path.child("targetWWNs");
    let (targets, ids) = (source.items("targetWWNs"), source.items("wwids"));
    if targets.is_empty() && ids.is_empty() {
        let detail = "must specify either targetWWNs or wwids, but not both";
        errors.push(FieldError::required(&names_path, detail));
    }
    if targets.is_empty() {
        return;
    }
    if !ids.is_empty() {
        let detail = "targetWWNs and wwids can not be specified simultaneously";
        errors.push(FieldError::invalid(&names_path, source.field("targetWWNs"), detail));
    }
    let path = path.child("lun");
    match source.opt_int("lun") {
        None => errors.push(FieldError::required(&path, "lun is required if targetWWNs is specified")),
        Some(lun) if !(0..=255).contains(&lun) => {
            errors.push(FieldError::invalid(&path, &Value::from(lun), names::range_error(0, 255)));
        }
        Some(_) => {}
    }
}

fn validate_flocker(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let (name, uuid) = (source.text("datasetName"), source.text("datasetUUID"));
    if name.is_empty() && uuid.is_empty() {
        errors.push(FieldError::required(path, "one of datasetName and datasetUUID is required"));
    }
    if !name.is_empty() && !uuid.is_empty() {
        let detail = "datasetName and datasetUUID can not be specified simultaneously";
        errors.push(FieldError::invalid_str(path, "resource", detail));
    }
    if name.contains('/') {
        errors.push(FieldError::invalid_str(&path.child("datasetName"), name, "must not contain '/'"));
    }
}

fn validate_quobyte(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    const REGISTRY: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = source.text("registry");
    let registry_path = path.child("registry");
    if registry.is_empty() {
        errors.push(FieldError::required(&registry_path, REGISTRY));
    } else if source.text("tenant").len() >= 65 {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        errors.push(FieldError::required(&path.child("tenant"), detail));
    } else {
        for pair in registry.split(',') {
            if !is_host_port(pair) {
                errors.push(FieldError::invalid_str(&registry_path, registry, REGISTRY));
            }
        }
    }
    required_text(source, "volume", path, errors);
}

fn is_host_port(pair: &str) -> bool {
    match pair.strip_prefix('[') {
        Some(rest) => {
            rest.split_once("]:").is_some_and(|(host, port)| !host.contains('[') && !port.contains(':'))
        }
        None => pair.matches(':').count() == 1 && !pair.contains(['[', ']']),
    }
}

fn validate_flex(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(source, "driver", path, errors);
    let path = path.child("options");
    for key in source.entries("options").into_iter().flat_map(|options| options.keys()) {
        let namespace = key.split_once('/').map_or(key.as_str(), |(namespace, _)| namespace);
        let normalized = format!(".{}", namespace.to_lowercase());
        if normalized.ends_with(".kubernetes.io") || normalized.ends_with(".k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            errors.push(FieldError::invalid_str(&path.key(key), key, detail));
        }
    }
}

fn validate_azure_disk(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(source, "diskName", path, errors);
    required_text(source, "diskURI", path, errors);
    let uri = source.text("diskURI");
    if let Some(mode) = source.opt_text("cachingMode") {
        one_of(mode, &["None", "ReadOnly", "ReadWrite"], &path.child("cachingMode"), errors);
    }
    let Some(kind) = source.opt_text("kind") else { return };
    one_of(kind, &["Dedicated", "Managed", "Shared"], &path.child("kind"), errors);
    let (start, supported) = if kind == "Managed" {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        )
    } else {
        ("https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd")
    };
    if !uri.starts_with(start) {
        let path = path.child("diskURI");
        errors.push(FieldError::not_supported(&path, &Value::from(uri), &[supported]));
    }
}

/// The name of a CSI driver.
pub fn validate_csi_driver_name(name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if name.len() > 63 {
        errors.push(FieldError::too_long(path, 63));
    }
    invalid_texts(names::dns_subdomain(&name.to_lowercase(), false), name, path, errors);
}

fn validate_csi(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    validate_csi_driver_name(source.text("driver"), &path.child("driver"), errors);
    if !source.has("nodePublishSecretRef") {
        return;
    }
    let name = source.field("nodePublishSecretRef").text("name");
    if name.is_empty() {
        let path = path.child("nodePublishSecretRef");
        errors.push(FieldError::required(&path.child("name"), ""));
    } else {
        invalid_texts(names::dns_subdomain(name, false), name, &path.child("name"), errors);
    }
}

fn validate_ephemeral(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let path = path.child("volumeClaimTemplate");
    let template = source.field("volumeClaimTemplate");
    if template.is_null() {
        errors.push(FieldError::required(&path, ""));
        return;
    }
    validate_template_metadata(template.field("metadata"), &path.child("metadata"), errors);
    claim_spec::validate_claim_spec(template.field("spec"), &path.child("spec"), errors);
}

/// Metadata of a template: only labels and annotations are allowed.
pub fn validate_template_metadata(metadata: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(annotations) = metadata.entries("annotations") {
        errors.extend(names::validate_annotations(annotations, &path.child("annotations")));
    }
    if let Some(labels) = metadata.entries("labels") {
        errors.extend(names::validate_labels(labels, &path.child("labels")));
    }
    for (name, complaint) in OTHER_METADATA {
        if !crate::value::is_zero(metadata.field(name)) {
            errors.push(FieldError::forbidden(&path.child(complaint), "cannot be set"));
        }
    }
}

/// The other fields of metadata in their order, with their names in errors.
const OTHER_METADATA: [(&str, &str); 13] = [
    ("name", "name"),
    ("generateName", "generateName"),
    ("namespace", "namespace"),
    ("selfLink", "selfLink"),
    ("uid", "uID"),
    ("resourceVersion", "resourceVersion"),
    ("generation", "generation"),
    ("creationTimestamp", "creationTimestamp"),
    ("deletionTimestamp", "deletionTimestamp"),
    ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"),
    ("ownerReferences", "ownerReferences"),
    ("finalizers", "finalizers"),
    ("managedFields", "managedFields"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn iscsi_initiator_names_are_validated() {
        for (name, ok) in [
            ("iqn.2015-02.example.com:test", true),
            ("iqn.2015-2.example.com:test", false),
            ("iqn.2015-02.example.com", false),
            ("eui.0123456789abcdef", true),
            ("eui.0123", false),
            ("naa.0123456789abcdef0123456789abcdef", true),
            ("x", false),
            ("ééé", false),
        ] {
            let mut errors = Vec::new();
            validate_initiator(name, &Path::new("x"), &mut errors);
            assert_eq!(errors.is_empty(), ok, "{name}");
        }
    }

    #[test]
    fn volume_sources_are_validated() {
        for (name, source, want) in [
            (
                "hostPath",
                json!({"path": "/a/../b"}),
                vec!["v.path: Invalid value: \"/a/../b\": must not contain '..'"],
            ),
            (
                "nfs",
                json!({"server": "s"}),
                vec!["v.path: Required value", "v.path: Invalid value: \"\": must be an absolute path"],
            ),
            ("gcePersistentDisk", json!({}), vec!["v.pdName: Required value"]),
            ("csi", json!({}), vec!["v.driver: Required value"]),
            (
                "fc",
                json!({}),
                vec!["v.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both"],
            ),
        ] {
            let mut errors = Vec::new();
            validate(name, &source, &Path::new("v"), &mut errors);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), want, "{name}");
        }
    }
}
