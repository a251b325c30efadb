//! CSINode: the drivers on a node.

use crate::validation::checks::{non_negative, qualified_name};
use crate::validation::storage::driver_name;
use crate::validation::values::{IMMUTABLE, same, strings};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use std::collections::BTreeSet;

pub static KIND: Kind = Kind {
    validate,
    validate_update,
    unconditional_update: false,
    metadata_on_update: &[MetadataCheck::New],
    table: &crate::tables::storage::CSI_NODE,
    returns_deleted: true,
    ..Kind::new("storage.k8s.io", "v1", "CSINode", "csinodes", Scope::Cluster)
};

const NODE_ID_MAX: usize = 256;

fn validate(node: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let drivers_path = path.child("drivers");
    let mut seen = BTreeSet::new();
    for (index, driver) in node.field("spec").items("drivers").iter().enumerate() {
        let path = drivers_path.index(index);
        let name = driver.text("name");
        errors.extend(driver_name(name, &path.child("name")));
        let (node_id, node_id_path) = (driver.text("nodeID"), path.child("nodeID"));
        if node_id.is_empty() {
            errors.push(FieldError::required(&node_id_path, ""));
        }
        if node_id.len() > NODE_ID_MAX {
            let detail = format!("must be {NODE_ID_MAX} characters or less");
            errors.push(FieldError::invalid_str(&node_id_path, node_id, detail));
        }
        if let Some(count) = driver.field("allocatable").opt_int("count") {
            let path = path.child("allocatable");
            errors.extend(non_negative(&path.child("count"), count));
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), &name.into()));
        }
        errors.extend(topology_keys(driver, &path));
    }
    errors
}

fn topology_keys(driver: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for key in strings(driver.items("topologyKeys")) {
        if key.is_empty() {
            errors.push(FieldError::required(path, ""));
        }
        if !seen.insert(key) {
            errors.push(FieldError::duplicate(path, &key.into()));
        }
        errors.extend(qualified_name(path, key));
    }
    errors
}

/// Only the limits of an existing driver may change.
fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = validate(new);
    let path = Path::new("spec");
    let new_drivers = new.field("spec").items("drivers");
    for old_driver in old.field("spec").items("drivers") {
        for driver in new_drivers.iter().filter(|driver| driver.text("name") == old_driver.text("name")) {
            let fixed = ["nodeID", "topologyKeys"];
            if !fixed.iter().all(|field| same(driver.field(field), old_driver.field(field))) {
                errors.push(FieldError::invalid_shown(&path.child("drivers"), shown(driver), IMMUTABLE));
            }
        }
    }
    errors
}

fn shown(driver: &Value) -> String {
    let [name, node_id] = ["name", "nodeID"].map(|field| Value::from(driver.text(field)));
    let keys = driver.field("topologyKeys");
    format!(r#"{{"Name":{name},"NodeID":{node_id},"TopologyKeys":{keys},"Allocatable":null}}"#)
}
