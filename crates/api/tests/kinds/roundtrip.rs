//! One fully filled object of every kind, as JSON, YAML and protobuf: all three are the same object, and each
//! encoding comes out again as it went in.

use machinery::codec::{cbor, json, protobuf, typed, yaml};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn samples() -> Option<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/reference/roundtrip/v1.36");
    let mut files: Vec<PathBuf> = match std::fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
        Err(_) => {
            println!("skipped: no reference data");
            return None;
        }
    };
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert!(files.len() > 150, "{} samples", files.len());
    Some(files)
}

/// The sample's file name says its kind where the object itself does not.
fn kind_of(file: &Path, object: &Value) -> (String, String) {
    let stem = file.file_stem().unwrap().to_str().unwrap();
    let (group_version, kind) = stem.rsplit_once('.').unwrap();
    let (group, version) = group_version.rsplit_once('.').unwrap();
    let api_version = if group == "core" { version.to_owned() } else { format!("{group}/{version}") };
    let text = |field: &str, otherwise: &str| object[field].as_str().unwrap_or(otherwise).to_owned();
    (text("apiVersion", &api_version), text("kind", kind))
}

#[test]
fn every_sample_survives_every_encoding() {
    let Some(files) = samples() else { return };
    let mut failures = Vec::new();
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let original: Value = serde_json::from_slice(&bytes).unwrap();
        let (api_version, kind) = kind_of(&file, &original);
        let (group, version) = machinery::gvk::split_api_version(&api_version);
        let Some(schema) = api::schema::legacy().kind(group, version, &kind) else {
            failures.push(format!("{}: no type", file.display()));
            continue;
        };
        let mut fail = |what: &str| failures.push(format!("{}: {what}", file.display()));
        let decoded = json::decode_typed(&bytes, schema).unwrap();
        if decoded.value != original || !decoded.strict.is_empty() {
            fail(&format!("JSON {:?}", decoded.strict));
        }
        let text = std::fs::read(file.with_extension("yaml")).unwrap();
        let mut from_yaml = yaml::decode(&text).unwrap();
        typed::normalize(&mut from_yaml.value, schema).unwrap();
        if from_yaml.value != original || !from_yaml.strict.is_empty() {
            fail("YAML decodes to another object");
        }
        if yaml::encode(&original) != text {
            fail("YAML encodes to other text");
        }
        let mut from_cbor = cbor::decode(&cbor::encode(&original, Some(schema))).unwrap();
        typed::normalize(&mut from_cbor, schema).unwrap();
        if from_cbor != original {
            fail("CBOR decodes to another object");
        }
        let wire = std::fs::read(file.with_extension("pb")).unwrap();
        let envelope = protobuf::unwrap(&wire).unwrap();
        let mut object = protobuf::decode_object(envelope.raw, schema).unwrap();
        for field in ["apiVersion", "kind"] {
            if let Some(value) = original.get(field) {
                object[field] = value.clone();
            }
        }
        if object != original {
            fail("protobuf decodes to another object");
        }
        let message = protobuf::encode_object(&original, schema);
        if protobuf::wrap(&envelope.api_version, &envelope.kind, &message) != wire {
            fail("protobuf encodes to other bytes");
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
