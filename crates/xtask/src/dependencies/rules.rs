//! `deny.toml`, the configuration that cargo-deny reads as well.

use std::collections::{BTreeMap, BTreeSet};

/// The settings of `deny.toml` that are checked here.
#[derive(Debug, Default, PartialEq)]
pub struct Rules {
    pub targets: BTreeSet<String>,
    pub licences: BTreeSet<String>,
    pub banned: BTreeSet<String>,
    /// Crates allowed in several versions.
    pub repeated: BTreeSet<String>,
    pub registries: BTreeSet<String>,
    pub repositories: BTreeSet<String>,
    /// Ignored advisories.
    pub ignored: BTreeSet<String>,
    /// Settings with the value `deny`, as `section.key`: `bans.multiple-versions`.
    denied: BTreeSet<String>,
}

/// Settings that must be `"deny"`: their checks are always performed here.
const DENIED: [&str; 4] =
    ["advisories.yanked", "bans.multiple-versions", "sources.unknown-registry", "sources.unknown-git"];

impl Rules {
    /// Parses lists of strings and settings; the file has nothing else.
    pub fn parse(text: &str) -> Self {
        let (mut section, mut list) = (String::new(), None);
        let mut lists: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut denied = BTreeSet::new();
        for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            if list.is_none() {
                if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                    name.clone_into(&mut section);
                } else if let Some((key, value)) = line.split_once('=') {
                    let key = format!("{section}.{}", key.trim());
                    match value.trim() {
                        "\"deny\"" => drop(denied.insert(key)),
                        value if value.starts_with('[') => list = Some(key),
                        _ => {}
                    }
                }
            }
            if let Some(key) = &list {
                let strings = line.split('"').skip(1).step_by(2).map(str::to_owned);
                lists.entry(key.clone()).or_default().extend(strings);
            }
            if line.ends_with(']') {
                list = None;
            }
        }
        let mut list = |key: &str| lists.remove(key).unwrap_or_default();
        Self {
            targets: list("graph.targets"),
            licences: list("licenses.allow"),
            banned: list("bans.deny"),
            repeated: list("bans.skip"),
            registries: list("sources.allow-registry"),
            repositories: list("sources.allow-git"),
            ignored: list("advisories.ignore"),
            denied,
        }
    }

    /// Missing settings that the checks require.
    pub fn gaps(&self) -> Vec<String> {
        let lists = [
            ("graph.targets", &self.targets),
            ("licenses.allow", &self.licences),
            ("bans.deny", &self.banned),
            ("sources.allow-registry", &self.registries),
        ];
        let empty = lists.into_iter().filter(|(_, list)| list.is_empty()).map(|(name, _)| name);
        let open = DENIED.into_iter().filter(|name| !self.denied.contains(*name));
        empty
            .map(|name| format!("{name} is empty"))
            .chain(open.map(|name| format!("{name} is not deny")))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_settings_are_read() {
        let rules = Rules::parse(
            "[licenses]\nallow = [\n  \"MIT\", # fine\n]\n[bans]\nmultiple-versions = \"deny\"\ndeny = [\"ring\"]\nskip = []\n",
        );
        assert_eq!(rules.licences, BTreeSet::from(["MIT".to_owned()]));
        assert_eq!(rules.banned, BTreeSet::from(["ring".to_owned()]));
        assert_eq!(
            rules.gaps(),
            [
                "graph.targets is empty",
                "sources.allow-registry is empty",
                "advisories.yanked is not deny",
                "sources.unknown-registry is not deny",
                "sources.unknown-git is not deny"
            ]
        );
    }
}
