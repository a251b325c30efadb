//! Allowed dependencies between Ferry's crates: compares the checked-in list with cargo's metadata.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A crate and the crates of this workspace it depends on.
type Edges = BTreeMap<String, BTreeSet<String>>;

/// Fails when a crate has a dependency that the list does not allow, or the list has an unused one.
pub fn check(root: &Path) -> Result<()> {
    let list = root.join("crates/xtask/edges.txt");
    let text =
        std::fs::read_to_string(&list).with_context(|| format!("failed to read {}", list.display()))?;
    let allowed = parse(&text)?;
    let actual = actual(root)?;
    let mut problems = Vec::new();
    let crates: BTreeSet<&String> = allowed.keys().chain(actual.keys()).collect();
    for name in crates {
        let (Some(may), Some(does)) = (allowed.get(name), actual.get(name)) else {
            problems.push(format!("{name} is in only one of the list and the workspace"));
            continue;
        };
        problems.extend(does.difference(may).map(|edge| format!("{name} may not depend on {edge}")));
        problems
            .extend(may.difference(does).map(|edge| format!("{name} does not depend on {edge} any more")));
    }
    ensure!(problems.is_empty(), "crates/xtask/edges.txt:\n{}", problems.join("\n"));
    check_lint(root, &allowed)
}

/// The attribute that forbids direct use of the wall clock, tasks and threads in production code (see clippy.toml).
const LINT: &str = "#![cfg_attr(not(test), warn(clippy::disallowed_methods))]";
/// Crates for development only.
const DEVELOPMENT: &[&str] = &["testbase", "bench", "fuzz", "reference", "testkit", "vectors", "xtask"];

/// Fails when a crate of the product does not have the attribute. Crates that may not use `base` have at most one
/// exception for each method, which ARCHITECTURE.md names.
fn check_lint(root: &Path, edges: &Edges) -> Result<()> {
    for name in edges.keys().filter(|name| !DEVELOPMENT.contains(&name.as_str())) {
        let source = root.join("crates").join(name).join("src");
        let roots = ["lib.rs", "main.rs"].map(|file| std::fs::read_to_string(source.join(file)));
        let has = roots.iter().flatten().any(|text| text.lines().any(|line| line == LINT));
        ensure!(has, "the root module of {name} lacks {LINT}");
    }
    Ok(())
}

/// External crates that one crate wraps for all others, with the reason.
const WRAPPED: &[(&str, &str, &str)] =
    &[("k8s-openapi", "objects", "decoders of API types are compiled once, in that crate")];

/// Fails when a crate uses an external crate that another one wraps, in tests too.
fn check_wrapped(packages: &[Value]) -> Result<()> {
    for package in packages {
        let (name, dependencies) = (package["name"].as_str(), package["dependencies"].as_array());
        for (external, wrapper, reason) in WRAPPED {
            let uses = dependencies.into_iter().flatten().any(|edge| edge["name"] == *external);
            ensure!(
                !uses || name == Some(wrapper),
                "{} may not depend on {external}: use {wrapper}; {reason}",
                name.unwrap_or_default()
            );
        }
    }
    Ok(())
}

/// `crate: dependency dependency`, one per line.
fn parse(text: &str) -> Result<Edges> {
    let mut edges = Edges::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some((name, dependencies)) = line.split_once(':') else { bail!("no colon in {line:?}") };
        edges.insert(name.to_owned(), dependencies.split_whitespace().map(str::to_owned).collect());
    }
    Ok(edges)
}

/// Normal dependencies only: tests may depend on higher layers.
fn actual(root: &Path) -> Result<Edges> {
    let output = crate::test::build::cargo()
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .context("failed to run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata without packages")?;
    check_wrapped(packages)?;
    let name = |package: &Value| package["name"].as_str().unwrap_or_default().to_owned();
    let own: BTreeSet<String> = packages.iter().map(name).collect();
    let dependencies = |package: &Value| -> BTreeSet<String> {
        let all = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().filter(|edge| edge["kind"].is_null()).map(name).filter(|edge| own.contains(edge)).collect()
    };
    Ok(packages.iter().map(|package| (name(package), dependencies(package))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crate_dependencies_are_allowed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        check(&root).expect("only allowed edges");
    }

    #[test]
    fn wrapped_crate_used_elsewhere_is_refused() {
        let uses = |name: &str, kind: Value| {
            let dependency = serde_json::json!({"name": "k8s-openapi", "kind": kind});
            check_wrapped(&[serde_json::json!({"name": name, "dependencies": [dependency]})])
        };
        assert!(uses("objects", Value::Null).is_ok());
        let error = uses("kubelet", "dev".into()).expect_err("only objects may");
        assert!(error.to_string().contains("kubelet may not depend on k8s-openapi"), "{error}");
    }

    #[test]
    fn crate_without_lint_is_refused() {
        let root = tempfile::tempdir().expect("a directory");
        let source = root.path().join("crates/dns/src");
        let store = root.path().join("crates/store/src");
        for folder in [&source, &store] {
            std::fs::create_dir_all(folder).expect("created");
        }
        let edges = parse("dns: base\nbench: base\nstore:\n").expect("parses");
        std::fs::write(source.join("lib.rs"), "//! Text.\n").expect("written");
        let error = check_lint(root.path(), &edges).expect_err("the attribute is missing");
        assert!(error.to_string().contains("root module of dns"), "{error}");
        std::fs::write(source.join("lib.rs"), format!("//! Text.\n\n{LINT}\n")).expect("written");
        let error = check_lint(root.path(), &edges).expect_err("crates without base have it, too");
        assert!(error.to_string().contains("root module of store"), "{error}");
        std::fs::write(store.join("lib.rs"), format!("{LINT}\n")).expect("written");
        check_lint(root.path(), &edges).expect("the attribute is there");
    }

    #[test]
    fn lists_are_parsed() {
        let edges = parse("# layers\nbase:\nstore: base  machinery\n").expect("parses");
        assert_eq!(edges["store"], BTreeSet::from(["base".to_owned(), "machinery".to_owned()]));
        assert!(edges["base"].is_empty());
        assert!(parse("nonsense").is_err());
    }
}
