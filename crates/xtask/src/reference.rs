//! Writes the data files of the `reference` crate from the reference folder and the recordings beside the workspace.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use reference::Area;
use serde_json::{Value, json};

pub fn generate(root: &Path) -> Result<()> {
    let shared = root.join("../shared");
    let reference = shared.join("reference");
    write(root, reference::BOOTSTRAP, bootstrap(&reference)?)?;
    write(root, reference::COLUMNS, members(&read(&reference.join("table-columns.json"))?)?)?;
    write(root, reference::DISCOVERY, documents(&reference.join("discovery"))?)?;
    write(root, reference::OPENAPI, openapi(&reference.join("openapi"))?)?;
    write(root, reference::RECORDINGS, recordings(&shared.join("tools/apidiff/golden"))?)?;
    write(root, reference::SAMPLES, samples(&reference.join("roundtrip/v1.36"))?)?;
    write(root, reference::TYPES, members(&read(&reference.join("api-schema.json"))?["types"])?)
}

pub fn write(root: &Path, area: Area, records: Vec<(String, Value)>) -> Result<()> {
    ensure!(!records.is_empty(), "{}: no records", area.file);
    let path = root.join("crates/reference/data").join(area.file);
    std::fs::write(&path, reference::encode(&records)?)
        .with_context(|| format!("failed to write {}", path.display()))
}

fn read(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("failed to parse {}", path.display()))
}

/// Files of a folder with one extension, sorted.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
    let mut files: Vec<_> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    files.sort();
    Ok(files)
}

fn stem(file: &Path) -> String {
    file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

fn members(object: &Value) -> Result<Vec<(String, Value)>> {
    let members = object.as_object().context("an object")?;
    Ok(members.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
}

fn documents(folder: &Path) -> Result<Vec<(String, Value)>> {
    files(folder, "json")?.iter().map(|file| Ok((stem(file), read(file)?))).collect()
}

fn bootstrap(folder: &Path) -> Result<Vec<(String, Value)>> {
    let lists = ["clusterrolebindings", "clusterroles", "rolebindings", "roles"];
    lists
        .iter()
        .map(|name| Ok(((*name).to_owned(), read(&folder.join("bootstrap").join(format!("{name}.json")))?)))
        .collect()
}

fn openapi(folder: &Path) -> Result<Vec<(String, Value)>> {
    let digests = |file: &Path| -> Result<Value> { Ok(reference::parts(&read(file)?).into_iter().collect()) };
    let mut records = vec![("v2".to_owned(), digests(&folder.join("v2.json"))?)];
    for file in files(&folder.join("v3"), "json")? {
        records.push((format!("v3/{}", stem(&file).replace("__", "/")), digests(&file)?));
    }
    Ok(records)
}

fn recordings(folder: &Path) -> Result<Vec<(String, Value)>> {
    let mut records = Vec::new();
    for area in std::fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))? {
        let area = area?;
        for file in files(&area.path(), "json")? {
            records.push((format!("{}/{}", area.file_name().to_string_lossy(), stem(&file)), read(&file)?));
        }
    }
    Ok(records)
}

fn samples(folder: &Path) -> Result<Vec<(String, Value)>> {
    let sample = |file: &PathBuf| {
        let yaml = std::fs::read_to_string(file.with_extension("yaml"))?;
        let protobuf =
            base64::engine::general_purpose::STANDARD.encode(std::fs::read(file.with_extension("pb"))?);
        Ok((stem(file), json!({"json": read(file)?, "yaml": yaml, "protobuf": protobuf})))
    };
    files(folder, "json")?.iter().map(sample).collect()
}
