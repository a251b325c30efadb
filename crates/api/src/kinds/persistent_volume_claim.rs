//! PersistentVolumeClaim.

use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;
use serde_json::json;

pub static KIND: Kind = Kind {
    returns_deleted: true,
    default,
    prepare_create,
    prepare_update,
    ..Kind::new("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", Scope::Namespaced)
};

fn default(claim: &mut Value) {
    claim.child_mut("status").default_if_zero("phase", "Pending");
    default_spec(claim.child_mut("spec"));
}

/// Also of claim templates (stateful sets, ephemeral volumes).
pub fn default_spec(spec: &mut Value) {
    spec.default_to("volumeMode", "Filesystem");
}

fn prepare_create(claim: &mut Value) {
    claim.set("status", json!({"phase": "Pending"}));
    prepare_spec(claim.child_mut("spec"), None);
}

fn prepare_update(new: &mut Value, old: &Value) {
    crate::kind::keep_status(new, old);
    prepare_spec(new.child_mut("spec"), Some(old.field("spec")));
}

/// What a write may say about data sources; also of claim templates.
pub fn prepare_spec(spec: &mut Value, old: Option<&Value>) {
    let had = |field: &str| old.is_some_and(|old| old.has(field));
    if !spec.field("dataSourceRef").text("namespace").is_empty() && !had("dataSourceRef") {
        // Sources in other namespaces are behind a feature that is off by default.
        spec.unset("dataSourceRef");
    }
    // Sources other than claims and snapshots can only be given by `dataSourceRef`; in `dataSource` they are
    // dropped silently, as they always were.
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

/// Fills in the one of `dataSource` and `dataSourceRef` that is missing.
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
