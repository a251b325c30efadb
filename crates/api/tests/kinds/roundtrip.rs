//! One complete object of every kind, as JSON, YAML and protobuf: all three decode to the same object, and each
//! encoding is reproduced exactly.

use base64::Engine as _;
use machinery::codec::{cbor, json, protobuf, typed, yaml};
use serde_json::Value;

/// API version and kind of an object, or of the sample's name if the object has none.
fn kind_of(name: &str, object: &Value) -> (String, String) {
    let (group_version, kind) = name.rsplit_once('.').unwrap();
    let (group, version) = group_version.rsplit_once('.').unwrap();
    let api_version = if group == "core" { version.to_owned() } else { format!("{group}/{version}") };
    let text = |field: &str, otherwise: &str| object[field].as_str().unwrap_or(otherwise).to_owned();
    (text("apiVersion", &api_version), text("kind", kind))
}

#[test]
fn every_sample_round_trips_through_every_encoding() {
    let samples = reference::SAMPLES.values();
    assert!(samples.len() > 150, "{} samples", samples.len());
    let mut failures = Vec::new();
    for (name, sample) in samples {
        let original = sample["json"].clone();
        let bytes = serde_json::to_vec(&original).unwrap();
        let (api_version, kind) = kind_of(&name, &original);
        let (group, version) = machinery::gvk::split_api_version(&api_version);
        let Some(schema) = api::schema::legacy().kind(group, version, &kind) else {
            failures.push(format!("{name}: no type"));
            continue;
        };
        let mut fail = |what: &str| failures.push(format!("{name}: {what}"));
        let decoded = json::decode_typed(&bytes, schema).unwrap();
        if decoded.value != original || !decoded.strict.is_empty() {
            fail(&format!("JSON {:?}", decoded.strict));
        }
        let text = sample["yaml"].as_str().unwrap().as_bytes();
        let mut from_yaml = yaml::decode(text).unwrap();
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
        let wire =
            base64::engine::general_purpose::STANDARD.decode(sample["protobuf"].as_str().unwrap()).unwrap();
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
