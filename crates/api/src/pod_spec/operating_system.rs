//! Fields that a pod may not set for its operating system.

use super::for_each_container;
use crate::value::{Fields, is_zero};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

const FOR_WINDOWS: &str = "cannot be set for a windows pod";
const FOR_LINUX: &str = "windows options cannot be set for a linux pod";

/// Pod fields without meaning on Windows: below `securityContext`, or in the spec itself if the flag is set.
const POD_FIELDS: [(&str, bool); 15] = [
    ("appArmorProfile", false),
    ("seLinuxOptions", false),
    ("hostUsers", true),
    ("hostPID", true),
    ("hostIPC", true),
    ("seccompProfile", false),
    ("fsGroup", false),
    ("fsGroupChangePolicy", false),
    ("sysctls", false),
    ("shareProcessNamespace", true),
    ("runAsUser", false),
    ("runAsGroup", false),
    ("supplementalGroups", false),
    ("supplementalGroupsPolicy", false),
    ("seLinuxChangePolicy", false),
];

const CONTAINER_FIELDS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

pub fn validate_os(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let os = spec.field("os");
    if os.is_null() {
        return;
    }
    match os.text("name") {
        "" => {
            let path = path.child("os");
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        "linux" => validate_linux(spec, path, errors),
        "windows" => validate_windows(spec, path, errors),
        other => {
            let supported = ["linux", "windows"];
            errors.push(FieldError::not_supported(&path.child("os"), &Value::from(other), &supported));
        }
    }
}

fn validate_linux(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let mut check = |context: &Value, path: &Path<'_>| {
        if context.has("windowsOptions") {
            let path = path.child("securityContext");
            errors.push(FieldError::forbidden(&path.child("windowsOptions"), FOR_LINUX));
        }
    };
    check(spec.field("securityContext"), path);
    for_each_container(spec, path, |container, path| check(container.field("securityContext"), path));
}

fn validate_windows(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let context_path = path.child("securityContext");
    for (name, beside) in POD_FIELDS {
        let (holder, path) =
            if beside { (spec, path) } else { (spec.field("securityContext"), &context_path) };
        let set = match name {
            "hostPID" | "hostIPC" | "sysctls" => !is_zero(holder.field(name)),
            _ => holder.has(name),
        };
        if set {
            errors.push(FieldError::forbidden(&path.child(name), FOR_WINDOWS));
        }
    }
    for_each_container(spec, path, |container, path| {
        let context = container.field("securityContext");
        let path = path.child("securityContext");
        for name in CONTAINER_FIELDS {
            if context.has(name) {
                errors.push(FieldError::forbidden(&path.child(name), FOR_WINDOWS));
            }
        }
    });
}
