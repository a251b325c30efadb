//! Checks of the baseline level: prevent known privilege escalations.

use super::checks::Subject;
use super::finding::{Finding, Setters, containers, plural, quoted};
use api::value::{Fields, texts};
use machinery::Value;
use std::collections::BTreeSet;

const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_POD_ANNOTATION: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER_ANNOTATION: &str = "container.seccomp.security.alpha.kubernetes.io/";

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Sysctls that affect only their own pod, by the minor version that first allowed them.
const SYSCTLS: [(u32, &str); 12] = [
    (0, "kernel.shm_rmid_forced"),
    (0, "net.ipv4.ip_local_port_range"),
    (0, "net.ipv4.tcp_syncookies"),
    (0, "net.ipv4.ping_group_range"),
    (0, "net.ipv4.ip_unprivileged_port_start"),
    (27, "net.ipv4.ip_local_reserved_ports"),
    (29, "net.ipv4.tcp_keepalive_time"),
    (29, "net.ipv4.tcp_fin_timeout"),
    (29, "net.ipv4.tcp_keepalive_intvl"),
    (29, "net.ipv4.tcp_keepalive_probes"),
    (32, "net.ipv4.tcp_rmem"),
    (32, "net.ipv4.tcp_wmem"),
];

pub fn app_armor(pod: Subject<'_>) -> Option<Finding> {
    let bad = |context: &Value| {
        let profile = context.field("appArmorProfile");
        profile.is_object() && !matches!(profile.text("type"), "RuntimeDefault" | "Localhost")
    };
    let mut found = Setters { pod: bad(pod.security()), ..Setters::default() };
    if found.pod {
        found.values.insert(pod.security().field("appArmorProfile").text("type"));
    }
    for (name, context, _) in pod.containers().filter(|(_, context, _)| bad(context)) {
        found.containers.push(name);
        found.values.insert(context.field("appArmorProfile").text("type"));
    }
    let annotations: Vec<String> = pod
        .annotations
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.starts_with(APP_ARMOR_ANNOTATION))
        .map(|(key, value)| (key, value.as_str().unwrap_or("")))
        .filter(|(_, value)| {
            !(value.is_empty() || *value == "runtime/default" || value.starts_with("localhost/"))
        })
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    let mut setters: Vec<String> = found.any().then(|| found.names()).into_iter().collect();
    if !annotations.is_empty() {
        setters.push(plural("annotation", "annotations", annotations.len()).to_owned());
    }
    if setters.is_empty() {
        return None;
    }
    let values: Vec<&str> =
        found.values.iter().copied().chain(annotations.iter().map(String::as_str)).collect();
    let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len());
    let detail =
        format!("{} must not set AppArmor profile type to {}", setters.join(" and "), quoted(&values));
    Some(Finding::new(reason, detail))
}

pub fn capabilities(pod: Subject<'_>) -> Option<Finding> {
    let (names, added) = added_capabilities(pod, &CAPABILITIES);
    (!names.is_empty()).then(|| {
        let detail = format!(
            "{} must not include {} in securityContext.capabilities.add",
            containers(&names),
            quoted(&added)
        );
        Finding::new("non-default capabilities", detail)
    })
}

/// Containers that add capabilities beyond the allowed ones, and these capabilities.
pub fn added_capabilities<'a>(pod: Subject<'a>, allowed: &[&str]) -> (Vec<&'a str>, BTreeSet<&'a str>) {
    let mut names = Vec::new();
    let mut added = BTreeSet::new();
    for (name, context, _) in pod.containers() {
        let before = names.len();
        for capability in texts(context.field("capabilities").items("add")) {
            if !allowed.contains(&capability) {
                added.insert(capability);
                if names.len() == before {
                    names.push(name);
                }
            }
        }
    }
    (names, added)
}

pub fn host_namespaces(pod: Subject<'_>) -> Option<Finding> {
    let used: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|field| pod.spec.flag(field))
        .map(|field| format!("{field}=true"))
        .collect();
    (!used.is_empty()).then(|| Finding::new("host namespaces", used.join(", ")))
}

pub fn host_path_volumes(pod: Subject<'_>) -> Option<Finding> {
    let volumes = pod.spec.items("volumes").iter().filter(|volume| volume.has("hostPath"));
    let names: Vec<&str> = volumes.map(|volume| volume.text("name")).collect();
    (!names.is_empty()).then(|| {
        let detail = format!("{} {}", plural("volume", "volumes", names.len()), quoted(&names));
        Finding::new("hostPath volumes", detail)
    })
}

pub fn host_ports(pod: Subject<'_>) -> Option<Finding> {
    let mut names = Vec::new();
    let mut ports: BTreeSet<String> = BTreeSet::new();
    for (name, _, container) in pod.containers() {
        let used = container.items("ports").iter().map(|port| port.int("hostPort")).filter(|port| *port != 0);
        let used: Vec<String> = used.map(|port| port.to_string()).collect();
        if !used.is_empty() {
            names.push(name);
            ports.extend(used);
        }
    }
    (!names.is_empty()).then(|| {
        let list: Vec<&str> = ports.iter().map(String::as_str).collect();
        let detail = format!(
            "{} {} {} {}",
            containers(&names),
            plural("uses", "use", names.len()),
            plural("hostPort", "hostPorts", ports.len()),
            list.join(", ")
        );
        Finding::new("hostPort", detail)
    })
}

pub fn probe_hosts(pod: Subject<'_>) -> Option<Finding> {
    let mut names = BTreeSet::new();
    let mut hosts = BTreeSet::new();
    for (name, _, container) in pod.containers() {
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|probe| container.field(probe));
        let lifecycle = container.field("lifecycle");
        let handlers = ["postStart", "preStop"].map(|handler| lifecycle.field(handler));
        for action in probes.into_iter().chain(handlers) {
            for host in ["httpGet", "tcpSocket"].map(|kind| action.field(kind).text("host")) {
                if !host.is_empty() {
                    names.insert(name);
                    hosts.insert(host);
                }
            }
        }
    }
    (!names.is_empty()).then(|| {
        let names: Vec<&str> = names.into_iter().collect();
        let detail = format!(
            "{} {} {} {}",
            containers(&names),
            plural("uses", "use", names.len()),
            plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len()),
            quoted(&hosts)
        );
        Finding::new("probe or lifecycle host", detail)
    })
}

pub fn privileged(pod: Subject<'_>) -> Option<Finding> {
    let names: Vec<&str> = pod
        .containers()
        .filter(|(_, context, _)| context.flag("privileged"))
        .map(|(name, ..)| name)
        .collect();
    (!names.is_empty()).then(|| {
        let detail = format!("{} must not set securityContext.privileged=true", containers(&names));
        Finding::new("privileged", detail)
    })
}

pub fn proc_mount(pod: Subject<'_>) -> Option<Finding> {
    let mut found = Setters::default();
    for (name, context, _) in pod.containers() {
        if let Some(kind) = context.opt_text("procMount").filter(|kind| *kind != "Default") {
            found.containers.push(name);
            found.values.insert(kind);
        }
    }
    found.any().then(|| {
        let detail =
            format!("{} must not set securityContext.procMount to {}", found.names(), quoted(&found.values));
        Finding::new("procMount", detail)
    })
}

pub fn proc_mount_1_35(pod: Subject<'_>) -> Option<Finding> {
    if pod.has_own_users() { None } else { proc_mount(pod) }
}

pub fn se_linux_options(pod: Subject<'_>) -> Option<Finding> {
    se_linux(pod, &["", "container_t", "container_init_t", "container_kvm_t"])
}

pub fn se_linux_options_1_31(pod: Subject<'_>) -> Option<Finding> {
    se_linux(pod, &["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"])
}

fn se_linux(pod: Subject<'_>, allowed: &[&str]) -> Option<Finding> {
    let bad = |context: &Value| {
        let options = context.field("seLinuxOptions");
        !allowed.contains(&options.text("type"))
            || !options.text("user").is_empty()
            || !options.text("role").is_empty()
    };
    let mut found = Setters { pod: bad(pod.security()), ..Setters::default() };
    let mut options = Vec::new();
    if found.pod {
        options.push(pod.security().field("seLinuxOptions"));
    }
    for (name, context, _) in pod.containers().filter(|(_, context, _)| bad(context)) {
        found.containers.push(name);
        options.push(context.field("seLinuxOptions"));
    }
    if !found.any() {
        return None;
    }
    let types: BTreeSet<&str> =
        options.iter().map(|options| options.text("type")).filter(|kind| !allowed.contains(kind)).collect();
    let mut wrong = Vec::new();
    if !types.is_empty() {
        wrong.push(format!("{} {}", plural("type", "types", types.len()), quoted(&types)));
    }
    for field in ["user", "role"] {
        if options.iter().any(|options| !options.text(field).is_empty()) {
            wrong.push(format!("{field} may not be set"));
        }
    }
    let detail =
        format!("{} set forbidden securityContext.seLinuxOptions: {}", found.names(), wrong.join("; "));
    Some(Finding::new("seLinuxOptions", detail))
}

/// Checks the annotations that chose the profile before there was a field.
pub fn seccomp_annotations(pod: Subject<'_>) -> Option<Finding> {
    let keys = std::iter::once(SECCOMP_POD_ANNOTATION.to_owned())
        .chain(pod.containers().map(|(name, ..)| format!("{SECCOMP_CONTAINER_ANNOTATION}{name}")));
    let forbidden: BTreeSet<String> = keys
        .filter_map(|key| {
            let value = pod.annotations.opt_text(&key)?;
            let fine =
                matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
            (!fine).then(|| format!("{key}={value:?}"))
        })
        .collect();
    (!forbidden.is_empty()).then(|| {
        let list: Vec<&str> = forbidden.iter().map(String::as_str).collect();
        let what = plural("annotation", "annotations", list.len());
        Finding::new("seccompProfile", format!("forbidden {what} {}", list.join(", ")))
    })
}

pub fn seccomp_profile(pod: Subject<'_>) -> Option<Finding> {
    let found = seccomp_setters(pod);
    found.any().then(|| seccomp_finding(&found))
}

/// Pod and containers with a forbidden profile type.
pub fn seccomp_setters(pod: Subject<'_>) -> Setters<'_> {
    let kind = |context: &'_ Value| -> Option<bool> {
        let profile = context.field("seccompProfile");
        profile.is_object().then(|| !matches!(profile.text("type"), "RuntimeDefault" | "Localhost"))
    };
    let mut found = Setters { pod: kind(pod.security()) == Some(true), ..Setters::default() };
    if found.pod {
        found.values.insert(pod.security().field("seccompProfile").text("type"));
    }
    for (name, context, _) in pod.containers().filter(|(_, context, _)| kind(context) == Some(true)) {
        found.containers.push(name);
        found.values.insert(context.field("seccompProfile").text("type"));
    }
    found
}

pub fn seccomp_finding(found: &Setters<'_>) -> Finding {
    let values = quoted(&found.values);
    let detail = format!("{} must not set securityContext.seccompProfile.type to {values}", found.names());
    Finding::new("seccompProfile", detail)
}

pub fn sysctls(pod: Subject<'_>) -> Option<Finding> {
    unsafe_sysctls(pod, 0)
}

pub fn sysctls_1_27(pod: Subject<'_>) -> Option<Finding> {
    unsafe_sysctls(pod, 27)
}

pub fn sysctls_1_29(pod: Subject<'_>) -> Option<Finding> {
    unsafe_sysctls(pod, 29)
}

pub fn sysctls_1_32(pod: Subject<'_>) -> Option<Finding> {
    unsafe_sysctls(pod, 32)
}

fn unsafe_sysctls(pod: Subject<'_>, minor: u32) -> Option<Finding> {
    let names = pod.security().items("sysctls").iter().map(|sysctl| sysctl.text("name"));
    let bad: Vec<&str> =
        names.filter(|name| !SYSCTLS.iter().any(|(since, safe)| safe == name && *since <= minor)).collect();
    (!bad.is_empty()).then(|| Finding::new("forbidden sysctls", bad.join(", ")))
}

pub fn windows_host_process(pod: Subject<'_>) -> Option<Finding> {
    let bad = |context: &Value| context.field("windowsOptions").flag("hostProcess");
    let found = Setters {
        pod: bad(pod.security()),
        containers: pod.containers().filter(|(_, context, _)| bad(context)).map(|(name, ..)| name).collect(),
        ..Setters::default()
    };
    found.any().then(|| {
        let detail =
            format!("{} must not set securityContext.windowsOptions.hostProcess=true", found.names());
        Finding::new("hostProcess", detail)
    })
}
