//! Volumes of a pod: unique names, and exactly one source each.

use super::options::Options;
use super::{projected, resources, volume_sources};
use crate::pod_spec::checks::{dns_label, invalid_texts};
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

/// Sources in the order in which they are checked, with their names in the error about a second one.
const SOURCES: [(&str, &str); 30] = [
    ("emptyDir", "emptyDir"),
    ("hostPath", "hostPath"),
    ("gitRepo", "gitRepo"),
    ("gcePersistentDisk", "gcePersistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore"),
    ("secret", "secret"),
    ("nfs", "nfs"),
    ("iscsi", "iscsi"),
    ("glusterfs", "glusterfs"),
    ("flocker", "flocker"),
    ("persistentVolumeClaim", "persistentVolumeClaim"),
    ("rbd", "rbd"),
    ("cinder", "cinder"),
    ("cephfs", "cephFS"),
    ("quobyte", "quobyte"),
    ("downwardAPI", "downwarAPI"),
    ("fc", "fc"),
    ("flexVolume", "flexVolume"),
    ("configMap", "configMap"),
    ("azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk"),
    ("storageos", "storageos"),
    ("projected", "projected"),
    ("scaleIO", "scaleIO"),
    ("csi", "csi"),
    ("ephemeral", "ephemeral"),
    ("image", "image"),
];

/// Returns the valid volumes, for references of mounts. `pod_name` is empty for templates.
pub fn validate_volumes<'a>(
    volumes: &'a [Value],
    pod_name: &str,
    options: &Options,
    path: &Path<'_>,
    errors: &mut ErrorList,
) -> Vec<&'a Value> {
    let mut valid: Vec<&Value> = Vec::with_capacity(volumes.len());
    for (index, volume) in volumes.iter().enumerate() {
        let item = path.index(index);
        let name = volume.text("name");
        let name_path = item.child("name");
        let before = errors.len();
        validate_source(volume, pod_name, options, &item, errors);
        if name.is_empty() {
            errors.push(FieldError::required(&name_path, ""));
        } else {
            dns_label(name, &name_path, errors);
        }
        if valid.iter().any(|other| other.text("name") == name) {
            errors.push(FieldError::duplicate(&name_path, &Value::from(name)));
        }
        if errors.len() == before {
            valid.push(volume);
        }
        let claim = volume.field("persistentVolumeClaim").text("claimName");
        let created = |other: &Value| {
            other.has("ephemeral")
                && claim.strip_prefix(pod_name).and_then(|rest| rest.strip_prefix('-'))
                    == Some(other.text("name"))
        };
        if !claim.is_empty() && !pod_name.is_empty() && volumes.iter().any(created) {
            let source = item.child("persistentVolumeClaim");
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            errors.push(FieldError::invalid_str(&source.child("claimName"), claim, detail));
        }
    }
    valid
}

fn validate_source(
    volume: &Value,
    pod_name: &str,
    options: &Options,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let mut found = false;
    for (name, complaint) in SOURCES {
        let source = volume.field(name);
        if source.is_null() {
            continue;
        }
        if found {
            let path = path.child(complaint);
            errors.push(FieldError::forbidden(&path, "may not specify more than 1 volume type"));
        } else {
            found = true;
            // Errors of this source lack the field's own name.
            let item = path;
            let path = item.child(if name == "gcePersistentDisk" { "persistentDisk" } else { name });
            match name {
                "emptyDir" => validate_empty_dir(source, &path, errors),
                "downwardAPI" => projected::validate_downward_api(source, &path, errors),
                "projected" => projected::validate_projected(source, options, &path, errors),
                "image" => validate_image(source, options, &path, errors),
                "ephemeral" => {
                    volume_sources::validate(name, source, &path, errors);
                    validate_ephemeral_name(volume, pod_name, item, errors);
                }
                _ => volume_sources::validate(name, source, &path, errors),
            }
        }
        if name == "iscsi" {
            validate_iscsi_name(volume, path, errors);
        }
    }
    if !found {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
}

fn validate_empty_dir(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if source.opt_text("sizeLimit").is_some_and(resources::is_negative) {
        let detail = "SizeLimit field must be a valid resource quantity";
        errors.push(FieldError::forbidden(&path.child("sizeLimit"), detail));
    }
}

fn validate_image(source: &Value, options: &Options, path: &Path<'_>, errors: &mut ErrorList) {
    if options.is_pod && source.text("reference").is_empty() {
        errors.push(FieldError::required(&path.child("reference"), ""));
    }
    super::containers::validate_pull_policy(source.text("pullPolicy"), &path.child("pullPolicy"), errors);
}

fn validate_iscsi_name(volume: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let (name, iscsi) = (volume.text("name"), volume.field("iscsi"));
    if iscsi.has("initiatorName") && name.len() + 1 + iscsi.text("targetPortal").len() > 64 {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        errors.push(FieldError::invalid_str(&path.child("name"), name, detail));
    }
}

/// The claim of an ephemeral volume must have a valid name.
fn validate_ephemeral_name(volume: &Value, pod_name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let name = volume.text("name");
    if pod_name.is_empty() || name.is_empty() {
        return;
    }
    let claim = format!("{pod_name}-{name}");
    let problems = names::dns_subdomain(&claim, false);
    let problems = problems.into_iter().map(|problem| format!("PVC name {claim:?}: {problem}")).collect();
    invalid_texts(problems, name, &path.child("name"), errors);
}
