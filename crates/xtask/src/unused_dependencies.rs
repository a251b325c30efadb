//! Dependencies that no source of their crate uses.

use crate::sources;
use std::fs;
use std::path::Path;

/// Names in the section of a manifest, such as `[dependencies]`.
fn section<'a>(manifest: &'a str, name: &str) -> Vec<&'a str> {
    let lines = manifest.lines().skip_while(|line| *line != name).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    lines
        .filter_map(|line| {
            line.split(['.', ' ', '=']).next().filter(|word| word.starts_with(char::is_alphanumeric))
        })
        .collect()
}

/// True if a source uses a crate: its name is a word outside of comments.
fn uses(source: &str, name: &str) -> bool {
    let name = name.replace('-', "_");
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_')).any(|word| word == name)
}

/// Unused dependencies of a crate. Dependencies that only tests use belong to `[dev-dependencies]`.
fn unused(folder: &Path, manifest: &str) -> Vec<String> {
    let mut files = Vec::new();
    sources::files(folder, "rs", &mut files);
    let texts: Vec<(String, String)> = files
        .iter()
        .map(|file| (file.display().to_string(), fs::read_to_string(file).expect("a source file")))
        .collect();
    let production = |(path, text): &(String, String), name: &str| {
        !sources::is_test_file(path) && uses(&text[..sources::tests_start(text)], name)
    };
    let normal = section(manifest, "[dependencies]").into_iter();
    let normal = normal.filter(|name| !texts.iter().any(|text| production(text, name)));
    let dev = section(manifest, "[dev-dependencies]").into_iter();
    let dev = dev.filter(|name| !texts.iter().any(|(_, text)| uses(text, name)));
    normal.chain(dev).map(str::to_owned).collect()
}

#[test]
fn dependencies_are_used() {
    let mut found = Vec::new();
    for entry in fs::read_dir(sources::repository().join("crates")).expect("the crates") {
        let folder = entry.expect("an entry").path();
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else { continue };
        let names = unused(&folder, &manifest).into_iter();
        found.extend(names.map(|name| format!("{}: {name}", folder.display())));
    }
    assert!(found.is_empty(), "unused dependencies:\n{}", found.join("\n"));
}

#[test]
fn unused_dependency_is_found() {
    let folder = tempfile::tempdir().expect("a directory");
    let source =
        "// jiff::Timestamp\nuse serde_json::Value;\n#[cfg(test)]\nmod tests {\n    use anyhow::Result;\n}\n";
    fs::write(folder.path().join("lib.rs"), source).expect("written");
    let manifest = "[dependencies]\nanyhow.workspace = true\njiff.workspace = true\nserde_json = \"1\"\n\n\
                    [dev-dependencies]\nanyhow.workspace = true\ntempfile = { workspace = true }\n";
    assert_eq!(unused(folder.path(), manifest), ["anyhow", "jiff", "tempfile"]);
}
