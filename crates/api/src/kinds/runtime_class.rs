//! RuntimeClass.

use crate::pod_spec::options::Options;
use crate::pod_spec::{resources, tolerations};
use crate::validation::checks::dns_label;
use crate::validation::node_labels::deprecation;
use crate::validation::values::unchanged;
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;
use std::collections::BTreeSet;

pub static KIND: Kind = Kind {
    any_finalizer: true,
    validate,
    validate_update,
    warnings: |new, _| warnings(new),
    metadata_on_update: &[MetadataCheck::New],
    create_on_update: true,
    unconditional_update: false,
    table: &crate::tables::node::RUNTIME_CLASS,
    ..Kind::new("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", Scope::Cluster)
};

fn validate(class: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let (handler, path) = (class.text("handler"), Path::new("handler"));
    if handler.is_empty() {
        errors.push(FieldError::required(&path, ""));
    } else {
        errors.extend(dns_label(&path, handler));
    }
    if class.has("overhead") {
        let fixed = class.field("overhead").field("podFixed");
        resources::validate_overhead(fixed, &Options::default(), &Path::new("overhead"), &mut errors);
    }
    let (scheduling, path) = (class.field("scheduling"), Path::new("scheduling"));
    if let Some(selector) = scheduling.entries("nodeSelector") {
        errors.extend(names::validate_labels(selector, &path.child("nodeSelector")));
    }
    let path = path.child("tolerations");
    let submitted = scheduling.items("tolerations");
    tolerations::validate_tolerations(submitted, &Options::default(), &path, &mut errors);
    let mut seen = BTreeSet::new();
    for (index, toleration) in submitted.iter().enumerate() {
        let key = ["key", "operator", "value", "effect"].map(|field| toleration.text(field));
        if !seen.insert(key) {
            errors.push(FieldError::duplicate(&path.index(index), toleration));
        }
    }
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = validate(new);
    errors.extend(KIND.metadata_update_errors(new, old));
    errors.extend(unchanged(&Path::new("handler"), new.field("handler"), old.field("handler")));
    errors
}

fn warnings(class: &Value) -> Vec<String> {
    let selector = class.field("scheduling").entries("nodeSelector").into_iter();
    let deprecated = selector.flat_map(|labels| labels.keys()).filter_map(|label| deprecation(label));
    deprecated.map(|text| format!("scheduling.nodeSelector: {text}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn overhead_and_tolerations_are_validated() {
        let cases = [
            (json!({"handler": "h", "overhead": {"podFixed": {"cpu": "1"}}}), 0),
            (json!({"handler": "h", "overhead": {"podFixed": {"cpu": "-1"}}}), 1),
            (json!({"handler": "h", "scheduling": {"tolerations": [{"key": "a"}]}}), 0),
            (json!({"handler": "h", "scheduling": {"tolerations": [{"key": "a"}, {"key": "a"}]}}), 1),
            (json!({"handler": "h", "scheduling": {"tolerations": [{"key": "-"}]}}), 1),
        ];
        for (class, errors) in cases {
            assert_eq!(validate(&class).len(), errors, "{class}");
        }
    }
}
