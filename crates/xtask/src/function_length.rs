//! The longest functions and files: one that is longer than the limit is split.

use std::path::Path;

use crate::sources;

/// Lines of a function, from its signature to its last brace; of tests as well.
const LIMIT: usize = 80;
/// Lines of a file.
const FILE_LIMIT: usize = 600;
/// Files over the limit: generated code, and one table.
const LONG_FILES: &[&str] = &["api/src/resources.rs", "cri/src/v1.rs"];
/// Functions that are lists of equal rows, with the part of the path.
const LISTS: &[(&str, &str)] = &[
    ("apiserver/src/admission/metrics.rs", "new"),
    ("apiserver/src/chain/metrics/stored.rs", "new"),
    ("cri/src/v1.rs", ""),
    ("kubelet/src/metrics.rs", "new"),
    ("kubelet/src/metrics/pods.rs", "new"),
    ("proxy/src/metrics.rs", "new"),
    ("scheduler/src/metrics.rs", "new"),
    ("store/src/etcd/rpc.rs", ""),
];

/// Name of the function that a line begins.
fn function_name(line: &str) -> Option<&str> {
    let mut words = line.trim_start();
    for prefix in ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", "unsafe ", "extern \"C\" "] {
        words = words.strip_prefix(prefix).unwrap_or(words);
    }
    let name = words.strip_prefix("fn ")?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// Name, first line and length of the functions of a source that rustfmt has formatted: a function ends with the first
/// brace at its own indentation.
fn functions(source: &str) -> Vec<(&str, usize, usize)> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let rest = lines[at..].iter();
        let ends = |line: &str| {
            line.strip_prefix(indent)
                .is_some_and(|rest| rest == "}" || (rest.starts_with("fn ") && rest.ends_with(';')))
        };
        let is_declaration = |line: &str| line.ends_with(';') || line.ends_with("{}");
        if is_declaration(line) {
            continue;
        }
        if let Some(length) = rest.clone().position(|line| ends(line)) {
            found.push((name, at + 1, length + 1));
        }
    }
    found
}

#[test]
fn files_are_within_the_limit() {
    let mut files = Vec::new();
    sources::files(&sources::repository().join("crates"), "rs", &mut files);
    assert!(files.len() > 1000, "only {} files", files.len());
    let lines = |file: &Path| std::fs::read_to_string(file).expect("a source file").lines().count();
    let long = files.iter().filter(|file| lines(file) > FILE_LIMIT);
    let long: Vec<_> = long.filter(|file| !LONG_FILES.iter().any(|name| file.ends_with(name))).collect();
    assert!(long.is_empty(), "files over {FILE_LIMIT} lines: {long:?}");
}

#[test]
fn functions_are_within_the_limit() {
    let mut files = Vec::new();
    sources::files(&sources::repository().join("crates"), "rs", &mut files);
    let (mut total, mut found) = (0, Vec::new());
    for file in files {
        let path = file.display().to_string();
        let source = std::fs::read_to_string(&file).expect("a source file");
        let all = functions(&source);
        total += all.len();
        let is_list = |name: &str| {
            LISTS.iter().any(|(part, listed)| path.contains(part) && (listed.is_empty() || *listed == name))
        };
        let long = all.into_iter().filter(|(name, _, length)| *length > LIMIT && !is_list(name));
        found.extend(long.map(|(name, line, length)| format!("{path}:{line}: {name} has {length} lines")));
    }
    assert!(total > 10_000, "only {total} functions");
    assert!(found.is_empty(), "functions over {LIMIT} lines:\n{}", found.join("\n"));
}

#[test]
fn lengths_of_functions_are_counted() {
    let source = "pub fn a() {\n    x\n}\n\nimpl B {\n    async fn c(\n        x: u8,\n    ) {\n        {\n        }\n    }\n\n    \
                  fn d() {}\n}\n\ntrait E {\n    fn f(&self);\n}\n";
    assert_eq!(functions(source), [("a", 1, 3), ("c", 6, 6)]);
}
