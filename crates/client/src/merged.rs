//! Several kubeconfig files merged into one, and overrides of their settings.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use machinery::kubeconfig::{self, LISTS, Material};

use crate::kubeconfig::read;
use crate::{Kubeconfig, KubeconfigError};

/// Members that name files, relative to the kubeconfig's directory.
const FILES: [&str; 4] = ["certificate-authority", "client-certificate", "client-key", "tokenFile"];

/// The merged content of kubeconfig files: of entries with the same name, the first wins.
///
/// ```
/// use client::{MergedKubeconfig, Overrides};
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("config");
/// std::fs::write(
///     &path,
///     "current-context: c\ncontexts: [{name: c, context: {cluster: k, namespace: web}}]\n\
///      clusters: [{name: k, cluster: {server: 'https://localhost:6443'}}]",
/// )?;
/// let merged = MergedKubeconfig::load(&[directory.path().join("missing"), path])?;
/// let config = merged.select(&Overrides { token: Some("t".to_owned()), ..Overrides::default() })?;
/// assert_eq!((config.server.as_str(), config.namespace.as_str()), ("https://localhost:6443", "web"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct MergedKubeconfig {
    pub root: Map<String, Value>,
}

/// Command-line settings, which override those of a kubeconfig.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    pub context: Option<String>,
    pub cluster: Option<String>,
    pub user: Option<String>,
    pub namespace: Option<String>,
    pub server: Option<String>,
    pub token: Option<String>,
    pub tls_server_name: Option<String>,
    pub certificate_authority: Option<PathBuf>,
    pub client_certificate: Option<PathBuf>,
    pub client_key: Option<PathBuf>,
    pub insecure: Option<bool>,
}

impl MergedKubeconfig {
    /// Reads and merges files; missing ones are skipped.
    pub fn load(paths: &[PathBuf]) -> Result<Self, KubeconfigError> {
        let mut merged = Self { root: Map::new() };
        for path in paths {
            match read(path) {
                Ok(file) => merged.add(file, path),
                Err(KubeconfigError::Read { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(merged)
    }

    /// True if the files were empty or missing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.root.is_empty()
    }

    fn add(&mut self, mut file: Map<String, Value>, path: &Path) {
        let directory = path.parent().unwrap_or(Path::new(""));
        let root = &mut self.root;
        for (list, content) in LISTS {
            let Some(Value::Array(entries)) = file.remove(list) else { continue };
            let Value::Array(known) = root.entry(list).or_insert_with(|| json!([])) else { continue };
            for mut entry in entries {
                if known.iter().any(|other| other["name"] == entry["name"]) {
                    continue;
                }
                if let Some(content) = entry.get_mut(content) {
                    resolve(content, directory);
                }
                known.push(entry);
            }
        }
        for (key, value) in file {
            let is_unset = root.get(&key).is_none_or(|known| known.is_null() || known == "");
            if is_unset {
                root.insert(key, value);
            }
        }
    }

    /// The name of the current context.
    #[must_use]
    pub fn current_context(&self) -> &str {
        kubeconfig::current_context(&self.root)
    }

    /// The content of the entry `name` of a list such as `contexts`.
    #[must_use]
    pub fn entry(&self, list: &str, name: &str) -> Option<&Value> {
        kubeconfig::entry(&self.root, list, name)
    }

    /// The settings of a context: the selected one, or the current one.
    pub fn select(&self, overrides: &Overrides) -> Result<Kubeconfig, KubeconfigError> {
        let name = overrides.context.as_deref().unwrap_or(self.current_context());
        let missing = |what: &'static str, name: &str| KubeconfigError::Missing {
            path: PathBuf::from("the kubeconfig"),
            what,
            name: name.to_owned(),
        };
        let mut context = self.entry("contexts", name).cloned();
        if context.is_none() && overrides.context.is_some() {
            return Err(missing("context", name));
        }
        let chosen = context.get_or_insert_with(|| json!({}));
        for (key, value) in [("cluster", &overrides.cluster), ("user", &overrides.user)] {
            if let Some(value) = value {
                chosen[key] = json!(value);
            }
        }
        let cluster = chosen["cluster"].as_str().unwrap_or_default().to_owned();
        let mut root = self.root.clone();
        if self.entry("clusters", &cluster).is_none() && overrides.server.is_some() {
            chosen["cluster"] = json!("");
            root.insert("clusters".to_owned(), json!([{"name": "", "cluster": {}}]));
        }
        root.insert("contexts".to_owned(), json!([{"name": "", "context": chosen}]));
        root.insert("current-context".to_owned(), json!(""));
        let mut config = Kubeconfig::from_document(&root, Path::new("/"))?;
        overrides.apply(&mut config);
        Ok(config)
    }
}

impl Overrides {
    /// Applies the command-line settings.
    pub fn apply(&self, config: &mut Kubeconfig) {
        let file = |path: &PathBuf| Material::File(path.clone());
        if let Some(server) = &self.server {
            config.server.clone_from(server);
        }
        if let Some(token) = &self.token {
            config.token = Some(Material::Text(token.clone()));
            config.exec = None;
            config.basic = None;
        }
        if let Some(authority) = &self.certificate_authority {
            config.authority = Some(file(authority));
        }
        if let (Some(certificate), Some(key)) = (&self.client_certificate, &self.client_key) {
            config.certificate = Some((file(certificate), file(key)));
        }
        if let Some(insecure) = self.insecure {
            config.insecure = insecure;
            if insecure {
                config.authority = None;
            }
        }
        if let Some(name) = &self.tls_server_name {
            config.server_name = Some(name.clone());
        }
        if let Some(ns) = &self.namespace {
            config.namespace.clone_from(ns);
        }
    }
}

/// Makes the paths of an entry absolute.
fn resolve(content: &mut Value, directory: &Path) {
    let base = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let join = |text: &str| json!(base.join(text).to_string_lossy());
    for key in FILES {
        if let Some(Value::String(path)) = content.get(key).filter(|value| *value != "") {
            content[key] = join(path);
        }
    }
    if let Some(Value::String(command)) = content
        .pointer("/exec/command")
        .filter(|value| value.as_str().is_some_and(|command| command.contains('/')))
    {
        content["exec"]["command"] = join(command);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, name: &str, value: &Value) -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, value.to_string()).expect("written");
        path
    }

    #[test]
    fn first_entry_wins_and_paths_are_relative_to_its_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = write(
            directory.path(),
            "a",
            &json!({
                "current-context": "",
                "clusters": [{"name": "k", "cluster": {"server": "https://a", "certificate-authority": "ca"}}],
            }),
        );
        let second = write(
            directory.path(),
            "b",
            &json!({
                "current-context": "c",
                "clusters": [{"name": "k", "cluster": {"server": "https://b"}}],
                "contexts": [{"name": "c", "context": {"cluster": "k", "namespace": "web"}}],
            }),
        );
        let gone = directory.path().join("gone");
        let merged = MergedKubeconfig::load(&[gone, first, second]).expect("read");
        assert_eq!(merged.current_context(), "c");
        let config = merged.select(&Overrides::default()).expect("usable");
        assert_eq!((config.server.as_str(), config.namespace.as_str()), ("https://a", "web"));
        assert_eq!(config.authority, Some(Material::File(directory.path().join("ca"))));
    }

    #[test]
    fn overrides_replace_settings_and_need_no_context() {
        let merged = MergedKubeconfig { root: Map::new() };
        assert!(merged.select(&Overrides::default()).is_err());
        let overrides = Overrides {
            server: Some("https://h:1".to_owned()),
            token: Some("t".to_owned()),
            insecure: Some(true),
            namespace: Some("x".to_owned()),
            ..Overrides::default()
        };
        let config = merged.select(&overrides).expect("usable");
        assert_eq!((config.server.as_str(), config.namespace.as_str()), ("https://h:1", "x"));
        assert!(config.insecure && config.token.is_some());
        let unknown = Overrides { context: Some("gone".to_owned()), ..overrides };
        assert!(merged.select(&unknown).is_err());
    }
}
