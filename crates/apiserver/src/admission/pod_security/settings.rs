//! `PodSecurityConfiguration`: defaults for namespaces without labels, and exemptions.

use super::policy::{Level, LevelVersion, Policy, Version};
use crate::configuration;
use crate::user::UserInfo;
use serde::Deserialize;

const GROUP: &str = "pod-security.admission.config.k8s.io";

/// Defaults and exemptions.
#[derive(Clone, Debug, Default)]
pub struct PodSecuritySettings {
    pub(super) defaults: Policy,
    pub(super) usernames: Vec<String>,
    pub(super) namespaces: Vec<String>,
    pub(super) runtime_classes: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    #[serde(default)]
    defaults: Defaults,
    #[serde(default)]
    exemptions: Exemptions,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Defaults {
    enforce: Option<String>,
    enforce_version: Option<String>,
    audit: Option<String>,
    audit_version: Option<String>,
    warn: Option<String>,
    warn_version: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct Exemptions {
    usernames: Vec<String>,
    namespaces: Vec<String>,
    runtime_classes: Vec<String>,
}

impl PodSecuritySettings {
    /// Reports whether this user or this namespace is exempt.
    pub(super) fn is_exempt(&self, user: &UserInfo, namespace: &str) -> bool {
        self.usernames.contains(&user.name) || self.namespaces.iter().any(|exempt| exempt == namespace)
    }

    pub(super) fn exempts_class(&self, class: &str) -> bool {
        !class.is_empty() && self.runtime_classes.iter().any(|exempt| exempt == class)
    }
}

/// Reads the configuration from a file's content.
pub fn read(text: &[u8]) -> Result<PodSecuritySettings, String> {
    let versions = ["v1", "v1beta1", "v1alpha1"];
    let found: Configuration = configuration::parse(text, GROUP, &versions, "PodSecurityConfiguration")?;
    let mode = |name: &str, level: &Option<String>, version: &Option<String>| {
        let level = Level::parse(level.as_deref().unwrap_or("privileged"))
            .map_err(|why| format!("defaults.{name}: Invalid value: {why}"))?;
        let version = Version::parse(version.as_deref().unwrap_or("latest"))
            .map_err(|why| format!("defaults.{name}-version: Invalid value: {why}"))?;
        Ok::<_, String>(LevelVersion { level, version })
    };
    let Defaults { enforce, enforce_version, audit, audit_version, warn, warn_version } = &found.defaults;
    let defaults = Policy {
        enforce: mode("enforce", enforce, enforce_version)?,
        audit: mode("audit", audit, audit_version)?,
        warn: mode("warn", warn, warn_version)?,
    };
    let Exemptions { usernames, namespaces, runtime_classes } = found.exemptions;
    for (name, list) in
        [("usernames", &usernames), ("namespaces", &namespaces), ("runtimeClasses", &runtime_classes)]
    {
        for (index, value) in list.iter().enumerate() {
            if value.is_empty() {
                return Err(format!("exemptions.{name}[{index}]: Invalid value: \"\": may not be empty"));
            }
            if list[..index].contains(value) {
                return Err(format!("exemptions.{name}[{index}]: Duplicate value: {value:?}"));
            }
        }
    }
    Ok(PodSecuritySettings { defaults, usernames, namespaces, runtime_classes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_security_configuration_is_validated() {
        let text = "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n\
                    defaults: {enforce: baseline, enforce-version: v1.30, warn: restricted}\n\
                    exemptions: {usernames: [boss], namespaces: [kube-system], runtimeClasses: [vm]}\n";
        let settings = read(text.as_bytes()).expect("a configuration");
        assert_eq!(settings.defaults.enforce.to_string(), "baseline:v1.30");
        assert_eq!(settings.defaults.warn.to_string(), "restricted:latest");
        assert_eq!(settings.defaults.audit.to_string(), "privileged:latest");
        assert_eq!((settings.usernames.len(), settings.namespaces.len()), (1, 1));
        for (from, to, want) in [
            ("baseline", "strict", "defaults.enforce"),
            ("v1.30", "'1.30'", "defaults.enforce-version"),
            ("[boss]", "[boss, boss]", "Duplicate value"),
            ("[vm]", "['']", "may not be empty"),
            ("warn:", "worn:", "unknown field"),
        ] {
            let error = read(text.replace(from, to).as_bytes()).expect_err(to);
            assert!(error.contains(want), "{error}");
        }
    }
}
