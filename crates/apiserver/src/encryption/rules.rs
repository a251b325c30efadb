//! Selects the providers of a store key.

use super::provider::{Decrypted, ENCRYPTED_PREFIX, Failure, Provider};
use std::sync::Arc;

/// Providers of some resources: the first one encrypts, all decrypt.
pub(super) struct Rule {
    /// Resources in the configuration's syntax: `secrets`, `deployments.apps`, `*.apps`, `*.` or `*.*`.
    resources: Vec<(String, String)>,
    providers: Vec<Arc<dyn Provider>>,
}

/// All rules; the first one that matches a resource applies.
#[derive(Default)]
pub struct Rules {
    rules: Vec<Rule>,
}

impl Rule {
    pub fn new(resources: &[String], providers: Vec<Arc<dyn Provider>>) -> Self {
        let split = |text: &String| {
            let (resource, group) = text.split_once('.').unwrap_or((text, ""));
            (resource.to_owned(), group.to_owned())
        };
        Self { resources: resources.iter().map(split).collect(), providers }
    }

    fn covers(&self, group: &str, resource: &str) -> bool {
        self.resources.iter().any(|(r, g)| (r == resource || r == "*") && (g == group || g == "*"))
    }

    pub fn writer(&self) -> Option<&Arc<dyn Provider>> {
        self.providers.first()
    }

    /// Decrypts a stored value. If one provider fails, the next is tried: keys move between them.
    pub fn open(
        &self,
        storage_key: &str,
        value: &[u8],
    ) -> Result<Decrypted, (Failure, Option<Arc<dyn Provider>>)> {
        let mut failure = None;
        for (index, provider) in self.providers.iter().enumerate() {
            let Some(rest) = value.strip_prefix(provider.prefix()) else { continue };
            match provider.open(storage_key, rest) {
                Ok(opened) => return Ok(Decrypted { stale: opened.stale || index > 0, ..opened }),
                Err(Failure::Unprepared) => return Err((Failure::Unprepared, Some(provider.clone()))),
                Err(Failure::Failed(_)) if provider.prefix().is_empty() => {}
                Err(failed) => {
                    failure.get_or_insert(failed);
                }
            }
        }
        Err((failure.unwrap_or_else(|| Failure::Failed(no_match(value))), None))
    }
}

/// Error for a value that no provider of the rule has written.
pub(super) fn no_match(value: &[u8]) -> String {
    let why = "no matching prefix found";
    if !value.starts_with(ENCRYPTED_PREFIX) {
        return format!("{why}: it is stored in plain form, and the configuration has no identity provider");
    }
    // Provider, version and name of the key; ciphertext follows.
    let end = value.iter().enumerate().filter(|(_, byte)| **byte == b':').nth(4).map_or(0, |(at, _)| at);
    let shown = String::from_utf8_lossy(&value[..end.min(128)]).into_owned();
    format!("{why}: it was written by {shown:?}, which the configuration does not have")
}

impl Rules {
    pub(super) fn new(rules: Vec<Rule>) -> Self {
        Self { rules }
    }

    /// The rule for a key such as `/registry/core/secrets/ns/name`.
    pub(super) fn of(&self, storage_key: &str) -> Option<&Rule> {
        let mut parts = storage_key.strip_prefix("/registry/")?.splitn(3, '/');
        let (group, resource) = (parts.next()?, parts.next()?);
        let group = if group == "core" { "" } else { group };
        self.rules.iter().find(|rule| rule.covers(group, resource))
    }

    /// The explicitly named resources; wildcards are not expanded.
    pub fn covers(&self, group: &str, resource: &str) -> bool {
        self.rules.iter().any(|rule| rule.covers(group, resource))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encryption::provider::Identity;

    #[test]
    fn first_matching_rule_applies() {
        let rule = |resources: &[&str]| {
            let resources: Vec<String> = resources.iter().map(|r| (*r).to_owned()).collect();
            Rule::new(&resources, vec![Arc::new(Identity)])
        };
        let rules = Rules::new(vec![
            rule(&["secrets", "ingresses.networking.k8s.io"]),
            rule(&["*.apps"]),
            rule(&["*."]),
        ]);
        let index = |storage_key: &str| {
            let found = rules.of(storage_key)?;
            rules.rules.iter().position(|rule| std::ptr::eq(rule, found))
        };
        for (storage_key, want) in [
            ("/registry/core/secrets/n/s", Some(0)),
            ("/registry/core/configmaps/n/c", Some(2)),
            ("/registry/apps/deployments/n/d", Some(1)),
            ("/registry/networking.k8s.io/ingresses/n/i", Some(0)),
            ("/registry/networking.k8s.io/ipaddresses/i", None),
            ("/registry/health", None),
            ("/elsewhere/core/secrets/n/s", None),
        ] {
            assert_eq!(index(storage_key), want, "{storage_key}");
        }
        let everything = Rules::new(vec![rule(&["*.*"])]);
        assert!(everything.of("/registry/batch/jobs/n/j").is_some());
    }
}
