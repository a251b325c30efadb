//! Tests of matching volumes and claims.

use std::sync::Arc;

use objects::core::v1::{PersistentVolume, PersistentVolumeClaim};
use objects::storage::v1::StorageClass;
use serde_json::json;

use super::plan::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, annotation, best, check, claim_status, default_class, in_phase,
    is_meant_for, reserve, take, unbound,
};
use crate::shared::fixture::at;

fn volume(name: &str, size: &str) -> PersistentVolume {
    serde_json::from_value(json!({
        "metadata": { "name": name, "uid": format!("uid-{name}") },
        "spec": { "capacity": { "storage": size }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/" } },
        "status": { "phase": "Available" },
    })).expect("a volume")
}

fn claim(size: &str) -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": { "name": "c", "namespace": "ns", "uid": "uid-c" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } } },
    }))
    .expect("a claim")
}

fn chosen(claim: &PersistentVolumeClaim, volumes: Vec<PersistentVolume>, waits: bool) -> Option<String> {
    let volumes: Vec<_> = volumes.into_iter().map(Arc::new).collect();
    best(claim, &volumes, waits).and_then(|volume| volume.metadata.name.clone())
}

#[test]
fn smallest_matching_volume_is_chosen_unless_reserved() {
    let all = || vec![volume("small", "1Gi"), volume("large", "9Gi"), volume("fit", "5Gi")];
    assert_eq!(chosen(&claim("4Gi"), all(), false).as_deref(), Some("fit"));
    assert_eq!(chosen(&claim("10Gi"), all(), false), None);
    assert_eq!(chosen(&claim("4Gi"), all(), true), None);
    let mut meant = volume("meant", "20Gi");
    meant.spec.get_or_insert_default().claim_ref =
        serde_json::from_value(json!({ "namespace": "ns", "name": "c" })).expect("a reference");
    let mut volumes = all();
    volumes.push(meant.clone());
    assert_eq!(chosen(&claim("4Gi"), volumes.clone(), true).as_deref(), Some("meant"));
    // Reserved for an earlier claim of that name.
    if let Some(reference) = &mut meant.spec.get_or_insert_default().claim_ref {
        reference.uid = Some("other".into());
    }
    assert!(!is_meant_for(&meant, &claim("1Gi")));
    assert_eq!(chosen(&claim("10Gi"), vec![meant], false), None);
}

#[test]
fn volume_must_match_all_requirements() {
    let fits = |change: &dyn Fn(&mut PersistentVolume)| {
        let mut volume = volume("v", "5Gi");
        change(&mut volume);
        check(&volume, &claim("5Gi")).err()
    };
    assert_eq!(fits(&|_| {}), None);
    assert_eq!(
        fits(&|v| v.spec.get_or_insert_default().storage_class_name = Some("fast".into())),
        Some("storageClassName does not match")
    );
    assert_eq!(
        fits(&|v| v.spec.get_or_insert_default().volume_mode = Some("Block".into())),
        Some("incompatible volumeMode")
    );
    assert_eq!(
        fits(&|v| v.spec.get_or_insert_default().access_modes = Some(vec!["ReadOnlyMany".into()])),
        Some("incompatible accessMode")
    );
}

#[test]
fn binding_steps_are_idempotent() {
    let (volume, claim) = (volume("v", "5Gi"), claim("5Gi"));
    let reserved = reserve(&volume, &claim).expect("a reservation");
    assert!(annotation(&reserved.metadata, BOUND_BY_CONTROLLER).is_some());
    assert!(reserve(&reserved, &claim).is_none());
    let bound = in_phase(&reserved, "Bound", "", at(1)).expect("a phase");
    assert!(in_phase(&bound, "Bound", "", at(2)).is_none());
    let mut taken = take(&claim, &bound).expect("a volume");
    assert!(annotation(&taken.metadata, BIND_COMPLETED).is_some());
    assert!(take(&taken, &bound).is_none());
    taken.status = claim_status(&taken, "Bound", Some(&bound));
    let status = taken.status.clone().expect("a status");
    assert_eq!(status.capacity.map(|capacity| capacity["storage"].0.clone()).as_deref(), Some("5Gi"));
    assert!(claim_status(&taken, "Bound", Some(&bound)).is_none());
    let free = unbound(&bound);
    assert!(free.spec.is_some_and(|spec| spec.claim_ref.is_none()));
}

#[test]
fn youngest_default_class_wins() {
    let class = |name: &str, default: &str, created: &str| -> Arc<StorageClass> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {
                    "name": name, "creationTimestamp": created,
                    "annotations": { "storageclass.kubernetes.io/is-default-class": default },
                },
                "provisioner": "p",
            }))
            .expect("a class"),
        )
    };
    let classes = [
        class("old", "true", "2026-01-01T00:00:00Z"),
        class("new", "true", "2026-01-02T00:00:00Z"),
        class("no", "false", "2026-01-03T00:00:00Z"),
    ];
    assert_eq!(default_class(&classes).and_then(|class| class.metadata.name.as_deref()), Some("new"));
}
