//! Security contexts of pods and containers, seccomp and AppArmor profiles.

use super::options::Options;
use super::{layout, paths, sysctls, windows};
use crate::pod_spec::checks::{invalid_number, one_of};
use crate::value::{Fields, texts};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

/// `spec.securityContext`; some related fields are in `spec` itself.
pub fn validate_pod_security_context(
    spec: &Value,
    options: &Options,
    spec_path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let context = spec.field("securityContext");
    if context.is_null() {
        return;
    }
    let path = spec_path.child("securityContext");
    for name in ["fsGroup", "runAsUser", "runAsGroup"] {
        validate_id(context, name, &path, errors);
    }
    let groups = path.child("supplementalGroups");
    for (index, group) in context.items("supplementalGroups").iter().enumerate() {
        let group = group.as_i64().unwrap_or(0);
        invalid_number(names::user_id(group), group, &groups.index(index), errors);
    }
    if spec.flag("shareProcessNamespace") && spec.flag("hostPID") {
        let path = path.child("shareProcessNamespace");
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(&path, &Value::from(true), detail));
    }
    sysctls::validate_sysctls(spec, options.host_sysctls, &path.child("sysctls"), errors);
    optional_one_of(context, "fsGroupChangePolicy", &["Always", "OnRootMismatch"], &path, errors);
    validate_seccomp(context.field("seccompProfile"), &path.child("seccompProfile"), errors);
    windows::validate_options(context.field("windowsOptions"), &path.child("windowsOptions"), errors);
    validate_app_armor(context.field("appArmorProfile"), &path.child("appArmorProfile"), errors);
    optional_one_of(context, "supplementalGroupsPolicy", &["Merge", "Strict"], &path, errors);
    let policies: &[&str] =
        if options.any_selinux_change_policy { &["MountOption", "Recursive"] } else { &["Recursive"] };
    optional_one_of(context, "seLinuxChangePolicy", policies, &path, errors);
}

/// Security context of a container. `host_users`: the pod has no user namespace of its own.
pub fn validate_security_context(context: &Value, host_users: bool, path: &Path<'_>, errors: &mut ErrorList) {
    if context.is_null() {
        return;
    }
    validate_id(context, "runAsUser", path, errors);
    validate_id(context, "runAsGroup", path, errors);
    if let Some(mount) = context.opt_text("procMount") {
        let path = path.child("procMount");
        one_of(mount, &["Default", "Unmasked"], &path, errors);
        if host_users && mount == "Unmasked" {
            errors.push(FieldError::invalid_str(&path, mount, "`hostUsers` must be false to use `Unmasked`"));
        }
    }
    validate_seccomp(context.field("seccompProfile"), &path.child("seccompProfile"), errors);
    if context.opt_flag("allowPrivilegeEscalation") == Some(false) {
        let mut reject = |detail: &str| {
            let shown = layout::internal_json("SecurityContext", context);
            errors.push(FieldError::invalid_shown(path, shown, detail));
        };
        if context.flag("privileged") {
            reject("cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
        }
        for capability in texts(context.field("capabilities").items("add")) {
            if capability == "CAP_SYS_ADMIN" {
                reject("cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN");
            }
        }
    }
    windows::validate_options(context.field("windowsOptions"), &path.child("windowsOptions"), errors);
    validate_app_armor(context.field("appArmorProfile"), &path.child("appArmorProfile"), errors);
}

fn validate_id(context: &Value, name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(id) = context.opt_int(name) {
        invalid_number(names::user_id(id), id, &path.child(name), errors);
    }
}

fn optional_one_of(object: &Value, name: &str, supported: &[&str], path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(text) = object.opt_text(name) {
        one_of(text, supported, &path.child(name), errors);
    }
}

const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

fn validate_seccomp(profile: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if profile.is_null() {
        return;
    }
    let kind = profile.text("type");
    if kind.is_empty() {
        errors.push(FieldError::required(&path.child("type"), "type is required when seccompProfile is set"));
    } else {
        one_of(kind, &PROFILE_TYPES, &path.child("type"), errors);
    }
    let local_path = path.child("localhostProfile");
    match (kind == "Localhost", profile.opt_text("localhostProfile")) {
        (true, None) => {
            errors.push(FieldError::required(&local_path, "must be set when seccomp type is Localhost"));
        }
        (true, Some(local)) => paths::local_descending(local, &local_path, errors),
        (false, Some(_)) => {
            let shown = layout::internal_json("SeccompProfile", profile);
            let detail = "can only be set when seccomp type is Localhost";
            errors.push(FieldError::invalid_shown(&local_path, shown, detail));
        }
        (false, None) => {}
    }
}

/// An `appArmorProfile` field.
pub fn validate_app_armor(profile: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    const MAX_LENGTH: usize = 4095;
    const MUST_BE_SET: &str = "must be set when AppArmor type is Localhost";
    if profile.is_null() {
        return;
    }
    let local_path = path.child("localhostProfile");
    let local = profile.opt_text("localhostProfile");
    match profile.text("type") {
        "Localhost" => {
            let Some(local) = local else {
                errors.push(FieldError::required(&local_path, MUST_BE_SET));
                return;
            };
            if local.trim() != local {
                let detail = "must not be padded with whitespace";
                errors.push(FieldError::invalid_str(&local_path, local, detail));
            } else if local.is_empty() {
                errors.push(FieldError::required(&local_path, MUST_BE_SET));
            }
            if local.len() > MAX_LENGTH {
                errors.push(FieldError::too_long(&local_path, MAX_LENGTH));
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if let Some(local) = local {
                let detail = "can only be set when AppArmor type is Localhost";
                errors.push(FieldError::invalid_str(&local_path, local, detail));
            }
        }
        "" => {
            let detail = "type is required when appArmorProfile is set";
            errors.push(FieldError::required(&path.child("type"), detail));
        }
        other => one_of(other, &PROFILE_TYPES, &path.child("type"), errors),
    }
}
