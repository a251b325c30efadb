//! Kubeconfig files that say where a webhook is and how to reach it.

use super::{Client, Credentials, Target, TargetError, Trust};
use api::value::Fields;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::Value;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("reading {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is not usable: {reason}", .path.display())]
    Invalid { path: PathBuf, reason: String },
    #[error("{} is not usable", .path.display())]
    Target { path: PathBuf, source: TargetError },
}

/// A client for the current context of a kubeconfig.
pub fn read(path: &Path) -> Result<Client, KubeconfigError> {
    let invalid = |reason: String| KubeconfigError::Invalid { path: path.to_owned(), reason };
    let text = read_file(path)?;
    let decoded = machinery::codec::yaml::decode(&text).map_err(|error| invalid(error.to_string()))?;
    let config = decoded.value;
    let named = |list: &str, name: &str, field: &str| -> Value {
        let entry = config.items(list).iter().find(|entry| entry.text("name") == name);
        entry.map(|entry| entry.field(field).clone()).unwrap_or_default()
    };
    let context = named("contexts", config.text("current-context"), "context");
    let cluster = named("clusters", context.text("cluster"), "cluster");
    let user = named("users", context.text("user"), "user");
    if cluster.text("server").is_empty() {
        return Err(invalid("its current context names no cluster with a server".to_owned()));
    }
    if cluster.flag("insecure-skip-tls-verify") {
        return Err(invalid(
            "insecure-skip-tls-verify: Ferry talks to servers it can verify only".to_owned(),
        ));
    }
    for plugin in ["exec", "auth-provider"] {
        if user.has(plugin) {
            return Err(invalid(format!(
                "{plugin}: credentials of the server cannot come from another program"
            )));
        }
    }
    let directory = path.parent().unwrap_or(Path::new(""));
    let part = |of: &Value, field: &str| material(of, field, directory, path);
    let identity = part(&user, "client-certificate")?.zip(part(&user, "client-key")?);
    let server_name = Some(cluster.text("tls-server-name")).filter(|name| !name.is_empty());
    let trust = Trust {
        authorities: part(&cluster, "certificate-authority")?.into(),
        identity,
        server_name: server_name.map(str::to_owned),
    };
    let target = Target::new(cluster.text("server"), &trust)
        .map_err(|source| KubeconfigError::Target { path: path.to_owned(), source })?;
    Ok(Client::with_credentials(target, credentials(&user, directory)))
}

/// Credentials of a kubeconfig user other than a certificate.
pub(super) fn credentials(user: &Value, directory: &Path) -> Credentials {
    if !user.text("tokenFile").is_empty() {
        Credentials::BearerFile(directory.join(user.text("tokenFile")))
    } else if !user.text("token").is_empty() {
        Credentials::Bearer(user.text("token").to_owned())
    } else if !user.text("username").is_empty() {
        Credentials::Basic {
            user: user.text("username").to_owned(),
            password: user.text("password").to_owned(),
        }
    } else {
        Credentials::None
    }
}

/// PEM that is in the file itself or in one that it names.
pub(super) fn material(
    of: &Value,
    field: &str,
    directory: &Path,
    path: &Path,
) -> Result<Option<Vec<u8>>, KubeconfigError> {
    let data = format!("{field}-data");
    if !of.text(&data).is_empty() {
        return STANDARD.decode(of.text(&data)).map(Some).map_err(|_| KubeconfigError::Invalid {
            path: path.to_owned(),
            reason: format!("{data} is not base64"),
        });
    }
    if of.text(field).is_empty() {
        return Ok(None);
    }
    read_file(&directory.join(of.text(field))).map(Some)
}

pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, KubeconfigError> {
    std::fs::read(path).map_err(|source| KubeconfigError::Read { path: path.to_owned(), source })
}
