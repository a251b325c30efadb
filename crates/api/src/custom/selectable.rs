//! Selectable fields of custom resources.

use super::node::NodeType;
use super::schema::Schema;
use super::{field_path, structural};
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::jsonpath::{Missing, Template};
use std::sync::Arc;

const MAX_FIELDS: usize = 8;

/// Compiled selectable field.
#[derive(Debug)]
pub struct SelectableField {
    /// Name in selectors: the path without its first dot.
    pub name: Arc<str>,
    /// `string`, `integer` or `boolean`.
    pub kind: &'static str,
    /// `None` if the path is invalid; then no object has the field.
    path: Option<Template>,
}

impl SelectableField {
    pub(super) fn compile(field: &Value, schema: Schema<'_>) -> Self {
        let path = field.text("jsonPath");
        let found = field_path::follow(path, Some(schema), false).ok().and_then(|found| found.schema);
        Self {
            name: super::intern::name(path.strip_prefix('.').unwrap_or(path)),
            kind: found.map_or("", |of| NodeType::of(of.kind()).name()),
            path: Template::parse(&format!("{{{path}}}")).ok(),
        }
    }

    /// Field names of the path, for readers that decode nothing else.
    pub fn fields(&self) -> Option<Vec<&str>> {
        self.path.as_ref()?.fields()
    }

    /// Value in an object as compared by selectors; empty if absent.
    pub fn value(&self, object: &Value) -> String {
        let results = self.path.as_ref().and_then(|path| path.results(object, Missing::Allow).ok());
        let value = results.as_ref().and_then(|results| results.first()?.first());
        match value.map(AsRef::as_ref) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        }
    }
}

/// Requires selectable fields to exist and to be scalars. `owner` is the path of their parent.
pub fn check(fields: &[Value], schema: Schema<'_>, owner: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let unreadable = structural::unsupported(schema);
    let schema = Some(schema).filter(|_| unreadable.is_none());
    if let Some(why) = unreadable {
        let path = owner.child("schema");
        errors.push(FieldError::invalid_str(&path.child("openAPIV3Schema"), "", why));
    }
    let path = &owner.child("selectableFields");
    let mut seen = Vec::new();
    for (index, field) in fields.iter().enumerate() {
        let path = path.index(index);
        let (text, path) = (field.text("jsonPath"), path.child("jsonPath"));
        if text.is_empty() {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        let found = match field_path::follow(text, schema, false) {
            Ok(found) => found,
            Err(why) => {
                errors.push(FieldError::invalid_str(&path, text, format!("is an invalid path: {why}")));
                continue;
            }
        };
        if found.first == "metadata" {
            errors.push(FieldError::invalid_str(&path, text, "must not point to fields in metadata"));
        }
        if !found.schema.is_some_and(|of| matches!(of.kind(), "string" | "boolean" | "integer")) {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid_str(&path, text, detail));
        }
        if seen.contains(&found.path) {
            errors.push(FieldError::duplicate(&path, &text.into()));
        } else {
            seen.push(found.path);
        }
    }
    if seen.len() > MAX_FIELDS {
        errors.push(FieldError::too_many(path, seen.len(), MAX_FIELDS));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_compared_as_text() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "a": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"}}}}});
        let object = json!({"spec": {"a": "x", "n": 5, "b": true}});
        for (path, name, kind, want) in [
            (".spec.a", "spec.a", "string", "x"),
            (".spec.n", "spec.n", "integer", "5"),
            (".spec.b", "spec.b", "boolean", "true"),
            (".spec.none", "spec.none", "", ""),
        ] {
            let field = SelectableField::compile(&json!({"jsonPath": path}), Schema(&schema));
            assert_eq!((field.name.as_ref(), field.kind, field.value(&object).as_str()), (name, kind, want));
            assert_eq!(field.fields().map(|fields| fields.join(".")).as_deref(), Some(name));
            assert_eq!(field.value(&json!({})), "");
        }
    }

    #[test]
    fn selectable_fields_must_be_scalars() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "a": {"type": "string"}, "o": {"type": "object"}}}}});
        for (path, want) in [
            (".spec.a", ""),
            (
                ".spec.nope",
                "selectableFields[0].jsonPath: Invalid value: \".spec.nope\": is an invalid path: does not refer to a valid field",
            ),
            (
                ".spec.o",
                "selectableFields[0].jsonPath: Invalid value: \".spec.o\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
            ),
            ("", "selectableFields[0].jsonPath: Required value"),
        ] {
            let fields = [json!({"jsonPath": path})];
            let errors = check(&fields, Schema(&schema), &Path::ROOT);
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(texts.join("; "), want, "{path}");
        }
    }
}
