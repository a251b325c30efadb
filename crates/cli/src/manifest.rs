//! Manifests: files, directories, URLs and standard input, as objects.

use std::path::{Path, PathBuf};

use machinery::codec::{json, yaml};
use machinery::field::show_str;
use serde_json::Value;

use crate::arguments::Matches;
use crate::error::{CliError, fail};
use crate::io::Io;

/// Longest manifest that is read.
const LONGEST: u64 = 64 << 20;
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

/// An object and the file it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    pub source: String,
    pub object: Value,
}

/// The objects that `-f` names; the members of lists one by one.
pub fn load(matches: &Matches, io: &Io) -> Result<Vec<Manifest>, CliError> {
    let mut manifests = Vec::new();
    let mut used_input = false;
    for name in matches.all("filename") {
        if name == "-" {
            if std::mem::replace(&mut used_input, true) {
                return fail("standard input cannot be used for multiple arguments");
            }
            let bytes = io.read_input(LONGEST).map_err(|error| CliError::Text(error.to_string()))?;
            parse(&bytes, "STDIN", &mut manifests)?;
        } else if name.starts_with("http://") || name.starts_with("https://") {
            return fail(format!(
                "failed to read {name}: manifests are read from files and standard input only"
            ));
        } else {
            for path in files(Path::new(&name), matches.on("recursive"))? {
                let bytes = std::fs::read(&path)
                    .map_err(|error| CliError::Text(format!("error reading {}: {error}", path.display())))?;
                if bytes.len() as u64 > LONGEST {
                    return fail(format!("{} is longer than {LONGEST} bytes", path.display()));
                }
                parse(&bytes, &path.display().to_string(), &mut manifests)?;
            }
        }
    }
    Ok(manifests)
}

/// The files of a path: itself, or those with a known extension in the directory.
fn files(path: &Path, recursive: bool) -> Result<Vec<PathBuf>, CliError> {
    let shown = show_str(&path.display().to_string());
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return fail(format!("the path {shown} does not exist"));
        }
        Err(error) => return fail(format!("the path {shown} cannot be accessed: {error}")),
    };
    if !metadata.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    collect(path, recursive, 0, &mut found)
        .map_err(|error| CliError::Text(format!("error reading {shown}: {error}")))?;
    if found.is_empty() {
        return fail(format!(
            "error reading [{}]: recognized file extensions are [.json .yaml .yml]",
            path.display()
        ));
    }
    Ok(found)
}

fn collect(directory: &Path, recursive: bool, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    const DEEPEST: usize = 64;
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            if recursive && depth < DEEPEST && !path.is_symlink() {
                collect(&path, recursive, depth + 1, found)?;
            }
        } else if path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
        {
            found.push(path);
        }
    }
    Ok(())
}

/// Adds the objects of a file.
pub fn parse(bytes: &[u8], source: &str, manifests: &mut Vec<Manifest>) -> Result<(), CliError> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return fail(format!("error parsing {source}: the file is not UTF-8"));
    };
    if text.trim_start().starts_with('{') {
        let mut documents = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        if let Some(Ok(_)) = documents.next() {
            // One or more JSON objects, one after the other.
            let documents =
                serde_json::Deserializer::from_str(text).into_iter::<&serde_json::value::RawValue>();
            for document in documents {
                let decoded = document
                    .map_err(|error| error.to_string())
                    .and_then(|raw| json::decode(raw.get().as_bytes()).map_err(|error| error.to_string()));
                match decoded {
                    Ok(decoded) => add(decoded.value, source, manifests)?,
                    Err(error) => return fail(format!("error parsing {source}: {error}")),
                }
            }
            return Ok(());
        }
    }
    for document in documents(text) {
        let decoded = yaml::decode(document.as_bytes()).map_err(|error| {
            CliError::Text(format!("error parsing {source}: error converting YAML to JSON: {error}"))
        })?;
        if let Some(finding) = decoded.strict.first() {
            return fail(format!("error parsing {source}: error converting YAML to JSON: {finding}"));
        }
        if !decoded.value.is_null() {
            add(decoded.value, source, manifests)?;
        }
    }
    Ok(())
}

/// The documents of a YAML stream.
fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        if line == "---" || line.starts_with("--- ") || line.starts_with("---\t") {
            documents.push(line.strip_prefix("---").unwrap_or_default().to_owned() + "\n");
        } else if let Some(last) = documents.last_mut() {
            last.push_str(line);
            last.push('\n');
        }
    }
    documents
}

fn add(mut object: Value, source: &str, manifests: &mut Vec<Manifest>) -> Result<(), CliError> {
    if !object.is_object() {
        return fail(format!(
            "error parsing {source}: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            match object {
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                _ => "number",
            }
        ));
    }
    let kind = object["kind"].as_str().unwrap_or_default();
    let is_list = kind.ends_with("List") && object["items"].is_array();
    if is_list {
        if let Value::Array(items) = object["items"].take() {
            for item in items {
                add(item, source, manifests)?;
            }
        }
        return Ok(());
    }
    let unset: Vec<&str> = [("apiVersion", "apiVersion not set"), ("kind", "kind not set")]
        .into_iter()
        .filter(|(key, _)| object[*key].as_str().is_none_or(str::is_empty))
        .map(|(_, message)| message)
        .collect();
    if !unset.is_empty() {
        let message = if unset.len() == 1 { unset[0].to_owned() } else { format!("[{}]", unset.join(", ")) };
        return fail(format!(
            "error validating {}: error validating data: {message}; if you choose to ignore these errors, turn validation off with --validate=false",
            show_str(source)
        ));
    }
    manifests.push(Manifest { source: source.to_owned(), object });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Result<Vec<String>, String> {
        let mut manifests = Vec::new();
        parse(text.as_bytes(), "f", &mut manifests).map_err(|error| error.to_text())?;
        Ok(manifests
            .iter()
            .map(|manifest| manifest.object["kind"].as_str().unwrap_or("?").to_owned())
            .collect())
    }

    #[test]
    fn documents_of_yaml_and_json_and_lists() {
        assert_eq!(
            kinds("# c\n---\napiVersion: v1\nkind: A\n---\n---\napiVersion: v1\nkind: B\n"),
            Ok(vec!["A".into(), "B".into()])
        );
        assert_eq!(
            kinds(r#"{"apiVersion":"v1","kind":"A"}{"apiVersion":"v1","kind":"B"}"#),
            Ok(vec!["A".into(), "B".into()])
        );
        assert_eq!(
            kinds("apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: A}\n"),
            Ok(vec!["A".into()])
        );
        assert_eq!(kinds("{apiVersion: v1, kind: A}"), Ok(vec!["A".into()]));
    }

    #[test]
    fn incomplete_objects_are_refused() {
        let message = kinds("kind: A\n").expect_err("refused");
        assert!(
            message.starts_with("error: error validating \"f\": error validating data: apiVersion not set;"),
            "{message}"
        );
        assert!(kinds("a: b\n").expect_err("refused").contains("[apiVersion not set, kind not set]"));
        assert!(kinds("- a\n").is_err() && kinds("a: [").is_err());
    }
}
