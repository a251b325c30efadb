//! Structural schemas: the type of every field is given outside of `allOf`, `anyOf`, `oneOf` and `not`.

use super::patterns;
use super::schema::{Additional, Schema};
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use serde_json::json;

/// Position of a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Error of a schema that cannot be converted to a structural one.
pub fn unsupported(schema: Schema<'_>) -> Option<String> {
    const FIELDS: [(&str, &str); 7] = [
        ("id", "id"),
        ("$schema", "schema"),
        ("$ref", "$ref"),
        ("patternProperties", "patternProperties"),
        ("dependencies", "dependencies"),
        ("additionalItems", "additionalItems"),
        ("definitions", "definitions"),
    ];
    let is_set = |field: &str| {
        !crate::value::is_zero(schema.field(field)) || field == "additionalItems" && schema.has(field)
    };
    if let Some((_, name)) = FIELDS.iter().find(|(field, _)| is_set(field)) {
        return Some(format!("OpenAPIV3Schema '{name}' is not supported"));
    }
    let junctors = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|field| schema.list(field));
    if let Some(why) = schema.child("not").into_iter().chain(junctors).find_map(unsupported) {
        return Some(why);
    }
    if schema.has("x-kubernetes-preserve-unknown-fields") && !schema.preserves_unknown() {
        return Some(
            "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined".to_owned(),
        );
    }
    if schema.list("items").next().is_some() {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    let below = schema.items().into_iter().chain(schema.properties().map(|(_, of)| of));
    below.chain(schema.additional_schema()).find_map(unsupported)
}

/// Violations of the rules of structural schemas, in a fixed order.
pub fn violations(schema: Schema<'_>, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    invariants(schema, Level::Root, path, &mut errors);
    complete_all(schema, schema, path, path, &mut errors);
    errors.sort_by_cached_key(ToString::to_string);
    errors
}

fn invariants(schema: Schema<'_>, level: Level, path: &Path<'_>, errors: &mut ErrorList) {
    let items_path = path.child("items");
    match schema.items() {
        Some(items) => invariants(items, Level::Item, &items_path, errors),
        None if schema.kind() == "array" => {
            errors.push(FieldError::required(&items_path, "must be specified"));
        }
        None => {}
    }
    let properties_path = path.child("properties");
    for (name, of) in schema.properties() {
        invariants(of, Level::Field, &properties_path.key(name), errors);
    }
    let additional_path = path.child("additionalProperties");
    if let Some(additional) = schema.additional() {
        if level == Level::Root {
            errors.push(FieldError::forbidden(&additional_path, "must not be used at the root"));
        }
        if let Additional::Of(of) = additional {
            invariants(of, Level::Field, &additional_path, errors);
        }
        if schema.is_embedded() {
            let detail = "must not be used if x-kubernetes-embedded-resource is set";
            errors.push(FieldError::forbidden(&additional_path, detail));
        }
    }
    if schema.is_int_or_string() {
        for field in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if schema.flag(field) {
                let detail = "must be false if x-kubernetes-int-or-string is true";
                errors.push(FieldError::invalid(&path.child(field), &true.into(), detail));
            }
        }
    }
    check_value_validations(schema, IntOrStringForm::of(schema), path, errors);
    type_of(schema, level, &path.child("type"), errors);
    metadata(schema, level, &properties_path, errors);
}

fn type_of(schema: Schema<'_>, level: Level, path: &Path<'_>, errors: &mut ErrorList) {
    let kind = schema.kind();
    if schema.is_embedded() && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match kind {
            "" => FieldError::required(path, detail),
            kind => FieldError::invalid_str(path, kind, detail),
        });
    } else if kind.is_empty() && !schema.is_int_or_string() && !schema.preserves_unknown() {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(path, detail));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid_str(path, kind, "must be object at the root"));
    }
}

/// Restricts the schema of `apiVersion`, `kind` and `metadata` of a resource.
fn metadata(schema: Schema<'_>, level: Level, path: &Path<'_>, errors: &mut ErrorList) {
    let is_resource = level == Level::Root || schema.is_embedded();
    for name in ["kind", "apiVersion"] {
        if let Some(of) = schema.property(name).filter(|of| is_resource && of.kind() != "string") {
            let path = path.key(name);
            errors.push(FieldError::invalid_str(&path.child("type"), of.kind(), "must be string"));
        }
    }
    if let Some(of) = schema.property("metadata") {
        let path = path.key("metadata");
        if is_resource && of.kind() != "object" {
            errors.push(FieldError::invalid_str(&path.child("type"), of.kind(), "must be object"));
        }
        if level == Level::Root && restricts_more_than_names(of) {
            let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.push(FieldError::forbidden(&path, detail));
        }
    }
    if schema.is_embedded() && !schema.preserves_unknown() && !schema.has_properties() {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(FieldError::required(path, detail));
    }
}

fn restricts_more_than_names(metadata: Schema<'_>) -> bool {
    let known = |name: &str| matches!(name, "name" | "generateName");
    let fields = metadata.0.as_object().into_iter().flatten();
    fields.filter(|(_, value)| !crate::value::is_zero(value)).any(|(field, _)| match field.as_str() {
        "type" | "default" => false,
        "properties" => !metadata.properties().all(|(name, _)| known(name)),
        _ => true,
    })
}

/// The two forms of "integer or string" in which types are allowed inside junctors.
#[derive(Clone, Copy, Default)]
struct IntOrStringForm {
    any_of: bool,
    first_all_of: bool,
}

impl IntOrStringForm {
    fn of(schema: Schema<'_>) -> Self {
        let pattern = json!([{"type": "integer"}, {"type": "string"}]);
        let first = schema.0.items("allOf").first();
        Self {
            any_of: *schema.field("anyOf") == pattern,
            first_all_of: first.is_some_and(|of| *of.field("anyOf") == pattern),
        }
    }
}

/// Checks the value validations of a schema: its junctors and its pattern.
fn check_value_validations(
    schema: Schema<'_>,
    int_or_string: IntOrStringForm,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    for field in ["anyOf", "allOf", "oneOf"] {
        if field == "anyOf" && int_or_string.any_of {
            continue;
        }
        let path = path.child(field);
        for (index, of) in schema.list(field).enumerate() {
            let any_of = field == "allOf" && index == 0 && int_or_string.first_all_of;
            nested(of, IntOrStringForm { any_of, first_all_of: false }, &path.index(index), errors);
        }
    }
    if let Some(not) = schema.child("not") {
        nested(not, IntOrStringForm::default(), &path.child("not"), errors);
    }
    let pattern = schema.text("pattern");
    if let Err(why) = patterns::check(pattern) {
        let detail = format!("must be a valid regular expression, but isn't: {why}");
        errors.push(FieldError::invalid_str(&path.child("pattern"), pattern, detail));
    }
}

/// Checks a schema below a junctor, which may only validate values and not describe them.
fn nested(schema: Schema<'_>, int_or_string: IntOrStringForm, path: &Path<'_>, errors: &mut ErrorList) {
    check_value_validations(schema, int_or_string, path, errors);
    if let Some(items) = schema.items() {
        nested(items, IntOrStringForm::default(), &path.child("items"), errors);
    }
    let properties_path = path.child("properties");
    for (name, of) in schema.properties() {
        nested(of, IntOrStringForm::default(), &properties_path.key(name), errors);
    }
    let additional = !matches!(schema.additional(), None | Some(Additional::Allowed(false)));
    const EMPTY: &str = "must be empty to be structural";
    const UNDEFINED: &str = "must be undefined to be structural";
    const FALSE: &str = "must be false to be structural";
    for (field, is_set, detail) in [
        ("type", !schema.kind().is_empty(), EMPTY),
        ("additionalProperties", additional, UNDEFINED),
        ("default", schema.default().is_some(), UNDEFINED),
        ("title", !schema.text("title").is_empty(), EMPTY),
        ("description", !schema.text("description").is_empty(), EMPTY),
        ("nullable", schema.flag("nullable"), FALSE),
        ("x-kubernetes-preserve-unknown-fields", schema.preserves_unknown(), FALSE),
        ("x-kubernetes-embedded-resource", schema.is_embedded(), FALSE),
        ("x-kubernetes-int-or-string", schema.is_int_or_string(), FALSE),
        ("x-kubernetes-list-map-keys", schema.map_keys().next().is_some(), EMPTY),
        ("x-kubernetes-list-type", schema.list_type().is_some(), UNDEFINED),
        ("x-kubernetes-map-type", schema.map_type().is_some(), UNDEFINED),
        ("x-kubernetes-validations", !schema.rules().is_empty(), EMPTY),
    ] {
        if is_set {
            errors.push(FieldError::forbidden(&path.child(field), detail));
        }
    }
    if schema.property("metadata").is_some() {
        let detail = "must not be specified in a nested context";
        errors.push(FieldError::forbidden(&properties_path.key("metadata"), detail));
    }
}

/// Requires every field validated inside a junctor to be described outside of it, too.
fn complete_all(
    validating: Schema<'_>,
    described: Schema<'_>,
    described_path: &Path<'_>,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    if let Some(not) = validating.child("not") {
        complete(not, described, described_path, &path.child("not"), errors);
    }
    for field in ["allOf", "anyOf", "oneOf"] {
        let path = path.child(field);
        for (index, of) in validating.list(field).enumerate() {
            complete(of, described, described_path, &path.index(index), errors);
        }
    }
}

fn complete(
    validating: Schema<'_>,
    described: Schema<'_>,
    described_path: &Path<'_>,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    complete_all(validating, described, described_path, path, errors);
    let mut below =
        |validating: Schema<'_>, of: Option<Schema<'_>>, there: &Path<'_>, here: &Path<'_>| match of {
            Some(described) => complete(validating, described, there, here, errors),
            None => errors.push(FieldError::required(there, format!("because it is defined in {here}"))),
        };
    if let Some(items) = validating.items() {
        below(items, described.items(), &described_path.child("items"), &path.child("items"));
    }
    let (there, here) = (described_path.child("properties"), path.child("properties"));
    for (name, of) in validating.properties() {
        below(of, described.property(name), &there.key(name), &here.key(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonstructural_schema_reports_violations() {
        for (schema, want) in [
            (json!({"type": "object"}), ""),
            (json!({}), "s.type: Required value: must not be empty at the root"),
            (json!({"type": "string"}), r#"s.type: Invalid value: "string": must be object at the root"#),
            (
                json!({"type": "object", "properties": {"a": {"type": "array"}}}),
                "s.properties[a].items: Required value: must be specified",
            ),
            (
                json!({"type": "object", "additionalProperties": true}),
                "s.additionalProperties: Forbidden: must not be used at the root",
            ),
            (
                json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true,
                    "anyOf": [{"type": "integer"}, {"type": "string"}]}}}),
                "",
            ),
            (
                json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true,
                    "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"type": "string"}]}}}),
                "s.properties[a].allOf[1].type: Forbidden: must be empty to be structural",
            ),
            (
                json!({"type": "object", "oneOf": [{"required": ["a"], "properties": {"a": {"minimum": 1}}}]}),
                "s.properties[a]: Required value: because it is defined in s.oneOf[0].properties[a]",
            ),
            (
                json!({"type": "object", "properties": {"metadata": {"type": "object",
                    "properties": {"name": {"type": "string", "maxLength": 5}}}}}),
                "",
            ),
            (
                json!({"type": "object", "properties": {"metadata": {"type": "object", "description": "d"}}}),
                "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}),
                "s.properties[a].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `(`",
            ),
        ] {
            let errors = violations(Schema(&schema), &Path::new("s"));
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(texts.join(", "), want, "{schema}");
        }
    }

    #[test]
    fn unsupported_schema_reports_error() {
        for (schema, want) in [
            (json!({"type": "object"}), None),
            (json!({"properties": {"a": {"$ref": "#/a"}}}), Some("OpenAPIV3Schema '$ref' is not supported")),
            (json!({"items": [{}]}), Some("OpenAPIV3Schema 'items' must be a schema, but is an array")),
            (json!({"anyOf": [{"$schema": "s"}]}), Some("OpenAPIV3Schema 'schema' is not supported")),
        ] {
            assert_eq!(unsupported(Schema(&schema)).as_deref(), want, "{schema}");
        }
    }
}
