//! Numbers and percentages of rolling updates and disruption budgets.

use crate::pod_spec::checks::non_negative;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

/// A non-negative integer, or a percentage.
pub fn validate_int_or_percent(value: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    match value.as_str() {
        Some(text) => {
            errors.extend(names::percent(text).into_iter().map(|m| FieldError::invalid_named(path, text, m)));
        }
        None => non_negative(value.as_i64().unwrap_or(0), path, errors),
    }
}

pub fn validate_at_most_all(value: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if percent(value).is_some_and(|percent| percent > 100) {
        errors.push(FieldError::invalid(path, value, "must not be greater than 100%"));
    }
}

fn percent(value: &Value) -> Option<i64> {
    let text = value.as_str()?;
    if !names::percent(text).is_empty() {
        return None;
    }
    Some(text.strip_suffix('%')?.parse().unwrap_or(i64::MAX))
}

/// Numeric value of a number, a percentage or a numeric text.
pub fn amount(value: &Value) -> i64 {
    percent(value).or(value.as_i64()).or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}
