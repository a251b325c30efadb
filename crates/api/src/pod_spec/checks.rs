//! Small checks shared by the rules of pods and workloads. Each appends to the list of errors, so that valid objects
//! cause no allocation.

use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;

pub const NEGATIVE: &str = "must be greater than or equal to 0";
pub const NOT_POSITIVE: &str = "must be greater than zero";
pub const IMMUTABLE: &str = "field is immutable";

/// An integer field that may not be negative; a missing one counts as 0.
pub fn non_negative_field(object: &Value, name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    non_negative(object.int(name), &path.child(name), errors);
}

pub fn non_negative(value: i64, path: &Path<'_>, errors: &mut ErrorList) {
    if value < 0 {
        errors.push(FieldError::invalid(path, &Value::from(value), NEGATIVE));
    }
}

pub fn positive(value: i64, path: &Path<'_>, errors: &mut ErrorList) {
    if value <= 0 {
        errors.push(FieldError::invalid(path, &Value::from(value), NOT_POSITIVE));
    }
}

/// A string field that must not be empty.
pub fn required_text(object: &Value, name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if object.text(name).is_empty() {
        errors.push(FieldError::required(&path.child(name), ""));
    }
}

/// A string from a fixed set; `supported` in the order shown in messages.
pub fn one_of(text: &str, supported: &[&str], path: &Path<'_>, errors: &mut ErrorList) {
    if !supported.contains(&text) {
        errors.push(FieldError::not_supported(path, &Value::from(text), supported));
    }
}

/// Same as above, with an empty string reported as missing.
pub fn required_one_of(text: &str, supported: &[&str], path: &Path<'_>, errors: &mut ErrorList) {
    if text.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else {
        one_of(text, supported, path, errors);
    }
}

/// One `Invalid value` per message about a string.
pub fn invalid_texts(messages: Vec<String>, text: &str, path: &Path<'_>, errors: &mut ErrorList) {
    errors.extend(messages.into_iter().map(|message| FieldError::invalid_str(path, text, message)));
}

pub fn dns_label(text: &str, path: &Path<'_>, errors: &mut ErrorList) {
    invalid_texts(names::dns_label(text, false), text, path, errors);
}

pub fn dns_subdomain(text: &str, path: &Path<'_>, errors: &mut ErrorList) {
    invalid_texts(names::dns_subdomain(text, false), text, path, errors);
}

pub fn qualified_name(text: &str, path: &Path<'_>, errors: &mut ErrorList) {
    invalid_texts(names::qualified_name(text), text, path, errors);
}

/// Validates a number by `messages`, which returns its errors.
pub fn invalid_number(messages: Vec<String>, number: i64, path: &Path<'_>, errors: &mut ErrorList) {
    errors.extend(messages.into_iter().map(|m| FieldError::invalid(path, &Value::from(number), m)));
}

/// An immutable value.
pub fn immutable(new: &Value, old: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if new != old && !(crate::value::is_zero(new) && crate::value::is_zero(old)) {
        errors.push(FieldError::invalid(path, new, IMMUTABLE));
    }
}
