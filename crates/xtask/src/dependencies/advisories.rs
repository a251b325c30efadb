//! Security advisories about crates, if the RustSec database is on this machine.

use super::lock::Package;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Names the directory of the database.
const DATABASE: &str = "FERRY_ADVISORY_DB";

/// Directory of the database: from the environment, or that of cargo-audit and cargo-deny.
pub fn database() -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os(DATABASE) {
        return Some(directory.into());
    }
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))?;
    let several = std::fs::read_dir(home.join("advisory-dbs")).into_iter().flatten().flatten();
    let directories = several.map(|entry| entry.path()).chain([home.join("advisory-db")]);
    directories.into_iter().find(|candidate| candidate.join("crates").is_dir())
}

/// Advisories that affect one of the packages, unless they are ignored.
pub fn problems(database: &Path, packages: &[Package], ignored: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    for package in packages {
        let files = std::fs::read_dir(database.join("crates").join(&package.name));
        for file in files.into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            let Some(advisory) = Advisory::parse(&text) else { continue };
            if advisory.concerns(&package.version) && !ignored.contains(&advisory.id) {
                problems.push(format!("{} {}: {}", package.name, package.version, advisory.id));
            }
        }
    }
    problems
}

/// The front matter of an advisory.
#[derive(Debug, PartialEq)]
struct Advisory {
    id: String,
    /// Requirements of versions without the defect.
    sound: Vec<String>,
    /// It was withdrawn, or is a notice only.
    is_notice: bool,
}

impl Advisory {
    fn parse(text: &str) -> Option<Self> {
        let head = text.split("```").nth(1)?.strip_prefix("toml")?;
        let (mut advisory, mut is_list) =
            (Self { id: String::new(), sound: Vec::new(), is_notice: false }, false);
        for line in head.lines().map(str::trim) {
            let strings = || line.split('"').skip(1).step_by(2).map(str::to_owned);
            match line.split_once('=').map(|(key, _)| key.trim()).filter(|_| !is_list) {
                Some("id") => advisory.id = strings().next()?,
                Some("withdrawn" | "informational") => advisory.is_notice = true,
                Some("patched" | "unaffected") => {
                    advisory.sound.extend(strings());
                    is_list = !line.ends_with(']');
                }
                _ if is_list => {
                    advisory.sound.extend(strings());
                    is_list = !line.ends_with(']');
                }
                _ => {}
            }
        }
        (!advisory.id.is_empty()).then_some(advisory)
    }

    fn concerns(&self, version: &str) -> bool {
        !self.is_notice && !self.sound.iter().any(|requirement| meets(version, requirement))
    }
}

/// A comparable version: numbers, then pre-releases before the release.
fn parts(version: &str) -> ([u64; 3], bool) {
    let (version, is_pre) = match version.split('+').next().unwrap_or_default().split_once('-') {
        Some((version, _)) => (version, true),
        None => (version.split('+').next().unwrap_or_default(), false),
    };
    let mut numbers = [0; 3];
    for (number, text) in numbers.iter_mut().zip(version.split('.')) {
        *number = text.parse().unwrap_or(0);
    }
    (numbers, !is_pre)
}

/// Reports whether a version meets a requirement such as `>= 1.2.3, < 2` or `^1.2`.
fn meets(version: &str, requirement: &str) -> bool {
    let version = parts(version);
    requirement.split(',').map(str::trim).all(|one| {
        let split = one.find(|c: char| c.is_ascii_digit()).unwrap_or(one.len());
        let (operator, bound) = (one[..split].trim(), parts(&one[split..]));
        let order = version.cmp(&bound);
        match operator {
            ">=" => order != Ordering::Less,
            ">" => order == Ordering::Greater,
            "<" => order == Ordering::Less,
            "<=" => order != Ordering::Greater,
            "=" => order == Ordering::Equal,
            "~" => order != Ordering::Less && version.0[..2] == bound.0[..2],
            // `^`, or no operator: up to the next incompatible version.
            _ => {
                let fixed = bound.0.iter().position(|number| *number > 0).map_or(3, |at| at + 1);
                order != Ordering::Less && version.0[..fixed] == bound.0[..fixed]
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_meet_requirements() {
        for (version, requirement, met) in [
            ("1.2.3", ">= 1.2.3", true),
            ("1.2.3", "> 1.2.3", false),
            ("1.2.3", ">= 1.2, < 1.3", true),
            ("1.3.0", ">= 1.2, < 1.3", false),
            ("1.9.0", "^1.2", true),
            ("2.0.0", "^1.2", false),
            ("0.3.1", "^0.2.5", false),
            ("0.2.9", "^0.2.5", true),
            ("1.2.9", "~1.2.3", true),
            ("1.3.0", "~1.2.3", false),
            ("1.2.3-rc.1", ">= 1.2.3", false),
            ("1.2.3+build", "=1.2.3", true),
        ] {
            assert_eq!(meets(version, requirement), met, "{version} {requirement}");
        }
    }

    #[test]
    fn advisories_of_packages_are_found() {
        let directory = std::env::temp_dir().join(format!("ferry-advisories-{}", std::process::id()));
        let file = directory.join("crates/thing/RUSTSEC-2026-0001.md");
        std::fs::create_dir_all(file.parent().expect("a parent")).expect("made");
        let text = "```toml\n[advisory]\nid = \"RUSTSEC-2026-0001\"\n\n[versions]\npatched = [\n  \">= 1.2.3\",\n]\nunaffected = [\"< 1.0\"]\n```\n# T\n";
        std::fs::write(&file, text).expect("written");
        let packages: Vec<Package> =
            [("thing", "1.2.0"), ("thing", "1.2.3"), ("thing", "0.9.0"), ("other", "1.0.0")]
                .map(|(name, version)| Package {
                    name: name.to_owned(),
                    version: version.to_owned(),
                    source: String::new(),
                })
                .into();
        let found = problems(&directory, &packages, &BTreeSet::new());
        let ignored = problems(&directory, &packages, &BTreeSet::from(["RUSTSEC-2026-0001".to_owned()]));
        std::fs::remove_dir_all(&directory).expect("removed");
        assert_eq!(found, ["thing 1.2.0: RUSTSEC-2026-0001"]);
        assert!(ignored.is_empty());
        let withdrawn = text.replace("[versions]", "withdrawn = \"2026-01-01\"\n[versions]");
        assert!(!Advisory::parse(&withdrawn).expect("an advisory").concerns("1.2.0"));
    }
}
