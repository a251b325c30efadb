//! StorageClass.

use crate::validation::checks::one_of;
use crate::validation::node_labels::deprecation;
use crate::validation::storage::{parameters, provisioner};
use crate::validation::values::{strings, unchanged};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;
use std::collections::{BTreeMap, BTreeSet};

pub static KIND: Kind = Kind {
    default,
    validate,
    validate_update,
    warnings: |new, _| warnings(new),
    metadata_on_update: &[MetadataCheck::New],
    table: &crate::tables::storage::STORAGE_CLASS,
    returns_deleted: true,
    ..Kind::new("storage.k8s.io", "v1", "StorageClass", "storageclasses", Scope::Cluster)
};

fn default(class: &mut Value) {
    class.default_to("reclaimPolicy", "Delete");
    class.default_to("volumeBindingMode", "Immediate");
}

fn validate(class: &Value) -> ErrorList {
    let mut errors = provisioner(class.text("provisioner"), &Path::new("provisioner"));
    errors.extend(parameters(class, false));
    let policy = class.text("reclaimPolicy");
    if !policy.is_empty() {
        errors.extend(one_of(&Path::new("reclaimPolicy"), policy, &["Delete", "Retain"]));
    }
    let path = Path::new("volumeBindingMode");
    match class.opt_text("volumeBindingMode") {
        Some(mode) => errors.extend(one_of(&path, mode, &["Immediate", "WaitForFirstConsumer"])),
        None => errors.push(FieldError::required(&path, "")),
    }
    errors.extend(topologies(class.items("allowedTopologies")));
    errors
}

fn topologies(topologies: &[Value]) -> ErrorList {
    let mut errors = Vec::new();
    let topologies_path = Path::new("allowedTopologies");
    // As in Kubernetes, an empty term counts as a duplicate, once for each term.
    let mut seen: Vec<BTreeMap<&str, BTreeSet<&str>>> = vec![BTreeMap::new(); topologies.len()];
    for (index, term) in topologies.iter().enumerate() {
        let path = topologies_path.index(index);
        let path = path.child("matchLabelExpressions");
        let mut by_key = BTreeMap::new();
        for (index, requirement) in term.items("matchLabelExpressions").iter().enumerate() {
            let path = path.index(index);
            let values_path = path.child("values");
            let mut values = BTreeSet::new();
            if requirement.items("values").is_empty() {
                errors.push(FieldError::required(&values_path, ""));
            }
            for (index, value) in strings(requirement.items("values")).enumerate() {
                if !values.insert(value) {
                    errors.push(FieldError::duplicate(&values_path.index(index), &value.into()));
                }
            }
            let (key, path) = (requirement.text("key"), path.child("key"));
            errors.extend(names::validate_label_name(key, &path));
            if by_key.insert(key, values).is_some() {
                errors.push(FieldError::duplicate(&path, &key.into()));
            }
        }
        for _ in seen.iter().filter(|other| **other == by_key) {
            errors.push(FieldError::duplicate(&path, &"".into()));
        }
        seen.push(by_key);
    }
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = validate(new);
    errors.extend(KIND.metadata_update_errors(new, old));
    for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        errors.extend(unchanged(&Path::new(field), new.field(field), old.field(field)));
    }
    errors
}

fn warnings(class: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for (i, term) in class.items("allowedTopologies").iter().enumerate() {
        for (j, requirement) in term.items("matchLabelExpressions").iter().enumerate() {
            if let Some(text) = deprecation(requirement.text("key")) {
                warnings.push(format!("allowedTopologies[{i}].matchLabelExpressions[{j}].key: {text}"));
            }
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn topologies_must_be_unique() {
        let term = json!({"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]});
        let same_term = json!({"matchLabelExpressions": [{"key": "zone", "values": ["b", "a"]}]});
        let errors = topologies(&[term, same_term]);
        assert_eq!(errors.len(), 1);
        assert_eq!(
            errors[0].to_string(),
            "allowedTopologies[1].matchLabelExpressions: Duplicate value: \"\""
        );
        assert_eq!(topologies(&[json!({}), json!({})]).len(), 2 + 3, "empty terms");
    }
}
