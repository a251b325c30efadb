//! Qualified names (`example.com/name`), label keys and values, annotations.

use super::{dns_subdomain_in_bytes, framed, max_bytes_error, pattern_error};
use crate::field::{ErrorBudget, ErrorList, FieldError, Path};
use serde_json::{Map, Value};

pub const LABEL_VALUE_MAX: usize = 63;
/// Size limit of all annotations of an object, keys and values.
pub const ANNOTATIONS_MAX: usize = 256 * 1024;

const NAME: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const NAME_MESSAGE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

fn name_ok(text: &[u8]) -> bool {
    let edge = |b: u8| b.is_ascii_alphanumeric();
    framed(text, edge, |b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'), edge)
}

fn name_pattern_error() -> String {
    pattern_error(NAME_MESSAGE, NAME, &["MyName", "my.name", "123-abc"])
}

/// A name with an optional DNS subdomain and slash before it: label and annotation keys, finalizers.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let mut parts = text.split('/');
    let (first, second, third) = (parts.next().unwrap_or(""), parts.next(), parts.next());
    if third.is_some() {
        return vec![format!(
            "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
            name_pattern_error()
        )];
    }
    let name = match second {
        None => first,
        Some(name) => {
            if first.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(dns_subdomain_in_bytes(first).into_iter().map(|e| format!("prefix part {e}")));
            }
            name
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_VALUE_MAX {
        errors.push(format!("name part {}", max_bytes_error(LABEL_VALUE_MAX)));
    }
    if !name_ok(name.as_bytes()) {
        errors.push(format!("name part {}", name_pattern_error()));
    }
    errors
}

/// Validates a label's value.
pub fn label_value(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > LABEL_VALUE_MAX {
        errors.push(max_bytes_error(LABEL_VALUE_MAX));
    }
    if !text.is_empty() && !name_ok(text.as_bytes()) {
        errors.push(pattern_error(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

/// A label's key as a field error.
pub fn validate_label_name(name: &str, path: &Path<'_>) -> ErrorList {
    qualified_name(name).into_iter().map(|e| FieldError::invalid_str(path, name, e)).collect()
}

/// Keys and values of a map of labels.
pub fn validate_labels(labels: &Map<String, Value>, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    for (key, value) in labels.iter().take_while(|_| !ErrorBudget::is_spent()) {
        errors.extend(validate_label_name(key, path));
        let value = value.as_str().unwrap_or("");
        errors.extend(label_value(value).into_iter().map(|e| FieldError::invalid_str(path, value, e)));
    }
    errors
}

/// Validates the keys of annotations (upper case is accepted) and their total size.
pub fn validate_annotations(annotations: &Map<String, Value>, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in annotations {
        size += key.len() + value.as_str().map_or(0, str::len);
        if ErrorBudget::is_spent() {
            continue;
        }
        let problems = if key.bytes().any(|b| b.is_ascii_uppercase()) || !key.is_ascii() {
            qualified_name(&key.to_lowercase())
        } else {
            qualified_name(key)
        };
        errors.extend(problems.into_iter().map(|e| FieldError::invalid_str(path, key, e)));
    }
    if size > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(path, ANNOTATIONS_MAX));
    }
    errors
}

/// A `LabelSelector` object. `allow_invalid_values` accepts invalid values of old objects.
pub fn validate_label_selector(selector: &Value, allow_invalid_values: bool, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if let Some(labels) = selector.get("matchLabels").and_then(Value::as_object) {
        errors.extend(validate_labels(labels, &path.child("matchLabels")));
    }
    let expressions_path = path.child("matchExpressions");
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    for (i, expression) in expressions.into_iter().flatten().enumerate() {
        let path = expressions_path.index(i);
        errors.extend(validate_label_selector_requirement(expression, allow_invalid_values, &path));
    }
    errors
}

/// Presence of the values of `In`, `NotIn`, `Exists` and `DoesNotExist`; false for any other operator.
pub fn validate_operator_values(
    operator: &str,
    values: &[Value],
    path: &Path<'_>,
    errors: &mut ErrorList,
) -> bool {
    match operator {
        "In" | "NotIn" => {
            if values.is_empty() {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(path, detail));
            }
        }
        "Exists" | "DoesNotExist" => {
            if !values.is_empty() {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(path, detail));
            }
        }
        _ => return false,
    }
    true
}

/// One of a selector's `matchExpressions`.
pub fn validate_label_selector_requirement(
    requirement: &Value,
    allow_invalid_values: bool,
    path: &Path<'_>,
) -> ErrorList {
    let mut errors = Vec::new();
    let values = requirement.get("values").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let values_path = path.child("values");
    let operator = requirement.get("operator").and_then(Value::as_str).unwrap_or("");
    if !validate_operator_values(operator, values, &values_path, &mut errors) {
        let detail = "not a valid selector operator";
        errors.push(FieldError::invalid_named(&path.child("operator"), operator, detail));
    }
    let key = requirement.get("key").and_then(Value::as_str).unwrap_or("");
    errors.extend(validate_label_name(key, &path.child("key")));
    if !allow_invalid_values {
        for (i, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or("");
            let path = values_path.index(i);
            errors.extend(label_value(value).into_iter().map(|e| FieldError::invalid_str(&path, value, e)));
        }
    }
    errors
}

/// `example.com/some/path`: a subdomain, a slash and an HTTP path.
pub fn domain_prefixed_path(path: &Path<'_>, text: &str) -> ErrorList {
    if text.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let Some((host, rest)) = text.split_once('/').filter(|(host, rest)| !host.is_empty() && !rest.is_empty())
    else {
        let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        return vec![FieldError::invalid_str(path, text, detail)];
    };
    let mut errors: ErrorList = super::dns_subdomain(host, false)
        .into_iter()
        .map(|e| FieldError::invalid_str(path, host, e))
        .collect();
    let http_path = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !rest.bytes().all(http_path) {
        let detail = pattern_error("Invalid path", r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+", &[]);
        errors.push(FieldError::invalid_str(path, rest, detail));
    }
    errors
}

/// `example.com/key`: a qualified name with a prefix.
pub fn domain_prefixed_key(path: &Path<'_>, key: &str) -> ErrorList {
    if key.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let errors = validate_label_name(key, path);
    if errors.is_empty() && !key.contains('/') {
        let detail = "must be a domain-prefixed key (such as \"acme.io/foo\")";
        return vec![FieldError::invalid_str(path, key, detail)];
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn qualified_names_are_validated() {
        for good in ["a", "A_b.c-1", "example.com/x", "1"] {
            assert!(qualified_name(good).is_empty(), "{good}");
        }
        assert_eq!(
            qualified_name("bad key!"),
            [
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ]
        );
        assert_eq!(qualified_name("/x"), ["prefix part must be non-empty"]);
        assert_eq!(qualified_name("a/").len(), 2);
        assert_eq!(qualified_name("a/b/c").len(), 1);
        assert_eq!(label_value(&"x".repeat(64)), ["must be no more than 63 bytes"]);
        assert!(label_value("").is_empty());
    }

    #[test]
    fn annotations_total_size_is_limited() {
        let path = Path::new("metadata");
        let path = path.child("annotations");
        let map = json!({"UPPER/Case": "x".repeat(ANNOTATIONS_MAX)});
        let errors = validate_annotations(map.as_object().unwrap(), &path);
        assert_eq!(
            errors[0].to_string(),
            "metadata.annotations: Too long: may not be more than 262144 bytes"
        );
    }

    #[test]
    fn label_selectors_are_validated() {
        let path = Path::new("spec");
        let path = path.child("selector");
        let selector =
            json!({"matchExpressions": [{"key": "a", "operator": "In"}, {"key": "b", "operator": "x"}]});
        let errors: Vec<String> =
            validate_label_selector(&selector, false, &path).iter().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            [
                "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                "spec.selector.matchExpressions[1].operator: Invalid value: \"x\": not a valid selector operator",
            ]
        );
    }
}
