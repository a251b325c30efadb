//! Files of the repository, for the checks of this crate.

use std::fs;
use std::path::{Path, PathBuf};

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files with an extension below a directory.
pub fn files(directory: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|other| other == extension) {
            found.push(path);
        }
    }
}

/// True for a file of tests, whose literals are data.
pub fn is_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    path.contains("/tests/") || name == "tests.rs" || name.ends_with("_tests.rs")
}

/// Start of the tests in a source file.
pub fn tests_start(source: &str) -> usize {
    let tests = source.match_indices("#[cfg(test)]").map(|(at, _)| at);
    let mut modules = tests.filter(|at| {
        let item = source[*at..].lines().map(str::trim).find(|line| !line.starts_with("#["));
        item.is_some_and(|item| item.contains("mod ") && item.ends_with('{'))
    });
    modules.next().unwrap_or(source.len())
}
