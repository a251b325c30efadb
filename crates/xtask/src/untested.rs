//! Tests that no command would run: doc tests of libraries with `doctest = false`, and unit tests of targets with
//! `test = false`.

use crate::sources;
use std::fs;
use std::path::{Path, PathBuf};

/// Packages whose library or program has `test = false`.
const WITHOUT_TESTS: &[&str] = &["bench", "testkit"];

/// True for the first line of a code block in a doc comment.
fn opens_code_block(line: &str) -> bool {
    let text = line.trim_start();
    let comment = text.strip_prefix("///").or_else(|| text.strip_prefix("//!"));
    comment.is_some_and(|comment| comment.trim_start().starts_with("```") || comment.starts_with("     "))
}

/// Lines of the packages' sources that `matches` accepts, as `path:number`.
fn find(packages: impl Iterator<Item = PathBuf>, matches: impl Fn(&str) -> bool) -> Vec<String> {
    let mut files = Vec::new();
    for package in packages {
        sources::files(&package.join("src"), "rs", &mut files);
    }
    assert!(!files.is_empty(), "no sources");
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file");
        let lines = text.lines().enumerate().filter(|(_, line)| matches(line));
        found.extend(lines.map(|(number, _)| format!("{}:{}", file.display(), number + 1)));
    }
    found
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Files with public entry points of the lower crates, which have examples that `scripts/test` runs.
const ENTRY_POINTS: &[(&str, &[&str])] = &[
    ("api", &["allocation/ip.rs", "kind.rs", "runtime_config.rs", "subresources.rs", "value.rs"]),
    (
        "base",
        &[
            "accept.rs",
            "backoff.rs",
            "clock.rs",
            "errors.rs",
            "features.rs",
            "file.rs",
            "file_changes.rs",
            "http/client.rs",
            "metrics.rs",
            "peers.rs",
            "pki/mod.rs",
            "readiness.rs",
            "redact.rs",
            "tasks.rs",
        ],
    ),
    ("client", &["client.rs", "discovery.rs", "dynamic.rs", "kubeconfig.rs", "merged.rs", "object.rs"]),
    ("dns", &[]),
    ("expressions", &["environment.rs"]),
    (
        "machinery",
        &[
            "apply/set.rs",
            "codec/json.rs",
            "field.rs",
            "gvk.rs",
            "jsonpath/mod.rs",
            "kubeconfig.rs",
            "meta.rs",
            "names/dns.rs",
            "names/semver.rs",
            "patch/json_patch.rs",
            "patch/merge.rs",
            "quantity.rs",
            "regexp.rs",
            "schema.rs",
            "selector/label.rs",
            "status.rs",
        ],
    ),
    ("objects", &["codec.rs"]),
    (
        "runtime",
        &[
            "events.rs",
            "expectations.rs",
            "external_state.rs",
            "harness.rs",
            "informer/mod.rs",
            "key.rs",
            "leader.rs",
            "queue.rs",
        ],
    ),
    ("store", &["embedded/mod.rs", "etcd/mod.rs", "prefixed.rs"]),
    ("streaming", &["upgrade.rs", "websocket.rs"]),
    ("sys", &["capabilities.rs", "cgroups/mod.rs", "mounts.rs", "process.rs", "seccomp/compile.rs"]),
];

/// True if `cargo test --doc` leaves a package out.
fn has_no_doc_tests(package: &Path) -> bool {
    let manifest = fs::read_to_string(package.join("Cargo.toml")).expect("a manifest");
    let is_library = package.join("src/lib.rs").exists();
    !is_library || manifest.lines().any(|line| line == "doctest = false")
}

#[test]
fn code_blocks_are_in_packages_with_doc_tests() {
    let packages = fs::read_dir(crates()).expect("the crates").map(|entry| entry.expect("an entry").path());
    let packages = packages.filter(|path| path.join("src").is_dir() && has_no_doc_tests(path));
    let found = find(packages, opens_code_block);
    assert!(found.is_empty(), "doc tests are not run, move these to unit tests: {found:#?}");
}

#[test]
fn entry_points_of_lower_packages_have_examples() {
    for (name, files) in ENTRY_POINTS {
        let package = crates().join(name);
        assert!(!has_no_doc_tests(&package), "crates/{name}/Cargo.toml: doc tests are off");
        assert!(
            !find([package.clone()].into_iter(), opens_code_block).is_empty(),
            "crates/{name} has no example"
        );
        for file in *files {
            let text = fs::read_to_string(package.join("src").join(file)).expect("a source file");
            assert!(text.lines().any(opens_code_block), "crates/{name}/src/{file} has no example");
        }
    }
}

#[test]
fn targets_without_tests_have_none() {
    let packages = WITHOUT_TESTS.iter().map(|name| crates().join(name));
    let found = find(packages, |line| line.trim_start().starts_with("#[") && line.contains("test]"));
    assert!(found.is_empty(), "`test = false` in Cargo.toml keeps these from running: {found:#?}");
}

#[test]
fn code_blocks_in_doc_comments_are_found() {
    for line in ["/// ```", "    //! ```rust", "///     let x = 1;"] {
        assert!(opens_code_block(line), "{line}");
    }
    for line in ["// ```", "/// text with `code`", "///   - a list"] {
        assert!(!opens_code_block(line), "{line}");
    }
}
