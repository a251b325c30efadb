//! Allowed changes while scheduling gates block a pod: node selection can be narrowed.

use super::update::restore;
use crate::pod_spec::layout;
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Validates changes of the node selector and node affinity, and removes the allowed ones from `munged`.
pub fn allow_narrowing(munged: &mut Value, old: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if munged.field("nodeSelector") != old.field("nodeSelector") {
        let selector = munged.field("nodeSelector");
        let old_labels = old.entries("nodeSelector").into_iter().flatten();
        if old_labels.into_iter().any(|(key, value)| selector.field(key) != value) {
            let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid(&path.child("nodeSelector"), selector, detail));
        }
        restore(munged, old, "nodeSelector");
    }
    let old_affinity = old.at("affinity.nodeAffinity");
    let new_affinity = munged.at("affinity.nodeAffinity");
    if new_affinity == old_affinity {
        return;
    }
    let affinity_path = path.child("affinity");
    validate_node_affinity(new_affinity, old_affinity, &affinity_path.child("nodeAffinity"), errors);
    match munged.field_mut("affinity") {
        None if old_affinity.is_null() => {}
        None => munged.child_mut("affinity").set("nodeAffinity", old_affinity.clone()),
        Some(affinity) => {
            let only_nodes = !affinity.has("podAffinity") && !affinity.has("podAntiAffinity");
            if only_nodes && !old.has("affinity") {
                munged.unset("affinity");
            } else {
                restore(affinity, old.field("affinity"), "nodeAffinity");
            }
        }
    }
}

fn validate_node_affinity(new: &Value, old: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    if !old.has(REQUIRED) {
        return;
    }
    let old_terms = old.field(REQUIRED).items("nodeSelectorTerms");
    let new_terms = new.field(REQUIRED).items("nodeSelectorTerms");
    let required = path.child(REQUIRED);
    let path = required.child("nodeSelectorTerms");
    if !old_terms.is_empty() && old_terms.len() != new_terms.len() {
        let shown: Vec<String> =
            new_terms.iter().map(|term| layout::internal_json("NodeSelectorTerm", term)).collect();
        let shown = if new_terms.is_empty() { "null".to_owned() } else { format!("[{}]", shown.join(",")) };
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(FieldError::invalid_shown(&path, shown, detail));
        return;
    }
    for (index, (old, new)) in old_terms.iter().zip(new_terms).enumerate() {
        if !only_adds(new, old) {
            let shown = layout::internal_json("NodeSelectorTerm", new);
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid_shown(&path.index(index), shown, detail));
        }
    }
}

/// An empty term selects nothing, so it must stay empty.
fn only_adds(new: &Value, old: &Value) -> bool {
    let lists = ["matchExpressions", "matchFields"];
    if lists.iter().all(|list| old.items(list).is_empty()) {
        return lists.iter().all(|list| new.items(list).is_empty());
    }
    lists.iter().all(|list| new.items(list).starts_with(old.items(list)))
}
