//! Kubeconfig users by target server, for admission webhooks.

use super::kubeconfig::{KubeconfigError, ServerCredentials, decode};
use api::value::Fields;
use machinery::Value;
use machinery::kubeconfig::{self, UserEntry};
use std::collections::HashMap;
use std::path::Path;

/// Users by their names, which are servers: `host:port`, `*.domain`, `*`.
#[derive(Clone, Default)]
pub struct Users {
    by_server: HashMap<String, ServerCredentials>,
    /// User of the current context.
    current: Option<String>,
}

impl std::fmt::Debug for Users {
    /// Omits the values, which are secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Users").field(&self.by_server.keys()).finish()
    }
}

impl Users {
    pub fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let invalid = |reason: String| KubeconfigError::Invalid { path: path.to_owned(), reason };
        let config = decode(path)?;
        let mut by_server = HashMap::new();
        for entry in config.get("users").and_then(Value::as_array).into_iter().flatten() {
            let user = entry.field("user");
            if let Some(plugin) = UserEntry::plugin(user) {
                return Err(invalid(format!("{plugin}: credentials cannot come from another program")));
            }
            by_server.insert(entry.text("name").to_owned(), ServerCredentials::read(user, path)?);
        }
        let context = kubeconfig::entry(&config, "contexts", kubeconfig::current_context(&config));
        let current = context.map(|context| context.text("user").to_owned());
        Ok(Self { by_server, current: current.filter(|name| !name.is_empty()) })
    }

    /// Credentials for `target`, a `host:port`. The most specific user applies.
    pub fn of(&self, target: &str) -> ServerCredentials {
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
    use super::super::Credentials;
    use super::*;

    #[test]
    fn users_most_specific_match_is_used() {
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
