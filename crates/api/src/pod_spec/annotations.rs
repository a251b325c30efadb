//! Annotations of pods with defined semantics.

use super::options::Options;
use super::{container_lists, for_each_container, paths, tolerations};
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

pub const MIRROR_POD: &str = "kubernetes.io/config.mirror";
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
pub const APP_ARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER_PREFIX: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// `annotations` of a pod or template; `path` is theirs.
pub fn validate_annotations(
    annotations: &Value,
    spec: &Value,
    options: &Options,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let Some(map) = annotations.as_object().filter(|map| !map.is_empty()) else { return };
    if let Some(value) = annotations.opt_text(MIRROR_POD)
        && spec.text("nodeName").is_empty()
    {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        errors.push(FieldError::invalid_str(&path.key(MIRROR_POD), value, detail));
    }
    validate_tolerations(annotations, options, path, errors);
    if !options.invalid_deletion_cost && !has_valid_deletion_cost(annotations) {
        let cost = annotations.text(DELETION_COST);
        errors.push(FieldError::invalid_str(&path.key(DELETION_COST), cost, "must be a 32bit integer"));
    }
    if let Some(profile) = annotations.opt_text(SECCOMP_POD) {
        validate_seccomp_profile(profile, &path.child(SECCOMP_POD), errors);
    }
    for (key, value) in map.iter().filter(|(key, _)| key.starts_with(SECCOMP_CONTAINER_PREFIX)) {
        validate_seccomp_profile(value.as_str().unwrap_or(""), &path.child(key), errors);
    }
    for (key, value) in map {
        let Some(container) = key.strip_prefix(APP_ARMOR_PREFIX) else { continue };
        if !container_lists(spec).any(|(_, list)| list.iter().any(|c| c.text("name") == container)) {
            errors.push(FieldError::invalid_str(&path.key(key), container, "container not found"));
        }
        let profile = value.as_str().unwrap_or("");
        let known =
            matches!(profile, "" | "runtime/default" | "unconfined") || profile.starts_with("localhost/");
        if !known {
            let detail = format!("invalid AppArmor profile name: {profile:?}");
            errors.push(FieldError::invalid_str(&path.key(key), profile, detail));
        }
    }
}

/// True if the deletion cost is absent, or a 32-bit integer without a plus sign or leading zeros.
pub fn has_valid_deletion_cost(annotations: &Value) -> bool {
    let Some(cost) = annotations.opt_text(DELETION_COST) else { return true };
    let padded = cost.starts_with('+') || (cost.len() > 1 && cost.starts_with('0'));
    !padded && cost.parse::<i32>().is_ok()
}

fn validate_tolerations(annotations: &Value, options: &Options, path: &Path<'_>, errors: &mut ErrorList) {
    let text = annotations.text(TOLERATIONS);
    if text.is_empty() {
        return;
    }
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Array(items)) => {
            tolerations::validate_tolerations(&items, options, &path.child(TOLERATIONS), errors);
        }
        Ok(Value::Null) => {}
        Ok(_) => {
            let detail = "json: cannot unmarshal value into Go value of type []core.Toleration";
            errors.push(FieldError::invalid_str(path, TOLERATIONS, detail));
        }
        Err(_) => {
            let detail = match text.chars().next() {
                Some(c) => format!("invalid character '{c}' looking for beginning of value"),
                None => "unexpected end of JSON input".to_owned(),
            };
            errors.push(FieldError::invalid_str(path, TOLERATIONS, detail));
        }
    }
}

fn validate_seccomp_profile(profile: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if matches!(profile, "runtime/default" | "docker/default" | "unconfined") {
        return;
    }
    match profile.strip_prefix("localhost/") {
        Some(file) => paths::local_descending(file, path, errors),
        None => errors.push(FieldError::invalid_str(path, profile, "must be a valid seccomp profile")),
    }
}

/// Requires equal profiles if both an annotation and a field set one.
pub fn validate_profiles_match(annotations: &Value, spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if !annotations.is_object() {
        return;
    }
    let of_pod = spec.field("securityContext");
    if let Some(annotation) = annotations.opt_text(SECCOMP_POD) {
        let path = path.child("securityContext");
        let runtime = ["runtime/default", "docker/default"];
        let profile = of_pod.field("seccompProfile");
        check_match(annotation, profile, &runtime, "seccomp", &path.child("seccompProfile"), errors);
    }
    for_each_container(spec, path, |container, path| {
        let key = format!("{SECCOMP_CONTAINER_PREFIX}{}", container.text("name"));
        let Some(annotation) = annotations.opt_text(&key) else { return };
        let profile = container.field("securityContext").field("seccompProfile");
        let path = path.child("securityContext");
        let runtime = ["runtime/default", "docker/default"];
        check_match(annotation, profile, &runtime, "seccomp", &path.child("seccompProfile"), errors);
    });
    if spec.field("os").text("name") == "windows" {
        return;
    }
    for_each_container(spec, path, |container, path| {
        let key = format!("{APP_ARMOR_PREFIX}{}", container.text("name"));
        let Some(annotation) = annotations.opt_text(&key) else { return };
        let own = container.field("securityContext").field("appArmorProfile");
        let profile = if own.is_null() { of_pod.field("appArmorProfile") } else { own };
        let path = path.child("securityContext");
        let runtime = ["runtime/default"];
        check_match(annotation, profile, &runtime, "apparmor", &path.child("appArmorProfile"), errors);
    });
}

fn check_match(
    annotation: &str,
    profile: &Value,
    runtime: &[&str],
    what: &str,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let kind_matches = match profile.text("type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => runtime.contains(&annotation),
        "Localhost" => match annotation.strip_prefix("localhost/") {
            Some(file) => {
                if profile.opt_text("localhostProfile") != Some(file) {
                    let detail = format!("{what} profile in annotation and field must match");
                    errors.push(FieldError::forbidden(&path.child("localhostProfile"), detail));
                }
                true
            }
            None => false,
        },
        _ => true,
    };
    if !kind_matches {
        let detail = format!("{what} type in annotation and field must match");
        errors.push(FieldError::forbidden(&path.child("type"), detail));
    }
}
