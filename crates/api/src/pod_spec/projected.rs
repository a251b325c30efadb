//! Projected and downward API volumes.

use super::options::Options;
use super::volume_sources::{validate_key_to_path, validate_mode};
use super::{env, paths};
use crate::pod_spec::checks::required_text;
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};
use std::collections::HashSet;

pub fn validate_downward_api(source: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    validate_mode(source, "defaultMode", path, errors);
    for file in source.items("items") {
        validate_downward_file(file, path, errors);
    }
}

/// Error paths are those of the volume, not of the file.
fn validate_downward_file(file: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(file, "path", path, errors);
    paths::local_non_reserved(file.text("path"), &path.child("path"), errors);
    let (field, resource) = (file.field("fieldRef"), file.field("resourceFieldRef"));
    if !field.is_null() {
        env::validate_field_ref(field, &env::VOLUME_FIELDS, &path.child("fieldRef"), errors);
        if !resource.is_null() {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(FieldError::invalid_str(path, "resource", detail));
        }
    } else if !resource.is_null() {
        env::validate_resource_field_ref(resource, true, &path.child("resourceFieldRef"), errors);
    } else {
        errors.push(FieldError::required(path, "one of fieldRef and resourceFieldRef is required"));
    }
    validate_mode(file, "mode", path, errors);
}

pub fn validate_projected(source: &Value, options: &Options, path: &Path<'_>, errors: &mut ErrorList) {
    validate_mode(source, "defaultMode", path, errors);
    let sources_path = path.child("sources");
    let mut paths = Paths { seen: HashSet::new(), path };
    for (index, projection) in source.items("sources").iter().enumerate() {
        let item = sources_path.index(index);
        let mut found = 0;
        for (name, source) in projection.as_object().into_iter().flatten() {
            if !source.is_null() && SOURCES.contains(&name.as_str()) {
                found += 1;
            }
        }
        for name in SOURCES {
            let source = projection.field(name);
            if source.is_null() {
                continue;
            }
            let item = item.child(name);
            match name {
                "secret" | "configMap" => validate_keys(source, &mut paths, &item, errors),
                "downwardAPI" => {
                    for file in source.items("items") {
                        validate_downward_file(file, &item, errors);
                        paths.take(file.text("path"), file.text("path"), errors);
                    }
                }
                "serviceAccountToken" => validate_token(source, options, path, &item, errors),
                "clusterTrustBundle" => validate_trust_bundle(source, &mut paths, &item, errors),
                _ => validate_pod_certificate(source, &mut paths, &item, errors),
            }
        }
        if found > 1 {
            errors.push(FieldError::forbidden(&item, "may not specify more than 1 volume type per source"));
        }
    }
}

const SOURCES: [&str; 6] =
    ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];

/// File paths used by sources so far.
struct Paths<'a> {
    seen: HashSet<String>,
    path: &'a Path<'a>,
}

impl Paths<'_> {
    fn take(&mut self, file: &str, shown: &str, errors: &mut ErrorList) {
        if !file.is_empty() && !self.seen.insert(file.to_owned()) {
            errors.push(FieldError::invalid_str(self.path, shown, "conflicting duplicate paths"));
        }
    }
}

fn validate_keys(source: &Value, paths: &mut Paths<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    required_text(source, "name", path, errors);
    let items = path.child("items");
    for (index, item) in source.items("items").iter().enumerate() {
        validate_key_to_path(item, &items.index(index), errors);
        paths.take(item.text("path"), source.text("name"), errors);
    }
}

fn validate_token(
    token: &Value,
    options: &Options,
    volume_path: &Path<'_>,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let seconds = token.int("expirationSeconds");
    let mut reject = |detail: &str| {
        errors.push(FieldError::invalid(&path.child("expirationSeconds"), &Value::from(seconds), detail));
    };
    if seconds < 600 {
        reject("may not specify a duration less than 10 minutes");
    }
    if seconds > 1 << 32 {
        reject("may not specify a duration larger than 2^32 seconds");
    }
    let file = token.text("path");
    if file.is_empty() {
        errors.push(FieldError::required(&volume_path.child("path"), ""));
    } else if !options.non_local_token_path {
        paths::local_non_reserved(file, &volume_path.child("path"), errors);
    }
}

/// With the feature disabled, only objects that already had a trust bundle have one.
fn validate_trust_bundle(bundle: &Value, paths: &mut Paths<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    match (bundle.has("name"), bundle.has("signerName")) {
        (true, true) => {
            let shown = super::layout::internal_json("ClusterTrustBundleProjection", bundle);
            let detail = "only one of name and signerName may be used";
            errors.push(FieldError::invalid_shown(path, shown, detail));
        }
        (false, false) => {
            errors.push(FieldError::required(path, "either name or signerName must be specified"));
        }
        (true, false) => {
            if bundle.text("name").is_empty() {
                errors.push(FieldError::required(&path.child("name"), "must be a valid object name"));
            }
        }
        (false, true) => {
            if bundle.has("labelSelector") {
                let path = path.child("labelSelector");
                errors.extend(names::validate_label_selector(bundle.field("labelSelector"), false, &path));
            }
        }
    }
    required_text(bundle, "path", path, errors);
    paths::local_non_reserved(bundle.text("path"), &path.child("path"), errors);
    paths.take(bundle.text("path"), bundle.text("path"), errors);
}

/// With the feature disabled, only objects that already had a pod certificate have one.
fn validate_pod_certificate(source: &Value, paths: &mut Paths<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let mut found = false;
    for name in ["credentialBundlePath", "keyPath", "certificateChainPath"] {
        let file = source.text(name);
        if file.is_empty() {
            continue;
        }
        found = true;
        paths::local_non_reserved(file, &path.child(name), errors);
        paths.take(file, file, errors);
    }
    if !found {
        let detail = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.push(FieldError::required(path, detail));
    }
}
