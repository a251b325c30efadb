//! Sysctls of a pod.

use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

const MAX_LENGTH: usize = 253;
const PATTERN: &str = "^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

/// `spec` is that of the pod, which sets the host namespaces.
pub fn validate_sysctls(spec: &Value, allow_on_host: bool, path: &Path<'_>, errors: &mut ErrorList) {
    let sysctls = spec.field("securityContext").items("sysctls");
    for (index, sysctl) in sysctls.iter().enumerate() {
        let name = sysctl.text("name");
        let path = path.index(index);
        let path = path.child("name");
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if !is_sysctl_name(name) {
            let detail = format!("must have at most {MAX_LENGTH} characters and match regex {PATTERN}");
            errors.push(FieldError::invalid_str(&path, name, detail));
        } else if sysctls[..index].iter().any(|other| other.text("name") == name) {
            errors.push(FieldError::duplicate(&path, &Value::from(name)));
        }
        if let Some(problem) = host_namespace_problem(spec, name).filter(|_| !allow_on_host) {
            errors.push(FieldError::invalid_str(&path, name, problem));
        }
    }
}

/// A sysctl of a namespace that the pod shares with its host.
pub fn host_namespace_problem(spec: &Value, name: &str) -> Option<&'static str> {
    let name = normalized(name);
    let name = name.split('*').next().unwrap_or("");
    let is_net = name.starts_with("net.");
    let is_ipc = matches!(
        name,
        "kernel.sem"
            | "kernel.shmall"
            | "kernel.shmmax"
            | "kernel.shmmni"
            | "kernel.shm_rmid_forced"
            | "kernel.shm"
            | "kernel.msgmax"
            | "kernel.msgmnb"
            | "kernel.msgmni"
            | "kernel.msg"
    ) || name.starts_with("fs.mqueue.");
    if is_net && spec.flag("hostNetwork") {
        Some("may not be specified when 'hostNetwork' is true")
    } else if is_ipc && spec.flag("hostIPC") {
        Some("may not be specified when 'hostIPC' is true")
    } else {
        None
    }
}

/// Normalizes separators to dots: if the first separator is a slash, dots and slashes are swapped.
fn normalized(name: &str) -> String {
    if name.find(['.', '/']).is_none_or(|first| name.as_bytes()[first] == b'.') {
        return name.to_owned();
    }
    let swap = |c: char| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    name.chars().map(swap).collect()
}

fn is_sysctl_name(name: &str) -> bool {
    name.len() <= MAX_LENGTH
        && name.split(['.', '/']).all(|segment| {
            let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
            let bytes = segment.as_bytes();
            bytes.first().is_some_and(edge)
                && bytes.last().is_some_and(edge)
                && bytes.iter().all(|b| edge(b) || matches!(b, b'-' | b'_'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sysctl_names_and_namespaces_are_validated() {
        for (name, ok) in [
            ("net.ipv4.ip_forward", true),
            ("kernel/shm", true),
            ("Net.x", false),
            ("a..b", false),
            ("-a", false),
        ] {
            assert_eq!(is_sysctl_name(name), ok, "{name}");
        }
        let spec = json!({"hostNetwork": true, "hostIPC": true});
        assert!(host_namespace_problem(&spec, "net/ipv4/x").is_some());
        assert!(host_namespace_problem(&spec, "fs.mqueue.x").is_some());
        assert!(host_namespace_problem(&spec, "kernel.x").is_none());
        assert!(host_namespace_problem(&json!({}), "net.x").is_none());
    }
}
