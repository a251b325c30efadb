//! PersistentVolumeClaim.

use crate::pod_spec::claim_spec::validate_claim_spec;
use crate::pod_spec::{diff, layout};
use crate::validation::checks::{one_of, qualified_name};
use crate::validation::label_selector::validate_label_selector;
use crate::validation::persistent_volume::basic_quantity;
use crate::validation::resource_names::{quantities, quantity_of, quantity_value, round_up_to_milli};
use crate::validation::values::{same_structs, unchanged};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta};
use serde_json::json;

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    validate: |claim| validate(claim, None),
    validate_update,
    validate_status_update,
    warnings: |new, _| warnings(new),
    metadata_on_update: &[MetadataCheck::Update, MetadataCheck::New],
    table: &crate::tables::storage::PERSISTENT_VOLUME_CLAIM,
    returns_deleted: true,
    ..Kind::new("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", Scope::Namespaced)
};

fn default(claim: &mut Value) {
    let status = claim.child_mut("status");
    status.default_if_zero("phase", "Pending");
    round_up_to_milli(status, "capacity");
    round_up_to_milli(status, "allocatedResources");
    default_spec(claim.child_mut("spec"));
}

/// Also for claim templates (stateful sets, ephemeral volumes).
pub fn default_spec(spec: &mut Value) {
    spec.default_to("volumeMode", "Filesystem");
    if let Some(resources) = spec.field_mut("resources") {
        round_up_to_milli(resources, "limits");
        round_up_to_milli(resources, "requests");
    }
}

fn prepare_create(claim: &mut Value) {
    claim.set("status", json!({"phase": "Pending"}));
    prepare_spec(claim.child_mut("spec"), None);
}

fn prepare_update(new: &mut Value, old: &Value) {
    crate::kind::keep_status(new, old);
    prepare_spec(new.child_mut("spec"), Some(old.field("spec")));
}

/// Normalizes data sources on write, also in claim templates.
pub fn prepare_spec(spec: &mut Value, old: Option<&Value>) {
    let had = |field: &str| old.is_some_and(|old| old.has(field));
    if !spec.field("dataSourceRef").text("namespace").is_empty() && !had("dataSourceRef") {
        // Sources in other namespaces belong to a feature that is off by default.
        spec.unset("dataSourceRef");
    }
    // Sources other than claims and snapshots are only supported in `dataSourceRef`; in `dataSource` they are dropped
    // silently, as in all earlier versions.
    if !had("dataSource")
        && !had("dataSourceRef")
        && !spec.has("dataSourceRef")
        && !is_claim_or_snapshot(spec.field("dataSource"))
    {
        spec.unset("dataSource");
    }
    normalize_data_sources(spec);
}

fn is_claim_or_snapshot(source: &Value) -> bool {
    matches!(
        (source.text("kind"), source.text("apiGroup")),
        ("PersistentVolumeClaim", "") | ("VolumeSnapshot", "snapshot.storage.k8s.io")
    )
}

/// Sets the missing one of `dataSource` and `dataSourceRef`.
fn normalize_data_sources(spec: &mut Value) {
    let (from, to) = match (spec.has("dataSource"), spec.has("dataSourceRef")) {
        (true, false) => ("dataSource", "dataSourceRef"),
        (false, true) if spec.field("dataSourceRef").text("namespace").is_empty() => {
            ("dataSourceRef", "dataSource")
        }
        _ => return,
    };
    let source = spec.field(from);
    let mut copy = json!({"kind": source.text("kind"), "name": source.text("name")});
    if let Some(group) = source.opt_text("apiGroup") {
        copy.set("apiGroup", group);
    }
    spec.set(to, copy);
}

const STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

fn validate(claim: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = Vec::new();
    validate_claim_spec(claim.field("spec"), &Path::new("spec"), &mut errors);
    if let Some(old) = old.map(|old| old.field("spec")) {
        // Values accepted by older rules are tolerated.
        let bad_selector = !validate_label_selector(old.field("selector"), false, &Path::ROOT).is_empty();
        let has_group =
            ["dataSource", "dataSourceRef"].iter().any(|source| old.field(source).has("apiGroup"));
        errors.retain(|error| {
            let of_value = error.field.starts_with("spec.selector.") && error.field.contains(".values[");
            let of_group = error.field.ends_with(".apiGroup");
            !((bad_selector && of_value) || (has_group && of_group))
        });
    }
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = validate(new, Some(old));
    let bound = new.field("status").text("phase") == "Bound";
    let (spec, before) = (new.field("spec"), old.field("spec"));
    let mut after = spec.clone();
    let mut known = before.clone();
    normalize_data_sources(&mut known);
    if known.text("volumeName").is_empty() {
        copy(spec, &mut known, "volumeName");
    }
    errors.extend(adopt_storage_class(new, old, &mut after));
    if bound {
        if after.at("resources.requests").is_object() {
            let requests = after.child_mut("resources").child_mut("requests");
            copy(before.at("resources.requests"), requests, "storage");
        }
        copy(before, &mut after, "volumeAttributesClassName");
    }
    if !same_structs(&after, &known) {
        let lines = |spec: &Value| layout::internal_json_lines("PersistentVolumeClaimSpec", spec);
        let detail = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound \
             claims\n{}",
            diff::unified(&lines(&known), &lines(&after))
        );
        errors.push(FieldError::forbidden(&Path::new("spec"), detail));
    }
    errors.extend(shrunk(spec, old));
    errors.extend(unchanged(&Path::new("volumeMode"), spec.field("volumeMode"), before.field("volumeMode")));
    errors.extend(attributes_class_dropped(spec, old));
    errors
}

fn copy(from: &Value, to: &mut Value, field: &str) {
    match from.get(field) {
        Some(value) => to.set(field, value.clone()),
        None => {
            to.unset(field);
        }
    }
}

/// Allows setting a class that the claim has by annotation, or has not at all.
fn adopt_storage_class(new: &Value, old: &Value, after: &mut Value) -> Option<FieldError> {
    let class = new.field("spec").opt_text("storageClassName");
    let had_class = old.field("spec").has("storageClassName");
    let annotation = meta::annotation(old, STORAGE_CLASS);
    let new_annotation = meta::annotation(new, STORAGE_CLASS);
    let by_annotation = annotation.is_some()
        && !had_class
        && class == annotation
        && new_annotation.is_none_or(|new| Some(new) == annotation);
    if by_annotation {
        after.unset("storageClassName");
        return None;
    }
    if class.is_some() && !had_class && annotation.is_none_or(|old| class == Some(old)) {
        after.unset("storageClassName");
    }
    let (shown, before) = (new_annotation.unwrap_or(""), annotation.unwrap_or(""));
    if shown == before {
        return None;
    }
    let path = Path::new("metadata");
    let path = path.child("annotations");
    Some(FieldError::invalid_str(&path.child(STORAGE_CLASS), shown, "field is immutable"))
}

/// A claim's request may shrink after a failed expansion, but not below its capacity.
fn shrunk(spec: &Value, old: &Value) -> Option<FieldError> {
    let request =
        |spec: &Value| quantity_of(spec.field("resources"), "requests", "storage").unwrap_or_default();
    let wanted = request(spec);
    let has = quantity_of(old.field("status"), "capacity", "storage").unwrap_or_default();
    if wanted >= request(old.field("spec")) || wanted > has {
        return None;
    }
    let path = Path::new("spec");
    let path = path.child("resources");
    let path = path.child("requests");
    Some(FieldError::forbidden(&path.child("storage"), "field can not be less than status.capacity"))
}

fn attributes_class_dropped(spec: &Value, old: &Value) -> Option<FieldError> {
    const FIELD: &str = "volumeAttributesClassName";
    let changed = spec.field(FIELD) != old.field("spec").field(FIELD);
    if !changed || !old.field("status").has("currentVolumeAttributesClassName") {
        return None;
    }
    let what = match spec.opt_text(FIELD) {
        None => "nil",
        Some("") => "empty string",
        Some(_) => return None,
    };
    let path = Path::new("spec");
    let detail =
        format!("update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil");
    Some(FieldError::forbidden(&path.child(FIELD), detail))
}

fn validate_status_update(new: &Value, _: &Value) -> ErrorList {
    const RESIZE: &[&str] = &[
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let mut errors = Vec::new();
    if meta::resource_version(new).is_empty() {
        errors.push(FieldError::required(&Path::new("resourceVersion"), ""));
    }
    if new.field("spec").items("accessModes").is_empty() {
        // Kubernetes reports this field with a capital S.
        let path = Path::new("Spec");
        errors.push(FieldError::required(&path.child("accessModes"), ""));
    }
    let status = new.field("status");
    let path = Path::new("status");
    let capacity_path = path.child("capacity");
    for (name, amount) in quantities(status, "capacity") {
        errors.extend(basic_quantity(&capacity_path.key(name), amount.value()));
    }
    let statuses_path = path.child("allocatedResourceStatuses");
    for (name, state) in status.entries("allocatedResourceStatuses").into_iter().flatten() {
        errors.extend(resource_key(name, &statuses_path));
        if !state.as_str().is_some_and(|state| RESIZE.contains(&state)) {
            let mut supported = RESIZE.to_vec();
            supported.sort_unstable();
            errors.push(FieldError::not_supported(&statuses_path, &name.as_str().into(), &supported));
        }
    }
    let allocated_path = path.child("allocatedResources");
    for (name, amount) in quantities(status, "allocatedResources") {
        let problems = resource_key(name, &allocated_path);
        if !problems.is_empty() {
            errors.extend(problems);
            continue;
        }
        let path = allocated_path.key(name);
        match basic_quantity(&path, amount.value()) {
            Some(error) => errors.push(error),
            None => errors.extend(quantity_value(&path, "storage", &amount)),
        }
    }
    errors
}

/// Of the native resources of Kubernetes, claims support storage only.
fn resource_key(name: &str, path: &Path<'_>) -> ErrorList {
    let problems = qualified_name(path, name);
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    if problems.is_empty() && native { one_of(path, name, &["storage"]) } else { problems }
}

fn warnings(claim: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    if meta::annotation(claim, STORAGE_CLASS).is_some() {
        warnings.push(format!(
            r#"metadata.annotations[{STORAGE_CLASS}]: deprecated since v1.8; use "storageClassName" attribute instead"#
        ));
    }
    warnings.extend(spec_warnings(claim.field("spec"), "spec"));
    warnings
}

/// Also for claim templates; `path` is that of the spec.
pub fn spec_warnings(spec: &Value, path: &str) -> Vec<String> {
    let lists = ["requests", "limits"].into_iter();
    let fractions = lists.filter_map(|list| {
        let amount = quantity_of(spec.field("resources"), list, "storage")?;
        (amount.milli_value() % 1000 != 0).then(|| {
            format!(
                r#"{path}.resources.{list}[storage]: fractional byte value "{amount}" is invalid, must be an integer"#
            )
        })
    });
    fractions.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_sources_are_dropped_or_mirrored() {
        let claim = json!({"kind": "PersistentVolumeClaim", "name": "c"});
        let populator = json!({"apiGroup": "a.b", "kind": "P", "name": "p"});
        let cases = [
            (json!({"dataSource": claim}), None, json!({"dataSource": claim, "dataSourceRef": claim})),
            (json!({"dataSource": populator}), None, json!({})),
            (
                json!({"dataSourceRef": populator}),
                None,
                json!({"dataSource": populator, "dataSourceRef": populator}),
            ),
            (json!({"dataSourceRef": {"kind": "P", "name": "p", "namespace": "n"}}), None, json!({})),
            (
                json!({"dataSource": populator}),
                Some(json!({"dataSource": populator})),
                json!({"dataSource": populator, "dataSourceRef": populator}),
            ),
        ];
        for (mut spec, old, want) in cases {
            prepare_spec(&mut spec, old.as_ref());
            assert_eq!(spec, want);
        }
    }
}
