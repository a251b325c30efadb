//! `AdmissionConfiguration`: settings of plugins, by file.

use super::pod_security::{self, PodSecuritySettings};
use crate::configuration::{self, ConfigurationError};
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

/// The settings that plugins have.
#[derive(Clone, Debug, Default)]
pub struct PluginSettings {
    pub pod_security: PodSecuritySettings,
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
            name => return Err(invalid(format!("{name} takes no configuration in this version"))),
        }
    }
    Ok(settings)
}
