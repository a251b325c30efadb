//! Validation shared by storage kinds: names of drivers, parameters of classes.

use super::checks::invalid_each;
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;

const PARAMETERS_MAX: usize = 512;
const PARAMETERS_SIZE_MAX: usize = 256 * 1024;
const DRIVER_NAME_MAX: usize = 63;

/// Provisioner of a class: a case-insensitive qualified name.
pub fn provisioner(provisioner: &str, path: &Path<'_>) -> ErrorList {
    if provisioner.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let lower = provisioner.to_lowercase();
    invalid_each(path, &lower, names::qualified_name(&lower))
}

/// Parameters of a class.
pub fn parameters(class: &Value, required: bool) -> ErrorList {
    let path = Path::new("parameters");
    let mut errors = Vec::new();
    let (mut count, mut size) = (0, 0);
    for (key, value) in class.entries("parameters").into_iter().flatten() {
        count += 1;
        if key.is_empty() {
            errors.push(FieldError::invalid_str(&path, key, "field can not be empty."));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if count > PARAMETERS_MAX {
        return vec![FieldError::too_long(&path, PARAMETERS_MAX)];
    }
    if size > PARAMETERS_SIZE_MAX {
        errors.push(FieldError::too_long(&path, PARAMETERS_SIZE_MAX));
    }
    if required && count == 0 {
        errors.push(FieldError::required(&path, "must contain at least one key/value pair"));
    }
    errors
}

/// Name of a CSI driver: a case-insensitive DNS subdomain.
pub fn driver_name(name: &str, path: &Path<'_>) -> ErrorList {
    if name.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let mut errors = Vec::new();
    if name.len() > DRIVER_NAME_MAX {
        errors.push(FieldError::too_long(path, DRIVER_NAME_MAX));
    }
    errors.extend(invalid_each(path, name, names::dns_subdomain(&name.to_lowercase(), false)));
    errors
}
