//! Sysctls that pods may set: safe namespaced ones, and those allowed by the administrator.

use objects::core::v1::Pod;

/// Safe sysctls, which are namespaced.
const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Reason and message if the pod sets a forbidden sysctl. `unsafe_allowed` are names, or prefixes that end in `*`.
#[must_use]
pub fn rejection(pod: &Pod, unsafe_allowed: &[String]) -> Option<(String, String)> {
    let spec = pod.spec.as_ref()?;
    let wrong = |why: String| Some(("SysctlForbidden".to_owned(), format!("forbidden sysctl: {why}")));
    for sysctl in spec.security_context.as_ref()?.sysctls.iter().flatten() {
        let name = sysctl.name.replace('/', ".");
        let added = unsafe_allowed.iter().any(|allowed| {
            let allowed = allowed.replace('/', ".");
            allowed.strip_suffix('*').map_or(allowed == name, |beginning| name.starts_with(beginning))
        });
        if !SAFE.contains(&name.as_str()) && !added {
            return wrong(format!("{name:?} not allowlisted"));
        }
        if name.starts_with("net.") && spec.host_network == Some(true) {
            return wrong(format!("{name:?} not allowed with host net enabled"));
        }
        if !name.starts_with("net.") && spec.host_ipc == Some(true) {
            return wrong(format!("{name:?} not allowed with host ipc enabled"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_sysctls_are_rejected_unless_allowed() {
        let pod = |name: &str, host_network: bool| -> Pod {
            let text = format!(
                r#"{{"spec": {{"hostNetwork": {host_network}, "containers": [],
                    "securityContext": {{"sysctls": [{{"name": "{name}", "value": "1"}}]}}}}}}"#
            );
            serde_json::from_str(&text).expect("a pod")
        };
        let allowed = ["kernel.msg*".to_owned()];
        assert_eq!(rejection(&pod("kernel.shm_rmid_forced", false), &[]), None);
        assert_eq!(rejection(&pod("kernel/msgmax", false), &allowed), None);
        let (reason, message) = rejection(&pod("kernel.msgmax", false), &[]).expect("refused");
        assert_eq!(
            (reason.as_str(), message.as_str()),
            ("SysctlForbidden", "forbidden sysctl: \"kernel.msgmax\" not allowlisted")
        );
        assert!(rejection(&pod("net.ipv4.tcp_syncookies", true), &[]).is_some());
    }
}
