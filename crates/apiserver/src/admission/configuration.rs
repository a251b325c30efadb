//! `AdmissionConfiguration`: plugin settings from a file.

use super::event_rate_limit::{self, Limit};
use super::pod_security::{self, PodSecuritySettings};
use super::resource_quota::limited::{self, LimitedResource};
use crate::configuration::{self, ConfigurationError};
use crate::outbound::Users;
use machinery::Value;
use serde::Deserialize;
use std::path::{Path, PathBuf};

const GROUP: &str = "apiserver.config.k8s.io";
const KIND: &str = "AdmissionConfiguration";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    #[serde(default)]
    plugins: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    #[serde(default)]
    path: PathBuf,
    #[serde(default)]
    configuration: Option<Value>,
}

/// Settings of the configurable plugins.
#[derive(Clone, Debug, Default)]
pub struct PluginSettings {
    pub pod_security: PodSecuritySettings,
    /// Credentials for the servers of mutating and of validating webhooks.
    pub mutating_users: Users,
    pub validating_users: Users,
    pub limited_resources: Vec<LimitedResource>,
    pub event_limits: Vec<Limit>,
}

/// A `WebhookAdmissionConfiguration`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WebhookConfiguration {
    api_version: String,
    kind: String,
    #[serde(default)]
    kube_config_file: PathBuf,
}

/// Users of the kubeconfig that a webhook plugin's configuration references.
fn webhook_users(text: &[u8]) -> Result<Users, String> {
    let decoded = machinery::codec::yaml::decode(text).map_err(|error| error.to_string())?;
    let found: WebhookConfiguration =
        serde_json::from_value(decoded.value).map_err(|error| error.to_string())?;
    let is_known = matches!(
        (found.api_version.as_str(), found.kind.as_str()),
        ("apiserver.config.k8s.io/v1", "WebhookAdmissionConfiguration")
            | ("apiserver.config.k8s.io/v1alpha1", "WebhookAdmission")
    );
    if !is_known {
        return Err(format!("{} {} is not a WebhookAdmissionConfiguration", found.api_version, found.kind));
    }
    if found.kube_config_file.as_os_str().is_empty() {
        return Ok(Users::default());
    }
    if !found.kube_config_file.is_absolute() {
        let shown = found.kube_config_file.display();
        return Err(format!("kubeConfigFile: Invalid value: \"{shown}\": must be an absolute file path"));
    }
    Users::read(&found.kube_config_file).map_err(|error| base::errors::chain(&error))
}

/// Reads the file. A plugin without settings in this version is an error, never ignored.
pub fn read(path: &Path) -> Result<PluginSettings, ConfigurationError> {
    let invalid = |reason: String| ConfigurationError::invalid(path, reason);
    let found: Configuration = configuration::read(path, GROUP, &["v1"], KIND)?;
    let mut settings = PluginSettings::default();
    for row in found.plugins {
        let text = match &row.configuration {
            Some(embedded) => embedded.to_string().into_bytes(),
            None => {
                let file = path.parent().unwrap_or(Path::new("")).join(&row.path);
                std::fs::read(&file).map_err(|source| ConfigurationError::Read { path: file, source })?
            }
        };
        match row.name.as_str() {
            "PodSecurity" => {
                settings.pod_security =
                    pod_security::read(&text).map_err(|why| invalid(format!("PodSecurity: {why}")))?;
            }
            "ResourceQuota" => {
                settings.limited_resources =
                    limited::read(&text).map_err(|why| invalid(format!("ResourceQuota: {why}")))?;
            }
            "EventRateLimit" => {
                settings.event_limits =
                    event_rate_limit::read(&text).map_err(|why| invalid(format!("EventRateLimit: {why}")))?;
            }
            "MutatingAdmissionWebhook" | "ValidatingAdmissionWebhook" => {
                let users = webhook_users(&text).map_err(|why| invalid(format!("{}: {why}", row.name)))?;
                match row.name.as_str() {
                    "MutatingAdmissionWebhook" => settings.mutating_users = users,
                    _ => settings.validating_users = users,
                }
            }
            name => return Err(invalid(format!("{name} has no configuration in this version"))),
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_plugins_take_a_kubeconfig() {
        let directory = tempfile::tempdir().expect("a directory");
        let kubeconfig = directory.path().join("users");
        std::fs::write(&kubeconfig, "users: [{name: 'a:1', user: {token: t}}]").expect("written");
        let path = directory.path().join("admission.yaml");
        let file = |kubeconfig: &str| {
            let text = format!(
                "apiVersion: {GROUP}/v1\nkind: {KIND}\nplugins:\n- name: ValidatingAdmissionWebhook\n  configuration: \
                 {{apiVersion: {GROUP}/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: '{kubeconfig}'}}\n"
            );
            std::fs::write(&path, text).expect("written");
            read(&path)
        };
        let settings = file(&kubeconfig.display().to_string()).expect("valid");
        assert!(format!("{:?}", settings.validating_users).contains("a:1"));
        assert!(!format!("{:?}", settings.mutating_users).contains("a:1"));
        let error = file("users").expect_err("relative").to_string();
        assert!(error.contains("must be an absolute file path"), "{error}");
    }
}
