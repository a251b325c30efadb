//! Kubeconfig files with the address and credentials of a webhook.

use super::{Client, Credentials, Target, TargetError, Trust};
use machinery::kubeconfig::{self, ClusterEntry, Material, UserEntry};
use machinery::{Map, Value};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("failed to read {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("invalid kubeconfig {}: {reason}", .path.display())]
    Invalid { path: PathBuf, reason: String },
    #[error("invalid kubeconfig {}", .path.display())]
    Target { path: PathBuf, source: TargetError },
}

/// A client for the current context of a kubeconfig.
pub fn read(path: &Path) -> Result<Client, KubeconfigError> {
    let invalid = |reason: String| KubeconfigError::Invalid { path: path.to_owned(), reason };
    let config = decode(path)?;
    let (cluster, user) = kubeconfig::current(&config);
    let directory = path.parent().unwrap_or(Path::new(""));
    let (cluster, plugin) = (ClusterEntry::read(cluster, directory), UserEntry::plugin(user));
    let cluster = cluster.map_err(|error| invalid(error.to_string()))?;
    if cluster.server.is_empty() {
        return Err(invalid("current context has no cluster with a server".to_owned()));
    }
    if cluster.insecure {
        return Err(invalid(
            "insecure-skip-tls-verify: Ferry talks to servers it can verify only".to_owned(),
        ));
    }
    if let Some(plugin) = plugin {
        return Err(invalid(format!("{plugin}: credentials of the server cannot come from another program")));
    }
    let presented = ServerCredentials::read(user, path)?;
    let authorities = cluster.authority.as_ref().map(content).transpose()?;
    let trust = Trust {
        authorities: authorities.into(),
        identity: presented.identity,
        server_name: cluster.server_name,
    };
    let target = Target::new(&cluster.server, &trust)
        .map_err(|source| KubeconfigError::Target { path: path.to_owned(), source })?;
    Ok(Client::with_credentials(target, presented.credentials))
}

/// Credentials for one server.
#[derive(Clone, Default)]
pub struct ServerCredentials {
    pub credentials: Credentials,
    /// Certificate chain and key, PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl ServerCredentials {
    /// Reads a user of the kubeconfig `path`.
    pub(super) fn read(user: &Value, path: &Path) -> Result<Self, KubeconfigError> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let user = UserEntry::read(user, directory)
            .map_err(|error| KubeconfigError::Invalid { path: path.to_owned(), reason: error.to_string() })?;
        let identity = match &user.certificate {
            Some((certificate, key)) => Some((content(certificate)?, content(key)?)),
            None => None,
        };
        let credentials = match (user.token, user.basic) {
            (Some(Material::File(path)), _) => Credentials::BearerFile(path),
            (Some(Material::Text(token)), _) => Credentials::Bearer(token),
            (None, Some((user, password))) => Credentials::Basic { user, password },
            (None, None) => Credentials::None,
        };
        Ok(Self { credentials, identity })
    }
}

/// Decodes the kubeconfig `path`.
pub(super) fn decode(path: &Path) -> Result<Map<String, Value>, KubeconfigError> {
    kubeconfig::decode(&read_file(path)?)
        .map_err(|error| KubeconfigError::Invalid { path: path.to_owned(), reason: error.to_string() })
}

fn content(material: &Material) -> Result<Vec<u8>, KubeconfigError> {
    match material {
        Material::Text(text) => Ok(text.clone().into_bytes()),
        Material::File(path) => read_file(path),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, KubeconfigError> {
    std::fs::read(path).map_err(|source| KubeconfigError::Read { path: path.to_owned(), source })
}
