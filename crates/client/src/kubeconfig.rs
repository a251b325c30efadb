//! Kubeconfig files: where the server is, whom to trust, who we are.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::codec::yaml;
use serde_json::Value;

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("reading {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is not a kubeconfig: {reason}", .path.display())]
    Parse { path: PathBuf, reason: String },
    #[error("{} has no {what} {name:?}", .path.display())]
    Missing { path: PathBuf, what: &'static str, name: String },
    #[error("{what} is not usable: {reason}")]
    Unusable { what: &'static str, reason: String },
}

/// Text that stands in the kubeconfig, or in a file it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Material {
    Text(String),
    File(PathBuf),
}

impl Material {
    /// The text as it is now.
    pub fn read(&self) -> Result<String, KubeconfigError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => fs::read_to_string(path)
                .map_err(|source| KubeconfigError::Read { path: path.clone(), source }),
        }
    }
}

/// The current context of a kubeconfig. Files it names are read when they are needed, so that renewed certificates
/// and tokens are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    pub server: String,
    pub authority: Option<Material>,
    /// The name the server's certificate must have, if not its address.
    pub server_name: Option<String>,
    pub certificate: Option<(Material, Material)>,
    pub token: Option<Material>,
    pub namespace: String,
}

impl Kubeconfig {
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        let text =
            fs::read(path).map_err(|source| KubeconfigError::Read { path: path.to_owned(), source })?;
        let parse = |reason: String| KubeconfigError::Parse { path: path.to_owned(), reason };
        let root = yaml::decode(&text).map_err(|error| parse(error.to_string()))?.value;
        Self::from_value(&root, path)
    }

    fn from_value(root: &Value, path: &Path) -> Result<Self, KubeconfigError> {
        let directory = path.parent().unwrap_or(Path::new("."));
        let named = |list: &str, what: &'static str, name: &str| {
            let entries = root.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let entry = entries.iter().find(|entry| text(entry, "name").as_deref() == Some(name));
            entry.and_then(|entry| entry.get(what)).ok_or_else(|| KubeconfigError::Missing {
                path: path.to_owned(),
                what,
                name: name.to_owned(),
            })
        };
        let current = text(root, "current-context").unwrap_or_default();
        let context = named("contexts", "context", &current)?;
        let cluster = named("clusters", "cluster", &text(context, "cluster").unwrap_or_default())?;
        let user = match text(context, "user").filter(|user| !user.is_empty()) {
            Some(user) => named("users", "user", &user)?.clone(),
            None => Value::Null,
        };
        let material = |entry: &Value, key: &'static str| -> Result<Option<Material>, KubeconfigError> {
            if let Some(data) = text(entry, &format!("{key}-data")).filter(|data| !data.is_empty()) {
                let bytes = STANDARD
                    .decode(data.trim())
                    .map_err(|error| KubeconfigError::Unusable { what: key, reason: error.to_string() })?;
                let decoded = String::from_utf8(bytes)
                    .map_err(|error| KubeconfigError::Unusable { what: key, reason: error.to_string() })?;
                return Ok(Some(Material::Text(decoded)));
            }
            Ok(file(entry, key, directory))
        };
        for unsupported in ["exec", "auth-provider", "username"] {
            if user.get(unsupported).is_some_and(|value| !value.is_null()) {
                return Err(KubeconfigError::Unusable {
                    what: "the user's credentials",
                    reason: format!("{unsupported:?} is not supported"),
                });
            }
        }
        if cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool) == Some(true) {
            return Err(KubeconfigError::Unusable {
                what: "insecure-skip-tls-verify",
                reason: "servers are always verified; give their certificate-authority".to_owned(),
            });
        }
        let certificate = material(&user, "client-certificate")?.zip(material(&user, "client-key")?);
        // A file is looked at again and again, so it comes first: as in Kubernetes.
        let token = file(&user, "tokenFile", directory)
            .or_else(|| text(&user, "token").filter(|token| !token.is_empty()).map(Material::Text));
        Ok(Self {
            server: text(cluster, "server").unwrap_or_default(),
            authority: material(cluster, "certificate-authority")?,
            server_name: text(cluster, "tls-server-name").filter(|name| !name.is_empty()),
            certificate,
            token,
            namespace: text(context, "namespace").filter(|ns| !ns.is_empty()).unwrap_or("default".to_owned()),
        })
    }
}

fn text(entry: &Value, key: &str) -> Option<String> {
    entry.get(key)?.as_str().map(str::to_owned)
}

/// A file is meant relative to the kubeconfig's directory.
fn file(entry: &Value, key: &str, directory: &Path) -> Option<Material> {
    let path = text(entry, key).filter(|path| !path.is_empty())?;
    Some(Material::File(directory.join(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(user: Value, cluster: Value) -> Value {
        json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "web"}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
        })
    }

    #[test]
    fn files_are_relative_to_the_kubeconfig_and_data_wins() {
        let root = config(
            json!({"client-certificate": "c.crt", "client-key-data": "a2V5", "token": "t", "tokenFile": "tok"}),
            json!({"server": "https://h:1", "certificate-authority-data": "Y2E=", "certificate-authority": "x"}),
        );
        let config = Kubeconfig::from_value(&root, Path::new("/etc/f/kubeconfig")).expect("usable");
        assert_eq!(config.authority, Some(Material::Text("ca".to_owned())));
        let pair = (Material::File("/etc/f/c.crt".into()), Material::Text("key".to_owned()));
        assert_eq!(config.certificate, Some(pair));
        assert_eq!(config.token, Some(Material::File("/etc/f/tok".into())));
        assert_eq!((config.server.as_str(), config.namespace.as_str()), ("https://h:1", "web"));
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        let cases = [
            (config(json!({"exec": {"command": "x"}}), json!({})), "exec"),
            (config(json!({}), json!({"certificate-authority-data": "%"})), "certificate-authority"),
            (config(json!({}), json!({"insecure-skip-tls-verify": true})), "insecure-skip-tls-verify"),
            (json!({"current-context": "gone"}), "gone"),
        ];
        for (root, want) in cases {
            let error = Kubeconfig::from_value(&root, Path::new("k")).expect_err("unusable");
            assert!(error.to_string().contains(want), "{error}");
        }
    }
}
