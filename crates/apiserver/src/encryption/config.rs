//! `EncryptionConfiguration`: encrypted resources and their providers.

use super::aes_cbc::AesCbc;
use super::aes_gcm::AesGcm;
use super::aes_gcm_derived::AesGcmDerived;
use super::kms::Kms;
use super::provider::{Cipher, Identity, Keys, Provider};
use super::rules::{Rule, Rules};
use super::secretbox::Secretbox;
use crate::configuration::{self, ConfigurationError};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const GROUP: &str = "apiserver.config.k8s.io";
const KIND: &str = "EncryptionConfiguration";
/// Time limit of a KMS call.
const KMS_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum EncryptionError {
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    #[error("failed to write {}", .path.display())]
    Write { path: std::path::PathBuf, source: std::io::Error },
    #[error("{} is missing, but objects such as {object} are encrypted with its keys: restore it, or pass the right file with --encryption-provider-config", .path.display())]
    KeyMissing { path: std::path::PathBuf, object: String },
    #[error("{} has none of the keys that other servers on this store encrypt with: pass the file of the first server with --encryption-provider-config", .path.display())]
    OtherKey { path: std::path::PathBuf },
    #[error("failed to search the store for encrypted objects")]
    Store(#[from] ::store::StoreError),
    #[error("failed to generate a random key")]
    Random,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Configuration {
    #[serde(default)]
    pub resources: Vec<ResourceConfiguration>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResourceConfiguration {
    #[serde(default)]
    pub resources: Vec<String>,
    #[serde(default)]
    pub providers: Vec<ProviderConfiguration>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProviderConfiguration {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aesgcm: Option<KeysConfiguration>,
    /// Ferry's extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aesgcmderived: Option<KeysConfiguration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aescbc: Option<KeysConfiguration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secretbox: Option<KeysConfiguration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Empty>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kms: Option<KmsConfiguration>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Empty {}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeysConfiguration {
    #[serde(default)]
    pub keys: Vec<Key>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Key {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub secret: String,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct KmsConfiguration {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    cachesize: Option<i64>,
    #[serde(default)]
    endpoint: String,
    #[serde(default)]
    timeout: Option<String>,
}

pub(super) fn read(path: &Path) -> Result<Configuration, ConfigurationError> {
    configuration::read(path, GROUP, &["v1"], KIND)
}

/// Text of a configuration file.
pub(super) fn render(configuration: &Configuration) -> Vec<u8> {
    let mut value = serde_json::to_value(configuration).unwrap_or_default();
    value["apiVersion"] = format!("{GROUP}/v1").into();
    value["kind"] = KIND.into();
    machinery::codec::yaml::encode(&value)
}

impl Rules {
    /// Rules of an `EncryptionConfiguration` file.
    pub fn read(path: &Path) -> Result<Self, EncryptionError> {
        let configuration = read(path)?;
        build(configuration).map_err(|reason| ConfigurationError::invalid(path, reason).into())
    }
}

fn build(configuration: Configuration) -> Result<Rules, String> {
    if configuration.resources.is_empty() {
        return Err("resources: Required value: at least one resources is required".to_owned());
    }
    let mut names = HashSet::new();
    let mut rules = Vec::new();
    for (index, row) in configuration.resources.into_iter().enumerate() {
        let path = format!("resources[{index}]");
        if row.resources.is_empty() {
            return Err(format!(
                "{path}.resources: Required value: at least one {path}.resources is required"
            ));
        }
        if row.providers.is_empty() {
            return Err(format!(
                "{path}.providers: Required value: at least one {path}.providers is required"
            ));
        }
        check_resources(&row.resources).map_err(|why| format!("{path}.resources: Invalid value: {why}"))?;
        let mut providers: Vec<Arc<dyn Provider>> = Vec::new();
        for (index, provider) in row.providers.into_iter().enumerate() {
            let path = format!("{path}.providers[{index}]");
            providers.push(build_provider(provider, &path, &mut names)?);
        }
        rules.push(Rule::new(&row.resources, providers));
    }
    Ok(Rules::new(rules))
}

fn build_provider(
    row: ProviderConfiguration,
    path: &str,
    names: &mut HashSet<String>,
) -> Result<Arc<dyn Provider>, String> {
    let mut found: Vec<Arc<dyn Provider>> = Vec::new();
    if let Some(keys) = row.aesgcm {
        found.push(Arc::new(Keys::<AesGcm>::new(ciphers(keys, path)?)));
    }
    if let Some(keys) = row.aesgcmderived {
        found.push(Arc::new(Keys::<AesGcmDerived>::new(ciphers(keys, path)?)));
    }
    if let Some(keys) = row.aescbc {
        found.push(Arc::new(Keys::<AesCbc>::new(ciphers(keys, path)?)));
    }
    if let Some(keys) = row.secretbox {
        found.push(Arc::new(Keys::<Secretbox>::new(ciphers(keys, path)?)));
    }
    if row.identity.is_some() {
        found.push(Arc::new(Identity));
    }
    if let Some(kms) = row.kms {
        found.push(Arc::new(build_kms(kms, &format!("{path}.kms"), names)?));
    }
    if found.len() > 1 {
        return Err(format!(
            "{path}: Invalid value: more than one provider specified in a single element, should split into different list elements"
        ));
    }
    found.pop().ok_or_else(|| {
        format!("{path}: Invalid value: provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity")
    })
}

fn ciphers<C: Cipher>(row: KeysConfiguration, path: &str) -> Result<Vec<(String, C)>, String> {
    let path = format!("{path}.{}.keys", C::NAME);
    if row.keys.is_empty() {
        return Err(format!("{path}: Required value: at least one keys is required"));
    }
    let mut ciphers = Vec::new();
    for (index, Key { name, secret }) in row.keys.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        // A name with a colon could be a prefix of others.
        if name.is_empty() || name.contains(':') {
            return Err(format!(
                "{path}.name: Required value: name is a mandatory field for a key, without colons"
            ));
        }
        let bytes = STANDARD.decode(&secret).map_err(|_| {
            format!("{path}.secret: Invalid value: \"REDACTED\": secrets must be base64 encoded")
        })?;
        let cipher = C::new(&bytes).ok_or_else(|| {
            let lengths: Vec<String> = C::KEY_BYTES.iter().map(ToString::to_string).collect();
            format!(
                "{path}.secret: Invalid value: \"REDACTED\": secret is not of the expected length, got {}, expected one of [{}]",
                bytes.len(),
                lengths.join(" ")
            )
        })?;
        ciphers.push((name, cipher));
    }
    Ok(ciphers)
}

fn build_kms(row: KmsConfiguration, path: &str, names: &mut HashSet<String>) -> Result<Kms, String> {
    if row.api_version != "v2" {
        return Err(format!(
            "{path}.apiVersion: Invalid value: {:?}: unsupported apiVersion v1: Ferry speaks v2 of the KMS API",
            row.api_version
        ));
    }
    if row.cachesize.is_some() {
        return Err(format!("{path}.cachesize: Invalid value: cachesize is not supported in v2"));
    }
    if row.name.is_empty() || row.name.contains(':') {
        return Err(format!("{path}.name: Invalid value: {:?}: a name without colons is needed", row.name));
    }
    if !names.insert(row.name.clone()) {
        return Err(format!(
            "{path}.name: Invalid value: {:?}: duplicate KMS provider name, names must be unique",
            row.name
        ));
    }
    let timeout = match &row.timeout {
        None => KMS_TIMEOUT,
        Some(text) => {
            configuration::duration(text).filter(|timeout| !timeout.is_zero()).ok_or_else(|| {
                format!("{path}.timeout: Invalid value: {text:?}: timeout should be a positive value")
            })?
        }
    };
    let socket = row.endpoint.strip_prefix("unix://").filter(|socket| !socket.is_empty());
    let socket = socket.ok_or_else(|| {
        format!(
            "{path}.endpoint: Invalid value: {:?}: unsupported scheme for KMS provider, expected unix://",
            row.endpoint
        )
    })?;
    Ok(Kms::new(&row.name, socket.into(), timeout))
}

fn check_resources(resources: &[String]) -> Result<(), String> {
    let split = |text: &String| {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        (resource.to_owned(), group.to_owned())
    };
    let pairs: Vec<(String, String)> = resources.iter().map(split).collect();
    for (text, (resource, group)) in resources.iter().zip(&pairs) {
        let why = if text.chars().any(char::is_uppercase) {
            "resource name should not contain capital letters"
        } else if text == "*" {
            "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"
        } else if matches!(
            text.as_str(),
            "apiserveripinfo" | "serviceipallocations" | "servicenodeportallocations"
        ) {
            "resources which do not have REST API/s cannot be encrypted"
        } else if group == "events.k8s.io" {
            "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file"
        } else if group == "extensions" {
            "'extensions' group has been removed and cannot be used for encryption"
        } else if group == "*" && resource != "*" {
            "resource.* is not supported: the same resource across groups makes no sense"
        } else {
            continue;
        };
        return Err(format!("{text:?}: {why}"));
    }
    for (index, one) in pairs.iter().enumerate() {
        for other in &pairs[index + 1..] {
            if one == other {
                return Err(format!("{resources:?}: the same resource cannot be specified multiple times"));
            }
            let everything = |pair: &(String, String)| pair.0 == "*" && pair.1 == "*";
            let overlap =
                everything(one) || everything(other) || one.1 == other.1 && (one.0 == "*" || other.0 == "*");
            if overlap {
                return Err(format!(
                    "{resources:?}: using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(resources: &str) -> Result<Rules, String> {
        let text = format!("apiVersion: {GROUP}/v1\nkind: {KIND}\nresources:\n{resources}");
        build(configuration::parse(text.as_bytes(), GROUP, &["v1"], KIND)?)
    }

    #[test]
    fn encryption_configuration_invalid_is_rejected() {
        let key = STANDARD.encode([7; 32]);
        let keys = |provider: &str, secret: &str| {
            format!(
                "- resources: [secrets]\n  providers:\n  - {provider}: {{keys: [{{name: k, secret: {secret}}}]}}\n"
            )
        };
        for provider in ["aesgcm", "aescbc", "secretbox"] {
            assert!(parsed(&keys(provider, &key)).is_ok(), "{provider}");
        }
        for (text, want) in [
            ("- resources: []\n  providers: [{identity: {}}]\n".to_owned(), "resources[0].resources: Required value"),
            ("- resources: [secrets]\n  providers: []\n".to_owned(), "resources[0].providers: Required value"),
            ("- resources: [secrets]\n  providers: [{}]\n".to_owned(), "does not contain any of the expected providers"),
            ("- resources: ['*']\n  providers: [{identity: {}}]\n".to_owned(), "use '*.' to encrypt"),
            ("- resources: [secrets, '*.']\n  providers: [{identity: {}}]\n".to_owned(), "overlapping"),
            ("- resources: [secrets, secrets]\n  providers: [{identity: {}}]\n".to_owned(), "multiple times"),
            ("- resources: [x.events.k8s.io]\n  providers: [{identity: {}}]\n".to_owned(), "Use 'events'"),
            (keys("aesgcm", "AAAA"), "got 3, expected one of [16 24 32]"),
            (keys("secretbox", &STANDARD.encode([7; 16])), "got 16, expected one of [32]"),
            (keys("aescbc", "'???'"), "base64"),
            ("- resources: [secrets]\n  providers: [{kms: {apiVersion: v2, name: x, endpoint: 'http://x'}}]\n".to_owned(), "unix://"),
            ("- resources: [secrets]\n  providers: [{rot13: {}}]\n".to_owned(), "unknown field `rot13`"),
        ] {
            let error = parsed(&text).err().unwrap_or_default();
            assert!(error.contains(want), "{text}: {error}");
            assert!(!error.contains(&key), "keys stay secret");
        }
    }
}
