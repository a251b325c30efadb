//! Several kubeconfig files merged into one, and overrides of what it says.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::kubeconfig::read;
use crate::{Kubeconfig, KubeconfigError, Material};

/// Lists of named entries, and the member of an entry that has its content.
pub(crate) const LISTS: [(&str, &str); 3] =
    [("clusters", "cluster"), ("users", "user"), ("contexts", "context")];
/// Members that name files, relative to the kubeconfig's directory.
const FILES: [&str; 4] = ["certificate-authority", "client-certificate", "client-key", "tokenFile"];

/// The merged content of kubeconfig files: of entries with one name, the first counts.
#[derive(Clone, Debug, PartialEq)]
pub struct MergedKubeconfig {
    pub root: Value,
}

/// Settings of a command line, which replace those of a kubeconfig.
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
    /// Reads and merges files; those that do not exist are left out.
    pub fn load(paths: &[PathBuf]) -> Result<Self, KubeconfigError> {
        let mut merged = Self { root: json!({}) };
        for path in paths {
            match read(path) {
                Ok(Value::Object(file)) => merged.add(file, path),
                Ok(_) => {}
                Err(KubeconfigError::Read { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(merged)
    }

    /// True if the files were empty or did not exist.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.root.as_object().is_none_or(Map::is_empty)
    }

    fn add(&mut self, mut file: Map<String, Value>, path: &Path) {
        let directory = path.parent().unwrap_or(Path::new(""));
        let Value::Object(root) = &mut self.root else { return };
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
        self.root["current-context"].as_str().unwrap_or_default()
    }

    /// The content of the entry `name` of a list such as `contexts`.
    #[must_use]
    pub fn entry(&self, list: &str, name: &str) -> Option<&Value> {
        let (_, content) = LISTS.iter().find(|(known, _)| *known == list)?;
        let entries = self.root.get(list)?.as_array()?;
        entries.iter().find(|entry| entry["name"] == name)?.get(content)
    }

    /// The settings of a context: the chosen one, or the current one.
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
            root["clusters"] = json!([{"name": "", "cluster": {}}]);
        }
        root["contexts"] = json!([{"name": "", "context": chosen}]);
        root["current-context"] = json!("");
        let mut config = Kubeconfig::from_value(&root, Path::new("/"))?;
        overrides.apply(&mut config);
        Ok(config)
    }
}

impl Overrides {
    /// Replaces what was given on the command line.
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
    fn first_entry_of_a_name_wins_and_paths_stay_with_their_file() {
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
        let merged = MergedKubeconfig { root: json!({}) };
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
