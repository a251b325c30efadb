//! Topology spread constraints.

use super::affinity::validate_match_label_keys;
use super::options::Options;
use crate::pod_spec::checks::{one_of, positive};
use crate::value::{Fields, texts};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

pub fn validate_spread(constraints: &[Value], options: &Options, path: &Path<'_>, errors: &mut ErrorList) {
    for (index, constraint) in constraints.iter().enumerate() {
        let path = path.index(index);
        validate_constraint(constraint, &path, errors);
        let pair = |c: &Value| (c.text("topologyKey").to_owned(), c.text("whenUnsatisfiable").to_owned());
        let (key, action) = pair(constraint);
        if constraints[index + 1..].iter().any(|other| pair(other) == (key.clone(), action.clone())) {
            let path = path.child("{topologyKey, whenUnsatisfiable}");
            errors.push(FieldError::duplicate(&path, &Value::from(format!("{{{key}, {action}}}"))));
        }
        validate_domains_and_policies(constraint, &path, errors);
        if options.older_match_label_keys {
            validate_match_label_keys_older(constraint, &path.child("matchLabelKeys"), errors);
        } else {
            validate_match_label_keys(constraint, &path, errors);
        }
        if !options.invalid_spread_selectors && constraint.has("labelSelector") {
            let path = path.child("labelSelector");
            errors.extend(names::validate_label_selector(constraint.field("labelSelector"), false, &path));
        }
    }
}

fn validate_constraint(constraint: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    positive(constraint.int("maxSkew"), &path.child("maxSkew"), errors);
    if constraint.text("topologyKey").is_empty() {
        errors.push(FieldError::required(&path.child("topologyKey"), "can not be empty"));
    }
    let actions = ["DoNotSchedule", "ScheduleAnyway"];
    one_of(constraint.text("whenUnsatisfiable"), &actions, &path.child("whenUnsatisfiable"), errors);
}

fn validate_domains_and_policies(constraint: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if let Some(domains) = constraint.opt_int("minDomains") {
        let path = path.child("minDomains");
        positive(domains, &path, errors);
        let action = constraint.text("whenUnsatisfiable");
        if action != "DoNotSchedule" {
            let detail = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
            errors.push(FieldError::invalid(&path, &Value::from(domains), detail));
        }
    }
    for name in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
        if let Some(policy) = constraint.opt_text(name) {
            one_of(policy, &["Honor", "Ignore"], &path.child(name), errors);
        }
    }
}

/// The rule before selectors were merged: no key may occur in both.
fn validate_match_label_keys_older(constraint: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let keys = constraint.items("matchLabelKeys");
    if keys.is_empty() {
        return;
    }
    let selector = constraint.field("labelSelector");
    if selector.is_null() {
        errors.push(FieldError::forbidden(path, "must not be specified when labelSelector is not set"));
    }
    for (index, key) in texts(keys).enumerate() {
        let path = path.index(index);
        errors.extend(names::validate_label_name(key, &path));
        let selected = selector.field("matchLabels").has(key)
            || selector.items("matchExpressions").iter().any(|e| e.text("key") == key);
        if selected {
            let detail = "exists in both matchLabelKeys and labelSelector";
            errors.push(FieldError::invalid_str(&path, key, detail));
        }
    }
}
