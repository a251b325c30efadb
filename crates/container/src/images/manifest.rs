//! The documents that describe images: indexes, manifests, configurations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A pointer to a blob.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Descriptor {
    #[serde(deserialize_with = "null_is_default")]
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    pub platform: Option<Platform>,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Platform {
    pub architecture: String,
    pub os: String,
    pub variant: String,
}

/// An image's manifest or an index of manifests; the fields of the other form are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Manifest {
    pub media_type: String,
    pub config: Option<Descriptor>,
    pub layers: Vec<Descriptor>,
    pub manifests: Vec<Descriptor>,
}

/// Name of this machine's architecture in images.
pub const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

impl Manifest {
    /// Selects this machine's manifest from an index; of several, the one with the lowest processor level.
    #[must_use]
    pub fn for_this_machine(&self) -> Option<&Descriptor> {
        const PLAIN: &[&str] = &["", "v1", "v8"];
        let fits = |descriptor: &&Descriptor| {
            descriptor
                .platform
                .as_ref()
                .is_some_and(|found| found.os == "linux" && found.architecture == ARCHITECTURE)
        };
        let demands = |descriptor: &&Descriptor| {
            let variant = descriptor.platform.as_ref().map_or("", |found| found.variant.as_str());
            (!PLAIN.contains(&variant), variant.to_owned())
        };
        // Indexes without platforms have one entry.
        self.manifests.iter().filter(fits).min_by_key(demands).or_else(|| match self.manifests.as_slice() {
            [only] if only.platform.is_none() => Some(only),
            _ => None,
        })
    }
}

/// An image's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    pub architecture: String,
    pub os: String,
    #[serde(deserialize_with = "null_is_default")]
    pub config: RunConfig,
    pub rootfs: RootFs,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RootFs {
    pub diff_ids: Vec<String>,
}

/// Default process settings of the image's containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RunConfig {
    pub user: String,
    #[serde(deserialize_with = "null_is_default")]
    pub env: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub cmd: Vec<String>,
    pub working_dir: String,
    pub stop_signal: String,
    #[serde(deserialize_with = "null_is_default")]
    pub volumes: BTreeMap<String, serde_json::Value>,
    #[serde(deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
}

fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_selects_manifest_of_this_architecture() {
        let index: Manifest = serde_json::from_value(serde_json::json!({"manifests": [
            {"digest": "a", "platform": {"os": "windows", "architecture": ARCHITECTURE}},
            {"digest": "b", "platform": {"os": "linux", "architecture": ARCHITECTURE, "variant": "v8"}},
        ]}))
        .unwrap();
        assert_eq!(index.for_this_machine().unwrap().digest, "b");
        let levels: Manifest = serde_json::from_value(serde_json::json!({"manifests": [
            {"digest": "new", "platform": {"os": "linux", "architecture": ARCHITECTURE, "variant": "v9"}},
            {"digest": "old", "platform": {"os": "linux", "architecture": ARCHITECTURE}},
        ]}))
        .unwrap();
        assert_eq!(levels.for_this_machine().unwrap().digest, "old");
        assert_eq!(Manifest::default().for_this_machine(), None);
    }

    #[test]
    fn config_null_members_are_defaults() {
        let config: ImageConfig = serde_json::from_str(
            r#"{"config":{"Cmd":null,"Env":["A=b"],"Labels":null},"rootfs":{"diff_ids":["x"]}}"#,
        )
        .unwrap();
        assert_eq!(
            (config.config.cmd.len(), config.config.env.len(), config.rootfs.diff_ids.len()),
            (0, 1, 1)
        );
        assert!(serde_json::from_str::<ImageConfig>(r#"{"config":null}"#).is_ok());
    }
}
