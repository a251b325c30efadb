//! The users of a kubeconfig by the servers they are for, as admission webhooks use them.

use super::Credentials;
use super::kubeconfig::{KubeconfigError, credentials, material, read_file};
use api::value::Fields;
use std::collections::HashMap;
use std::path::Path;

/// Credentials of this server for one other server.
#[derive(Clone, Default)]
pub struct Presented {
    pub credentials: Credentials,
    /// Certificate chain and key, PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Users by their names, which are servers: `host:port`, `*.domain`, `*`.
#[derive(Clone, Default)]
pub struct Users {
    by_server: HashMap<String, Presented>,
    /// That of the current context.
    current: Option<String>,
}

impl std::fmt::Debug for Users {
    /// The values are secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Users").field(&self.by_server.keys()).finish()
    }
}

impl Users {
    pub fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let invalid = |reason: String| KubeconfigError::Invalid { path: path.to_owned(), reason };
        let text = read_file(path)?;
        let config = machinery::codec::yaml::decode(&text).map_err(|error| invalid(error.to_string()))?.value;
        let directory = path.parent().unwrap_or(Path::new(""));
        let mut by_server = HashMap::new();
        for entry in config.items("users") {
            let user = entry.field("user");
            for plugin in ["exec", "auth-provider"] {
                if user.has(plugin) {
                    return Err(invalid(format!("{plugin}: credentials cannot come from another program")));
                }
            }
            let part = |field: &str| material(user, field, directory, path);
            let identity = part("client-certificate")?.zip(part("client-key")?);
            let presented = Presented { credentials: credentials(user, directory), identity };
            by_server.insert(entry.text("name").to_owned(), presented);
        }
        let context = config.items("contexts").iter();
        let context = context.filter(|entry| entry.text("name") == config.text("current-context"));
        let current = context.map(|entry| entry.field("context").text("user").to_owned()).next();
        Ok(Self { by_server, current: current.filter(|name| !name.is_empty()) })
    }

    /// Credentials for `target`, a `host:port`. The most specific user counts.
    pub fn of(&self, target: &str) -> Presented {
        let matching = |target: &str| {
            let exact = self.by_server.get(target);
            let parents = target.match_indices('.').map(|(at, _)| format!("*{}", &target[at..]));
            exact.or_else(|| parents.into_iter().find_map(|name| self.by_server.get(&name)))
        };
        let without_port = || target.strip_suffix(":443").and_then(matching);
        let found = matching(target).or_else(without_port).or_else(|| self.by_server.get("*"));
        let current = || self.by_server.get(self.current.as_ref()?);
        found.or_else(current).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_specific_user_is_presented() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("kubeconfig");
        let users = ["hook.ns.svc:8443", "*.ns.svc", "plain.other.svc", "*"];
        let rows: Vec<String> = users
            .iter()
            .map(|name| format!("- {{name: '{name}', user: {{token: 'for {name}'}}}}\n"))
            .collect();
        std::fs::write(&path, format!("apiVersion: v1\nkind: Config\nusers:\n{}", rows.concat()))
            .expect("written");
        let users = Users::read(&path).expect("read");
        for (target, want) in [
            ("hook.ns.svc:8443", "for hook.ns.svc:8443"),
            ("hook.ns.svc:443", "for *.ns.svc"),
            ("plain.other.svc:443", "for plain.other.svc"),
            ("plain.other.svc:444", "for *"),
            ("127.0.0.1:443", "for *"),
        ] {
            let Credentials::Bearer(token) = users.of(target).credentials else { panic!("no token") };
            assert_eq!(token, want, "{target}");
        }
        assert!(matches!(Users::default().of("x:1").credentials, Credentials::None));
        assert!(!format!("{users:?}").contains("for hook"));
    }
}
