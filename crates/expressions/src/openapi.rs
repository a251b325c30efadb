//! Types of objects from the OpenAPI documents a server publishes, so that expressions about them can be checked.

use crate::types::Type;
use serde_json::Value as Json;
use std::collections::BTreeMap;

const REFERENCE: &str = "#/components/schemas/";
const KINDS: &str = "x-kubernetes-group-version-kind";
/// What is deeper than this is not looked at: it may be anything.
const MAX_DEPTH: usize = 64;
/// Nor is more than this: references make small documents large.
const MAX_TYPES: usize = 100_000;

/// The type of a kind's objects, by the document (OpenAPI v3) of its group and version. `name` is what messages call it.
///
/// `None`: the document does not know the kind, or does not say what it is.
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
    let mut reader = Reader { document, visited: vec![root.as_str()], depth: 0, left: MAX_TYPES };
    reader.root(schema, name)
}

struct Reader<'d> {
    document: &'d Json,
    /// The references that lead here.
    visited: Vec<&'d str>,
    depth: usize,
    /// How many types may still be made.
    left: usize,
}

fn text<'j>(of: &'j Json, field: &str) -> &'j str {
    of.get(field).and_then(Json::as_str).unwrap_or_default()
}

fn is_set(of: &Json, field: &str) -> bool {
    of.get(field).and_then(Json::as_bool) == Some(true)
}

/// What a schema refers to. A reference may stand in `allOf`, so that it can be described.
fn reference(schema: &Json) -> Option<&str> {
    let of = |schema: &'_ Json| schema.get("$ref").is_some();
    let found = if of(schema) {
        schema
    } else {
        schema.get("allOf").and_then(Json::as_array)?.iter().find(|schema| of(schema))?
    };
    found.get("$ref")?.as_str()?.strip_prefix(REFERENCE)
}

impl<'d> Reader<'d> {
    /// `None`: expressions cannot see what this describes.
    fn read(&mut self, schema: &'d Json, name: &str) -> Option<Type> {
        if self.depth >= MAX_DEPTH || self.left == 0 {
            return Some(Type::Dyn);
        }
        self.depth += 1;
        self.left -= 1;
        let of = match reference(schema) {
            // What contains itself is not followed.
            Some(to) if self.visited.contains(&to) => Some(Type::object::<String>(name, [])),
            Some(to) => {
                let schemas = self.document.pointer("/components/schemas");
                schemas.and_then(|schemas| schemas.get(to)).and_then(|schema| {
                    self.visited.push(to);
                    let of = self.plain(schema, name);
                    self.visited.pop();
                    of
                })
            }
            None if is_set(schema, "x-kubernetes-embedded-resource") => self.root(schema, name),
            None => self.plain(schema, name),
        };
        self.depth -= 1;
        of
    }

    fn plain(&mut self, schema: &'d Json, name: &str) -> Option<Type> {
        if is_set(schema, "x-kubernetes-int-or-string") || text(schema, "format") == "int-or-string" {
            return Some(Type::Dyn);
        }
        Some(match text(schema, "type") {
            "array" => Type::list(self.read(schema.get("items")?, &format!("{name}.@idx"))?),
            "object" => match schema.get("additionalProperties").filter(|of| of.is_object()) {
                Some(values) => Type::map(Type::String, self.read(values, &format!("{name}.@elem"))?),
                None => Type::object(name, self.fields(schema, name)),
            },
            "string" => match text(schema, "format") {
                "byte" => Type::Bytes,
                "duration" => Type::Duration,
                "date" | "date-time" => Type::Timestamp,
                _ => Type::String,
            },
            "boolean" => Type::Bool,
            "number" => Type::Double,
            "integer" => Type::Int,
            // Quantities: texts or numbers. Kubernetes hides them here, and so warns of every rule about resources.
            _ if schema.get("oneOf").is_some() => Type::Dyn,
            _ => return None,
        })
    }

    fn fields(&mut self, schema: &'d Json, name: &str) -> BTreeMap<String, Type> {
        let mut fields = BTreeMap::new();
        for (field, schema) in schema.get("properties").and_then(Json::as_object).into_iter().flatten() {
            let Some(escaped) = escape(field) else { continue };
            if let Some(of) = self.read(schema, &format!("{name}.{escaped}")) {
                if RESERVED.contains(&field.as_str()) {
                    fields.insert(field.clone(), of.clone());
                }
                fields.insert(escaped, of);
            }
        }
        fields
    }

    /// An object with a kind, a version and a name, whether or not its schema mentions them.
    fn root(&mut self, schema: &'d Json, name: &str) -> Option<Type> {
        let properties = schema.get("properties");
        if text(schema, "type") != "object" || schema.get("additionalProperties").is_some_and(Json::is_object)
        {
            return self.plain(schema, name);
        }
        let mut fields = self.fields(schema, name);
        let mut metadata = properties.and_then(|properties| properties.get("metadata"));
        if let Some(to) = metadata.and_then(reference) {
            let schemas = self.document.pointer("/components/schemas");
            metadata = schemas.and_then(|schemas| schemas.get(to));
        }
        let says = |of: Option<&Json>, field: &str| {
            of.and_then(|of| of.get(field)).is_some_and(|of| text(of, "type") == "string")
        };
        let named = metadata.and_then(|metadata| metadata.get("properties"));
        let is_whole = says(properties, "kind")
            && says(properties, "apiVersion")
            && says(named, "name")
            && says(named, "generateName");
        if !is_whole {
            fields.insert("kind".to_owned(), Type::String);
            fields.insert("apiVersion".to_owned(), Type::String);
            let metadata = [("name", Type::String), ("generateName", Type::String)];
            fields.insert("metadata".to_owned(), Type::object(format!("{name}.metadata"), metadata));
        }
        Some(Type::object(name, fields))
    }
}

/// Words of the language, which name nothing else.
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

/// A field's name as expressions write it; `None`: they cannot.
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
    fn references_that_multiply_are_followed_so_far_only() {
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
    fn names_of_fields() {
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
