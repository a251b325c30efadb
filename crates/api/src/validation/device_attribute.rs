//! Attributes and capacities of devices.

use super::dump::{Field, Shape, dump};
use super::values::strings;
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names::SemanticVersion;
use machinery::quantity::Quantity;
use std::collections::BTreeSet;

const VALUE_MAX: usize = 64;
const VALID_VALUES_MAX: usize = 10;
const LISTS: &[&str] = &["bools", "ints", "strings", "versions"];
const ATTRIBUTE: &[Field] = &[
    ("int", "IntValue", Shape::Optional),
    ("bool", "BoolValue", Shape::Optional),
    ("string", "StringValue", Shape::Optional),
    ("version", "VersionValue", Shape::Optional),
    ("ints", "IntValues", Shape::Optional),
    ("bools", "BoolValues", Shape::Optional),
    ("strings", "StringValues", Shape::Optional),
    ("versions", "VersionValues", Shape::Optional),
];

/// True if a device has a list attribute.
pub fn has_lists(device: &Value) -> bool {
    let mut attributes = device.entries("attributes").into_iter().flat_map(|map| map.values());
    attributes.any(|attribute| LISTS.iter().any(|field| attribute.has(field)))
}

/// Number of attribute values of a device; each list item counts.
pub fn value_count(device: &Value) -> usize {
    let attributes = device.entries("attributes").into_iter().flat_map(|map| map.values());
    let count =
        |attribute: &Value| LISTS.iter().map(|field| attribute.items(field).len()).sum::<usize>().max(1);
    attributes.map(count).sum()
}

/// One attribute: exactly one value of one type.
pub fn attribute(attribute: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if let Some(text) = attribute.opt_text("string") {
        errors.extend(too_long(text, &path.child("string")));
    }
    if let Some(version) = attribute.opt_text("version") {
        errors.extend(semantic_version(version, &path.child("version")));
    }
    for field in LISTS {
        let path = path.child(field);
        if attribute.has(field) && attribute.items(field).is_empty() {
            let detail = "must not be empty if specified";
            errors.push(FieldError::invalid(&path, attribute.field(field), detail));
        }
        for (index, text) in strings(attribute.items(field)).enumerate() {
            match *field {
                "strings" => errors.extend(too_long(text, &path.index(index))),
                "versions" => errors.extend(semantic_version(text, &path.index(index))),
                _ => {}
            }
        }
    }
    let detail = "exactly one value must be specified";
    match ATTRIBUTE.iter().filter(|(field, ..)| attribute.has(field)).count() {
        0 => errors.push(FieldError::invalid_str(path, "", detail)),
        1 => {}
        _ => errors.push(FieldError::invalid_shown(path, dump(attribute, ATTRIBUTE), detail)),
    }
    errors
}

fn too_long(text: &str, path: &Path<'_>) -> Option<FieldError> {
    (text.len() > VALUE_MAX).then(|| FieldError::too_long(path, VALUE_MAX))
}

fn semantic_version(version: &str, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    if SemanticVersion::parse(version).is_err() {
        let detail = "must be a string compatible with semver.org spec 2.0.0";
        errors.push(FieldError::invalid_str(path, version, detail));
    }
    errors.extend(too_long(version, path));
    errors
}

/// One capacity, with the policy for requests of parts of it.
pub fn capacity(capacity: &Value, shared: bool, path: &Path<'_>) -> ErrorList {
    let (policy, path) = (capacity.field("requestPolicy"), path.child("requestPolicy"));
    if policy.is_null() {
        return Vec::new();
    }
    if !shared {
        return vec![FieldError::forbidden(&path, "allowMultipleAllocations must be true")];
    }
    let has_values = !policy.items("validValues").is_empty();
    if has_values && policy.has("validRange") {
        let detail = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at \
                      the same time";
        return vec![FieldError::forbidden(&path, detail)];
    }
    let field = match (has_values, policy.has("validRange")) {
        (true, _) => "validValues",
        (_, true) => "validRange",
        _ => return Vec::new(),
    };
    if !policy.has("default") {
        let detail = format!("required when {field} is defined");
        return vec![FieldError::required(&path.child("default"), detail)];
    }
    let (default, max) = (quantity(policy.field("default")), quantity(capacity.field("value")));
    let (Some(default), Some(max)) = (default, max) else { return Vec::new() };
    if has_values {
        valid_values(policy.items("validValues"), &default, &max, &path.child(field))
    } else {
        valid_range(policy.field("validRange"), &default, &max, &path.child(field))
    }
}

/// A quantity and its text.
struct Amount<'a> {
    text: &'a str,
    value: Quantity,
}

fn quantity(value: &Value) -> Option<Amount<'_>> {
    let text = value.as_str()?;
    Some(Amount { text, value: Quantity::parse(text).ok()? })
}

fn valid_values(values: &[Value], default: &Amount<'_>, max: &Amount<'_>, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let amounts: Vec<Amount<'_>> = values.iter().filter_map(quantity).collect();
    for (index, pair) in amounts.windows(2).enumerate() {
        if pair[0].value > pair[1].value {
            let path = path.index(index + 1);
            let detail = "values must be sorted in ascending order";
            errors.push(FieldError::invalid_str(&path, pair[1].text, detail));
        }
    }
    if amounts.len() > VALID_VALUES_MAX {
        errors.push(FieldError::too_many(path, amounts.len(), VALID_VALUES_MAX));
    } else {
        for (index, amount) in amounts.iter().enumerate() {
            if amount.value > max.value {
                let detail = format!("option is larger than capacity value: {}", max.text);
                errors.push(FieldError::invalid_str(&path.index(index), amount.text, detail));
            }
        }
        let mut seen = BTreeSet::new();
        for (index, amount) in amounts.iter().enumerate() {
            let whole = amount.value.value();
            if !seen.insert(whole) {
                errors.push(FieldError::duplicate(&path.index(index), &whole.to_string().into()));
            }
        }
    }
    if amounts.len() > VALID_VALUES_MAX || !amounts.iter().any(|amount| amount.value == default.value) {
        let detail = "default value is not valid according to the requestPolicy";
        errors.push(FieldError::invalid_str(path, default.text, detail));
    }
    errors
}

fn valid_range(range: &Value, default: &Amount<'_>, capacity: &Amount<'_>, path: &Path<'_>) -> ErrorList {
    let Some(min) = quantity(range.field("min")) else {
        return vec![FieldError::required(&path.child("min"), "required when validRange is defined")];
    };
    let mut errors = Vec::new();
    let mut reject = |wrong: bool, field: &'static str, shown: &str, detail: String| {
        if wrong {
            errors.push(FieldError::invalid_str(&path.child(field), shown, detail));
        }
    };
    let capacity_text = capacity.text;
    let detail = format!("min is larger than capacity value: {capacity_text}");
    reject(min.value > capacity.value, "min", min.text, detail);
    let detail = format!("default is less than min: {}", min.text);
    reject(default.value < min.value, "min", default.text, detail);
    let max = quantity(range.field("max"));
    if let Some(max) = &max {
        let detail = format!("min is larger than max: {}", max.text);
        reject(min.value > max.value, "max", min.text, detail);
        let detail = format!("max is larger than capacity value: {capacity_text}");
        reject(max.value > capacity.value, "max", max.text, detail);
        let detail = format!("default is more than max: {}", max.text);
        reject(default.value > max.value, "max", default.text, detail);
    }
    if let Some(step) = quantity(range.field("step")) {
        let one_step = min.value.value().saturating_add(step.value.value());
        let detail = format!("one step {one_step} is larger than capacity value: {capacity_text}");
        reject(Quantity::new(one_step) > capacity.value, "step", step.text, detail);
        for amount in [Some(default), max.as_ref()].into_iter().flatten() {
            let distance = amount.value.value().saturating_sub(min.value.value());
            let detail =
                format!("value is not a multiple of a given step ({}) from ({})", step.text, min.text);
            let off_step = distance.checked_rem(step.value.value()).is_none_or(|rest| rest != 0);
            reject(off_step, "step", amount.text, detail);
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn attribute_versions_are_semantic() {
        for (version, ok) in [
            ("1.2.3", true),
            ("1.2.3-alpha.1+b.01", true),
            ("1.2", false),
            ("01.2.3", false),
            ("1.2.3-01", false),
            ("1.2.3-", false),
            ("notsemver", false),
        ] {
            assert_eq!(SemanticVersion::parse(version).is_ok(), ok, "{version}");
        }
    }

    #[test]
    fn capacities_are_validated() {
        let cases = [
            (json!({"value": "10"}), 0),
            (json!({"value": "10", "requestPolicy": {"default": "1", "validValues": ["1", "2"]}}), 0),
            (json!({"value": "10", "requestPolicy": {"default": "3", "validValues": ["2", "1", "11"]}}), 3),
            (
                json!({"value": "10", "requestPolicy": {"default": "2", "validRange": {"min": "2", "step": "2"}}}),
                0,
            ),
            (
                json!({"value": "10", "requestPolicy": {"default": "3", "validRange": {"min": "2", "step": "2"}}}),
                1,
            ),
            (json!({"value": "10", "requestPolicy": {"validRange": {"min": "2"}}}), 1),
        ];
        for (value, count) in cases {
            assert_eq!(capacity(&value, true, &Path::new("c")).len(), count, "{value}");
        }
        let value = json!({"value": "1", "requestPolicy": {}});
        assert_eq!(capacity(&value, false, &Path::new("c")).len(), 1);
    }
}
