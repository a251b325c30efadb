//! Types and maximum sizes of objects, from the OpenAPI documents of a server and the schemas of custom resources,
//! for type checks and cost estimates of expressions.

use crate::estimate::Extent;
use crate::types::Type;
use serde_json::Value as Json;
use std::collections::BTreeMap;

const REFERENCE: &str = "#/components/schemas/";
const KINDS: &str = "x-kubernetes-group-version-kind";
/// Maximum depth of a schema; deeper values are dynamic.
const MAX_DEPTH: usize = 64;
/// Maximum number of types: references make small documents large.
const MAX_TYPES: usize = 100_000;

/// Maximum request size, which bounds every value.
const MAX_REQUEST: u64 = 3 * 1024 * 1024;
/// Minimum size of values in JSON, quotes included.
const MIN_STRING: u64 = 2;
const MIN_BOOL: u64 = 4;
const MIN_NUMBER: u64 = 1;
const MIN_DURATION: u64 = 3;
const MIN_TIME: u64 = 21;
const DATE: u64 = 12;
/// Maximum length of durations and times.
const MAX_TIME: u64 = 32;

/// Declaration of values from a schema.
#[derive(Clone, Debug)]
pub struct Declared {
    pub of: Type,
    /// Maximum sizes.
    pub extent: Extent,
    /// Minimum size in JSON, in bytes.
    pub min_size: u64,
}

impl Declared {
    fn new(of: Type, min_size: u64, max: u64) -> Self {
        Self { of, extent: Extent { max, ..Extent::default() }, min_size }
    }

    fn text() -> Self {
        Self::new(Type::String, MIN_STRING, MAX_REQUEST - 2)
    }

    fn object(name: &str, fields: BTreeMap<String, Declared>, min_size: u64) -> Self {
        let types = fields.iter().map(|(name, field)| (name.clone(), field.of.clone()));
        let of = Type::object(name, types.collect::<Vec<_>>());
        let fields = fields.into_iter().map(|(name, field)| (name, field.extent)).collect();
        Self { of, extent: Extent { fields, ..Extent::default() }, min_size }
    }

    fn container(of: Type, element: Extent, max: u64, is_map: bool) -> Self {
        let extent = Extent { max, element: Some(Box::new(element)), is_map, ..Extent::default() };
        Self { of, extent, min_size: 2 }
    }

    /// Maximum number of such values in one request.
    #[must_use]
    pub fn max_count(&self) -> u64 {
        MAX_REQUEST / (self.min_size + 1)
    }
}

/// Type of a kind's objects, from the OpenAPI v3 document of its group and version. `name` is its name in messages.
///
/// `None` if the document lacks the kind or its type.
#[must_use]
pub fn type_of(document: &Json, (group, version, kind): (&str, &str, &str), name: &str) -> Option<Type> {
    let schemas = document.pointer("/components/schemas")?.as_object()?;
    let is_kind = |schema: &Json| {
        let kinds = schema.get(KINDS).and_then(Json::as_array);
        kinds.into_iter().flatten().any(|of| {
            text(of, "group") == group && text(of, "version") == version && text(of, "kind") == kind
        })
    };
    let (root, schema) = schemas.iter().find(|(_, schema)| is_kind(schema))?;
    let mut reader =
        Reader { document: Some(document), visited: vec![root.as_str()], depth: 0, left: MAX_TYPES };
    reader.root(schema, name).map(|declared| declared.of)
}

/// Declaration from a schema of a custom resource, or a part of one, without references. `is_resource`: the values
/// have `kind`, `apiVersion` and `metadata`, even if the schema omits them.
///
/// `None` if the described value is not accessible to expressions.
#[must_use]
pub fn declare(schema: &Json, is_resource: bool, name: &str) -> Option<Declared> {
    let mut reader = Reader { document: None, visited: Vec::new(), depth: 0, left: MAX_TYPES };
    if is_resource { reader.root(schema, name) } else { reader.plain(schema, name) }
}

struct Reader<'d> {
    /// Document that references resolve in; `None` if there are no references.
    document: Option<&'d Json>,
    /// References followed so far.
    visited: Vec<&'d str>,
    depth: usize,
    /// Remaining number of types.
    left: usize,
}

fn text<'j>(of: &'j Json, field: &str) -> &'j str {
    of.get(field).and_then(Json::as_str).unwrap_or_default()
}

fn is_set(of: &Json, field: &str) -> bool {
    of.get(field).and_then(Json::as_bool) == Some(true)
}

/// A limit of a schema.
fn limit(of: &Json, field: &str) -> Option<u64> {
    of.get(field).and_then(Json::as_i64).map(|limit| u64::try_from(limit).unwrap_or(0))
}

/// Target of a schema's reference. It may be inside `allOf`, which allows a description beside it.
fn reference(schema: &Json) -> Option<&str> {
    let of = |schema: &'_ Json| schema.get("$ref").is_some();
    let found = if of(schema) {
        schema
    } else {
        schema.get("allOf").and_then(Json::as_array)?.iter().find(|schema| of(schema))?
    };
    found.get("$ref")?.as_str()?.strip_prefix(REFERENCE)
}

/// Type and maximum length of a string.
fn string(schema: &Json) -> Declared {
    let length = limit(schema, "maxLength");
    let of_format = match text(schema, "format") {
        "byte" => Declared::new(Type::Bytes, MIN_STRING, length.unwrap_or(MAX_REQUEST - 2)),
        "duration" => Declared::new(Type::Duration, MIN_DURATION, MAX_TIME),
        "date" => Declared::new(Type::Timestamp, DATE, DATE),
        "date-time" => Declared::new(Type::Timestamp, MIN_TIME, MAX_TIME),
        _ => Declared::text(),
    };
    if of_format.of != Type::String {
        return of_format;
    }
    let values = schema.get("enum").and_then(Json::as_array).filter(|values| !values.is_empty());
    let max = match (length, values) {
        // A character takes up to four bytes.
        (Some(length), _) => length.saturating_mul(4),
        (None, Some(values)) => {
            let longest = values.iter().filter_map(Json::as_str).map(str::len).max();
            longest.and_then(|longest| u64::try_from(longest).ok()).unwrap_or(0)
        }
        (None, None) => return of_format,
    };
    Declared::new(Type::String, MIN_STRING, max)
}

impl<'d> Reader<'d> {
    fn referred(&self, to: &str) -> Option<&'d Json> {
        self.document?.pointer("/components/schemas")?.get(to)
    }

    /// Declaration of a schema; `None` if the described value is not accessible to expressions.
    fn read(&mut self, schema: &'d Json, name: &str) -> Option<Declared> {
        if self.depth >= MAX_DEPTH || self.left == 0 {
            return Some(Declared::new(Type::Dyn, MIN_NUMBER, MAX_REQUEST - 2));
        }
        self.depth += 1;
        self.left -= 1;
        let of = match self.document.and_then(|_| reference(schema)) {
            // Recursive references are not followed.
            Some(to) if self.visited.contains(&to) => Some(Declared::object(name, BTreeMap::new(), 2)),
            Some(to) => self.referred(to).and_then(|schema| {
                self.visited.push(to);
                let of = self.plain(schema, name);
                self.visited.pop();
                of
            }),
            None if is_set(schema, "x-kubernetes-embedded-resource") => self.root(schema, name),
            None => self.plain(schema, name),
        };
        self.depth -= 1;
        of
    }

    fn plain(&mut self, schema: &'d Json, name: &str) -> Option<Declared> {
        if is_set(schema, "x-kubernetes-int-or-string") || text(schema, "format") == "int-or-string" {
            let max = limit(schema, "maxLength").map_or(MAX_REQUEST - 2, |length| length.saturating_mul(4));
            return Some(Declared::new(Type::Dyn, MIN_NUMBER, max));
        }
        Some(match text(schema, "type") {
            "array" => {
                let item = self.read(schema.get("items")?, &format!("{name}.@idx"))?;
                let most = limit(schema, "maxItems").unwrap_or((MAX_REQUEST - 2) / (item.min_size + 1));
                Declared::container(Type::list(item.of), item.extent, most, false)
            }
            "object" => match schema.get("additionalProperties").filter(|of| of.is_object()) {
                Some(values) => {
                    let value = self.read(values, &format!("{name}.@elem"))?;
                    let most =
                        limit(schema, "maxProperties").unwrap_or((MAX_REQUEST - 2) / (value.min_size + 6));
                    Declared::container(Type::map(Type::String, value.of), value.extent, most, true)
                }
                None => {
                    let (fields, min_size) = self.fields(schema, name);
                    Declared::object(name, fields, min_size)
                }
            },
            "string" => string(schema),
            "boolean" => Declared::new(Type::Bool, MIN_BOOL, 0),
            "number" => Declared::new(Type::Double, MIN_NUMBER, 0),
            "integer" => Declared::new(Type::Int, MIN_NUMBER, 0),
            // Quantities: strings or integers. Kubernetes omits them here, and so warns about every rule on
            // resources.
            _ if self.document.is_some() && schema.get("oneOf").is_some() => {
                Declared::new(Type::Dyn, MIN_NUMBER, MAX_REQUEST - 2)
            }
            _ => return None,
        })
    }

    /// Fields by their names in expressions, and the minimum size of an object with all required fields.
    fn fields(&mut self, schema: &'d Json, name: &str) -> (BTreeMap<String, Declared>, u64) {
        let required = schema.get("required").and_then(Json::as_array);
        let is_required =
            |field: &str| required.into_iter().flatten().any(|required| required.as_str() == Some(field));
        let mut fields = BTreeMap::new();
        let mut min_size = 2;
        for (field, schema) in schema.get("properties").and_then(Json::as_object).into_iter().flatten() {
            let escaped = escape(field);
            let shown = escaped.as_deref().unwrap_or(field);
            let Some(of) = self.read(schema, &format!("{name}.{shown}")) else { continue };
            if is_required(field) && schema.get("default").is_none_or(Json::is_null) {
                min_size += u64::try_from(field.len()).unwrap_or(0) + of.min_size + 4;
            }
            let Some(escaped) = escaped else { continue };
            if RESERVED.contains(&field.as_str()) {
                fields.insert(field.clone(), of.clone());
            }
            fields.insert(escaped, of);
        }
        (fields, min_size)
    }

    /// An object with `kind`, `apiVersion` and `metadata`, even if its schema omits them.
    fn root(&mut self, schema: &'d Json, name: &str) -> Option<Declared> {
        let properties = schema.get("properties");
        if text(schema, "type") != "object" || schema.get("additionalProperties").is_some_and(Json::is_object)
        {
            return self.plain(schema, name);
        }
        let (mut fields, min_size) = self.fields(schema, name);
        let mut metadata = properties.and_then(|properties| properties.get("metadata"));
        if let Some(to) = metadata.and_then(reference) {
            metadata = self.referred(to);
        }
        let declares = |of: Option<&Json>, field: &str| {
            of.and_then(|of| of.get(field)).is_some_and(|of| text(of, "type") == "string")
        };
        let named = metadata.and_then(|metadata| metadata.get("properties"));
        let is_whole = declares(properties, "kind")
            && declares(properties, "apiVersion")
            && declares(named, "name")
            && declares(named, "generateName");
        if !is_whole {
            fields.insert("kind".to_owned(), Declared::text());
            fields.insert("apiVersion".to_owned(), Declared::text());
            let metadata = ["name", "generateName"].map(|field| (field.to_owned(), Declared::text()));
            let metadata = Declared::object(&format!("{name}.metadata"), metadata.into(), 2);
            fields.insert("metadata".to_owned(), metadata);
        }
        Some(Declared::object(name, fields, min_size))
    }
}

/// Keywords of the language, which cannot be identifiers.
pub const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Escaped name of a field in expressions; `None` if it has none.
#[must_use]
pub fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/');
    name.chars().all(allowed).then(|| {
        let escaped = name.replace("__", "__underscores__");
        escaped.replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;
    use serde_json::json;

    fn document() -> Json {
        let text = json!({"type": "string"});
        json!({"components": {"schemas": {
            "Meta": {"type": "object", "properties": {
                "name": text, "generateName": text, "namespace": text,
                "labels": {"type": "object", "additionalProperties": {"type": "string", "default": ""}},
                "creationTimestamp": {"allOf": [{"$ref": "#/components/schemas/Time"}]},
            }},
            "Time": {"type": "string", "format": "date-time"},
            "Quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
            "Port": {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
            "Tree": {"type": "object", "properties": {
                "left": {"$ref": "#/components/schemas/Tree"}, "leaf": {"type": "boolean"},
            }},
            "Thing": {
                "type": "object",
                "x-kubernetes-group-version-kind": [{"group": "g", "version": "v1", "kind": "Thing"}],
                "properties": {
                    "kind": text, "apiVersion": text,
                    "metadata": {"allOf": [{"$ref": "#/components/schemas/Meta"}], "default": {}},
                    "spec": {"type": "object", "properties": {
                        "replicas": {"type": "integer", "format": "int32"},
                        "ratio": {"type": "number"},
                        "ports": {"type": "array", "items": {"$ref": "#/components/schemas/Port"}},
                        "limits": {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Quantity"}},
                        "tree": {"$ref": "#/components/schemas/Tree"},
                        "items": {"type": "array", "items": {"type": "object", "properties": {"a-b": text}}},
                        "data": {"type": "string", "format": "byte"},
                        "unknown": {},
                        "lost": {"$ref": "#/components/schemas/Nowhere"},
                    }},
                },
            },
            "Bare": {
                "type": "object",
                "x-kubernetes-group-version-kind": [{"group": "g", "version": "v1", "kind": "Bare"}],
                "properties": {"open": {"type": "object", "additionalProperties": true}},
            },
            "Any": {"x-kubernetes-group-version-kind": [{"group": "g", "version": "v1", "kind": "Any"}]},
        }}})
    }

    fn check(kind: &str, text: &str) -> Result<String, String> {
        let of = type_of(&document(), ("g", "v1", kind), kind).expect(kind);
        let compiled = Environment::new([("object", of)]).compile(text);
        compiled.map(|program| program.result_type().to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn fields_have_the_types_of_their_schemas() {
        for (kind, text, of) in [
            ("Thing", "object.spec.replicas", "int"),
            ("Thing", "object.spec.ratio", "double"),
            ("Thing", "object.spec.ports[0]", "dyn"),
            ("Thing", "object.spec.limits.cpu", "dyn"),
            ("Thing", "object.spec.tree.leaf", "bool"),
            ("Thing", "object.spec.tree.left", "Thing.spec.tree.left"),
            ("Thing", "object.spec.items[0]", "Thing.spec.items.@idx"),
            ("Thing", "object.spec.items[0].a__dash__b", "string"),
            ("Thing", "object.spec.data", "bytes"),
            ("Thing", "object.metadata.labels", "map(string, string)"),
            ("Thing", "object.metadata.namespace + object.metadata.__namespace__", "string"),
            ("Thing", "object.metadata.creationTimestamp", "timestamp"),
            ("Bare", "object.metadata.name + object.kind", "string"),
            ("Bare", "object.open", "Bare.open"),
        ] {
            assert_eq!(check(kind, text).as_deref(), Ok(of), "{text}");
        }
        for (kind, text, why) in [
            ("Thing", "object.spec.nosuch", "undefined field 'nosuch'"),
            ("Thing", "object.spec.unknown", "undefined field 'unknown'"),
            ("Thing", "object.spec.lost", "undefined field 'lost'"),
            ("Thing", "object.spec.tree.left.leaf", "undefined field 'leaf'"),
            (
                "Thing",
                "object.spec.replicas > '1'",
                "no matching overload for '_>_' applied to '(int, string)'",
            ),
            ("Thing", "object.spec.replicas == object.spec", "applied to '(int, Thing.spec)'"),
            ("Bare", "object.metadata.labels", "undefined field 'labels'"),
        ] {
            let found = check(kind, text).expect_err(text);
            assert!(found.contains(why), "{text}: {found}");
        }
        assert_eq!(type_of(&document(), ("g", "v1", "Any"), "Any"), None);
        assert_eq!(type_of(&document(), ("g", "v2", "Thing"), "Thing"), None);
        assert_eq!(type_of(&json!([]), ("g", "v1", "Thing"), "Thing"), None);
    }

    #[test]
    fn custom_resource_schemas_limit_value_sizes() {
        let schema = json!({"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string", "maxLength": 10},
            "kinds": {"type": "array", "items": {"type": "string", "enum": ["a", "bcd"]}},
            "ports": {"type": "object", "maxProperties": 3, "additionalProperties": {"type": "integer"}},
            "at": {"type": "string", "format": "date-time"},
            "raw": {"x-kubernetes-preserve-unknown-fields": true, "oneOf": []},
            "$odd": {"type": "string"},
        }});
        let declared = declare(&schema, true, "self").expect("a declaration");
        assert_eq!(declared.min_size, 2 + 4 + 2 + 4);
        assert_eq!(declared.max_count(), MAX_REQUEST / 13);
        let extent = |name: &str| &declared.extent.fields[name];
        assert_eq!(extent("name").max, 40);
        assert_eq!(extent("kinds").max, (MAX_REQUEST - 2) / 3);
        assert_eq!(extent("kinds").element.as_ref().map(|element| element.max), Some(3));
        assert_eq!((extent("ports").max, extent("ports").is_map), (3, true));
        assert_eq!(extent("at").max, 32);
        assert!(declared.extent.fields.contains_key("metadata"));
        for hidden in ["raw", "$odd"] {
            assert!(!declared.extent.fields.contains_key(hidden), "{hidden}");
        }
    }

    #[test]
    fn multiplying_references_are_bounded() {
        let mut schemas = serde_json::Map::new();
        for level in 0..60 {
            let next = json!({"$ref": format!("#/components/schemas/l{}", level + 1)});
            schemas
                .insert(format!("l{level}"), json!({"type": "object", "properties": {"a": next, "b": next}}));
        }
        if let Some(first) = schemas.get_mut("l0") {
            first[KINDS] = json!([{"group": "", "version": "v1", "kind": "Wide"}]);
        }
        let document = json!({"components": {"schemas": schemas}});
        let of = type_of(&document, ("", "v1", "Wide"), "Wide").expect("a type");
        assert!(Environment::new([("object", of)]).compile("object.b.b.b").is_ok());
    }

    #[test]
    fn field_names_are_escaped() {
        for (name, want) in [
            ("replicas", Some("replicas")),
            ("namespace", Some("__namespace__")),
            ("a-b.c/d", Some("a__dash__b__dot__c__slash__d")),
            ("a__b", Some("a__underscores__b")),
            ("_a", Some("_a")),
            ("$ref", None),
            ("1st", None),
            ("", None),
        ] {
            assert_eq!(escape(name).as_deref(), want, "{name}");
        }
    }
}
