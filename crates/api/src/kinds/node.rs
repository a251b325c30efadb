//! Node.

use crate::field_selectors::{LabelError, Selectable};
use crate::kind::SelectableField;
use crate::validation::checks::{legacy_cidr, required_one_of};
use crate::validation::resource_names::{quantities, quantity_value, round_up_to_milli};
use crate::value::{Fields, texts};
use crate::{Kind, MetadataCheck, Scope};
use machinery::field::{ErrorList, FieldError, Path, show_str};
use machinery::{Value, names};
use serde_json::json;

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update,
    validate,
    validate_update: |new, old| {
        let mut errors = validate(new);
        errors.extend(KIND.metadata_update_errors(new, old));
        errors.extend(validate_change(new, old));
        errors
    },
    validate_status_update: validate_change,
    warnings: |new, _| warnings(new),
    metadata_on_update: &[MetadataCheck::New],
    storage_path: "minions",
    selectable: Selectable::new(SELECTABLE, LabelError::Label),
    table: &crate::tables::node::NODE,
    ..Kind::new("", "v1", "Node", "nodes", Scope::Cluster)
};

const SELECTABLE: &[SelectableField] = {
    use crate::field_selectors::{NAME, field, flag};
    &[NAME, field("spec.unschedulable", |node| flag(node, "/spec/unschedulable"))]
};

fn default(node: &mut Value) {
    if let Some(spec) = node.field_mut("spec") {
        join_pod_cidrs(spec);
    }
    let Some(status) = node.field_mut("status") else {
        return;
    };
    if !status.has("allocatable") && status.has("capacity") {
        let capacity = status.field("capacity").clone();
        status.set("allocatable", capacity);
    }
    round_up_to_milli(status, "capacity");
    round_up_to_milli(status, "allocatable");
}

/// `podCIDR` is the first of `podCIDRs`; clients may set either, and `podCIDR` wins if both differ.
fn join_pod_cidrs(spec: &mut Value) {
    let single = spec.text("podCIDR").to_owned();
    let first = spec.items("podCIDRs").first().and_then(Value::as_str).map(str::to_owned);
    match first {
        Some(first) if single.is_empty() => spec.set("podCIDR", first),
        first if !single.is_empty() && first.as_ref() != Some(&single) => {
            spec.set("podCIDRs", json!([single]))
        }
        _ => {}
    }
}

/// Nodes may be created with a status; only the removed dynamic kubelet configuration is dropped.
fn prepare_create(node: &mut Value) {
    if let Some(spec) = node.field_mut("spec") {
        spec.unset("configSource");
    }
    if let Some(status) = node.field_mut("status") {
        status.unset("config");
    }
}

fn prepare_update(new: &mut Value, old: &Value) {
    crate::kind::keep_status(new, old);
    if !old.field("spec").has("configSource")
        && let Some(spec) = new.field_mut("spec")
    {
        spec.unset("configSource");
    }
}

/// The status subresource ignores the spec; labels, annotations and the like may change with it.
fn prepare_status_update(new: &mut Value, old: &Value) {
    crate::kind::keep_all_but_status(new, old);
    if !old.field("status").has("config")
        && let Some(status) = new.field_mut("status")
    {
        status.unset("config");
    }
}

fn validate(node: &Value) -> ErrorList {
    let metadata = Path::new("metadata");
    let spec = node.field("spec");
    let mut errors = validate_taints(spec.items("taints"), &metadata);
    errors.extend(validate_resources(node.field("status")));
    if let Some(capacity) = node.at("status.nodeInfo.swap").opt_int("capacity")
        && capacity <= 0
    {
        let path = metadata.child("nodeSwapStatus");
        let detail = "must be greater than zero";
        errors.push(FieldError::invalid_shown(&path.child("capacity"), capacity.to_string(), detail));
    }
    errors.extend(validate_features(node.field("status").items("declaredFeatures")));
    let cidrs: Vec<&str> = texts(spec.items("podCIDRs")).collect();
    let path = Path::new("spec");
    let path = path.child("podCIDRs");
    for (i, cidr) in cidrs.iter().enumerate() {
        errors.extend(legacy_cidr(&path.index(i), cidr, &[]));
    }
    if cidrs.len() > 1 {
        let families: Vec<Option<bool>> = cidrs
            .iter()
            .map(|cidr| names::parse_cidr_sloppy(cidr).map(|cidr| cidr.network().is_ipv6()))
            .collect();
        if let Some(bad) = families.iter().position(Option::is_none) {
            let detail = format!(
                "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{bad}]: <nil> (invalid CIDR address: {})",
                cidrs[bad]
            );
            errors.push(FieldError::internal(&path, detail));
        }
        if cidrs.len() > 2 || families[0].is_none() || families[1].is_none() || families[0] == families[1] {
            let detail = "may specify no more than one CIDR for each IP family";
            errors.push(FieldError::invalid(&path, spec.field("podCIDRs"), detail));
        }
    }
    errors
}

/// Kubernetes reports taints under `metadata`.
fn validate_taints(taints: &[Value], metadata: &Path<'_>) -> ErrorList {
    let taints_path = metadata.child("taints");
    let mut errors = Vec::new();
    for (i, taint) in taints.iter().enumerate() {
        let path = taints_path.index(i);
        let (key, value, effect) = (taint.text("key"), taint.text("value"), taint.text("effect"));
        errors.extend(names::validate_label_name(key, &path.child("key")));
        let problems = names::label_value(value);
        if !problems.is_empty() {
            errors.push(FieldError::invalid_str(&path.child("value"), value, problems.join(";")));
        }
        const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
        errors.extend(required_one_of(&path.child("effect"), effect, EFFECTS));
        if taints[..i].iter().any(|other| (other.text("key"), other.text("effect")) == (key, effect)) {
            let mut error = FieldError::duplicate(&path, &Value::Null);
            error.value = Some(format!(
                r#"{{"Key":{},"Value":{},"Effect":{},"TimeAdded":{}}}"#,
                show_str(key),
                show_str(value),
                show_str(effect),
                taint.field("timeAdded"),
            ));
            error.detail = "taints must be unique by key and effect pair".to_owned();
            errors.push(error);
        }
    }
    errors
}

fn validate_resources(status: &Value) -> ErrorList {
    let path = Path::new("status");
    let mut errors = Vec::new();
    for list in ["capacity", "allocatable"] {
        let path = path.child(list);
        for (name, amount) in quantities(status, list) {
            errors.extend(quantity_value(&path.child(name), name, &amount));
        }
    }
    errors
}

fn validate_features(features: &[Value]) -> ErrorList {
    let path = Path::new("status");
    let path = path.child("declaredFeatures");
    let features: Vec<&str> = texts(features).collect();
    let mut errors = Vec::new();
    for (i, feature) in features.iter().enumerate() {
        let problem = if feature.len() > names::DNS_SUBDOMAIN_MAX {
            Some(format!("must be no more than {} characters", names::DNS_SUBDOMAIN_MAX))
        } else if !is_feature_name(feature) {
            let rule = "must start with an UpperCamelCase segment, with subsequent segments separated by '/' \
                        (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters \
                        and slashes";
            Some(rule.to_owned())
        } else {
            None
        };
        if let Some(problem) = problem {
            let detail = format!("invalid feature name {}: {problem}", show_str(feature));
            errors.push(FieldError::invalid_str(&path.index(i), feature, detail));
        }
        if let Some(next) = features.get(i + 1) {
            let path = path.index(i + 1);
            if feature == next {
                errors.push(FieldError::duplicate(&path, &Value::from(*next)));
            } else if feature > next {
                errors.push(FieldError::invalid_str(&path, next, "list must be sorted alphabetically"));
            }
        }
    }
    errors
}

fn is_feature_name(name: &str) -> bool {
    name.split('/').enumerate().all(|(i, segment)| {
        let letter = |byte: u8| if i == 0 { byte.is_ascii_uppercase() } else { byte.is_ascii_alphabetic() };
        segment.bytes().next().is_some_and(letter) && segment.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Validates an update of a node or of its status.
fn validate_change(new: &Value, old: &Value) -> ErrorList {
    let (spec, before) = (new.field("spec"), old.field("spec"));
    let spec_path = Path::new("spec");
    let mut errors = validate_resources(new.field("status"));
    errors.extend(validate_features(new.field("status").items("declaredFeatures")));

    let status_path = Path::new("status");
    let addresses_path = status_path.child("addresses");
    let addresses = new.field("status").items("addresses");
    for (i, address) in addresses.iter().enumerate().filter(|(i, address)| addresses[..*i].contains(address))
    {
        let mut error = FieldError::duplicate(&addresses_path.index(i), &Value::Null);
        let (kind, text) = (show_str(address.text("type")), show_str(address.text("address")));
        error.value = Some(format!(r#"{{"Type":{kind},"Address":{text}}}"#));
        errors.push(error);
    }

    let reject = |field: &str, detail: &str| FieldError::forbidden(&spec_path.child(field), detail);
    let (cidrs, known) = (spec.items("podCIDRs"), before.items("podCIDRs"));
    if !known.is_empty() {
        let differing = if known.len() == cidrs.len() {
            known.iter().zip(cidrs).filter(|(old, new)| old != new).count()
        } else {
            1
        };
        let detail = r#"node updates may not change podCIDR except from "" to valid"#;
        errors.extend((0..differing).map(|_| reject("podCIDRs", detail)));
    }
    let provider = before.text("providerID");
    if !provider.is_empty() && provider != spec.text("providerID") {
        let detail = r#"node updates may not change providerID except from "" to valid"#;
        errors.push(reject("providerID", detail));
    }
    errors.extend(validate_taints(spec.items("taints"), &Path::new("metadata")));
    if spec.text("externalID") != before.text("externalID") {
        errors.push(reject("externalID", "may not be updated"));
    }
    errors
}

fn warnings(node: &Value) -> Vec<String> {
    let spec = node.field("spec");
    let mut warnings = Vec::new();
    if spec.has("configSource") {
        warnings.push("spec.configSource: the feature is removed".to_owned());
    }
    if !spec.text("externalID").is_empty() {
        warnings.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
    }
    let path = Path::new("spec");
    let path = path.child("podCIDRs");
    for (i, cidr) in texts(spec.items("podCIDRs")).enumerate() {
        warnings.extend(names::warnings_for_cidr(&path.index(i), cidr));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocatable_defaults_to_capacity() {
        let mut node = json!({"status": {"capacity": {"cpu": "4"}}});
        default(&mut node);
        assert_eq!(node["status"]["allocatable"], json!({"cpu": "4"}));
        let mut node = json!({"status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3"}}});
        default(&mut node);
        assert_eq!(node["status"]["allocatable"], json!({"cpu": "3"}));
    }

    #[test]
    fn invalid_pod_cidr_returns_parse_error() {
        let node = json!({"spec": {"podCIDRs": ["10.0.0.0/24", "x"]}});
        let details: Vec<String> = validate(&node).into_iter().map(|error| error.detail).collect();
        let bad = "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[1]: <nil> (invalid CIDR address: x)";
        assert!(details.iter().any(|detail| detail == bad), "{details:?}");
    }

    #[test]
    fn dynamic_kubelet_config_is_dropped() {
        let mut node = json!({"spec": {"configSource": {}}, "status": {"config": {}}});
        prepare_create(&mut node);
        assert_eq!(node, json!({"spec": {}, "status": {}}));
    }
}
