//! Kubeconfig files: server address, trusted authorities, credentials.

use std::fs;
use std::path::{Path, PathBuf};

use machinery::kubeconfig::{self, ClusterEntry, Material, UserEntry};
use serde_json::{Map, Value};

use crate::exec::Exec;

/// Reason why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("failed to read {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is not a kubeconfig: {reason}", .path.display())]
    Parse { path: PathBuf, reason: String },
    #[error("{} has no {what} {name:?}", .path.display())]
    Missing { path: PathBuf, what: &'static str, name: String },
    #[error("failed to run {}: {reason}", .command.display())]
    Exec { command: PathBuf, reason: String },
    #[error(
        "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
    )]
    NotInCluster,
    #[error("{what} is not usable: {reason}")]
    Unusable { what: &'static str, reason: String },
}

/// The kubeconfig of `identity` for the server at `url`, whose certificates `authority_pem` signs, with everything
/// embedded.
#[must_use]
pub fn render_kubeconfig(url: &str, authority_pem: &str, identity: &base::pki::Identity) -> String {
    let text = |pem: &str| Material::Text(pem.to_owned());
    let cluster = ClusterEntry {
        server: url.to_owned(),
        authority: Some(text(authority_pem)),
        ..ClusterEntry::default()
    };
    let certificate = Some((text(&identity.chain_pem), text(&identity.client_key_pem())));
    kubeconfig::render("ferry", "ferry-admin", &cluster, &UserEntry { certificate, ..UserEntry::default() })
}

/// The current text of `material`.
pub fn read_material(material: &Material) -> Result<String, KubeconfigError> {
    match material {
        Material::Text(text) => Ok(text.clone()),
        Material::File(path) => {
            fs::read_to_string(path).map_err(|source| KubeconfigError::Read { path: path.clone(), source })
        }
    }
}

/// The current context of a kubeconfig. Files that it names are read when needed, so that renewed certificates and
/// tokens are used.
///
/// ```no_run
/// use client::Kubeconfig;
/// use std::path::Path;
///
/// # fn load() -> Result<(), client::KubeconfigError> {
/// let config = Kubeconfig::load(Path::new("/etc/kubernetes/admin.conf"))?;
/// println!("{} {}", config.server, config.namespace);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    pub server: String,
    pub authority: Option<Material>,
    /// The expected name in the server's certificate, if not its address.
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
    /// The current context of a file. An empty path selects the in-cluster configuration.
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        if path.as_os_str().is_empty() {
            return Self::of_pod();
        }
        Self::from_document(&read(path)?, path)
    }

    /// The in-cluster configuration.
    pub fn of_pod() -> Result<Self, KubeconfigError> {
        let variable = |name| std::env::var(name).ok();
        Self::in_cluster(variable, Path::new(SERVICE_ACCOUNT))
    }

    /// The in-cluster configuration: environment variables name the server, files in `directory` have the
    /// credentials.
    fn in_cluster(
        variable: impl Fn(&'static str) -> Option<String>,
        directory: &Path,
    ) -> Result<Self, KubeconfigError> {
        let set =
            |name| variable(name).filter(|value| !value.is_empty()).ok_or(KubeconfigError::NotInCluster);
        let (host, port) = (set("KUBERNETES_SERVICE_HOST")?, set("KUBERNETES_SERVICE_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let token = Material::File(directory.join("token"));
        read_material(&token)?;
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

    pub(crate) fn from_document(root: &Map<String, Value>, path: &Path) -> Result<Self, KubeconfigError> {
        let directory = path.parent().unwrap_or(Path::new("."));
        let text = |content: &Value, key: &str| content[key].as_str().unwrap_or_default().to_owned();
        let named = |list: &str, what: &'static str, name: String| {
            let content = kubeconfig::entry(root, list, &name);
            content.ok_or_else(|| KubeconfigError::Missing { path: path.to_owned(), what, name })
        };
        let unusable = |error: kubeconfig::KubeconfigError| KubeconfigError::Unusable {
            what: "the kubeconfig",
            reason: error.to_string(),
        };
        let context = named("contexts", "context", kubeconfig::current_context(root).to_owned())?;
        let content = named("clusters", "cluster", text(context, "cluster"))?;
        let user = match text(context, "user") {
            name if name.is_empty() => &Value::Null,
            name => named("users", "user", name)?,
        };
        if !user["auth-provider"].is_null() {
            return Err(KubeconfigError::Unusable {
                what: "the user's credentials",
                reason: "\"auth-provider\" is not supported; use an exec plugin".to_owned(),
            });
        }
        let cluster = ClusterEntry::read(content, directory).map_err(unusable)?;
        if cluster.insecure && cluster.authority.is_some() {
            return Err(KubeconfigError::Unusable {
                what: "insecure-skip-tls-verify",
                reason: "specifying a root certificates file with the insecure flag is not allowed"
                    .to_owned(),
            });
        }
        let exec = user.get("exec").filter(|exec| !exec.is_null());
        let exec = exec.map(|exec| Exec::parse(exec, content, directory)).transpose()?;
        let user = UserEntry::read(user, directory).map_err(unusable)?;
        Ok(Self {
            server: cluster.server,
            authority: cluster.authority,
            server_name: cluster.server_name,
            certificate: user.certificate,
            token: user.token,
            basic: user.basic,
            exec,
            insecure: cluster.insecure,
            namespace: match text(context, "namespace") {
                ns if ns.is_empty() => "default".to_owned(),
                ns => ns,
            },
        })
    }
}

/// The content of a file.
pub(crate) fn read(path: &Path) -> Result<Map<String, Value>, KubeconfigError> {
    let text = fs::read(path).map_err(|source| KubeconfigError::Read { path: path.to_owned(), source })?;
    let parse = |error: kubeconfig::KubeconfigError| KubeconfigError::Parse {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    kubeconfig::decode(&text).map_err(parse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(user: Value, cluster: Value) -> Map<String, Value> {
        let root = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "web"}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
        });
        root.as_object().cloned().expect("an object")
    }

    #[test]
    fn files_are_relative_to_the_kubeconfig_and_data_wins() {
        let root = config(
            json!({"client-certificate": "c.crt", "client-key-data": "a2V5", "token": "t", "tokenFile": "tok"}),
            json!({"server": "https://h:1", "certificate-authority-data": "Y2E=", "certificate-authority": "x"}),
        );
        let config = Kubeconfig::from_document(&root, Path::new("/etc/f/kubeconfig")).expect("usable");
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
        let config = Kubeconfig::from_document(&root, Path::new("k")).expect("usable");
        assert_eq!(config.basic, Some(("u".to_owned(), "p".to_owned())));
        assert!(config.insecure);
        let bare = config.without_credentials();
        assert_eq!((bare.basic, bare.token, bare.insecure), (None, None, true));
    }

    #[test]
    fn in_cluster_configuration_has_server_and_token() {
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
    fn unusable_kubeconfig_reports_reason() {
        let cases = [
            (config(json!({"exec": {"command": "x"}}), json!({})), "exec"),
            (config(json!({"auth-provider": {"name": "gcp"}}), json!({})), "auth-provider"),
            (config(json!({}), json!({"certificate-authority-data": "%"})), "certificate-authority"),
            (
                config(json!({}), json!({"insecure-skip-tls-verify": true, "certificate-authority": "x"})),
                "insecure-skip-tls-verify",
            ),
            (Map::from_iter([("current-context".to_owned(), json!("gone"))]), "gone"),
        ];
        for (root, want) in cases {
            let error = Kubeconfig::from_document(&root, Path::new("k")).expect_err("unusable");
            assert!(error.to_string().contains(want), "{error}");
        }
    }
}
