//! Custom resource definitions to measure with: read from a directory, or generated with similar sizes, and copied under
//! other group names until there are enough.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::path::Path;

/// One definition to create.
pub struct Definition {
    pub group: String,
    pub plural: String,
    /// The first served version.
    pub version: String,
    pub body: Bytes,
}

/// `count` definitions made from those in `directory`, or from generated ones.
pub fn make(directory: Option<&Path>, count: usize) -> Result<Vec<Definition>> {
    let originals = match directory {
        Some(directory) => read(directory)?,
        None => generated(),
    };
    ensure!(!originals.is_empty(), "no custom resource definitions found");
    (0..count).map(|n| copy(&originals[n % originals.len()], n / originals.len())).collect()
}

/// The definitions in the YAML files of a directory, sorted by file name.
fn read(directory: &Path) -> Result<Vec<Value>> {
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("failed to read {}", directory.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml"));
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
        for document in text.split("\n---") {
            let decoded = machinery::codec::yaml::decode(document.as_bytes())
                .with_context(|| format!("failed to decode {}", file.display()))?;
            if decoded.value["kind"] == "CustomResourceDefinition" {
                found.push(decoded.value);
            }
        }
    }
    Ok(found)
}

/// A definition under another group name.
fn copy(original: &Value, number: usize) -> Result<Definition> {
    let mut definition = original.clone();
    let group = definition["spec"]["group"].as_str().context("a definition without group")?;
    let group = format!("copy{number}.{group}");
    let plural = definition["spec"]["names"]["plural"].as_str().context("a definition without plural")?;
    let plural = plural.to_owned();
    let versions = definition["spec"]["versions"].as_array().context("a definition without versions")?;
    let served = versions.iter().find(|version| version["served"] == true);
    let version =
        served.and_then(|version| version["name"].as_str()).context("no served version")?.to_owned();
    definition["metadata"]["name"] = json!(format!("{plural}.{group}"));
    definition["spec"]["group"] = json!(group);
    if let Some(map) = definition.as_object_mut() {
        map.remove("status");
    }
    // Webhooks of the originals do not exist here.
    if let Some(spec) = definition["spec"].as_object_mut() {
        spec.remove("conversion");
    }
    Ok(Definition { group, plural, version, body: Bytes::from(definition.to_string()) })
}

/// Sizes of generated schemas in fields: half of the definitions of widely used projects are small, and some describe
/// whole pod templates.
const SIZES: [usize; 20] =
    [12, 15, 18, 20, 25, 30, 40, 45, 60, 80, 100, 120, 150, 300, 600, 800, 1200, 1500, 1800, 2200];

fn generated() -> Vec<Value> {
    SIZES.iter().enumerate().map(|(n, fields)| generate(n, *fields)).collect()
}

fn generate(n: usize, fields: usize) -> Value {
    let mut left = fields;
    let spec = object(&mut left, 0);
    let status = json!({
        "type": "object", "description": "Observed state of the resource.",
        "properties": {"conditions": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            "items": {"type": "object", "required": ["type", "status"], "properties": {
                "type": text(316), "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "reason": text(1024), "message": text(32768),
                "lastTransitionTime": {"type": "string", "format": "date-time"},
            }},
        }},
    });
    let schema = json!({
        "type": "object", "description": "A resource of a generated definition.", "required": ["spec"],
        "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
            "spec": spec, "status": status},
    });
    let (kind, plural) = (format!("Sample{n}"), format!("sample{n}s"));
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.samples.example.com")},
        "spec": {
            "group": "samples.example.com", "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List"),
                "categories": ["samples"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema},
                "additionalPrinterColumns": [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
            }],
        },
    })
}

fn text(longest: usize) -> Value {
    json!({"type": "string", "maxLength": longest,
        "description": "Text with a description of the length that generators write: what the field means, which values it takes, and what happens when it is not set."})
}

/// An object schema that uses up to `left` fields, nested as in pod templates.
fn object(left: &mut usize, depth: usize) -> Value {
    let mut properties = Map::new();
    let mut number = 0;
    while *left > 0 && number < 12 {
        *left -= 1;
        let field = match number % 8 {
            0 => text(253),
            1 => {
                json!({"type": "integer", "format": "int32", "minimum": 0, "default": 1, "description": "A number with a default."})
            }
            2 => {
                json!({"type": "string", "enum": ["Always", "Never", "IfNotPresent"], "description": "One of some values."})
            }
            3 => {
                json!({"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "description": "A label."})
            }
            4 => {
                json!({"type": "object", "additionalProperties": {"type": "string"}, "description": "Labels by name."})
            }
            5 => {
                json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}], "description": "A number or a percentage."})
            }
            6 if depth < 6 => {
                let mut items = object(left, depth + 1);
                items["required"] = json!(["name"]);
                items["properties"]["name"] = text(63);
                json!({"type": "array", "maxItems": 32, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    "description": "Parts by name.", "items": items})
            }
            7 if depth < 6 => object(left, depth + 1),
            _ => json!({"type": "boolean", "description": "A switch."}),
        };
        properties.insert(format!("field{depth}x{number}"), field);
        number += 1;
    }
    let mut made =
        json!({"type": "object", "description": "A part of the resource.", "properties": properties});
    if depth == 1 {
        made["x-kubernetes-validations"] = json!([{"rule": "!has(self.field1x0) || size(self.field1x0) > 0", "message": "must not be empty"}]);
    }
    made
}
