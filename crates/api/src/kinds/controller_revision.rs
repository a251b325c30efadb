//! ControllerRevision.

use crate::pod_spec::checks::{IMMUTABLE, non_negative};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

pub static KIND: Kind = Kind {
    validate,
    validate_update,
    metadata_on_update: &[MetadataCheck::Update, MetadataCheck::New],
    table: &crate::tables::workloads::CONTROLLER_REVISION,
    ..Kind::new("apps", "v1", "ControllerRevision", "controllerrevisions", Scope::Namespaced)
};

fn validate(revision: &Value) -> ErrorList {
    let mut errors = Vec::new();
    non_negative(revision.int("revision"), &Path::new("revision"), &mut errors);
    let problem = match revision.field("data") {
        Value::Null => "data is mandatory",
        Value::Object(_) => return errors,
        _ => "data must be a valid JSON object",
    };
    errors.push(FieldError::required(&Path::new("data"), problem));
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = Vec::new();
    non_negative(new.int("revision"), &Path::new("revision"), &mut errors);
    if new.field("data") != old.field("data") {
        errors.push(FieldError::invalid(&Path::new("data"), new.field("data"), IMMUTABLE));
    }
    errors
}
