//! Facts about Kubernetes v1.36 that tests compare with and generators read. `cargo xtask reference` writes the data files.
//!
//! A file is gzip-compressed text with one record per line: a name, a tab, a JSON value.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// A data file.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    pub file: &'static str,
    content: &'static [u8],
}

macro_rules! area {
    ($file:literal) => {
        Area { file: $file, content: include_bytes!(concat!("../data/", $file)) }
    };
}

/// RBAC objects of a new cluster, by list.
pub const BOOTSTRAP: Area = area!("bootstrap.gz");
/// Table columns by group, version and resource.
pub const COLUMNS: Area = area!("columns.gz");
/// Discovery documents by path, with `__` for `/`.
pub const DISCOVERY: Area = area!("discovery.gz");
/// Metrics by name: type, labels, buckets, stability level, deprecating version and components.
pub const METRICS: Area = area!("metrics.gz");
/// Digests of the parts of each OpenAPI document; see [`parts`].
pub const OPENAPI: Area = area!("openapi.gz");
/// Requests and responses recorded on an API server, by area and name.
pub const RECORDINGS: Area = area!("recordings.gz");
/// One object of every kind in JSON, YAML and protobuf.
pub const SAMPLES: Area = area!("samples.gz");
/// Types of the API: fields with types, defaults, list types, merge keys and protobuf numbers. The generators of
/// Ferry's tables read them.
pub const TYPES: Area = area!("types.gz");

pub const AREAS: &[Area] = &[BOOTSTRAP, COLUMNS, DISCOVERY, METRICS, OPENAPI, RECORDINGS, SAMPLES, TYPES];

impl Area {
    /// Names and JSON texts of all records, in the order of their names.
    ///
    /// # Panics
    /// If the file is damaged.
    #[must_use]
    pub fn records(self) -> Vec<(String, String)> {
        let mut text = String::new();
        GzDecoder::new(self.content).read_to_string(&mut text).expect("a gzip file");
        text.lines()
            .map(|line| line.split_once('\t').expect("a name and a value"))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// Names and values of all records.
    ///
    /// # Panics
    /// If the file is damaged.
    #[must_use]
    pub fn values(self) -> Vec<(String, Value)> {
        let parse = |text: String| serde_json::from_str(&text).expect("JSON");
        self.records().into_iter().map(|(name, text)| (name, parse(text))).collect()
    }
}

/// Content of a data file.
///
/// # Errors
/// If compression fails.
pub fn encode(records: &[(String, Value)]) -> std::io::Result<Vec<u8>> {
    let mut records: Vec<_> = records.iter().collect();
    records.sort_by(|a, b| a.0.cmp(&b.0));
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    for (name, value) in records {
        writeln!(encoder, "{name}\t{value}")?;
    }
    encoder.finish()
}

/// Parts of an OpenAPI document with their digests: each definition and path, and all other fields.
///
/// Descriptions that are Ferry's own (`own-descriptions.txt`) are excluded.
#[must_use]
pub fn parts(document: &Value) -> Vec<(String, String)> {
    parts_without(document, &own_descriptions())
}

/// Definitions and fields, or parameters, with own descriptions. The field of a parameter is empty.
type Own = HashSet<(&'static str, &'static str)>;

fn own_descriptions() -> Own {
    let lines = include_str!("../own-descriptions.txt").lines();
    lines.map(|line| line.split_once(' ').unwrap_or((line, ""))).collect()
}

fn parts_without(document: &Value, own: &Own) -> Vec<(String, String)> {
    let mut document = document.clone();
    let mut parts = Vec::new();
    for pointer in ["/definitions", "/components/schemas", "/paths"] {
        let Some(Value::Object(members)) = document.pointer_mut(pointer).map(Value::take) else { continue };
        for (name, mut value) in members {
            for (field, schema) in
                value.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten()
            {
                if own.contains(&(name.as_str(), field.as_str())) {
                    clear_description(schema);
                }
            }
            clear_parameters(&mut value, own);
            parts.push((format!("{pointer}/{name}"), digest(&value)));
        }
    }
    clear_parameters(&mut document, own);
    parts.push((String::new(), digest(&document)));
    parts
}

fn clear_description(value: &mut Value) {
    if let Some(description) = value.get_mut("description") {
        *description = Value::Null;
    }
}

/// Clears the descriptions of parameters with own texts, at any depth.
fn clear_parameters(value: &mut Value, own: &Own) {
    if value.get("in").is_some() && value["name"].as_str().is_some_and(|name| own.contains(&(name, ""))) {
        clear_description(value);
    }
    match value {
        Value::Object(members) => members.values_mut().for_each(|value| clear_parameters(value, own)),
        Value::Array(items) => items.iter_mut().for_each(|value| clear_parameters(value, own)),
        _ => {}
    }
}

/// First 64 bits of the SHA-256 of the JSON text with sorted keys, in hexadecimal.
fn digest(value: &Value) -> String {
    hex::encode(&Sha256::digest(value.to_string())[..8])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_area_has_records_with_unique_names() {
        for area in AREAS {
            let names: Vec<_> = area.records().into_iter().map(|(name, _)| name).collect();
            assert!(!names.is_empty() && names.is_sorted_by(|a, b| a < b), "{}", area.file);
        }
    }

    #[test]
    fn parts_change_with_the_content_but_not_with_own_descriptions() {
        let document = |description: &str, kind: &str| {
            json!({
                "info": {"title": "x"},
                "definitions": {"A": {"properties": {"f": {"description": description, "type": kind}}}},
                "paths": {"/p": {"get": {"parameters": [{"in": "query", "name": "q", "description": description}]}}},
            })
        };
        let own = HashSet::from([("A", "f"), ("q", "")]);
        let base = parts_without(&document("one", "string"), &own);
        assert_eq!(base, parts_without(&document("two", "string"), &own));
        let changed = parts_without(&document("one", "integer"), &own);
        let differing: Vec<_> =
            base.iter().zip(&changed).filter(|(a, b)| a != b).map(|(a, _)| &a.0).collect();
        assert_eq!(differing, ["/definitions/A"]);
        let none = HashSet::new();
        assert_ne!(parts_without(&document("one", ""), &none), parts_without(&document("two", ""), &none));
    }
}
