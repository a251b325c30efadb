//! Kubeconfig files: where the server is, whom to trust, who we are.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machinery::codec::yaml;
use serde_json::Value;

use crate::exec::Exec;

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("reading {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is not a kubeconfig: {reason}", .path.display())]
    Parse { path: PathBuf, reason: String },
    #[error("{} has no {what} {name:?}", .path.display())]
    Missing { path: PathBuf, what: &'static str, name: String },
    #[error("running {}: {reason}", .command.display())]
    Exec { command: PathBuf, reason: String },
    #[error(
        "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
    )]
    NotInCluster,
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
    /// User name and password.
    pub basic: Option<(String, String)>,
    /// A program that prints credentials.
    pub exec: Option<Exec>,
    /// Accepts any certificate of the server.
    pub insecure: bool,
    pub namespace: String,
}

/// Directory of the service account credentials in a pod.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl Kubeconfig {
    /// The current context of a file. An empty path means the configuration of a pod.
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        if path.as_os_str().is_empty() {
            return Self::of_pod();
        }
        let root = read(path)?;
        Self::from_value(&root, path)
    }

    /// The configuration of a pod.
    pub fn of_pod() -> Result<Self, KubeconfigError> {
        let variable = |name| std::env::var(name).ok();
        Self::in_cluster(variable, Path::new(SERVICE_ACCOUNT))
    }

    /// The configuration of a pod: environment variables name the server, files in `directory` have the credentials.
    fn in_cluster(
        variable: impl Fn(&'static str) -> Option<String>,
        directory: &Path,
    ) -> Result<Self, KubeconfigError> {
        let set =
            |name| variable(name).filter(|value| !value.is_empty()).ok_or(KubeconfigError::NotInCluster);
        let (host, port) = (set("KUBERNETES_SERVICE_HOST")?, set("KUBERNETES_SERVICE_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let token = Material::File(directory.join("token"));
        token.read()?;
        let namespace = fs::read_to_string(directory.join("namespace")).unwrap_or_default();
        Ok(Self {
            server: format!("https://{host}:{port}"),
            authority: Some(Material::File(directory.join("ca.crt"))),
            server_name: None,
            certificate: None,
            token: Some(token),
            basic: None,
            exec: None,
            insecure: false,
            namespace: Some(namespace.trim().to_owned())
                .filter(|ns| !ns.is_empty())
                .unwrap_or("default".to_owned()),
        })
    }

    /// The same server without any credentials.
    #[must_use]
    pub fn without_credentials(self) -> Self {
        Self { certificate: None, token: None, basic: None, exec: None, ..self }
    }

    pub(crate) fn from_value(root: &Value, path: &Path) -> Result<Self, KubeconfigError> {
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
        if user.get("auth-provider").is_some_and(|value| !value.is_null()) {
            return Err(KubeconfigError::Unusable {
                what: "the user's credentials",
                reason: "\"auth-provider\" is not supported; use an exec plugin".to_owned(),
            });
        }
        let insecure = cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool) == Some(true);
        let authority = material(cluster, "certificate-authority")?;
        if insecure && authority.is_some() {
            return Err(KubeconfigError::Unusable {
                what: "insecure-skip-tls-verify",
                reason: "specifying a root certificates file with the insecure flag is not allowed"
                    .to_owned(),
            });
        }
        let exec = user.get("exec").filter(|exec| !exec.is_null());
        let exec = exec.map(|exec| Exec::parse(exec, cluster, directory)).transpose()?;
        let basic = text(&user, "username").filter(|name| !name.is_empty());
        let basic = basic.map(|name| (name, text(&user, "password").unwrap_or_default()));
        let certificate = material(&user, "client-certificate")?.zip(material(&user, "client-key")?);
        // A file is looked at again and again, so it comes first: as in Kubernetes.
        let token = file(&user, "tokenFile", directory)
            .or_else(|| text(&user, "token").filter(|token| !token.is_empty()).map(Material::Text));
        Ok(Self {
            server: text(cluster, "server").unwrap_or_default(),
            authority,
            server_name: text(cluster, "tls-server-name").filter(|name| !name.is_empty()),
            certificate,
            token,
            basic,
            exec,
            insecure,
            namespace: text(context, "namespace").filter(|ns| !ns.is_empty()).unwrap_or("default".to_owned()),
        })
    }
}

/// The content of a file.
pub(crate) fn read(path: &Path) -> Result<Value, KubeconfigError> {
    let text = fs::read(path).map_err(|source| KubeconfigError::Read { path: path.to_owned(), source })?;
    let parse = |reason: String| KubeconfigError::Parse { path: path.to_owned(), reason };
    Ok(yaml::decode(&text).map_err(|error| parse(error.to_string()))?.value)
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
    fn passwords_and_unverified_servers_are_used() {
        let root = config(
            json!({"username": "u", "password": "p"}),
            json!({"server": "https://h", "insecure-skip-tls-verify": true}),
        );
        let config = Kubeconfig::from_value(&root, Path::new("k")).expect("usable");
        assert_eq!(config.basic, Some(("u".to_owned(), "p".to_owned())));
        assert!(config.insecure);
        let bare = config.without_credentials();
        assert_eq!((bare.basic, bare.token, bare.insecure), (None, None, true));
    }

    #[test]
    fn pod_finds_its_server_and_token() {
        let directory = tempfile::tempdir().expect("a directory");
        let variable = |name: &'static str| match name {
            "KUBERNETES_SERVICE_HOST" => Some("fd00::1".to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
            _ => None,
        };
        assert!(matches!(
            Kubeconfig::in_cluster(variable, directory.path()),
            Err(KubeconfigError::Read { .. })
        ));
        fs::write(directory.path().join("token"), "t").expect("written");
        fs::write(directory.path().join("namespace"), "web").expect("written");
        let config = Kubeconfig::in_cluster(variable, directory.path()).expect("usable");
        assert_eq!((config.server.as_str(), config.namespace.as_str()), ("https://[fd00::1]:443", "web"));
        let none = Kubeconfig::in_cluster(|_| None, directory.path());
        assert!(matches!(none, Err(KubeconfigError::NotInCluster)));
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        let cases = [
            (config(json!({"exec": {"command": "x"}}), json!({})), "exec"),
            (config(json!({"auth-provider": {"name": "gcp"}}), json!({})), "auth-provider"),
            (config(json!({}), json!({"certificate-authority-data": "%"})), "certificate-authority"),
            (
                config(json!({}), json!({"insecure-skip-tls-verify": true, "certificate-authority": "x"})),
                "insecure-skip-tls-verify",
            ),
            (json!({"current-context": "gone"}), "gone"),
        ];
        for (root, want) in cases {
            let error = Kubeconfig::from_value(&root, Path::new("k")).expect_err("unusable");
            assert!(error.to_string().contains(want), "{error}");
        }
    }
}
