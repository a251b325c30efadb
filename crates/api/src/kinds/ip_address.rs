//! IPAddress: one address of a Service or another object.

use crate::kind::renamed_version;
use crate::validation::checks::{dns_subdomain, invalid_each};
use crate::value::{Fields, is_zero};
use crate::{Kind, MetadataCheck, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};
use serde_json::json;

pub static KIND: Kind = Kind {
    validate_name: |name, _| {
        names::valid_ip(&Path::ROOT, name).into_iter().map(|error| error.detail).collect()
    },
    generates_no_suffix: true,
    validate,
    validate_update,
    metadata_on_update: &[MetadataCheck::New],
    table: &crate::tables::networking::IP_ADDRESS,
    ..Kind::new("networking.k8s.io", "v1", "IPAddress", "ipaddresses", Scope::Cluster)
};

pub static KIND_V1BETA1: Kind = renamed_version!(
    KIND,
    "networking.k8s.io",
    "v1",
    "v1beta1",
    Some("networking.k8s.io/v1beta1 IPAddress is deprecated in v1.34+, unavailable in v1.37+")
);

fn validate(address: &Value) -> ErrorList {
    let parent = address.at("spec.parentRef");
    let path = Path::new("spec");
    let path = path.child("parentRef");
    if parent.is_null() {
        return vec![FieldError::required(&path, "")];
    }
    let mut errors = Vec::new();
    if !parent.text("group").is_empty() {
        errors.extend(dns_subdomain(&path.child("group"), parent.text("group")));
    }
    for field in ["resource", "name", "namespace"] {
        let path = path.child(field);
        match parent.text(field) {
            "" if field == "namespace" => {}
            "" => errors.push(FieldError::required(&path, "")),
            name => errors.extend(invalid_each(&path, name, names::path_segment_name(name, false))),
        }
    }
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = validate(new);
    errors.extend(KIND.metadata_update_errors(new, old));
    let (parent, before) = (new.at("spec.parentRef"), old.at("spec.parentRef"));
    if parent != before && !(is_zero(parent) && is_zero(before)) {
        let path = Path::new("spec");
        // Messages show Go's field names, and all fields.
        let fields =
            [("Group", "group"), ("Resource", "resource"), ("Namespace", "namespace"), ("Name", "name")];
        let shown: Vec<String> =
            fields.iter().map(|(name, key)| format!("{name:?}:{}", json!(parent.text(key)))).collect();
        let shown = if parent.is_null() { "null".to_owned() } else { format!("{{{}}}", shown.join(",")) };
        errors.push(FieldError::invalid_shown(&path.child("parentRef"), shown, "field is immutable"));
    }
    errors
}
