//! Checks external crates against `deny.toml`. cargo-deny checks the same file if it is installed; this check needs
//! only cargo.

mod advisories;
mod licences;
mod lock;
mod rules;

use anyhow::{Context, Result, ensure};
use rules::Rules;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Fails on a licence or source that is not allowed, a banned crate, a duplicate crate, or an advisory.
pub fn check(root: &Path) -> Result<()> {
    let read = |name: &str| {
        std::fs::read_to_string(root.join(name)).with_context(|| format!("failed to read {name}"))
    };
    let rules = Rules::parse(&read("deny.toml")?);
    let mut problems = rules.gaps();
    let mut used = BTreeSet::new();
    for target in &rules.targets {
        let tree = tree(root, target)?;
        problems.extend(of_tree(&rules, &tree));
        used.extend(packages(&tree).map(|(name, version, _)| (name.to_owned(), version.to_owned())));
    }
    let mut locked = lock::packages(&read("Cargo.lock")?);
    // The lock file also contains packages that no enabled feature needs; they are not built.
    locked.retain(|package| used.contains(&(package.name.clone(), package.version.clone())));
    problems.extend(lock::problems(&rules, &locked));
    match advisories::database() {
        Some(database) => problems.extend(advisories::problems(&database, &locked, &rules.ignored)),
        None => {
            println!("skipped: advisories of crates: no database in FERRY_ADVISORY_DB or cargo's directory")
        }
    }
    problems.sort_unstable();
    problems.dedup();
    ensure!(problems.is_empty(), "deny.toml:\n{}", problems.join("\n"));
    Ok(())
}

/// All packages that are built for a target. Unlike `cargo metadata`, this excludes packages that no enabled feature
/// needs.
fn tree(root: &Path, target: &str) -> Result<String> {
    let output = crate::test::build::cargo()
        .args(["tree", "--workspace", "--edges", "normal,build,dev", "--prefix", "none"])
        .args(["--format", "{p}\t{l}", "--target", target, "--offline"])
        .current_dir(root)
        .output()
        .context("failed to run cargo tree")?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Name, version and licence from lines of `name vVERSION ...<tab>LICENCE`; crates may be repeated.
fn packages(tree: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    tree.lines().filter_map(|line| {
        let (package, licence) = line.split_once('\t')?;
        let mut fields = package.split(' ');
        let (name, version) = (fields.next()?, fields.next()?.strip_prefix('v')?);
        Some((name, version, licence.trim_end_matches("(*)").trim()))
    })
}

fn of_tree(rules: &Rules, tree: &str) -> Vec<String> {
    let mut problems = BTreeSet::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, version, licence) in packages(tree) {
        if rules.banned.contains(name) {
            problems.insert(format!("{name} is banned"));
        }
        if !licences::allows(licence, &rules.licences) {
            problems.insert(format!("{name} has the licence {licence:?}"));
        }
        versions.entry(name).or_default().insert(version);
    }
    for (name, versions) in versions {
        if versions.len() > 1 && !rules.repeated.contains(name) {
            problems.insert(format!("{name} has several versions: {versions:?}"));
        }
    }
    problems.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_comply_with_deny_toml() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        check(&root).expect("nothing that deny.toml forbids");
    }

    #[test]
    fn every_rule_is_checked() {
        let rules = Rules::parse("[licenses]\nallow = [\"MIT\"]\n[bans]\ndeny = [\"ring\"]\n");
        let fine = "own v1.0.0 (/own)\tMIT\nother v1.0.0\tMIT\nother v1.0.0\tMIT (*)\n";
        assert!(of_tree(&rules, fine).is_empty());
        let bad = of_tree(&rules, &format!("{fine}ring v1.0.0\tGPL-3.0\nother v2.0.0 (proc-macro)\tMIT\n"));
        assert_eq!(bad.len(), 3, "{bad:?}");
    }
}
