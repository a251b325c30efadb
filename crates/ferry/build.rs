//! Passes commit, commit date and target to the compiler for `ferry version`.
//!
//! Debug builds do not look at the repository, so that a commit does not rebuild the tests.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FERRY_COMMIT");
    println!("cargo::rerun-if-env-changed=FERRY_COMMIT_DATE");
    let optimised = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let log = Path::new("../../.git/logs/HEAD");
    if optimised && log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    let of_repository = |format: &str| optimised.then(|| git(format)).flatten();
    // Packagers who build from an archive set the variables.
    let commit = std::env::var("FERRY_COMMIT").ok().or_else(|| of_repository("%H"));
    let date = std::env::var("FERRY_COMMIT_DATE").ok().or_else(|| of_repository("%cI"));
    println!("cargo::rustc-env=FERRY_COMMIT={}", commit.unwrap_or_default());
    println!("cargo::rustc-env=FERRY_COMMIT_DATE={}", date.unwrap_or_default());
    println!("cargo::rustc-env=FERRY_TARGET={}", std::env::var("TARGET").unwrap_or_default());
}

/// A field of the newest commit, or none without git or a repository.
fn git(format: &str) -> Option<String> {
    let output = Command::new("git").args(["log", "-1", &format!("--format={format}")]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
