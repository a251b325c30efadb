//! Pod security standards: checks by level and minor version.

use super::finding::Finding;
use super::policy::{Level, LevelVersion};
use super::{baseline, restricted};
use api::value::Fields;
use machinery::Value;

/// A pod, or a pod template.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub annotations: &'a Value,
    pub spec: &'a Value,
}

impl<'a> Subject<'a> {
    pub fn security(&self) -> &'a Value {
        self.spec.field("securityContext")
    }

    /// Name, security context and value of every container.
    pub fn containers(&self) -> impl Iterator<Item = (&'a str, &'a Value, &'a Value)> {
        let lists = api::pod_spec::CONTAINER_LISTS.into_iter();
        let spec = self.spec;
        lists
            .flat_map(move |list| spec.items(list))
            .map(|container| (container.text("name"), container.field("securityContext"), container))
    }

    pub fn on_windows(&self) -> bool {
        self.spec.field("os").text("name") == "windows"
    }

    /// True for a pod in its own user namespace: its root is unprivileged on the node.
    pub fn has_own_users(&self) -> bool {
        self.spec.opt_flag("hostUsers") == Some(false)
    }
}

pub type Test = fn(Subject<'_>) -> Option<Finding>;

/// A check, possibly with different tests by version.
struct PodSecurityCheck {
    name: &'static str,
    /// First minor version of each test.
    versions: &'static [(u32, Test)],
    /// Weaker baseline check that it replaces.
    overrides: &'static str,
}

const fn check(name: &'static str, versions: &'static [(u32, Test)]) -> PodSecurityCheck {
    PodSecurityCheck { name, versions, overrides: "" }
}

const fn instead_of(overrides: &'static str, versions: &'static [(u32, Test)]) -> PodSecurityCheck {
    PodSecurityCheck { name: "", versions, overrides }
}

/// In the order in which violations are reported.
static BASELINE: &[PodSecurityCheck] = &[
    check("appArmorProfile", &[(0, baseline::app_armor)]),
    check("capabilities", &[(0, baseline::capabilities)]),
    check("hostNamespaces", &[(0, baseline::host_namespaces)]),
    check("hostPathVolumes", &[(0, baseline::host_path_volumes)]),
    check("hostPorts", &[(0, baseline::host_ports)]),
    check("hostProbes", &[(34, baseline::probe_hosts)]),
    check("privileged", &[(0, baseline::privileged)]),
    check("procMount", &[(0, baseline::proc_mount), (35, baseline::proc_mount_1_35)]),
    check("seLinuxOptions", &[(0, baseline::se_linux_options), (31, baseline::se_linux_options_1_31)]),
    check("seccompProfile", &[(0, baseline::seccomp_annotations), (19, baseline::seccomp_profile)]),
    check(
        "sysctls",
        &[
            (0, baseline::sysctls),
            (27, baseline::sysctls_1_27),
            (29, baseline::sysctls_1_29),
            (32, baseline::sysctls_1_32),
        ],
    ),
    check("windowsHostProcess", &[(0, baseline::windows_host_process)]),
];

static RESTRICTED: &[PodSecurityCheck] = &[
    check(
        "allowPrivilegeEscalation",
        &[(8, restricted::privilege_escalation), (25, restricted::privilege_escalation_1_25)],
    ),
    instead_of("capabilities", &[(22, restricted::capabilities), (25, restricted::capabilities_1_25)]),
    instead_of("procMount", &[(35, baseline::proc_mount)]),
    instead_of("hostPathVolumes", &[(0, restricted::volumes)]),
    check("runAsNonRoot", &[(0, restricted::run_as_non_root), (35, restricted::run_as_non_root_1_35)]),
    check("runAsUser", &[(23, restricted::run_as_user), (35, restricted::run_as_user_1_35)]),
    instead_of(
        "seccompProfile",
        &[(19, restricted::seccomp_profile), (25, restricted::seccomp_profile_1_25)],
    ),
];

/// All violations of a pod or template.
pub fn evaluate(policy: LevelVersion, pod: &Value) -> Vec<Finding> {
    if policy.level == Level::Privileged {
        return Vec::new();
    }
    let subject =
        Subject { annotations: pod.field("metadata").field("annotations"), spec: pod.field("spec") };
    let test = |check: &PodSecurityCheck| {
        let known = check.versions.iter().rev().find(|(since, _)| policy.version.includes(*since));
        known.map(|(_, test)| *test)
    };
    let strict: &[PodSecurityCheck] = if policy.level == Level::Restricted { RESTRICTED } else { &[] };
    let overridden = |name: &str| strict.iter().any(|row| row.overrides == name && test(row).is_some());
    let weak = BASELINE.iter().filter(|row| !overridden(row.name));
    weak.chain(strict).filter_map(test).filter_map(|test| test(subject)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::details;
    use super::*;
    use serde_json::json;

    #[test]
    fn check_tests_depend_on_version() {
        let pod = json!({"spec": {"containers": [{"name": "c"}]}});
        for (policy, want) in [
            ("privileged:latest", ""),
            ("baseline:latest", ""),
            (
                "restricted:v1.20",
                r#"allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#,
            ),
            (
                "restricted:v1.5",
                r#"runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)"#,
            ),
        ] {
            let policy = LevelVersion::parse(policy).expect("a level and version");
            assert_eq!(details(&evaluate(policy, &pod)), want);
        }
    }

    #[test]
    fn baseline_reports_every_violation() {
        let pod = json!({
            "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}},
            "spec": {
                "hostNetwork": true, "hostIPC": true,
                "volumes": [{"name": "v", "hostPath": {"path": "/"}}],
                "securityContext": {"sysctls": [{"name": "kernel.x"}], "seLinuxOptions": {"user": "u"}},
                "containers": [
                    {"name": "c", "ports": [{"hostPort": 80}, {"hostPort": 81}],
                     "livenessProbe": {"httpGet": {"host": "h"}},
                     "securityContext": {"privileged": true, "capabilities": {"add": ["NET_RAW", "CHOWN"]}}},
                    {"name": "d", "securityContext": {"seccompProfile": {"type": "Unconfined"}, "procMount": "Unmasked"}},
                ],
            },
        });
        let policy = LevelVersion::parse("baseline:latest").expect("a level and version");
        let got: Vec<String> =
            evaluate(policy, &pod).iter().map(|f| format!("{} ({})", f.reason, f.detail)).collect();
        assert_eq!(
            got,
            [
                r#"forbidden AppArmor profile (annotation must not set AppArmor profile type to "container.apparmor.security.beta.kubernetes.io/c="unconfined"")"#,
                r#"non-default capabilities (container "c" must not include "NET_RAW" in securityContext.capabilities.add)"#,
                "host namespaces (hostNetwork=true, hostIPC=true)",
                r#"hostPath volumes (volume "v")"#,
                r#"hostPort (container "c" uses hostPorts 80, 81)"#,
                r#"probe or lifecycle host (container "c" uses probe or lifecycle host "h")"#,
                r#"privileged (container "c" must not set securityContext.privileged=true)"#,
                r#"procMount (container "d" must not set securityContext.procMount to "Unmasked")"#,
                "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: user may not be set)",
                r#"seccompProfile (container "d" must not set securityContext.seccompProfile.type to "Unconfined")"#,
                "forbidden sysctls (kernel.x)",
            ]
        );
    }
}
