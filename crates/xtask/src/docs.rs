//! Writes the checked-in texts of the API documentation, compressed.
//!
//! Reads the sources of the k8s-openapi crate (Apache-2.0), whose schemas contain the description of every type and
//! field, and `facts/docs.txt` for additions; writes `crates/api/src/docs/texts.deflate`. The crate is read from
//! cargo's registry, or from `K8S_OPENAPI`.

use anyhow::{Context as _, Result, bail};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};

const FACTS: &str = include_str!("../facts/docs.txt");
const OPTIONAL: &str = include_str!("../facts/optional.json");
const CRATE: &str = "k8s-openapi-0.29.0";
const RELEASE: &str = "v1_36";

/// Texts by type and field; the type's own text has the empty field.
type Texts = BTreeMap<String, BTreeMap<String, String>>;

/// Additions of `facts/docs.txt`.
#[derive(Default)]
struct Facts {
    texts: Texts,
    /// Texts of values by type, field and value.
    values: BTreeMap<(String, String), BTreeMap<String, String>>,
    /// Fields whose list of values is preceded by one more empty line.
    spaced: BTreeSet<(String, String)>,
    parameters: BTreeMap<String, String>,
}

/// Regenerates the texts under `root`, the workspace.
pub fn generate(root: &Path) -> Result<()> {
    let mut texts = from_crate(&source()?.join("src").join(RELEASE))?;
    let facts = Facts::parse(FACTS)?;
    for (name, fields) in &facts.texts {
        texts.entry(name.clone()).or_default().extend(fields.clone());
    }
    let optional: Value = serde_json::from_str(OPTIONAL)?;
    let mut types: serde_json::Map<String, Value> = reference::TYPES.values().into_iter().collect();
    types.extend(optional.as_object().context("optional types")?.clone());
    let common = texts.get("io.k8s.api.core.v1.Pod").cloned().context("the texts of Pod")?;

    let mut out = String::new();
    for (name, description) in &types {
        let known = texts.remove(name).unwrap_or_default();
        entry(&mut out, &format!("@{name}"), known.get("").map_or("", String::as_str));
        for (field, usage) in description["fields"].as_object().context("fields")? {
            let shared = matches!(field.as_str(), "apiVersion" | "kind").then(|| common.get(field)).flatten();
            let text = known.get(field).or(shared).map_or("", String::as_str);
            let text = facts.with_values(name, field, text, &usage["enum"]);
            if !text.is_empty() {
                entry(&mut out, field, &text);
            }
        }
    }
    entry(&mut out, "@parameters", "");
    for (name, text) in &facts.parameters {
        entry(&mut out, name, text);
    }
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(out.as_bytes())?;
    std::fs::write(root.join("crates/api/src/docs/texts.deflate"), encoder.finish()?)?;
    Ok(())
}

fn entry(out: &mut String, key: &str, text: &str) {
    out.push_str(key);
    out.push('\t');
    out.push_str(&text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t"));
    out.push('\n');
}

/// Source directory of the crate.
fn source() -> Result<PathBuf> {
    if let Ok(path) = std::env::var("K8S_OPENAPI") {
        return Ok(PathBuf::from(path));
    }
    let home =
        std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")));
    let registries = Path::new(&home.context("neither CARGO_HOME nor HOME is set")?).join("registry/src");
    for registry in
        std::fs::read_dir(&registries).with_context(|| format!("failed to list {}", registries.display()))?
    {
        let path = registry?.path().join(CRATE);
        if path.is_dir() {
            return Ok(path);
        }
    }
    bail!("{CRATE} is not in cargo's registry; fetch it, or set K8S_OPENAPI to its folder")
}

/// The texts of every type in a directory of the crate.
fn from_crate(folder: &Path) -> Result<Texts> {
    let mut texts = Texts::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).with_context(|| format!("failed to list {}", folder.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path)?;
            let name =
                source.lines().next().and_then(|line| line.strip_prefix("// Generated from definition "));
            if let Some(name) = name {
                texts
                    .insert(name.to_owned(), from_type(&source).with_context(|| path.display().to_string())?);
            }
        }
    }
    Ok(texts)
}

/// Texts of one type: the descriptions in its JSON schema, distinguished by their indentation.
fn from_type(source: &str) -> Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    let Some(start) = source.find("impl crate::schemars::JsonSchema") else {
        return Ok(texts);
    };
    let mut field = String::new();
    for line in source[start..].lines() {
        let depth = line.len() - line.trim_start().len();
        let line = line.trim_start();
        let literal = match (depth, line) {
            (12 | 20, line) if line.starts_with("\"description\": ") => {
                if depth == 12 {
                    field.clear();
                }
                line.strip_prefix("\"description\": ").and_then(|rest| rest.strip_suffix(','))
            }
            (20, line) => line
                .strip_prefix("schema_obj.ensure_object().insert(\"description\".into(), ")
                .and_then(|rest| rest.strip_suffix(".into());")),
            (16, line) => {
                if let Some((name, _)) = line.strip_prefix('"').and_then(|rest| rest.split_once("\": ")) {
                    field = name.to_owned();
                }
                None
            }
            _ => None,
        };
        if let Some(literal) = literal {
            // String literals of this generated code are valid JSON strings.
            texts.insert(field.clone(), serde_json::from_str(literal)?);
        }
    }
    Ok(texts)
}

impl Facts {
    fn parse(text: &str) -> Result<Self> {
        let mut facts = Facts::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let columns: Vec<String> =
                line.split('\t').map(|column| column.replace("\\n", "\n").replace("\\t", "\t")).collect();
            let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
            match columns.as_slice() {
                ["T", name, text] => facts.add(name, "", text),
                ["F", name, field, text] => facts.add(name, field, text),
                ["E", name, field, value, text] => {
                    let key = ((*name).to_owned(), (*field).to_owned());
                    let plain = value.trim_start_matches('\n');
                    if plain != *value {
                        facts.spaced.insert(key.clone());
                    }
                    facts.values.entry(key).or_default().insert(plain.to_owned(), (*text).to_owned());
                }
                ["P", name, text] => {
                    facts.parameters.insert((*name).to_owned(), (*text).to_owned());
                }
                _ => bail!("line not understood: {line}"),
            }
        }
        Ok(facts)
    }

    fn add(&mut self, name: &str, field: &str, text: &str) {
        self.texts.entry(name.to_owned()).or_default().insert(field.to_owned(), text.to_owned());
    }

    /// A field's text followed by the list of its values.
    fn with_values(&self, name: &str, field: &str, text: &str, values: &Value) -> String {
        let mut text = text.to_owned();
        let Some(values) = values.as_array() else {
            return text;
        };
        let key = (name.to_owned(), field.to_owned());
        if !text.is_empty() {
            text.push_str(if self.spaced.contains(&key) { "\n\n\n" } else { "\n\n" });
        }
        text.push_str("Possible enum values:");
        let described = self.values.get(&key);
        for value in values.iter().filter_map(Value::as_str) {
            text.push_str(&format!("\n - `\"{value}\"`"));
            if let Some(meaning) = described.and_then(|d| d.get(value)).filter(|meaning| !meaning.is_empty())
            {
                text.push(' ');
                text.push_str(meaning);
            }
        }
        text
    }
}
