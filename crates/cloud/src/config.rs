//! `--cloud-config`: connection to an external provider, or address ranges of the local one.

use std::path::PathBuf;

use serde::Deserialize;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{0}")]
    Yaml(String),
    #[error("failed to parse the cloud provider configuration")]
    Fields(#[source] serde_json::Error),
}

/// Fields of the file, in YAML or JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ProviderConfig {
    /// URL of the provider `http`.
    pub url: String,
    /// File containing the bearer token; reread for every request.
    pub token_file: Option<PathBuf>,
    /// Certificate authorities of the provider; by default the system's.
    pub ca_file: Option<PathBuf>,
    /// Client certificate and key.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// Request timeout.
    pub timeout_seconds: Option<u32>,
    /// Addresses that the provider `local` assigns to services, instead of the nodes' own.
    pub load_balancer_ranges: Vec<String>,
}

impl ProviderConfig {
    /// Parses the content of a file.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        let decoded =
            machinery::codec::yaml::decode(text).map_err(|error| ConfigError::Yaml(error.to_string()))?;
        serde_json::from_value(decoded.value).map_err(ConfigError::Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cloud_config_is_parsed() {
        let read = ProviderConfig::parse(b"url: https://cloud.example/ferry\ntokenFile: /t\n").expect("read");
        assert_eq!(read.url, "https://cloud.example/ferry");
        assert_eq!(read.token_file.as_deref(), Some(std::path::Path::new("/t")));
        let read = ProviderConfig::parse(b"{\"loadBalancerRanges\": [\"192.0.2.0/28\"]}").expect("read");
        assert_eq!(read.load_balancer_ranges, ["192.0.2.0/28"]);
        for bad in ["urll: x", "url: [", "url: 7"] {
            assert!(ProviderConfig::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
