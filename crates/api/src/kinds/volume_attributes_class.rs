//! VolumeAttributesClass.

use crate::kind::renamed_version;
use crate::validation::storage::{parameters, provisioner};
use crate::validation::values::same;
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

pub static KIND: Kind = Kind {
    validate,
    validate_update,
    table: &crate::tables::storage::VOLUME_ATTRIBUTES_CLASS,
    returns_deleted: true,
    ..Kind::new("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses", Scope::Cluster)
};

pub static KIND_V1BETA1: Kind = renamed_version!(
    KIND,
    "storage.k8s.io",
    "v1",
    "v1beta1",
    Some(
        "storage.k8s.io/v1beta1 VolumeAttributesClass is deprecated in v1.34+, unavailable in v1.37+; use storage.k8s.io/v1 VolumeAttributesClass"
    )
);

fn validate(class: &Value) -> ErrorList {
    let mut errors = provisioner(class.text("driverName"), &Path::new("driverName"));
    errors.extend(parameters(class, true));
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors: ErrorList = ["driverName", "parameters"]
        .into_iter()
        .filter(|field| !same(new.field(field), old.field(field)))
        .map(|field| FieldError::forbidden(&Path::new(field), format!("updates to {field} are forbidden.")))
        .collect();
    errors.extend(KIND.metadata_errors(new));
    errors.extend(validate(new));
    errors
}
