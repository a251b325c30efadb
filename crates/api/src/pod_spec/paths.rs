//! File paths inside volumes and containers.

use machinery::field::{ErrorList, FieldError, Path};

/// A path without `..` segments.
pub fn no_backsteps(text: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if has_backsteps(text) {
        errors.push(FieldError::invalid_str(path, text, "must not contain '..'"));
    }
}

pub fn has_backsteps(text: &str) -> bool {
    text.split('/').any(|part| part == "..")
}

/// A relative path without `..` segments.
pub fn local_descending(text: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if text.starts_with('/') {
        errors.push(FieldError::invalid_str(path, text, "must be a relative path"));
    }
    no_backsteps(text, path, errors);
}

/// Same as above, and it may not start with two dots: such names are reserved for the kubelet.
pub fn local_non_reserved(text: &str, path: &Path<'_>, errors: &mut ErrorList) {
    local_descending(text, path, errors);
    if text.starts_with("..") && !text.starts_with("../") {
        errors.push(FieldError::invalid_str(path, text, "must not start with '..'"));
    }
}
