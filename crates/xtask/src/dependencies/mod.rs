//! The crates from elsewhere that Ferry is built on, against the lists of `deny.toml`.

use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

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
    // Unlike `cargo metadata` this leaves out what no enabled feature needs.
    let output = crate::test::build::cargo()
        .args([
            "tree",
            "--workspace",
            "--edges",
            "normal,build,dev",
            "--prefix",
            "none",
            "--format",
            "{p}\t{l}",
        ])
        .args(["--target", "x86_64-unknown-linux-gnu", "--offline"])
        .current_dir(root)
        .output()
        .context("running cargo tree")?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let problems = problems(&rules, &String::from_utf8_lossy(&output.stdout));
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

/// Goes through lines of `name vVERSION ...<tab>LICENCE`, in which a crate may come up again and again.
fn problems(rules: &Rules, tree: &str) -> Vec<String> {
    let mut problems = BTreeSet::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (package, licence) in tree.lines().filter_map(|line| line.split_once('\t')) {
        let mut words = package.split(' ');
        let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
        if rules.banned.contains(name) {
            problems.insert(format!("{name} is banned"));
        }
        let licence = licence.trim_end_matches("(*)").trim();
        if !allows(licence, &rules.licences) {
            problems.insert(format!("{name} has the licence {licence:?}"));
        }
        versions.entry(name).or_default().insert(version);
    }
    for (name, versions) in versions {
        if versions.len() > 1 && !rules.repeated.contains(name) {
            problems.insert(format!("{name} is there in several versions: {versions:?}"));
        }
    }
    problems.into_iter().collect()
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
    fn every_rule_is_checked() {
        let rules = Rules::parse(
            "[licenses]\nallow = [\n  \"MIT\", # fine\n]\n[bans]\nmultiple-versions = \"deny\"\ndeny = [\"ring\"]\nskip = []\n",
        );
        assert_eq!(rules.licences, BTreeSet::from(["MIT".to_owned()]));
        assert_eq!(rules.banned, BTreeSet::from(["ring".to_owned()]));
        let fine = "own v1.0.0 (/own)\tMIT\nother v1.0.0\tMIT\nother v1.0.0\tMIT (*)\n";
        assert!(problems(&rules, fine).is_empty());
        let bad = problems(&rules, &format!("{fine}ring v1.0.0\tGPL-3.0\nother v2.0.0 (proc-macro)\tMIT\n"));
        assert_eq!(bad.len(), 3, "{bad:?}");
    }
}
