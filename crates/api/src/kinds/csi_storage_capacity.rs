//! CSIStorageCapacity.

use crate::validation::checks::dns_subdomain;
use crate::validation::label_selector::validate_label_selector;
use crate::validation::node_labels::selector_warnings;
use crate::validation::values::{IMMUTABLE, same_structs};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::quantity::Quantity;

pub static KIND: Kind = Kind {
    validate: |capacity| validate(capacity, false),
    validate_update,
    warnings: |new, _| selector_warnings(new.field("nodeTopology"), &Path::new("nodeTopology")),
    unconditional_update: false,
    metadata_on_update: &[MetadataCheck::New],
    ..Kind::new("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", Scope::Namespaced)
};

fn validate(capacity: &Value, allow_invalid_values: bool) -> ErrorList {
    let path = Path::new("nodeTopology");
    let mut errors = validate_label_selector(capacity.field("nodeTopology"), allow_invalid_values, &path);
    errors.extend(dns_subdomain(&Path::new("storageClassName"), capacity.text("storageClassName")));
    if let Some(text) = capacity.opt_text("capacity")
        && Quantity::parse(text).is_ok_and(|quantity| quantity.sign() < 0)
    {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid_str(&Path::new("capacity"), text, detail));
    }
    errors
}

/// Topology and storage class are immutable; capacity and maximum volume size may change.
fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let old_topology = old.field("nodeTopology");
    let was_invalid = !validate_label_selector(old_topology, false, &Path::ROOT).is_empty();
    let mut errors = validate(new, was_invalid);
    errors.extend(KIND.metadata_update_errors(new, old));
    for field in ["nodeTopology", "storageClassName"] {
        if !same_structs(new.field(field), old.field(field)) {
            errors.push(FieldError::invalid(&Path::new(field), new.field(field), IMMUTABLE));
        }
    }
    errors
}
