//! Matching of volumes and claims, and their new states. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use machinery::quantity::Quantity;
use objects::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus,
};
use objects::meta::v1::{ObjectMeta, Time};
use objects::storage::v1::StorageClass;

use crate::shared::selector;

pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

#[must_use]
pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

#[must_use]
pub fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

/// Storage class of a claim; empty for none.
#[must_use]
pub fn claim_class(claim: &PersistentVolumeClaim) -> String {
    let spec = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
    annotation(&claim.metadata, CLASS).map(str::to_owned).or(spec).unwrap_or_default()
}

fn volume_class(volume: &PersistentVolume) -> String {
    let spec = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
    annotation(&volume.metadata, CLASS).map(str::to_owned).or(spec).unwrap_or_default()
}

fn size(volume: &PersistentVolume) -> Quantity {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get("storage"));
    capacity.and_then(|text| Quantity::parse(&text.0).ok()).unwrap_or(Quantity::new(0))
}

fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let spec = claim.spec.as_ref();
    let storage = spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
    storage.and_then(|text| Quantity::parse(&text.0).ok()).unwrap_or(Quantity::new(0))
}

/// True if the volume is reserved for this claim, and not for another one of that name.
#[must_use]
pub fn is_meant_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else { return false };
    let uid = reference.uid.as_ref().filter(|uid| !uid.is_empty());
    reference.name == claim.metadata.name
        && reference.namespace == claim.metadata.namespace
        && uid.is_none_or(|uid| Some(uid) == claim.metadata.uid.as_ref())
}

/// Reason why a volume does not match a claim.
pub fn check(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<(), &'static str> {
    if volume.metadata.deletion_timestamp.is_some() {
        return Err("the volume is marked for deletion");
    }
    if size(volume) < requested(claim) {
        return Err("requested PV is too small");
    }
    if volume_class(volume) != claim_class(claim) {
        return Err("storageClassName does not match");
    }
    let (volume_spec, claim_spec) = (volume.spec.as_ref(), claim.spec.as_ref());
    let attributes = |name: Option<&String>| name.cloned().unwrap_or_default();
    if attributes(volume_spec.and_then(|spec| spec.volume_attributes_class_name.as_ref()))
        != attributes(claim_spec.and_then(|spec| spec.volume_attributes_class_name.as_ref()))
    {
        return Err("volumeAttributesClassName does not match");
    }
    if !modes_match(volume, claim) {
        return Err("incompatible volumeMode");
    }
    let offered = volume_spec.and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    let wanted = claim_spec.and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    if wanted.iter().any(|mode| !offered.contains(mode)) {
        return Err("incompatible accessMode");
    }
    Ok(())
}

#[must_use]
pub fn modes_match(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let mode = |mode: Option<&String>| mode.map_or("Filesystem", String::as_str).to_owned();
    mode(volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref()))
        == mode(claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_ref()))
}

/// Volume for a claim: one reserved for it, else the smallest matching free one. A claim that waits for its first
/// consumer only takes a reserved one; the scheduler chooses otherwise.
#[must_use]
pub fn best<'a>(
    claim: &PersistentVolumeClaim,
    volumes: &'a [Arc<PersistentVolume>],
    waits: bool,
) -> Option<&'a Arc<PersistentVolume>> {
    if let Some(meant) =
        volumes.iter().find(|volume| is_meant_for(volume, claim) && check(volume, claim).is_ok())
    {
        return Some(meant);
    }
    if waits {
        return None;
    }
    let wanted = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let free = volumes.iter().filter(|volume| {
        let taken = volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_some());
        let available =
            volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available");
        let selected = wanted.is_none_or(|wanted| selector::matches(wanted, volume.metadata.labels.as_ref()));
        !taken && available && selected && check(volume, claim).is_ok()
    });
    free.min_by_key(|volume| (size(volume), name(&volume.metadata).to_owned()))
}

/// Default class: the youngest of those marked, then by name.
#[must_use]
pub fn default_class(classes: &[Arc<StorageClass>]) -> Option<&Arc<StorageClass>> {
    let marked = classes.iter().filter(|class| annotation(&class.metadata, DEFAULT_CLASS) == Some("true"));
    marked.min_by_key(|class| {
        (std::cmp::Reverse(class.metadata.creation_timestamp.clone()), name(&class.metadata).to_owned())
    })
}

/// The volume with its reference to the claim; `None` if up to date.
#[must_use]
pub fn reserve(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<PersistentVolume> {
    let mut reserved = volume.clone();
    let known = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    if known.is_some_and(|known| known.uid.is_some() && known.uid == claim.metadata.uid) {
        return None;
    }
    if !is_meant_for(volume, claim) {
        annotate(&mut reserved.metadata, BOUND_BY_CONTROLLER);
    }
    reserved.spec.get_or_insert_default().claim_ref = Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        field_path: None,
    });
    Some(reserved)
}

/// The claim with its volume; `None` if up to date.
#[must_use]
pub fn take(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<PersistentVolumeClaim> {
    let mut taken = claim.clone();
    let known = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    if known != name(&volume.metadata) {
        taken.spec.get_or_insert_default().volume_name.clone_from(&volume.metadata.name);
        annotate(&mut taken.metadata, BOUND_BY_CONTROLLER);
    }
    annotate(&mut taken.metadata, BIND_COMPLETED);
    (taken != *claim).then_some(taken)
}

fn annotate(meta: &mut ObjectMeta, key: &str) {
    meta.annotations.get_or_insert_default().insert(key.to_owned(), "yes".to_owned());
}

/// Status of a claim: bound to a volume, or in another phase.
#[must_use]
pub fn claim_status(
    claim: &PersistentVolumeClaim,
    phase: &str,
    volume: Option<&PersistentVolume>,
) -> Option<PersistentVolumeClaimStatus> {
    let before = claim.status.clone().unwrap_or_default();
    let mut status = PersistentVolumeClaimStatus { phase: Some(phase.to_owned()), ..before.clone() };
    match volume.and_then(|volume| volume.spec.as_ref()) {
        None => {
            status.access_modes = None;
            status.capacity = None;
        }
        Some(spec) => {
            status.access_modes.clone_from(&spec.access_modes);
            // A bound claim keeps the capacity that resizing has set.
            if before.phase.as_deref() != Some(phase) || before.capacity.is_none() {
                status.capacity.clone_from(&spec.capacity);
                status.current_volume_attributes_class_name =
                    spec.volume_attributes_class_name.clone().filter(|name| !name.is_empty());
            }
        }
    }
    (status != before).then_some(status)
}

/// The volume in another phase; `None` if up to date.
#[must_use]
pub fn in_phase(
    volume: &PersistentVolume,
    phase: &str,
    message: &str,
    now: Timestamp,
) -> Option<PersistentVolume> {
    let before = volume.status.clone().unwrap_or_default();
    let mut changed = volume.clone();
    let status = changed.status.get_or_insert_default();
    if before.phase.as_deref() != Some(phase) {
        status.phase = Some(phase.to_owned());
        status.last_phase_transition_time = Some(Time(now));
    }
    status.message = Some(message.to_owned()).filter(|message| !message.is_empty());
    (*status != before).then_some(changed)
}

/// The volume unbound: of a user's own reference, only the added fields are removed.
#[must_use]
pub fn unbound(volume: &PersistentVolume) -> PersistentVolume {
    let mut free = volume.clone();
    let ours = annotation(&volume.metadata, BOUND_BY_CONTROLLER).is_some();
    if let Some(annotations) = &mut free.metadata.annotations {
        annotations.remove(BOUND_BY_CONTROLLER);
    }
    let spec = free.spec.get_or_insert_default();
    if ours {
        spec.claim_ref = None;
    } else if let Some(reference) = &mut spec.claim_ref {
        reference.uid = None;
    }
    free
}
