//! Spec of a custom resource definition: versions, names, printer columns, scale, conversion. Validation of schemas
//! is in [`crate::custom`].
//!
//! If a field is equal in all versions, messages refer to a field of the spec itself, as if it were set once.

use super::checks::{invalid_each, required_one_of};
use super::values::{contains, strings};
use super::webhook;
use crate::custom::definition::{self, Demands};
use crate::custom::schema::Schema;
use crate::custom::selectable;
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;
use std::collections::BTreeSet;

const COLUMN_TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: &[&str] =
    &["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const REVIEW_VERSIONS: &[&str] = &["v1", "v1beta1"];
const WARNING_MAX: usize = 256;

/// Version fields that messages report at the spec itself if they are equal in all versions.
struct Shared {
    schema: bool,
    subresources: bool,
    columns: bool,
    selectable: bool,
}

impl Shared {
    fn of(versions: &[Value]) -> Self {
        let shared =
            |field: &str| versions.windows(2).all(|pair| pair[0].field(field) == pair[1].field(field));
        Self {
            schema: shared("schema"),
            subresources: shared("subresources"),
            columns: shared("additionalPrinterColumns"),
            selectable: shared("selectableFields"),
        }
    }
}

/// Validation errors of a spec. Requirements that `old`, the replaced spec, violates are not enforced.
pub fn spec(spec: &Value, old: Option<&Value>, path: &Path<'_>) -> ErrorList {
    let mut errors: ErrorList = group(spec.text("group"), &path.child("group")).into_iter().collect();
    errors.extend(required_one_of(&path.child("scope"), spec.text("scope"), &["Cluster", "Namespaced"]));
    let versions = spec.items("versions");
    let versions_path = path.child("versions");
    for (index, version) in versions.iter().enumerate() {
        if definition::schema_of(version).is_none() {
            let path = versions_path.index(index);
            let path = path.child("schema");
            errors.push(FieldError::required(&path.child("openAPIV3Schema"), ""));
        }
    }
    let mut demands = old.map_or(Demands::ALL, Demands::fulfilled);
    demands.structural |= !spec.flag("preserveUnknownFields");
    let shared = Shared::of(versions);
    for (index, version) in versions.iter().enumerate() {
        let path = versions_path.index(index);
        let name = version.text("name");
        errors.extend(joined(&path.child("name"), name, names::dns1035_label(name, false), ""));
        errors.extend(deprecation_warning(version, &path.child("deprecationWarning")));
        if !shared.schema {
            errors.extend(schema(version, has_status(version), old, demands, &path.child("schema")));
        }
        if !shared.subresources {
            errors.extend(scale(version, &path));
        }
        if !shared.columns {
            errors.extend(columns(version, &path));
        }
        if !shared.selectable {
            let schema = definition::schema_of(version).filter(|_| !shared.schema);
            let detail = "may only be set when `version.schema.openAPIV3Schema` is not included";
            errors.extend(selectable_fields(version, schema, detail, &path));
        }
    }
    let unique: BTreeSet<&str> = versions.iter().map(|version| version.text("name")).collect();
    if unique.len() != versions.len() {
        let detail = "must contain unique version names";
        errors.push(FieldError::invalid(&versions_path, spec.field("versions"), detail));
    }
    if versions.iter().filter(|version| version.flag("storage")).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid(&versions_path, spec.field("versions"), detail));
    }
    let (submitted, names_path) = (spec.field("names"), path.child("names"));
    for field in ["plural", "singular", "kind", "listKind"] {
        if submitted.text(field).is_empty() {
            errors.push(FieldError::required(&names_path.child(field), ""));
        }
    }
    errors.extend(names_of(submitted, &names_path));
    if let Some(version) = versions.first() {
        if shared.schema {
            let has_status = versions.iter().any(has_status);
            errors.extend(schema(version, has_status, old, demands, &path.child("validation")));
        }
        if shared.subresources {
            errors.extend(scale(version, path));
        }
        if shared.columns {
            errors.extend(columns(version, path));
        }
        if shared.selectable {
            let schema = definition::schema_of(version).filter(|_| shared.schema);
            let detail = "may only be set when validations.schema is included";
            errors.extend(selectable_fields(version, schema, detail, path));
        }
    }
    errors.extend(conversion(spec.field("conversion"), &path.child("conversion")));
    errors
}

fn has_status(version: &Value) -> bool {
    version.field("subresources").has("status")
}

fn schema(
    version: &Value,
    has_status: bool,
    old: Option<&Value>,
    demands: Demands,
    path: &Path<'_>,
) -> ErrorList {
    let Some(schema) = definition::schema_of(version) else { return Vec::new() };
    let is_old = |old: &Value| {
        old.text("name") == version.text("name") && old.field("schema") == version.field("schema")
    };
    let any_cost = old.is_some_and(|old| old.items("versions").iter().any(is_old));
    definition::check(schema, has_status, Demands { any_cost, ..demands }, path)
}

fn selectable_fields(
    owner: &Value,
    schema: Option<Schema<'_>>,
    without_schema: &str,
    path: &Path<'_>,
) -> ErrorList {
    match (owner.items("selectableFields"), schema) {
        ([], _) => Vec::new(),
        (_, None) => vec![FieldError::invalid_str(&path.child("selectableFields"), "", without_schema)],
        (fields, Some(schema)) => selectable::check(fields, schema, path),
    }
}

/// Unrecognized formats that the old spec did not have.
pub fn format_warnings(spec: &Value, old: Option<&Value>) -> Vec<String> {
    let formats = |spec: &Value| -> Vec<String> {
        let schemas = spec.items("versions").iter().filter_map(definition::schema_of);
        schemas.flat_map(definition::unknown_formats).collect()
    };
    let known = old.map(formats).unwrap_or_default();
    let new = formats(spec).into_iter().filter(|format| !known.contains(format));
    new.map(|format| format!("unrecognized format {format:?}")).collect()
}

/// Joins all errors of a string into one.
fn joined(path: &Path<'_>, value: &str, problems: Vec<String>, prefix: &str) -> Option<FieldError> {
    (!problems.is_empty())
        .then(|| FieldError::invalid_str(path, value, format!("{prefix}{}", problems.join(","))))
}

fn group(group: &str, path: &Path<'_>) -> Option<FieldError> {
    if group.is_empty() {
        return Some(FieldError::required(path, ""));
    }
    joined(path, group, names::dns_subdomain(group, false), "").or_else(|| {
        let detail = "should be a domain with at least one dot";
        (!group.contains('.')).then(|| FieldError::invalid_str(path, group, detail))
    })
}

fn deprecation_warning(version: &Value, path: &Path<'_>) -> ErrorList {
    let Some(warning) = version.opt_text("deprecationWarning") else { return Vec::new() };
    let mut details = Vec::new();
    if !version.flag("deprecated") {
        details.push("can only be set for deprecated versions".to_owned());
        return invalid_each(path, warning, details);
    }
    if warning.len() > WARNING_MAX {
        details.push(format!("must be <= {WARNING_MAX} characters long"));
    }
    if warning.is_empty() {
        details.push("must not be an empty string".to_owned());
    }
    if let Some((index, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
        details.push(format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {index}"
        ));
    }
    invalid_each(path, warning, details)
}

/// Names of a definition, requested or accepted.
pub fn names_of(submitted: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    for field in ["plural", "singular", "kind", "listKind"] {
        let name = submitted.text(field);
        if name.is_empty() {
            continue;
        }
        let mixed_case = field == "kind" || field == "listKind";
        let prefix = if mixed_case { "may have mixed case, but should otherwise match: " } else { "" };
        let checked = if mixed_case { name.to_lowercase() } else { name.to_owned() };
        errors.extend(joined(&path.child(field), name, names::dns1035_label(&checked, false), prefix));
    }
    let labels = |field: &'static str| -> ErrorList {
        let path = path.child(field);
        let labels = strings(submitted.items(field)).enumerate();
        labels
            .filter_map(|(index, label)| {
                joined(&path.index(index), label, names::dns1035_label(label, false), "")
            })
            .collect()
    };
    errors.extend(labels("shortNames"));
    let (kind, list_kind) = (submitted.text("kind"), submitted.text("listKind"));
    if !kind.is_empty() && kind == list_kind {
        let detail = "kind and listKind may not be the same";
        errors.push(FieldError::invalid_str(&path.child("listKind"), list_kind, detail));
    }
    errors.extend(labels("categories"));
    errors
}

fn columns(owner: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let columns_path = path.child("additionalPrinterColumns");
    for (index, column) in owner.items("additionalPrinterColumns").iter().enumerate() {
        let path = columns_path.index(index);
        if column.text("name").is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        let detail = format!("must be one of {}", COLUMN_TYPES.join(","));
        match column.text("type") {
            "" => errors.push(FieldError::required(&path.child("type"), detail)),
            kind if COLUMN_TYPES.contains(&kind) => {}
            kind => errors.push(FieldError::invalid_str(&path.child("type"), kind, detail)),
        }
        let format = column.text("format");
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
            errors.push(FieldError::invalid_str(&path.child("format"), format, detail));
        }
        let path = path.child("JSONPath");
        match column.text("jsonPath") {
            "" => errors.push(FieldError::required(&path, "")),
            text => errors.extend(json_path(text, &path)),
        }
    }
    errors
}

fn json_path(text: &str, path: &Path<'_>) -> Option<FieldError> {
    let detail = "must be a simple json path starting with .";
    (!text.starts_with('.')).then(|| FieldError::invalid_str(path, text, detail))
}

/// Paths of a version's scale subresource.
fn scale(owner: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if !owner.field("subresources").has("scale") {
        return errors;
    }
    let scale = owner.field("subresources").field("scale");
    let path = path.child("subresources");
    let path = path.child("scale");
    let fields: [(&str, &[&str], &str); 3] = [
        ("specReplicasPath", &[".spec."], ".spec"),
        ("statusReplicasPath", &[".status."], ".status"),
        ("labelSelectorPath", &[".spec.", ".status."], "either .spec or .status"),
    ];
    for (field, roots, shown) in fields {
        let (text, path) = (scale.text(field), path.child(field));
        if text.is_empty() {
            if field != "labelSelectorPath" {
                errors.push(FieldError::required(&path, ""));
            }
            continue;
        }
        if let Some(error) = json_path(text, &path) {
            errors.push(error);
        } else if !roots.iter().any(|root| text.starts_with(root)) {
            let detail = format!("should be a json path under {shown}");
            errors.push(FieldError::invalid_str(&path, text, detail));
        }
    }
    errors
}

/// Conversion between versions. Messages have the field names of the internal type.
fn conversion(conversion: &Value, path: &Path<'_>) -> ErrorList {
    if conversion.is_null() {
        return Vec::new();
    }
    let strategy = conversion.text("strategy");
    let mut errors = required_one_of(&path.child("strategy"), strategy, &["None", "Webhook"]);
    let webhook = conversion.field("webhook");
    let (config_path, versions_path) =
        (path.child("webhookClientConfig"), path.child("conversionReviewVersions"));
    let versions = webhook.items("conversionReviewVersions");
    if strategy != "Webhook" {
        let detail = "should not be set when strategy is not set to Webhook";
        if webhook.has("clientConfig") {
            errors.push(FieldError::forbidden(&config_path, detail));
        }
        if !versions.is_empty() {
            errors.push(FieldError::forbidden(&versions_path, detail));
        }
        return errors;
    }
    if webhook.has("clientConfig") {
        errors.extend(webhook::client_config(webhook.field("clientConfig"), &config_path));
    } else {
        errors.push(FieldError::required(&config_path, "required when strategy is set to Webhook"));
    }
    if versions.is_empty() {
        errors.push(FieldError::required(&versions_path, ""));
        return errors;
    }
    let mut seen = BTreeSet::new();
    for (index, version) in strings(versions).enumerate() {
        let path = versions_path.index(index);
        if seen.insert(version) {
            errors.extend(invalid_each(&path, version, names::dns1035_label(version, false)));
        } else {
            errors.push(FieldError::invalid_str(&path, version, "duplicate version"));
        }
    }
    if !seen.iter().any(|version| REVIEW_VERSIONS.contains(version)) {
        let detail = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(FieldError::invalid(&versions_path, webhook.field("conversionReviewVersions"), detail));
    }
    errors
}

/// Every stored version must remain until its objects are migrated.
pub fn stored_versions(status: &Value, versions: &[Value], path: &Path<'_>) -> ErrorList {
    let stored = status.items("storedVersions");
    if stored.is_empty() {
        return vec![FieldError::invalid(path, &Value::Null, "must have at least one stored version")];
    }
    let mut errors = Vec::new();
    for version in versions.iter().filter(|version| version.flag("storage")) {
        let name = version.text("name");
        if !contains(stored, name) {
            let detail = format!("must have the storage version {name}");
            errors.push(FieldError::invalid(path, status.field("storedVersions"), detail));
        }
    }
    for (index, name) in strings(stored).enumerate() {
        if !versions.iter().any(|version| version.text("name") == name) {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in \
                 spec.versions until a storage migration ensures no data remains persisted in {name} and removes \
                 {name} from status.storedVersions"
            );
            errors.push(FieldError::invalid_str(&path.index(index), name, detail));
        }
    }
    errors
}
