//! The crates from elsewhere that Ferry is built on, against the lists of `deny.toml`.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::process::Command;

/// What `deny.toml` says.
#[derive(Debug, Default, PartialEq)]
struct Rules {
    licences: BTreeSet<String>,
    banned: BTreeSet<String>,
    /// May be there in several versions.
    repeated: BTreeSet<String>,
}

/// Fails on a licence that is not allowed, a crate that is banned, or one that is there twice.
pub fn check(root: &Path) -> Result<()> {
    let text = std::fs::read_to_string(root.join("deny.toml")).context("reading deny.toml")?;
    let rules = Rules::parse(&text);
    ensure!(!rules.licences.is_empty() && !rules.banned.is_empty(), "deny.toml without its lists");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--offline",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(root)
        .output()
        .context("running cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let problems = problems(&rules, &serde_json::from_slice(&output.stdout)?);
    ensure!(problems.is_empty(), "deny.toml:\n{}", problems.join("\n"));
    Ok(())
}

impl Rules {
    /// Reads the three lists; the file's other settings are for others.
    fn parse(text: &str) -> Self {
        let (mut rules, mut section, mut list) = (Self::default(), String::new(), None);
        for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            if list.is_none() {
                if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                    name.clone_into(&mut section);
                } else if let Some((key, value)) = line.split_once('=')
                    && value.trim_start().starts_with('[')
                {
                    list = Some(format!("{section}.{}", key.trim()));
                }
            }
            let target = match list.as_deref() {
                Some("licenses.allow") => Some(&mut rules.licences),
                Some("bans.deny") => Some(&mut rules.banned),
                Some("bans.skip") => Some(&mut rules.repeated),
                _ => None,
            };
            if let Some(target) = target {
                target.extend(line.split('"').skip(1).step_by(2).map(str::to_owned));
            }
            if line.ends_with(']') {
                list = None;
            }
        }
        rules
    }
}

fn problems(rules: &Rules, metadata: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<String, Value> =
        items(&metadata["packages"]).into_iter().map(|package| (text(&package["id"]), package)).collect();
    let edges: BTreeMap<String, Vec<String>> = items(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| (text(&node["id"]), items(&node["dependencies"]).iter().map(text).collect()))
        .collect();
    // The lock file also knows crates that no enabled feature needs.
    let mut used = BTreeSet::new();
    let mut queue: VecDeque<String> = items(&metadata["workspace_members"]).iter().map(text).collect();
    while let Some(id) = queue.pop_front() {
        queue.extend(edges.get(&id).into_iter().flatten().filter(|next| !used.contains(*next)).cloned());
        used.insert(id);
    }
    let mut problems = Vec::new();
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in used.iter().filter_map(|id| packages.get(id)) {
        let (name, licence) = (text(&package["name"]), text(&package["license"]));
        if rules.banned.contains(&name) {
            problems.push(format!("{name} is banned"));
        }
        if !allows(&licence, &rules.licences) {
            problems.push(format!("{name} has the licence {licence:?}"));
        }
        versions.entry(name).or_default().insert(text(&package["version"]));
    }
    for (name, versions) in
        versions.iter().filter(|(name, found)| found.len() > 1 && !rules.repeated.contains(*name))
    {
        problems.push(format!("{name} is there in several versions: {versions:?}"));
    }
    problems
}

/// Whether a licence expression can be met by what is allowed. `AND` binds closer than `OR`; the old `/` is an `OR`.
fn allows(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    !words.is_empty() && any_of(&words, &mut at, allowed) && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut met = all_of(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all_of(words, at, allowed);
    }
    met
}

fn all_of(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let met = any_of(words, at, allowed);
        let closed = words.get(*at) == Some(&")");
        *at += usize::from(closed);
        return met && closed;
    }
    if words.get(*at) == Some(&"WITH") {
        let exception = words.get(*at + 1).copied().unwrap_or_default();
        *at += 2;
        return allowed.contains(&format!("{word} WITH {exception}"));
    }
    allowed.contains(*word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_we_build_on_is_as_it_should_be() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        check(&root).expect("nothing that deny.toml forbids");
    }

    #[test]
    fn licences() {
        let allowed = BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned));
        for (expression, met) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("ISC AND (GPL-3.0 OR MIT)", true),
            ("GPL-3.0 AND ISC OR MIT", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
            ("(MIT", false),
            ("", false),
        ] {
            assert_eq!(allows(expression, &allowed), met, "{expression}");
        }
    }

    #[test]
    fn only_what_is_used_counts() {
        let rules = Rules::parse(
            "[licenses]\nallow = [\n  \"MIT\", # fine\n]\n[bans]\nmultiple-versions = \"deny\"\ndeny = [\"ring\"]\nskip = []\n",
        );
        assert_eq!(rules.licences, BTreeSet::from(["MIT".to_owned()]));
        assert_eq!(rules.banned, BTreeSet::from(["ring".to_owned()]));
        let package = |id: &str, name: &str, version: &str| json!({"id": id, "name": name, "license": "MIT", "version": version});
        let mut metadata = json!({
            "packages": [package("o", "own", "1"), package("r", "ring", "1"), package("a", "a", "1"), package("b", "a", "2")],
            "workspace_members": ["o"],
            "resolve": {"nodes": [{"id": "o", "dependencies": ["a"]}, {"id": "a", "dependencies": []}]},
        });
        assert!(problems(&rules, &metadata).is_empty());
        metadata["resolve"]["nodes"][1]["dependencies"] = json!(["r", "b"]);
        assert_eq!(problems(&rules, &metadata).len(), 2, "{:?}", problems(&rules, &metadata));
    }
}
