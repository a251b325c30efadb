//! Tolerations.

use super::options::Options;
use crate::pod_spec::checks::one_of;
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

pub fn validate_tolerations(
    tolerations: &[Value],
    options: &Options,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    for (index, toleration) in tolerations.iter().enumerate() {
        validate_toleration(toleration, options, &path.index(index), errors);
    }
}

fn validate_toleration(toleration: &Value, options: &Options, path: &Path<'_>, errors: &mut ErrorList) {
    let (key, operator) = (toleration.text("key"), toleration.text("operator"));
    let (value, effect) = (toleration.text("value"), toleration.text("effect"));
    let operator_path = path.child("operator");
    if !key.is_empty() {
        errors.extend(names::validate_label_name(key, &path.child("key")));
    } else if operator != "Exists" {
        let detail =
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.push(FieldError::invalid_str(&operator_path, operator, detail));
    }
    if toleration.has("tolerationSeconds") && effect != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.push(FieldError::invalid_str(&path.child("effect"), effect, detail));
    }
    match operator {
        "Equal" | "" => {
            let problems = names::label_value(value);
            if !problems.is_empty() {
                errors.push(FieldError::invalid_str(&operator_path, value, problems.join(";")));
            }
        }
        "Exists" => {
            if !value.is_empty() {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid_str(&operator_path, value, detail));
            }
        }
        "Lt" | "Gt" if options.comparing_tolerations => validate_number(value, &path.child("value"), errors),
        "Lt" | "Gt" => {
            let supported = ["Equal", "Exists", "Lt", "Gt"];
            errors.push(FieldError::not_supported(&operator_path, &Value::from(operator), &supported));
        }
        _ => one_of(operator, &["Equal", "Exists"], &operator_path, errors),
    }
    if !effect.is_empty() {
        one_of(effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"], &path.child("effect"), errors);
    }
}

fn validate_number(value: &str, path: &Path<'_>, errors: &mut ErrorList) {
    errors.extend(names::decimal_integer(value).into_iter().map(|m| FieldError::invalid_str(path, value, m)));
    if value.parse::<i64>().is_err() {
        let digits = value.strip_prefix(['-', '+']).unwrap_or(value);
        let number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let reason = if number { "value out of range" } else { "invalid syntax" };
        let detail = format!("strconv.ParseInt: parsing {value:?}: {reason}");
        errors.push(FieldError::invalid_str(path, value, detail));
    }
}
