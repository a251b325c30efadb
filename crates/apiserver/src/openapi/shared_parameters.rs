//! Parameters shared by operations of the version 2 document, with names that contain a hash.

use super::route::{Parameter, ParameterLocation};
use base64::Engine;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};

/// Names of shared parameters, which Kubernetes derives from their description. Listed here where Ferry's description
/// differs, so that references are the same.
const NAMES: &[(&str, &str)] = &[
    ("shardSelector", "shardSelector-Kgyki_3_"),
    ("stream", "stream-l-48cgXv"),
    ("tailLines", "tailLines-9xQLWHMV"),
];

/// Not shared: clients look for these in every operation.
const NOT_SHARED: &[&str] = &["name", "dryRun", "fieldValidation"];

/// Shared parameters collected so far.
#[derive(Default)]
pub struct SharedParameters {
    found: BTreeMap<String, Value>,
    /// Names by location, name and description, so that a hash is computed once.
    names: HashMap<(ParameterLocation, &'static str, std::sync::Arc<str>), String>,
}

impl SharedParameters {
    /// A parameter of an operation: usually a reference.
    pub fn parameter(&mut self, parameter: &Parameter) -> Value {
        if NOT_SHARED.contains(&parameter.name) {
            return plain(parameter);
        }
        let key = (parameter.location, parameter.name, parameter.text.clone());
        let name = match self.names.get(&key) {
            Some(name) => name.clone(),
            None => {
                let known = NAMES.iter().find(|(name, _)| *name == parameter.name);
                let name = known.map_or_else(
                    || format!("{}-{}", parameter.name, hash(&canonical(parameter))),
                    |(_, name)| (*name).to_owned(),
                );
                self.found.insert(name.clone(), plain(parameter));
                self.names.insert(key, name.clone());
                name
            }
        };
        reference(&name)
    }

    /// The body, shared if its type is common to all kinds.
    pub fn body(&mut self, schema: &Value, required: bool) -> Value {
        let mut body = json!({"name": "body", "in": "body", "schema": schema});
        if required {
            body["required"] = json!(true);
        }
        let target = schema.get("$ref").and_then(Value::as_str).unwrap_or_default();
        if !target.starts_with("#/definitions/io.k8s.apimachinery") {
            return body;
        }
        let required = if required { "\"required\":true," } else { "" };
        let canonical = format!("{{\"name\":\"body\",\"in\":\"body\",{required}\"schema\":{schema}}}");
        let name = format!("body-{}", hash(&canonical));
        let reference = reference(&name);
        self.found.insert(name, body);
        reference
    }

    /// The document's `parameters`.
    pub fn finish(self) -> Map<String, Value> {
        self.found.into_iter().collect()
    }
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/parameters/{name}")})
}

fn plain(parameter: &Parameter) -> Value {
    let mut out = json!({
        "uniqueItems": true,
        "type": parameter.kind,
        "description": parameter.text.as_ref(),
        "name": parameter.name,
        "in": if parameter.location == ParameterLocation::Path { "path" } else { "query" },
    });
    if parameter.location == ParameterLocation::Path {
        out["required"] = json!(true);
    }
    out
}

/// The JSON input of the hash: keys in this order, no whitespace.
fn canonical(parameter: &Parameter) -> String {
    let text = json!(parameter.text.as_ref()).to_string();
    let location = match parameter.location {
        ParameterLocation::Path => "\"path\",\"required\":true",
        ParameterLocation::Query => "\"query\"",
    };
    let (kind, name) = (parameter.kind, parameter.name);
    format!(
        "{{\"uniqueItems\":true,\"type\":\"{kind}\",\"description\":{text},\"name\":\"{name}\",\"in\":{location}}}"
    )
}

/// The first six bytes of the 64-bit FNV-1 hash.
fn hash(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
    base64::engine::general_purpose::URL_SAFE.encode(&hash.to_be_bytes()[..6])
}
