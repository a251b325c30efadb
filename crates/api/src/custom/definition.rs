//! Validation of the schema of a definition's version.

use super::rules::{self, RulePosition, Total};
use super::schema::{Additional, META_FIELDS, Schema};
use super::{defaults, merging, structural, values};
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Requirements on a schema. Those that the stored definition violates are not enforced on updates.
#[derive(Clone, Copy, Debug)]
pub struct Demands {
    pub known_types: bool,
    pub structural: bool,
    pub pruned_defaults: bool,
    pub atomic_sets: bool,
    pub sound_map_keys: bool,
    /// The schema was accepted before, so the cost of its rules is not limited.
    pub any_cost: bool,
}

impl Demands {
    pub const ALL: Self = Self {
        known_types: true,
        structural: true,
        pruned_defaults: true,
        atomic_sets: true,
        sound_map_keys: true,
        any_cost: false,
    };

    /// Requirements that the versions of a stored definition fulfil.
    pub fn fulfilled(spec: &Value) -> Self {
        let none = |broken: &dyn Fn(Schema<'_>) -> bool| {
            let mut schemas = spec.items("versions").iter().filter_map(schema_of);
            !schemas.any(broken)
        };
        Self {
            known_types: none(&|schema| {
                schema.any(&|of| !of.kind().is_empty() && !TYPES.contains(&of.kind()))
            }),
            structural: none(&|schema| {
                structural::unsupported(schema).is_some()
                    || !structural::violations(schema, &Path::ROOT).is_empty()
            }),
            pruned_defaults: none(&defaults::any_unpruned),
            atomic_sets: none(&|schema| schema.any(&|of| merging::nonatomic_set_field(of).is_some())),
            sound_map_keys: none(&|schema| schema.any(&|of| !merging::map_keys(of, &Path::ROOT).is_empty())),
            any_cost: false,
        }
    }
}

/// Schema of a version.
pub fn schema_of(version: &Value) -> Option<Schema<'_>> {
    Schema(version.field("schema")).child("openAPIV3Schema")
}

/// Unrecognized formats in a schema.
pub fn unknown_formats(schema: Schema<'_>) -> Vec<String> {
    let found = std::cell::RefCell::new(Vec::new());
    schema.any(&|of| {
        let format = of.text("format");
        if !format.is_empty() && !values::is_format(of.kind(), format) {
            found.borrow_mut().push(format.to_owned());
        }
        false
    });
    found.into_inner()
}

/// Validation errors of the schema of a version. `path` is that of the parent of `openAPIV3Schema`.
pub fn check(schema: Schema<'_>, has_status: bool, demands: Demands, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let path = path.child("openAPIV3Schema");
    if has_status {
        errors.extend(root_with_status(schema, &path));
    }
    if schema.flag("nullable") {
        errors.push(FieldError::forbidden(&path.child("nullable"), "nullable cannot be true at the root"));
    }
    let mut unreadable = None;
    let mut has_types = false;
    let extended = schema.any(&|of| {
        of.default().is_some()
            || of.0.as_object().is_some_and(|fields| {
                fields
                    .keys()
                    .any(|field| field.starts_with("x-kubernetes-") && field != "x-kubernetes-map-type")
            })
    });
    if demands.structural || extended {
        unreadable = structural::unsupported(schema);
        if unreadable.is_none() {
            let mut found = structural::violations(schema, &path);
            if found.is_empty() {
                found = defaults::check(schema, demands.pruned_defaults, &path);
            }
            has_types = found.is_empty();
            errors.extend(found);
        }
    }
    let mut walk = Walk { demands, total: Total::default(), of_rules: Vec::new() };
    let mut of_schema = Vec::new();
    walk.node(schema, Node::root(has_types), &path, &mut of_schema);
    errors.extend(of_schema);
    errors.extend(walk.of_rules);
    if let Some(why) = unreadable.filter(|_| errors.is_empty()) {
        errors.push(FieldError::invalid_str(&path, "", why));
    }
    errors.extend(walk.total.check(&path));
    errors
}

/// Restricts the fields of the root schema if the status subresource is enabled.
fn root_with_status(schema: Schema<'_>, path: &Path<'_>) -> Option<FieldError> {
    /// Fields with their names in messages.
    const ALLOWED: [(&str, &str); 22] = [
        ("description", "Description"),
        ("type", "Type"),
        ("format", "Format"),
        ("title", "Title"),
        ("maximum", "Maximum"),
        ("exclusiveMaximum", "ExclusiveMaximum"),
        ("minimum", "Minimum"),
        ("exclusiveMinimum", "ExclusiveMinimum"),
        ("maxLength", "MaxLength"),
        ("minLength", "MinLength"),
        ("pattern", "Pattern"),
        ("maxItems", "MaxItems"),
        ("minItems", "MinItems"),
        ("uniqueItems", "UniqueItems"),
        ("multipleOf", "MultipleOf"),
        ("required", "Required"),
        ("items", "Items"),
        ("properties", "Properties"),
        ("externalDocs", "ExternalDocs"),
        ("example", "Example"),
        ("x-kubernetes-preserve-unknown-fields", "XPreserveUnknownFields"),
        ("x-kubernetes-validations", "XValidations"),
    ];
    let is_set = |field: &str| !crate::value::is_zero(schema.field(field));
    let rejected = |field: &str| is_set(field) && !ALLOWED.iter().any(|(allowed, _)| *allowed == field);
    let kind = schema.kind();
    // Errors of fields before the type take precedence.
    if !["id", "$schema", "$ref"].into_iter().any(rejected) && !kind.is_empty() && kind != "object" {
        let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        return Some(FieldError::invalid_str(&path.child("type"), kind, detail));
    }
    let mut fields = schema.0.as_object().into_iter().flatten();
    fields.any(|(field, _)| rejected(field)).then(|| {
        let names: Vec<&str> = ALLOWED.iter().map(|(_, name)| *name).collect();
        let detail = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
            names.join(" ")
        );
        FieldError::invalid(path, schema.0, detail)
    })
}

/// Attributes that a node of a schema inherits from its ancestors.
#[derive(Clone, Copy)]
struct Node<'p> {
    is_root: bool,
    /// Reason why defaults are not allowed here.
    no_defaults: Option<&'p str>,
    in_metadata: bool,
    /// Ancestor that prevents correlation of old and new values.
    uncorrelated: Option<&'p Path<'p>>,
    /// If rules are checked here: maximum number of values, if known.
    rules: Option<Option<u64>>,
}

impl<'p> Node<'p> {
    fn root(has_types: bool) -> Self {
        Self {
            is_root: true,
            no_defaults: None,
            in_metadata: false,
            uncorrelated: None,
            rules: has_types.then_some(Some(1)),
        }
    }

    /// Attributes below a junctor, where rules are not supported.
    fn nested(self) -> Self {
        Self { is_root: false, rules: None, ..self }
    }

    /// Attributes of a child value.
    fn part(self, schema: Schema<'_>) -> Self {
        let most = match schema.kind() {
            "object" if schema.additional().is_some() => schema.limit("maxProperties"),
            "array" => schema.limit("maxItems"),
            _ => Some(1),
        };
        let most = most.map(|most| u64::try_from(most).unwrap_or(0));
        let count = self.rules.map(|count| Some(count?.saturating_mul(most?)));
        Self { is_root: false, rules: count, ..self }
    }

    fn uncorrelated(self, path: &'p Path<'p>) -> Self {
        Self { uncorrelated: self.uncorrelated.or(Some(path)), ..self }
    }
}

struct Walk {
    demands: Demands,
    total: Total,
    of_rules: ErrorList,
}

impl Walk {
    fn node(&mut self, schema: Schema<'_>, node: Node<'_>, path: &Path<'_>, errors: &mut ErrorList) {
        let before = errors.len();
        self.unsupported(schema, node, path, errors);
        if schema.flag("uniqueItems") {
            let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            errors.push(FieldError::forbidden(&path.child("uniqueItems"), detail));
        }
        self.parts(schema, node, path, errors);
        if schema.has("x-kubernetes-preserve-unknown-fields") && !schema.preserves_unknown() {
            let path = path.child("x-kubernetes-preserve-unknown-fields");
            errors.push(FieldError::invalid(&path, &false.into(), "must be true or undefined"));
        }
        merging::check(schema, self.demands, path, errors);
        if schema.rules().is_empty() {
            return;
        }
        rules::check_form(schema, path, errors);
        if let Some(count) = node.rules.filter(|_| errors.len() == before) {
            let position = RulePosition {
                is_resource: node.is_root || schema.is_embedded(),
                count,
                uncorrelated: node.uncorrelated,
                any_cost: self.demands.any_cost,
            };
            rules::check(schema, position, &mut self.total, path, &mut self.of_rules);
        }
    }

    fn unsupported(&self, schema: Schema<'_>, node: Node<'_>, path: &Path<'_>, errors: &mut ErrorList) {
        let kind = schema.kind();
        if self.demands.known_types && !kind.is_empty() && !TYPES.contains(&kind) {
            errors.push(FieldError::not_supported(&path.child("type"), &kind.into(), &TYPES));
        }
        if let Some(why) = node.no_defaults.filter(|_| schema.default().is_some()) {
            errors.push(FieldError::forbidden(&path.child("default"), format!("must not be set {why}")));
        }
        for field in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
            let is_set = match field {
                "additionalItems" | "$ref" => schema.has(field),
                field => !crate::value::is_zero(schema.field(field)),
            };
            if is_set {
                errors.push(FieldError::forbidden(&path.child(field), format!("{field} is not supported")));
            }
        }
        if kind == "null" {
            let detail = "type cannot be set to null, use nullable as an alternative";
            errors.push(FieldError::forbidden(&path.child("type"), detail));
        }
        if schema.list("items").next().is_some() {
            let detail = "items must be a schema object and not an array";
            errors.push(FieldError::forbidden(&path.child("items"), detail));
        }
        if node.in_metadata && schema.is_embedded() {
            let path = path.child("x-kubernetes-embedded-resource");
            errors.push(FieldError::forbidden(&path, "must not be used inside of resource meta"));
        }
    }

    /// Schemas nested in a schema.
    fn parts(&mut self, schema: Schema<'_>, node: Node<'_>, path: &Path<'_>, errors: &mut ErrorList) {
        let part = node.part(schema);
        if let Some(additional) = schema.additional() {
            let path = path.child("additionalProperties");
            if schema.has_properties() && !matches!(additional, Additional::Allowed(true)) {
                let detail = "additionalProperties and properties are mutual exclusive";
                errors.push(FieldError::forbidden(&path, detail));
            }
            if let Additional::Of(of) = additional {
                let mut part = part;
                if node.in_metadata {
                    part.no_defaults = Some("inside additionalProperties applying to object metadata");
                }
                self.node(of, part, &path, errors);
            }
        }
        let properties_path = path.child("properties");
        for (name, of) in schema.properties() {
            let mut part = if schema.map_type() == Some("atomic") { part.uncorrelated(path) } else { part };
            let why = format!("in top-level {name}");
            if (node.is_root || schema.is_embedded()) && META_FIELDS.contains(&name) {
                part.in_metadata = true;
                if node.is_root {
                    part.no_defaults = Some(&why);
                }
            }
            self.node(of, part, &properties_path.key(name), errors);
        }
        if let Some(not) = schema.child("not") {
            self.node(not, node.nested(), &path.child("not"), errors);
        }
        for field in ["allOf", "oneOf", "anyOf"] {
            let path = path.child(field);
            for (index, of) in schema.list(field).enumerate() {
                self.node(of, node.nested(), &path.index(index), errors);
            }
        }
        let definitions_path = path.child("definitions");
        for (name, of) in schema.map("definitions") {
            self.node(of, node.nested(), &definitions_path.key(name), errors);
        }
        let items_path = path.child("items");
        let part = if schema.list_type() == Some("map") { part } else { part.uncorrelated(path) };
        if let Some(of) = schema.items() {
            self.node(of, part, &items_path, errors);
        }
        for (index, of) in schema.list("items").enumerate() {
            self.node(of, part, &items_path.index(index), errors);
        }
        let dependencies_path = path.child("dependencies");
        for (name, of) in schema.map("dependencies").filter(|(_, of)| of.0.is_object()) {
            self.node(of, node.nested(), &dependencies_path.key(name), errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema_errors(property: &Value, has_status: bool) -> String {
        let schema = json!({"type": "object", "properties": {"x": property}});
        let errors = check(Schema(&schema), has_status, Demands::ALL, &Path::new("v"));
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        texts.join("; ").replace("v.openAPIV3Schema", "s")
    }

    #[test]
    fn invalid_schemas_are_rejected() {
        for (property, want) in [
            (json!({"type": "string"}), ""),
            (
                json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "bag"}),
                r#"s.properties[x].x-kubernetes-list-type: Unsupported value: "bag": supported values: "atomic", "set", "map""#,
            ),
            (
                json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
                "s.properties[x].x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined",
            ),
            (json!({"$ref": "#/x"}), "s.properties[x].$ref: Forbidden: $ref is not supported"),
            (
                json!({"type": "integer", "uniqueItems": true}),
                "s.properties[x].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "string"}},
                    "additionalProperties": {"type": "string"}}),
                "s.properties[x].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
            ),
            (
                json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
                    "items": {"type": "object", "properties": {"a": {"type": "string", "nullable": true}}}}),
                "s.properties[x].x-kubernetes-list-map-keys: Invalid value: [\"a\",\"b\"]: entries must all be names of item properties; \
                 s.properties[x].items.properties[a].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property; \
                 s.properties[x].items.properties[a].nullable: Forbidden: this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
            ),
            (
                json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}}),
                "s.properties[x].items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
            ),
            (
                json!({"type": "strange"}),
                r#"s.properties[x].type: Unsupported value: "strange": supported values: "array", "boolean", "integer", "number", "object", "string""#,
            ),
        ] {
            assert_eq!(schema_errors(&property, false), want, "{property}");
        }
    }

    #[test]
    fn rules_must_compile_within_cost_limit() {
        let with = |rule: Value| json!({"type": "string", "x-kubernetes-validations": [rule]});
        for (property, want) in [
            (with(json!({"rule": "self.size() < 5"})), ""),
            (
                with(json!({"rule": " "})),
                "s.properties[x].x-kubernetes-validations[0].rule: Required value: rule is not specified",
            ),
            (
                with(json!({"rule": "self.size()"})),
                r#"s.properties[x].x-kubernetes-validations[0].rule: Invalid value: {"Rule":"self.size()","Message":"","MessageExpression":"","Reason":null,"FieldPath":"","OptionalOldSelf":null}: cel expression must evaluate to a bool"#,
            ),
            (
                with(json!({"rule": "true", "reason": "Bogus"})),
                r#"s.properties[x].x-kubernetes-validations[0].reason: Unsupported value: "Bogus": supported values: "FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired""#,
            ),
            (
                with(json!({"rule": "true", "optionalOldSelf": true})),
                "s.properties[x].x-kubernetes-validations[0].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule",
            ),
        ] {
            assert_eq!(schema_errors(&property, false), want, "{property}");
        }
        let wide = json!({"type": "array", "items": {"type": "array", "items": {"type": "string"}},
            "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y))"}]});
        let found = schema_errors(&wide, false);
        assert!(found.contains("estimated rule cost exceeds budget by factor of more than 100x"), "{found}");
        assert!(found.contains("cost limit for entire OpenAPIv3 schema"), "{found}");
        let old = json!({"type": "array", "items": with(json!({"rule": "self == oldSelf"})), "maxItems": 2});
        let found = schema_errors(&old, false);
        assert!(found.contains("uncorrelatable portion of the schema within s.properties[x]"), "{found}");
    }

    #[test]
    fn stored_violation_is_not_in_fulfilled_demands() {
        let spec = |items: Value| {
            json!({"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "x": {"type": "array", "x-kubernetes-list-type": "set", "items": items}}}}}]})
        };
        assert!(Demands::fulfilled(&spec(json!({"type": "string"}))).atomic_sets);
        assert!(!Demands::fulfilled(&spec(json!({"type": "object"}))).atomic_sets);
    }
}
