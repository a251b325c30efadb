//! Writes the checked-in tables of types: the API's schema, merged with facts about the wire formats.
//!
//! Reads the types of `crates/reference`, `facts/optional.json` and `facts/types.txt`; writes `crates/api/src/schema.txt` (types
//! that are served by default), `crates/api/src/optional.txt` (types of versions that are off by default) and
//! `crates/api/src/legacy.txt` (other versions, used by the codecs only).

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

const FACTS: &str = include_str!("../facts/types.txt");
const OPTIONAL: &str = include_str!("../facts/optional.json");

/// Wire format of one type.
#[derive(Default)]
struct Type<'a> {
    fields: Vec<Wire<'a>>,
    /// Types whose fields JSON inlines, with the number of protobuf's nested message (0: none).
    inlined: Vec<(&'a str, &'a str)>,
}

#[derive(Clone, Copy)]
struct Wire<'a> {
    name: &'a str,
    /// Presence letter and protobuf number.
    code: &'a str,
    expression: &'a str,
}

struct Facts<'a> {
    prefixes: Vec<(&'a str, &'a str)>,
    /// Short type name to the kinds it is served as.
    kinds: BTreeMap<&'a str, Vec<&'a str>>,
    types: BTreeMap<&'a str, Type<'a>>,
}

/// Regenerates the tables under `root`, the workspace.
pub fn generate(root: &Path) -> Result<()> {
    let facts = Facts::parse(FACTS)?;
    let mut served = facts.header();
    let mut legacy = String::new();
    let mut described = BTreeSet::new();
    for (name, description) in reference::TYPES.values() {
        let short = facts.shorten(&name)?;
        described.insert(short.clone());
        facts.described(&mut served, &short, &description).with_context(|| name.clone())?;
    }
    let mut optional = String::new();
    let types: BTreeMap<String, Value> = serde_json::from_str(OPTIONAL)?;
    for (name, description) in &types {
        let short = facts.shorten(name)?;
        described.insert(short.clone());
        facts.described(&mut optional, &short, description).with_context(|| name.clone())?;
    }
    for name in facts.types.keys().filter(|name| !described.contains(**name)) {
        let out = if is_legacy(name) { &mut legacy } else { &mut served };
        facts.undescribed(out, name);
    }
    std::fs::write(root.join("crates/api/src/schema.txt"), served)?;
    std::fs::write(root.join("crates/api/src/optional.txt"), optional)?;
    std::fs::write(root.join("crates/api/src/legacy.txt"), legacy)?;
    Ok(())
}

/// True for types of alpha or beta versions that are not served.
fn is_legacy(name: &str) -> bool {
    let version = name.rsplit('.').nth(1).unwrap_or("");
    !name.starts_with("p:apis.meta.") && (version.contains("alpha") || version.contains("beta"))
}

impl<'a> Facts<'a> {
    fn parse(text: &'a str) -> Result<Self> {
        let mut facts = Facts { prefixes: Vec::new(), kinds: BTreeMap::new(), types: BTreeMap::new() };
        let mut current = None;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            match (line.as_bytes().first(), columns.as_slice()) {
                (Some(b'@'), [letter, prefix]) => facts.prefixes.push((&letter[1..], prefix)),
                (Some(b'!'), [kind, name]) => facts.kinds.entry(name).or_default().push(&kind[1..]),
                (Some(b' '), ["+", number, name]) => {
                    let owner = current.context("an inlined type before any type")?;
                    facts.types.entry(owner).or_default().inlined.push((number, name));
                }
                (Some(b' '), [name, code, expression]) => {
                    let owner = current.context("a field before any type")?;
                    facts.types.entry(owner).or_default().fields.push(Wire { name, code, expression });
                }
                (_, [name]) => {
                    current = Some(*name);
                    facts.types.entry(name).or_default();
                }
                _ => bail!("line not understood: {line}"),
            }
        }
        Ok(facts)
    }

    fn header(&self) -> String {
        let mut out = String::new();
        for (letter, prefix) in &self.prefixes {
            let _ = writeln!(out, "@{letter}\t{prefix}");
        }
        out
    }

    fn shorten(&self, name: &str) -> Result<String> {
        self.prefixes
            .iter()
            .find_map(|(letter, prefix)| name.strip_prefix(prefix).map(|rest| format!("{letter}:{rest}")))
            .ok_or_else(|| anyhow!("no prefix for {name}"))
    }

    /// All JSON fields: the type's own and those of inlined types.
    fn flattened(&self, name: &str, nested: bool) -> Vec<(Wire<'a>, bool)> {
        let Some(fact) = self.types.get(name) else {
            return Vec::new();
        };
        let mut fields: Vec<_> = fact.fields.iter().map(|field| (*field, nested)).collect();
        for (_, inlined) in &fact.inlined {
            fields.extend(self.flattened(inlined, true));
        }
        fields
    }

    fn kinds_of(&self, name: &str) -> String {
        self.kinds.get(name).map_or(String::new(), |kinds| format!("\tgvk={}", kinds.join(",")))
    }

    fn nested_lines(&self, out: &mut String, name: &str) {
        for (number, inlined) in self.types.get(name).map_or(&[][..], |fact| &fact.inlined) {
            if *number != "0" {
                let _ = writeln!(out, "+\t{number}\t{inlined}");
            }
        }
    }

    /// A type that the reference schema describes.
    fn described(&self, out: &mut String, name: &str, description: &Value) -> Result<()> {
        let _ = write!(out, "{name}{}", self.kinds_of(name));
        if description["map-type"] == "atomic" {
            out.push_str("\tatomic");
        }
        out.push('\n');
        let fields = description["fields"].as_object().context("fields")?;
        let required: Vec<&str> =
            description["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let wires = self.flattened(name, false);
        for (field, usage) in fields {
            let (wire, nested) = wires
                .iter()
                .find(|(wire, _)| wire.name == field)
                .with_context(|| format!("no wire facts for {field}"))?;
            check_number(field, wire, usage, *nested)?;
            write_field(out, wire, *nested);
            if required.contains(&field.as_str()) {
                out.push_str("\t!");
            }
            write_usage(out, usage);
            out.push('\n');
        }
        self.nested_lines(out, name);
        Ok(())
    }

    /// A type of the wire facts only.
    fn undescribed(&self, out: &mut String, name: &str) {
        let _ = writeln!(out, "{name}{}\thidden", self.kinds_of(name));
        for (wire, nested) in self.flattened(name, false) {
            write_field(out, &wire, nested);
            out.push('\n');
        }
        self.nested_lines(out, name);
    }
}

/// The reference schema and the wire facts must agree on protobuf numbers.
fn check_number(field: &str, wire: &Wire<'_>, usage: &Value, nested: bool) -> Result<()> {
    if let Some(number) = usage["proto"]["number"].as_u64()
        && !nested
        && wire.code[1..] != number.to_string()
    {
        bail!("{field} is {} in one source and {number} in the other", &wire.code[1..]);
    }
    Ok(())
}

fn write_field(out: &mut String, wire: &Wire<'_>, nested: bool) {
    let code = if nested { format!("{}0", &wire.code[..1]) } else { wire.code.to_owned() };
    let _ = write!(out, " {}\t{code}\t{}", wire.name, wire.expression);
}

/// Schema of this usage of a type.
fn write_usage(out: &mut String, usage: &Value) {
    let text = |key: &str| usage[key].as_str();
    if let Some(default) = usage.get("default") {
        let _ = write!(out, "\t={default}");
    }
    let element = usage.get("items").or_else(|| usage.get("values"));
    if let Some(default) = element.and_then(|element| element.get("default")) {
        let _ = write!(out, "\td={default}");
    }
    for values in [usage.get("enum"), element.and_then(|element| element.get("enum"))].into_iter().flatten() {
        let _ = write!(out, "\te={}", joined(values, "|"));
    }
    if let Some(list_type) = text("list-type") {
        let _ = write!(out, "\tt={list_type}");
    }
    if let Some(keys) = usage.get("list-map-keys") {
        let _ = write!(out, "\tk={}", joined(keys, ","));
    }
    if let Some(strategy) = text("patch-strategy") {
        let _ = write!(out, "\tp={strategy}");
    }
    if let Some(key) = text("patch-merge-key") {
        let _ = write!(out, "\tm={key}");
    }
    if let Some(map_type) = text("map-type") {
        let _ = write!(out, "\t{map_type}");
    }
}

fn joined(values: &Value, separator: &str) -> String {
    let values: Vec<&str> = values.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    values.join(separator)
}
