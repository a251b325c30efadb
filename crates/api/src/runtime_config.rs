//! `--runtime-config`: the built-in group versions and resources that are served.
//!
//! The setting of a resource takes precedence over that of its version, and that over those of a stability level.

use crate::resources::{GROUP_VERSIONS, OPTIONAL, RESOURCES, Resource};
use std::collections::BTreeMap;

/// An invalid setting. `Display` is the message of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeConfigError {
    #[error("invalid runtime-config with only api/all=false")]
    Nothing,
    #[error("runtime-config invalid key {0}")]
    Key(String),
    #[error("unknown api groups {0}")]
    UnknownGroups(String),
    #[error("group version {0} that has not been registered")]
    UnknownVersion(String),
    #[error("invalid value {0}={1}")]
    Value(String, String),
    #[error("invalid value of {0}: {1}, err: strconv.ParseBool: parsing {1:?}: invalid syntax")]
    Boolean(String, String),
    #[error("invalid key {0}: group/version/resource and resource is always lowercase plural, not {1:?}")]
    UpperCase(String, String),
}

/// A key for versions of one stability level, and a predicate for versions.
type Stability = (&'static str, fn(&str) -> bool);

/// Stability levels by name, in the order in which their settings are applied.
const STABILITIES: [Stability; 4] = [
    ("api/all", |_| true),
    ("api/ga", |version| !version.contains("alpha") && !version.contains("beta")),
    ("api/beta", |version| version.contains("beta")),
    ("api/alpha", |version| version.contains("alpha")),
];

/// A deprecated key without effect.
const LEGACY: &str = "api/legacy";

/// Key of the core version for the names that kube-apiserver has for it and its resources, and other keys as they are.
fn core_version(key: &str) -> &str {
    let rest = key.strip_prefix("api/").unwrap_or(key);
    if rest == "v1" || rest.starts_with("v1/") { "/v1" } else { key }
}

/// Validated settings.
///
/// ```
/// use api::runtime_config::RuntimeConfig;
///
/// let config = RuntimeConfig::parse(["apps/v1/deployments=false"])?;
/// assert!(config.resources().all(|row| (row.group, row.resource) != ("apps", "deployments")));
/// assert!(RuntimeConfig::parse(["api/all=false"]).is_err());
/// # Ok::<(), api::runtime_config::RuntimeConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    settings: BTreeMap<String, bool>,
}

impl RuntimeConfig {
    /// Parses `key=value` pairs; a key alone is true, and the last value of a key applies.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = &'a str>) -> Result<Self, RuntimeConfigError> {
        let mut values: BTreeMap<&str, &str> = BTreeMap::new();
        for pair in pairs.into_iter().map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if key.trim() != LEGACY {
                values.insert(core_version(key.trim()), value.trim());
            }
        }
        if values.len() == 1 && values.get("api/all") == Some(&"false") {
            return Err(RuntimeConfigError::Nothing);
        }
        let is_stability = |key: &str| STABILITIES.iter().any(|(name, _)| *name == key);
        let mut unknown = Vec::new();
        for key in values.keys().filter(|key| !is_stability(key)) {
            let parts: Vec<&str> = key.split('/').collect();
            let [group, version, ..] = parts[..] else {
                return Err(RuntimeConfigError::Key((*key).to_owned()));
            };
            if parts.len() > 3 {
                return Err(RuntimeConfigError::Key((*key).to_owned()));
            }
            if !GROUP_VERSIONS.iter().any(|(known, _)| *known == group) {
                unknown.push(format!("{group}/{version}"));
            }
        }
        if !unknown.is_empty() {
            unknown.dedup();
            return Err(RuntimeConfigError::UnknownGroups(unknown.join(",")));
        }
        let mut settings = BTreeMap::new();
        for (key, value) in values {
            let (key, value) = (key.to_owned(), value.to_owned());
            let on = match value.as_str() {
                "true" => true,
                "false" => false,
                _ if is_stability(&key) => return Err(RuntimeConfigError::Value(key, value)),
                "" | "1" | "t" | "T" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "FALSE" | "False" => false,
                _ => return Err(RuntimeConfigError::Boolean(key, value)),
            };
            if !is_stability(&key) {
                check_version(&key)?;
            }
            settings.insert(key, on);
        }
        Ok(Self { settings })
    }

    /// Reports whether a resource is served.
    pub fn serves(&self, row: &Resource) -> bool {
        if self.settings.is_empty() {
            return is_default(row);
        }
        let version = format!("{}/{}", row.group, row.version);
        let own = self.settings.get(&format!("{version}/{}", row.resource));
        let of_version = || self.settings.get(&version);
        let of_stability = || {
            let applied = STABILITIES.iter().rev().filter(|(_, fits)| fits(row.version));
            applied.filter_map(|(name, _)| self.settings.get(*name)).next()
        };
        own.or_else(of_version).or_else(of_stability).copied().unwrap_or_else(|| is_default(row))
    }

    /// The resources that are served, in the order of the tables.
    pub fn resources(&self) -> impl Iterator<Item = &'static Resource> + '_ {
        crate::resources::all().filter(|row| self.serves(row))
    }

    /// Settings that enable a known version or resource that this server does not implement.
    pub fn without_effect(&self) -> Vec<&str> {
        let is_there = |key: &str| {
            crate::resources::all().any(|row| {
                let version = format!("{}/{}", row.group, row.version);
                key == version || key == format!("{version}/{}", row.resource)
            })
        };
        let stability = |key: &str| STABILITIES.iter().any(|(name, _)| *name == key);
        let on = self.settings.iter().filter(|(_, on)| **on).map(|(key, _)| key.as_str());
        on.filter(|key| !stability(key) && !is_there(key)).collect()
    }
}

/// Rows of the first table are served unless disabled.
fn is_default(row: &Resource) -> bool {
    RESOURCES.as_ptr_range().contains(&std::ptr::from_ref(row))
        && !OPTIONAL.as_ptr_range().contains(&std::ptr::from_ref(row))
}

fn check_version(key: &str) -> Result<(), RuntimeConfigError> {
    let mut parts = key.splitn(3, '/');
    let (group, version) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let known = GROUP_VERSIONS.iter().any(|(known, versions)| *known == group && versions.contains(&version));
    if !known {
        return Err(RuntimeConfigError::UnknownVersion(format!("{group}/{version}")));
    }
    match parts.next() {
        Some(resource) if resource.chars().any(char::is_uppercase) => {
            Err(RuntimeConfigError::UpperCase(key.to_owned(), resource.to_owned()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(text: &str) -> Vec<String> {
        let config = RuntimeConfig::parse(text.split(',')).expect(text);
        config.resources().map(|row| format!("{}/{}/{}", row.group, row.version, row.resource)).collect()
    }

    #[test]
    fn default_serves_the_first_table_only() {
        assert_eq!(served("").len(), RESOURCES.len());
        assert!(!served("").iter().any(|name| name.contains("beta") || name.contains("alpha")));
    }

    #[test]
    fn resource_setting_overrides_version_setting() {
        let all = served("api/all=true");
        assert_eq!(all.len(), RESOURCES.len() + OPTIONAL.len());
        let beta = served("api/beta=true");
        assert!(beta.contains(&"resource.k8s.io/v1beta1/resourceclaims".to_owned()));
        assert!(!beta.iter().any(|name| name.contains("alpha")), "{beta:?}");
        let one = served("networking.k8s.io/v1beta1/ipaddresses=true");
        assert_eq!(one.len(), RESOURCES.len() + 1);
        let mixed = served(
            "api/all=true,batch/v1=false,batch/v1/jobs=true,networking.k8s.io/v1beta1/ipaddresses=false",
        );
        assert!(
            mixed.contains(&"batch/v1/jobs".to_owned()) && !mixed.contains(&"batch/v1/cronjobs".to_owned())
        );
        assert!(mixed.contains(&"networking.k8s.io/v1beta1/servicecidrs".to_owned()));
        assert!(!mixed.contains(&"networking.k8s.io/v1beta1/ipaddresses".to_owned()));
    }

    #[test]
    fn core_version_has_several_names() {
        for off in ["v1=false", "api/v1=false", "api/v1/pods=false", "/v1=false"] {
            assert!(!served(off).contains(&"/v1/pods".to_owned()), "{off}");
        }
        assert_eq!(served("api/v1,api/legacy=false").len(), RESOURCES.len());
    }

    #[test]
    fn invalid_settings_return_kubernetes_messages() {
        for (text, want) in [
            ("api/all=false", "invalid runtime-config with only api/all=false"),
            ("apps=false", "runtime-config invalid key apps"),
            ("nothing.k8s.io/v1=true", "unknown api groups nothing.k8s.io/v1"),
            ("apps/v7=true", "group version apps/v7 that has not been registered"),
            ("api/beta=maybe", "invalid value api/beta=maybe"),
            ("apps/v1=maybe", "invalid value of apps/v1: maybe"),
            ("apps/v1/Deployments=true", "resource is always lowercase plural"),
        ] {
            let error = RuntimeConfig::parse(text.split(',')).expect_err(text).to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
        let config = RuntimeConfig::parse(["resource.k8s.io/v1alpha3", "apps/v1=true"]).expect("known");
        assert_eq!(config.without_effect(), ["resource.k8s.io/v1alpha3"]);
    }
}
