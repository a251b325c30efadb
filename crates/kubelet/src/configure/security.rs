//! Security contexts of pod and container, translated to CRI.

use std::path::Path;
use std::sync::LazyLock;

use cri::v1::{
    Capability, Int64Value, LinuxContainerSecurityContext, LinuxSandboxSecurityContext, NamespaceMode,
    NamespaceOption, SELinuxOption, SecurityProfile, SecurityProfileProfileType, SupplementalGroupsPolicy,
};
use objects::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, PodSpec, SELinuxOptions, SeccompProfile,
    SecurityContext,
};

/// Masked paths in `/proc` and `/sys`.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// CPU directories whose throttling counters disclose the load of other containers.
const PROCESSORS: &str = "/sys/devices/system/cpu";

/// All masked paths on this machine: one more per CPU with throttling counters.
static MASKED_HERE: LazyLock<Vec<String>> = LazyLock::new(|| masked_paths(Path::new(PROCESSORS)));

fn masked_paths(processors: &Path) -> Vec<String> {
    let mut paths: Vec<String> = MASKED.iter().map(|path| (*path).to_owned()).collect();
    let mut throttled: Vec<String> = std::fs::read_dir(processors)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let number = name.strip_prefix("cpu")?;
            let numbered = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            (numbered && entry.path().join("thermal_throttle").exists())
                .then(|| format!("{PROCESSORS}/{name}/thermal_throttle"))
        })
        .collect();
    throttled.sort();
    paths.extend(throttled);
    paths
}

const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Rejection of a container's security context.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecurityError {
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RootRequested { pod: String, container: String },
    #[error("container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})")]
    RootImage { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: {pod:?}, container: {container})"
    )]
    NamedUser { user: String, pod: String, container: String },
}

/// User that an image runs as.
#[derive(Clone, Debug, Default)]
pub struct ImageUser {
    pub uid: Option<i64>,
    pub name: String,
}

fn contexts<'a>(pod: &'a Pod, container: &'a Container) -> (PodSecurityContext, SecurityContext) {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.clone()).unwrap_or_default();
    (of_pod, container.security_context.clone().unwrap_or_default())
}

/// Rejects root if the pod sets `runAsNonRoot`.
pub fn check_non_root(pod: &Pod, container: &Container, image: &ImageUser) -> Result<(), SecurityError> {
    let (of_pod, own) = contexts(pod, container);
    if !own.run_as_non_root.or(of_pod.run_as_non_root).unwrap_or(false) {
        return Ok(());
    }
    let meta = &pod.metadata;
    let pod_text = format!(
        "{}_{}({})",
        meta.name.as_deref().unwrap_or(""),
        meta.namespace.as_deref().unwrap_or(""),
        meta.uid.as_deref().unwrap_or("")
    );
    let name = container.name.clone();
    match own.run_as_user.or(of_pod.run_as_user) {
        Some(0) => Err(SecurityError::RootRequested { pod: pod_text, container: name }),
        Some(_) => Ok(()),
        None if image.uid == Some(0) => Err(SecurityError::RootImage { pod: pod_text, container: name }),
        None if image.uid.is_none() && !image.name.is_empty() => {
            Err(SecurityError::NamedUser { user: image.name.clone(), pod: pod_text, container: name })
        }
        None => Ok(()),
    }
}

/// Namespaces that a pod shares with the node, and its containers with each other.
#[must_use]
pub fn namespaces(spec: &PodSpec) -> NamespaceOption {
    let node_or = |on: Option<bool>, other: NamespaceMode| {
        if on == Some(true) { NamespaceMode::Node as i32 } else { other as i32 }
    };
    let pid = if spec.share_process_namespace == Some(true) {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    NamespaceOption {
        network: node_or(spec.host_network, NamespaceMode::Pod),
        pid: node_or(spec.host_pid, pid),
        ipc: node_or(spec.host_ipc, NamespaceMode::Pod),
        ..NamespaceOption::default()
    }
}

fn groups_policy(pod: &PodSecurityContext) -> i32 {
    match pod.supplemental_groups_policy.as_deref() {
        Some("Strict") => SupplementalGroupsPolicy::Strict as i32,
        _ => SupplementalGroupsPolicy::Merge as i32,
    }
}

fn supplemental(pod: &PodSecurityContext, volume_groups: &[i64]) -> Vec<i64> {
    let mut groups: Vec<i64> = pod.fs_group.into_iter().collect();
    groups.extend(pod.supplemental_groups.iter().flatten());
    groups.extend(volume_groups);
    groups
}

/// Seccomp profile of a container: its own, the pod's, or the runtime default unless privileged.
fn seccomp(
    own: Option<&SeccompProfile>,
    of_pod: Option<&SeccompProfile>,
    directory: &str,
) -> SecurityProfile {
    let profile = own.or(of_pod);
    let kind = match profile.map(|profile| profile.type_.as_str()) {
        Some("Localhost") => SecurityProfileProfileType::Localhost,
        Some("Unconfined") => SecurityProfileProfileType::Unconfined,
        _ => SecurityProfileProfileType::RuntimeDefault,
    };
    let reference = profile.and_then(|profile| profile.localhost_profile.as_deref()).unwrap_or("");
    SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: if kind == SecurityProfileProfileType::Localhost {
            format!("{directory}/{reference}")
        } else {
            String::new()
        },
    }
}

fn app_armor(own: Option<&AppArmorProfile>, of_pod: Option<&AppArmorProfile>) -> Option<SecurityProfile> {
    let profile = own.or(of_pod)?;
    let kind = match profile.type_.as_str() {
        "Localhost" => SecurityProfileProfileType::Localhost,
        "Unconfined" => SecurityProfileProfileType::Unconfined,
        _ => SecurityProfileProfileType::RuntimeDefault,
    };
    Some(SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: profile.localhost_profile.clone().unwrap_or_default(),
    })
}

fn se_linux(own: Option<&SELinuxOptions>, of_pod: Option<&SELinuxOptions>) -> Option<SELinuxOption> {
    let options = own.or(of_pod)?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Some(SELinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    })
}

fn int(value: Option<i64>) -> Option<Int64Value> {
    value.map(|value| Int64Value { value })
}

/// Security context of a sandbox.
#[must_use]
pub fn of_sandbox(pod: &Pod, profiles: &str) -> LinuxSandboxSecurityContext {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let context = spec.security_context.clone().unwrap_or_default();
    let privileged =
        spec.init_containers.iter().flatten().chain(&spec.containers).any(|container| {
            container.security_context.as_ref().and_then(|own| own.privileged) == Some(true)
        });
    LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(spec)),
        selinux_options: se_linux(None, context.se_linux_options.as_ref()),
        run_as_user: int(context.run_as_user),
        run_as_group: int(context.run_as_user.and(context.run_as_group)),
        supplemental_groups: supplemental(&context, &[]),
        privileged,
        seccomp: Some(seccomp(None, context.seccomp_profile.as_ref(), profiles)),
        supplemental_groups_policy: groups_policy(&context),
        ..LinuxSandboxSecurityContext::default()
    }
}

/// Security context of a container. `target` is the target container of an ephemeral one.
#[must_use]
pub fn of_container(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
    target: Option<&str>,
    profiles: &str,
    volume_groups: &[i64],
) -> LinuxContainerSecurityContext {
    let (of_pod, own) = contexts(pod, container);
    let mut options = pod.spec.as_ref().map(namespaces).unwrap_or_default();
    if let Some(target) = target.filter(|_| options.pid == NamespaceMode::Container as i32) {
        options.pid = NamespaceMode::Target as i32;
        target.clone_into(&mut options.target_id);
    }
    let user = own.run_as_user.or(of_pod.run_as_user);
    let privileged = own.privileged == Some(true);
    let unmasked = privileged || own.proc_mount.as_deref() == Some("Unmasked");
    let capabilities = own.capabilities.as_ref().map(|capabilities| Capability {
        add_capabilities: capabilities.add.clone().unwrap_or_default(),
        drop_capabilities: capabilities.drop.clone().unwrap_or_default(),
        add_ambient_capabilities: Vec::new(),
    });
    LinuxContainerSecurityContext {
        capabilities,
        privileged,
        namespace_options: Some(options),
        selinux_options: se_linux(own.se_linux_options.as_ref(), of_pod.se_linux_options.as_ref()),
        run_as_user: int(user.or(image.uid)),
        run_as_username: if user.is_none() && image.uid.is_none() {
            image.name.clone()
        } else {
            String::new()
        },
        run_as_group: int(own.run_as_group.or(of_pod.run_as_group)),
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: supplemental(&of_pod, volume_groups),
        no_new_privs: own.allow_privilege_escalation == Some(false) && !privileged,
        masked_paths: if unmasked { Vec::new() } else { MASKED_HERE.clone() },
        readonly_paths: if unmasked {
            Vec::new()
        } else {
            READ_ONLY.iter().map(|path| (*path).to_owned()).collect()
        },
        seccomp: Some(if privileged {
            SecurityProfile {
                profile_type: SecurityProfileProfileType::Unconfined as i32,
                ..Default::default()
            }
        } else {
            seccomp(own.seccomp_profile.as_ref(), of_pod.seccomp_profile.as_ref(), profiles)
        }),
        apparmor: app_armor(own.app_armor_profile.as_ref(), of_pod.app_armor_profile.as_ref()),
        supplemental_groups_policy: groups_policy(&of_pod),
        ..LinuxContainerSecurityContext::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_as_non_root_rejects_root() {
        let pod = Pod::default();
        let container = |user: Option<i64>| Container {
            name: "c".to_owned(),
            security_context: Some(SecurityContext {
                run_as_non_root: Some(true),
                run_as_user: user,
                ..Default::default()
            }),
            ..Container::default()
        };
        let image = |uid: Option<i64>, name: &str| ImageUser { uid, name: name.to_owned() };
        for (user, image, fine) in [
            (Some(0), image(Some(7), ""), false),
            (Some(5), image(Some(0), ""), true),
            (None, image(Some(0), ""), false),
            (None, image(Some(7), ""), true),
            (None, image(None, "nobody"), false),
        ] {
            assert_eq!(check_non_root(&pod, &container(user), &image).is_ok(), fine, "{user:?} {image:?}");
        }
        assert!(check_non_root(&pod, &Container::default(), &image(Some(0), "")).is_ok());
    }

    #[test]
    fn masked_paths_include_power_and_throttling() {
        let processors = tempfile::tempdir().expect("a directory");
        for name in ["cpu0/thermal_throttle", "cpu12/thermal_throttle", "cpu3", "cpufreq/thermal_throttle"] {
            std::fs::create_dir_all(processors.path().join(name)).expect("a directory");
        }
        let paths = masked_paths(processors.path());
        assert!(paths.iter().any(|path| path == "/sys/devices/virtual/powercap"));
        assert_eq!(
            paths[MASKED.len()..],
            [
                "/sys/devices/system/cpu/cpu0/thermal_throttle",
                "/sys/devices/system/cpu/cpu12/thermal_throttle"
            ]
        );
    }

    #[test]
    fn security_context_default_is_confined() {
        let context =
            of_container(&Pod::default(), &Container::default(), &ImageUser::default(), None, "/p", &[]);
        assert_eq!(
            context.seccomp.map(|profile| profile.profile_type),
            Some(SecurityProfileProfileType::RuntimeDefault as i32)
        );
        assert!(!context.privileged && !context.masked_paths.is_empty() && !context.no_new_privs);
    }
}
