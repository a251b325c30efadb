//! Node and pod affinity.

use super::options::Options;
use crate::pod_spec::checks::invalid_texts;
use crate::value::{Fields, texts};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub fn validate_affinity(affinity: &Value, options: &Options, path: &Path<'_>, errors: &mut ErrorList) {
    let node = affinity.field("nodeAffinity");
    if !node.is_null() {
        let path = path.child("nodeAffinity");
        if node.has(REQUIRED) {
            let allow = options.invalid_required_node_affinity_values;
            validate_node_selector(node.field(REQUIRED), allow, &path.child(REQUIRED), errors);
        }
        let preferred = path.child(PREFERRED);
        for (index, term) in node.items(PREFERRED).iter().enumerate() {
            let path = preferred.index(index);
            validate_weight(term, &path, errors);
            // Invalid label values were always accepted here: with a single node they do no harm.
            validate_node_selector_term(term.field("preference"), true, &path.child("preference"), errors);
        }
    }
    for name in ["podAffinity", "podAntiAffinity"] {
        let pods = affinity.field(name);
        let path = path.child(name);
        let required = path.child(REQUIRED);
        for (index, term) in pods.items(REQUIRED).iter().enumerate() {
            validate_pod_affinity_term(term, options, &required.index(index), errors);
        }
        let preferred = path.child(PREFERRED);
        for (index, term) in pods.items(PREFERRED).iter().enumerate() {
            let path = preferred.index(index);
            validate_weight(term, &path, errors);
            let path = path.child("podAffinityTerm");
            validate_pod_affinity_term(term.field("podAffinityTerm"), options, &path, errors);
        }
    }
}

fn validate_weight(term: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let weight = term.int("weight");
    if !(1..=100).contains(&weight) {
        let path = path.child("weight");
        errors.push(FieldError::invalid(&path, &Value::from(weight), "must be in the range 1-100"));
    }
}

/// A node selector of a pod's affinity or of a volume.
pub fn validate_node_selector(
    selector: &Value,
    allow_bad_values: bool,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let terms = selector.items("nodeSelectorTerms");
    let path = path.child("nodeSelectorTerms");
    if terms.is_empty() {
        errors.push(FieldError::required(&path, "must have at least one node selector term"));
    }
    for (index, term) in terms.iter().enumerate() {
        validate_node_selector_term(term, allow_bad_values, &path.index(index), errors);
    }
}

pub fn validate_node_selector_term(
    term: &Value,
    allow_bad_values: bool,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let expressions = path.child("matchExpressions");
    for (index, requirement) in term.items("matchExpressions").iter().enumerate() {
        validate_requirement(requirement, allow_bad_values, &expressions.index(index), errors);
    }
    let fields = path.child("matchFields");
    for (index, requirement) in term.items("matchFields").iter().enumerate() {
        validate_field_requirement(requirement, &fields.index(index), errors);
    }
}

fn validate_requirement(
    requirement: &Value,
    allow_bad_values: bool,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let values = requirement.items("values");
    let values_path = path.child("values");
    let operator = requirement.text("operator");
    match operator {
        "Gt" | "Lt" => {
            if values.len() != 1 {
                let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errors.push(FieldError::required(&values_path, detail));
            }
        }
        _ if names::validate_operator_values(operator, values, &values_path, errors) => {}
        _ => invalid_operator(operator, path, errors),
    }
    errors.extend(names::validate_label_name(requirement.text("key"), &path.child("key")));
    if !allow_bad_values {
        for (index, value) in texts(values).enumerate() {
            invalid_texts(names::label_value(value), value, &values_path.index(index), errors);
        }
    }
}

fn validate_field_requirement(requirement: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let values = requirement.items("values");
    let values_path = path.child("values");
    match requirement.text("operator") {
        "In" | "NotIn" => {
            if values.len() != 1 {
                let detail =
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.push(FieldError::required(&values_path, detail));
            }
        }
        operator => invalid_operator(operator, path, errors),
    }
    let key = requirement.text("key");
    if key != "metadata.name" {
        errors.push(FieldError::invalid_str(&path.child("key"), key, "not a valid field selector key"));
        return;
    }
    for (index, value) in texts(values).enumerate() {
        invalid_texts(names::dns_subdomain(value, false), value, &values_path.index(index), errors);
    }
}

fn invalid_operator(operator: &str, path: &Path<'_>, errors: &mut ErrorList) {
    errors.push(FieldError::invalid_named(
        &path.child("operator"),
        operator,
        "not a valid selector operator",
    ));
}

fn validate_pod_affinity_term(term: &Value, options: &Options, path: &Path<'_>, errors: &mut ErrorList) {
    for name in ["labelSelector", "namespaceSelector"] {
        if term.has(name) {
            let allow = options.invalid_selector_values;
            errors.extend(names::validate_label_selector(term.field(name), allow, &path.child(name)));
        }
    }
    for name in texts(term.items("namespaces")) {
        invalid_texts(names::dns_label(name, false), name, &path.child("namespace"), errors);
    }
    validate_match_label_keys(term, path, errors);
    let key = term.text("topologyKey");
    let path = path.child("topologyKey");
    if key.is_empty() {
        errors.push(FieldError::required(&path, "can not be empty"));
    }
    errors.extend(names::validate_label_name(key, &path));
}

/// `matchLabelKeys` and `mismatchLabelKeys` of a term or constraint. The selector already includes their
/// requirements, so a key that occurs twice in it was there before.
pub fn validate_match_label_keys(term: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let selector = term.field("labelSelector");
    let matching = term.items("matchLabelKeys");
    let mismatching = term.items("mismatchLabelKeys");
    for (name, keys) in [("matchLabelKeys", matching), ("mismatchLabelKeys", mismatching)] {
        let path = path.child(name);
        if !keys.is_empty() && selector.is_null() {
            errors.push(FieldError::forbidden(&path, "must not be specified when labelSelector is not set"));
            continue;
        }
        for (index, key) in texts(keys).enumerate() {
            errors.extend(names::validate_label_name(key, &path.index(index)));
        }
    }
    let expressions = selector.items("matchExpressions");
    for (index, expression) in expressions.iter().enumerate() {
        let key = expression.text("key");
        let Some(position) = texts(matching).rposition_of(key) else { continue };
        let seen = selector.field("matchLabels").has(key)
            || expressions[..index].iter().any(|other| other.text("key") == key);
        if seen {
            let detail = "exists in both matchLabelKeys and labelSelector";
            errors.push(FieldError::invalid_str(&path.index(position), key, detail));
        }
    }
    let path = path.child("matchLabelKeys");
    for (index, key) in texts(matching).enumerate() {
        if texts(mismatching).any(|other| other == key) {
            let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
            errors.push(FieldError::invalid_str(&path.index(index), key, detail));
        }
    }
}

/// Last index of a text in a list.
trait LastPosition {
    fn rposition_of(self, text: &str) -> Option<usize>;
}

impl<'a, I: Iterator<Item = &'a str>> LastPosition for I {
    fn rposition_of(self, text: &str) -> Option<usize> {
        self.enumerate().filter(|(_, item)| *item == text).map(|(index, _)| index).last()
    }
}
