//! Kubeconfig documents: the only reader and writer of their format.
//!
//! A document has lists of named clusters, users and contexts. Certificates, keys and tokens are in the document or in
//! files that it names ([`Material`]); this module reads no files.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use crate::codec::yaml;

/// Lists of named entries, and the member of an entry that has its content.
pub const LISTS: [(&str, &str); 3] = [("clusters", "cluster"), ("users", "user"), ("contexts", "context")];

/// Reason why a document or an entry cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigError {
    #[error("{0}")]
    Yaml(String),
    #[error("not a kubeconfig")]
    NotAnObject,
    #[error("{0} of the kubeconfig is not a list")]
    NotAList(&'static str),
    #[error("invalid {field}-data: {reason}")]
    Data { field: &'static str, reason: String },
}

/// Text in a document, or the file that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Material {
    Text(String),
    File(PathBuf),
}

impl Material {
    /// Reads `FIELD-data`, or the path in `FIELD`, relative to `directory`.
    fn read(content: &Value, field: &'static str, directory: &Path) -> Result<Option<Self>, KubeconfigError> {
        let Some(data) = text(content, &format!("{field}-data")) else {
            return Ok(Self::file(content, field, directory));
        };
        let invalid = |reason: String| KubeconfigError::Data { field, reason };
        let bytes = BASE64_STANDARD.decode(data.trim()).map_err(|error| invalid(error.to_string()))?;
        Ok(Some(Self::Text(String::from_utf8(bytes).map_err(|error| invalid(error.to_string()))?)))
    }

    fn file(content: &Value, field: &str, directory: &Path) -> Option<Self> {
        text(content, field).map(|path| Self::File(directory.join(path)))
    }

    fn write(&self, content: &mut Value, field: &str) {
        match self {
            Self::Text(text) => content[format!("{field}-data")] = json!(BASE64_STANDARD.encode(text)),
            Self::File(path) => content[field] = json!(path),
        }
    }
}

/// A cluster: the server and its certificate authority.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterEntry {
    pub server: String,
    pub authority: Option<Material>,
    /// The expected name in the server's certificate, if not its address.
    pub server_name: Option<String>,
    /// Accepts any certificate of the server.
    pub insecure: bool,
}

impl ClusterEntry {
    pub fn read(content: &Value, directory: &Path) -> Result<Self, KubeconfigError> {
        Ok(Self {
            server: text(content, "server").unwrap_or_default().to_owned(),
            authority: Material::read(content, "certificate-authority", directory)?,
            server_name: text(content, "tls-server-name").map(str::to_owned),
            insecure: content["insecure-skip-tls-verify"] == true,
        })
    }

    fn write(&self) -> Value {
        let mut content = json!({"server": self.server});
        if let Some(authority) = &self.authority {
            authority.write(&mut content, "certificate-authority");
        }
        if let Some(name) = &self.server_name {
            content["tls-server-name"] = json!(name);
        }
        if self.insecure {
            content["insecure-skip-tls-verify"] = json!(true);
        }
        content
    }
}

/// Credentials of a user, except those that a plugin provides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserEntry {
    /// Certificate and key.
    pub certificate: Option<(Material, Material)>,
    pub token: Option<Material>,
    /// User name and password.
    pub basic: Option<(String, String)>,
}

impl UserEntry {
    pub fn read(content: &Value, directory: &Path) -> Result<Self, KubeconfigError> {
        let certificate = Material::read(content, "client-certificate", directory)?;
        // A file is reread and so takes precedence, as in Kubernetes.
        let token = Material::file(content, "tokenFile", directory)
            .or_else(|| text(content, "token").map(|token| Material::Text(token.to_owned())));
        let password = || text(content, "password").unwrap_or_default().to_owned();
        Ok(Self {
            certificate: certificate.zip(Material::read(content, "client-key", directory)?),
            token,
            basic: text(content, "username").map(|name| (name.to_owned(), password())),
        })
    }

    /// The name of the credential plugin that a user requires, if any.
    #[must_use]
    pub fn plugin(content: &Value) -> Option<&'static str> {
        ["exec", "auth-provider"].into_iter().find(|plugin| !content[*plugin].is_null())
    }

    fn write(&self) -> Value {
        let mut content = json!({});
        if let Some((certificate, key)) = &self.certificate {
            certificate.write(&mut content, "client-certificate");
            key.write(&mut content, "client-key");
        }
        match &self.token {
            Some(Material::Text(token)) => content["token"] = json!(token),
            Some(Material::File(path)) => content["tokenFile"] = json!(path),
            None => {}
        }
        if let Some((name, password)) = &self.basic {
            content["username"] = json!(name);
            content["password"] = json!(password);
        }
        content
    }
}

/// Decodes a document; an empty one has no entries.
pub fn decode(document: &[u8]) -> Result<Map<String, Value>, KubeconfigError> {
    if document.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    match yaml::decode(document).map_err(|error| KubeconfigError::Yaml(error.to_string()))?.value {
        Value::Object(root) => Ok(root),
        Value::Null => Ok(Map::new()),
        _ => Err(KubeconfigError::NotAnObject),
    }
}

/// The name of the current context.
#[must_use]
pub fn current_context(root: &Map<String, Value>) -> &str {
    root.get("current-context").and_then(Value::as_str).unwrap_or_default()
}

/// The content of the entry `name` of a list such as `contexts`.
#[must_use]
pub fn entry<'a>(root: &'a Map<String, Value>, list: &str, name: &str) -> Option<&'a Value> {
    let (_, content) = LISTS.iter().find(|(known, _)| *known == list)?;
    let entries = root.get(list)?.as_array()?;
    entries.iter().find(|entry| entry["name"] == name)?.get(content)
}

/// Cluster and user of the current context; null where they are missing.
#[must_use]
pub fn current(root: &Map<String, Value>) -> (&Value, &Value) {
    const MISSING: &Value = &Value::Null;
    let context = entry(root, "contexts", current_context(root)).unwrap_or(MISSING);
    let named = |list, key| entry(root, list, text(context, key).unwrap_or_default()).unwrap_or(MISSING);
    (named("clusters", "cluster"), named("users", "user"))
}

/// Sets a cluster, a user and a context of them, replaces entries of the same names, and selects the context.
pub fn set_context(
    root: &mut Map<String, Value>,
    name: &str,
    user: &str,
    (cluster, credentials): (Value, Value),
) -> Result<(), KubeconfigError> {
    root.entry("apiVersion").or_insert_with(|| "v1".into());
    root.entry("kind").or_insert_with(|| "Config".into());
    root.entry("preferences").or_insert_with(|| json!({}));
    let context = json!({"cluster": name, "user": user});
    for ((list, member), (name, content)) in
        LISTS.into_iter().zip([(name, cluster), (user, credentials), (name, context)])
    {
        let existing = root.entry(list).or_insert_with(|| json!([]));
        if existing.is_null() {
            *existing = json!([]);
        }
        let Value::Array(existing) = existing else { return Err(KubeconfigError::NotAList(list)) };
        let entry = json!({"name": name, member: content});
        match existing.iter_mut().find(|old| old["name"] == name) {
            Some(old) => *old = entry,
            None => existing.push(entry),
        }
    }
    root.insert("current-context".to_owned(), name.into());
    Ok(())
}

/// A document with one context, named `name`, of the user `user`.
///
/// ```
/// use machinery::kubeconfig::{self, ClusterEntry, Material, UserEntry};
///
/// let cluster = ClusterEntry { server: "https://localhost:6443".to_owned(), ..ClusterEntry::default() };
/// let user = UserEntry { token: Some(Material::Text("t".to_owned())), ..UserEntry::default() };
/// let text = kubeconfig::render("test", "test-admin", &cluster, &user);
/// let root = kubeconfig::decode(text.as_bytes())?;
/// assert_eq!(kubeconfig::current_context(&root), "test");
/// assert_eq!(kubeconfig::current(&root).1["token"], "t");
/// # Ok::<(), kubeconfig::KubeconfigError>(())
/// ```
#[must_use]
pub fn render(name: &str, user: &str, cluster: &ClusterEntry, credentials: &UserEntry) -> String {
    let mut root = Map::new();
    // A list of a new document cannot have another type.
    let _ = set_context(&mut root, name, user, (cluster.write(), credentials.write()));
    String::from_utf8_lossy(&yaml::encode(&Value::Object(root))).into_owned()
}

/// A text that is not empty.
fn text<'a>(content: &'a Value, key: &str) -> Option<&'a str> {
    content.get(key)?.as_str().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn material(name: &str) -> Material {
        Material::Text(format!("-----BEGIN {name}-----\n{}\n", "x".repeat(200)))
    }

    #[test]
    fn rendered_document_reads_back_equal() {
        let directory = Path::new("/d");
        let inline = (material("CERTIFICATE"), material("KEY"));
        let files = (Material::File("/d/a".into()), Material::File("/d/b".into()));
        for (authority, certificate, token) in [
            (None, None, None),
            (Some(material("CA")), Some(inline), Some(Material::Text("t".to_owned()))),
            (Some(Material::File("/d/ca".into())), Some(files), Some(Material::File("/d/t".into()))),
        ] {
            let insecure = authority.is_none();
            let cluster = ClusterEntry {
                server: "https://h:1".to_owned(),
                authority,
                server_name: Some("n".to_owned()),
                insecure,
            };
            let basic = Some(("u".to_owned(), "p: '#".to_owned()));
            let user = UserEntry { certificate, token, basic };
            let root = decode(render("c", "c-admin", &cluster, &user).as_bytes()).expect("decodes");
            let (found_cluster, found_user) = current(&root);
            assert_eq!(ClusterEntry::read(found_cluster, directory), Ok(cluster));
            assert_eq!(UserEntry::read(found_user, directory), Ok(user));
        }
    }

    #[test]
    fn data_wins_and_files_are_relative() {
        let content = json!({"client-certificate": "c", "client-certificate-data": "Yw==", "client-key": "k",
            "token": "t", "tokenFile": "f"});
        let user = UserEntry::read(&content, Path::new("/d")).expect("usable");
        let pair = (Material::Text("c".to_owned()), Material::File("/d/k".into()));
        assert_eq!((user.certificate, user.token), (Some(pair), Some(Material::File("/d/f".into()))));
        let invalid = ClusterEntry::read(&json!({"certificate-authority-data": "%"}), Path::new("/"));
        assert!(matches!(invalid, Err(KubeconfigError::Data { field: "certificate-authority", .. })));
    }

    #[test]
    fn plugins_are_named() {
        assert_eq!(UserEntry::plugin(&json!({"exec": {}})), Some("exec"));
        assert_eq!(UserEntry::plugin(&json!({"auth-provider": {}, "exec": null})), Some("auth-provider"));
        assert_eq!(UserEntry::plugin(&json!({"token": "t"})), None);
    }

    #[test]
    fn other_documents_are_rejected_and_empty_ones_have_no_entries() {
        assert_eq!(decode(b" \n"), Ok(Map::new()));
        assert_eq!(decode(b"- a\n- b"), Err(KubeconfigError::NotAnObject));
        assert!(matches!(decode(b"a: [b"), Err(KubeconfigError::Yaml(_))));
        assert_eq!(current(&Map::new()), (&Value::Null, &Value::Null));
    }
}
