//! Metadata set and validated by the registry itself.

use super::{Served, WriteContext};
use crate::chain::offload;
use base::clock::Clock;
use machinery::codec::{budget, time};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::status::{Result, Status};
use machinery::{Map, Value, meta, names};
use rand::Rng;
use std::collections::HashSet;

/// Alphanumeric characters without vowels and look-alikes.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
/// Longest base of a generateName, so that the result stays a DNS label.
const MAX_GENERATED_BASE: usize = 63 - SUFFIX_LENGTH;

/// Current time in the format of objects.
pub fn now() -> String {
    time::format(time::Instant { seconds: Clock::system().now().as_second(), nanos: 0 }, false)
}

/// Removes system fields, which clients cannot set on create.
pub fn wipe_system_fields(object: &mut Value) {
    let metadata = meta::metadata_mut(object);
    for field in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "uid", "selfLink"] {
        metadata.remove(field);
    }
}

pub fn fill_system_fields(object: &mut Value) {
    let metadata = meta::metadata_mut(object);
    metadata.insert("creationTimestamp".to_owned(), now().into());
    metadata.insert(
        "uid".to_owned(),
        uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string().into(),
    );
}

/// A name from `generateName`.
pub fn generate_name(base: &str) -> String {
    let mut end = base.len().min(MAX_GENERATED_BASE);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let mut random = rand::rng();
    let mut name = base[..end].to_owned();
    name.extend(
        (0..SUFFIX_LENGTH).map(|_| SUFFIX_ALPHABET[random.random_range(0..SUFFIX_ALPHABET.len())] as char),
    );
    name
}

/// Sets the request's namespace in the object, or rejects a different one.
pub fn ensure_namespace(object: &mut Value, served: &Served, namespace: &str) -> Result<()> {
    let expected = if served.namespaced() { namespace } else { "" };
    let metadata = meta::metadata_mut(object);
    let submitted = metadata.get("namespace").and_then(Value::as_str).unwrap_or("");
    if submitted == expected {
        return Ok(());
    }
    // A namespace on a cluster-scoped object is dropped without an error.
    if submitted.is_empty() || expected.is_empty() {
        if expected.is_empty() {
            metadata.remove("namespace");
        } else {
            metadata.insert("namespace".to_owned(), expected.into());
        }
        return Ok(());
    }
    Err(Status::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    ))
}

/// Removes duplicate owner references with a warning.
pub fn dedup_owner_references(object: &mut Value, context: &WriteContext<'_>) {
    let Some(owners) = meta::metadata_mut(object).get_mut("ownerReferences").and_then(Value::as_array_mut)
    else {
        return;
    };
    if owners.len() < 2 {
        return;
    }
    let mut retained: Vec<Value> = Vec::with_capacity(owners.len());
    let mut seen = HashSet::with_capacity(owners.len());
    for owner in owners.drain(..) {
        if !seen.insert(owner.to_string()) {
            let uid = owner.get("uid").and_then(Value::as_str).unwrap_or("");
            context.record.warn(format!(
                ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {uid}"
            ));
        } else {
            retained.push(owner);
        }
    }
    *owners = retained;
}

/// Validates a new object: metadata first, then the kind's rules.
pub fn validate_new(object: &Value, served: &Served) -> ErrorList {
    let path = Path::new("metadata");
    let namespaced = served.namespaced();
    let rules = served.governing();
    if rules.metadata_last() {
        let mut errors = rules.validate(object);
        if errors.is_empty() {
            let metadata = &object["metadata"];
            errors =
                names::validate_generic_object_meta(metadata, namespaced, names::path_segment_name, &path);
        }
        return errors;
    }
    let mut errors = rules.metadata_errors(object);
    errors.extend(rules.validate(object));
    if errors.is_empty() {
        errors = names_outside_paths(object, &path);
    }
    errors
}

/// Checks that names are valid path segments, in addition to the kind's rules for names.
fn names_outside_paths(object: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = ErrorList::new();
    for (field, prefix) in [("generateName", true), ("name", false)] {
        let name = object["metadata"][field].as_str().unwrap_or("");
        if !name.is_empty() {
            let problems = names::path_segment_name(name, prefix).into_iter();
            errors.extend(problems.map(|problem| FieldError::invalid_str(&path.child(field), name, problem)));
        }
    }
    errors
}

/// Returns 422 if there are errors.
pub fn refuse(served: &Served, name: &str, mut errors: ErrorList, context: &WriteContext<'_>) -> Result<()> {
    if errors.is_empty() {
        return Ok(());
    }
    context.record.input.restore_emptied(&mut errors);
    // The error names the stored kind: both groups of events report the same one.
    let kind = &served.storage.kind;
    Err(Status::invalid(kind.group(), kind.kind(), name, &errors))
}

/// Size limit of an object, as JSON. The store of Kubernetes accepts 1.5 MiB in a shorter form.
const MAX_OBJECT_BYTES: usize = 2 << 20;

/// Rejects an object that is too large to be stored before further processing. Only requests with large bodies or
/// changes can have one.
pub fn check_size(object: &Value) -> Result<()> {
    if offload::is_heavy_now() && budget::text_length(object) > MAX_OBJECT_BYTES {
        let why = format!("Request entity too large: limit of an object is {MAX_OBJECT_BYTES}");
        return Err(Status::too_large(why));
    }
    Ok(())
}

/// Restores fields that an update cannot change.
pub fn keep_system_fields(new: &mut Value, old: &Value) {
    let empty = Map::new();
    let old = meta::metadata(old).unwrap_or(&empty);
    let metadata = meta::metadata_mut(new);
    if metadata.get("uid").and_then(Value::as_str).unwrap_or("").is_empty() {
        copy(metadata, old, "uid");
    }
    if old.contains_key("creationTimestamp") {
        copy(metadata, old, "creationTimestamp");
    }
    if old.contains_key("deletionTimestamp") {
        copy(metadata, old, "deletionTimestamp");
    }
    if old.contains_key("deletionGracePeriodSeconds") && !metadata.contains_key("deletionGracePeriodSeconds")
    {
        copy(metadata, old, "deletionGracePeriodSeconds");
    }
}

/// Copies one metadata field from the old object, or removes it.
pub fn copy(metadata: &mut Map<String, Value>, old: &Map<String, Value>, field: &str) {
    match old.get(field) {
        Some(value) => metadata.insert(field.to_owned(), value.clone()),
        None => metadata.remove(field),
    };
}

/// Restores the generation, which clients cannot set.
pub fn keep_generation(new: &mut Value, old: &Value) {
    let empty = Map::new();
    copy(meta::metadata_mut(new), meta::metadata(old).unwrap_or(&empty), "generation");
}

/// Increments the generation if the spec has changed.
pub fn count_generation(new: &mut Value, old: &Value) {
    if spec_differs(new, old) {
        let generation = meta::generation(old) + 1;
        meta::metadata_mut(new).insert("generation".to_owned(), generation.into());
    }
}

/// Reports whether anything besides metadata and status differs.
fn spec_differs(new: &Value, old: &Value) -> bool {
    const UNCOUNTED: [&str; 4] = ["metadata", "status", "apiVersion", "kind"];
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return new != old };
    let counted = |(key, _): &(&String, &Value)| !UNCOUNTED.contains(&key.as_str());
    !new.iter().filter(counted).eq(old.iter().filter(counted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_must_be_valid_path_segments() {
        let path = Path::new("metadata");
        for (metadata, errors) in [
            (serde_json::json!({"name": "a:b.C"}), 0),
            (serde_json::json!({"name": "a/b"}), 1),
            (serde_json::json!({"name": ".."}), 1),
            (serde_json::json!({"name": "a", "generateName": "/"}), 1),
        ] {
            let object = serde_json::json!({"metadata": metadata});
            assert_eq!(names_outside_paths(&object, &path).len(), errors, "{object}");
        }
    }

    #[test]
    fn generated_names_stay_within_a_label() {
        let name = generate_name(&"a".repeat(200));
        assert_eq!(name.len(), 63);
        assert_ne!(generate_name("x-"), generate_name("x-"));
    }

    #[test]
    fn generation_counts_spec_only() {
        let old = json!({"metadata": {"generation": 3}, "spec": {"a": 1}, "status": {"s": 1}});
        let mut new =
            json!({"metadata": {"generation": 9, "labels": {}}, "spec": {"a": 1}, "status": {"s": 2}});
        keep_generation(&mut new, &old);
        count_generation(&mut new, &old);
        assert_eq!(new["metadata"]["generation"], 3);
        new["spec"]["a"] = json!(2);
        count_generation(&mut new, &old);
        assert_eq!(new["metadata"]["generation"], 4);
    }
}
