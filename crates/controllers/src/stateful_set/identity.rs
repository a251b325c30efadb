//! Names, storage and claims of the pods of a stateful set. Pure.

use std::collections::BTreeMap;

use objects::apps::v1::StatefulSet;
use objects::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume};
use objects::meta::v1::{ObjectMeta, OwnerReference};

pub const POD_NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
pub const POD_INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";
pub const REVISION_LABEL: &str = "controller-revision-hash";

/// Set name and ordinal in a pod's name, `web-3`.
#[must_use]
pub fn parent_and_ordinal(pod: &Pod) -> Option<(&str, i32)> {
    let (parent, ordinal) = pod.metadata.name.as_deref()?.rsplit_once('-')?;
    let digits = !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit());
    Some((parent, digits.then(|| ordinal.parse().ok())??))
}

#[must_use]
pub fn ordinal(pod: &Pod) -> Option<i32> {
    parent_and_ordinal(pod).map(|(_, ordinal)| ordinal)
}

#[must_use]
pub fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

/// First ordinal and number of replicas.
#[must_use]
pub fn range(set: &StatefulSet) -> (i32, i32) {
    let spec = set.spec.as_ref();
    let start = spec.and_then(|spec| spec.ordinals.as_ref()?.start).unwrap_or(0).max(0);
    (start, spec.and_then(|spec| spec.replicas).unwrap_or(1).max(0))
}

#[must_use]
pub fn in_range(set: &StatefulSet, pod: &Pod) -> bool {
    let (start, replicas) = range(set);
    ordinal(pod).is_some_and(|ordinal| ordinal >= start && ordinal - start < replicas)
}

fn templates(set: &StatefulSet) -> &[PersistentVolumeClaim] {
    set.spec.as_ref().and_then(|spec| spec.volume_claim_templates.as_deref()).unwrap_or_default()
}

fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> String {
    format!("{}-{}-{ordinal}", name(&template.metadata), name(&set.metadata))
}

/// Claims of the pod with this ordinal, by the name of their volume.
#[must_use]
pub fn claims(set: &StatefulSet, ordinal: i32) -> Vec<(String, PersistentVolumeClaim)> {
    let selector = set.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone()).unwrap_or_default();
    let make = |template: &PersistentVolumeClaim| {
        let mut claim = template.clone();
        claim.status = None;
        claim.metadata.name = Some(claim_name(set, template, ordinal));
        claim.metadata.namespace.clone_from(&set.metadata.namespace);
        claim.metadata.labels.get_or_insert_default().extend(selector.clone());
        (name(&template.metadata).to_owned(), claim)
    };
    templates(set).iter().map(make).collect()
}

/// True if the pod has its name and identity labels.
#[must_use]
pub fn identity_matches(set: &StatefulSet, pod: &Pod) -> bool {
    let named = parent_and_ordinal(pod).is_some_and(|(parent, _)| parent == name(&set.metadata));
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(POD_NAME_LABEL));
    named && label == pod.metadata.name.as_ref() && pod.metadata.namespace == set.metadata.namespace
}

/// True if the pod's volumes reference its claims.
#[must_use]
pub fn storage_matches(set: &StatefulSet, pod: &Pod) -> bool {
    let Some(ordinal) = ordinal(pod) else { return false };
    let volumes: BTreeMap<_, _> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
        .map(|volume| (volume.name.as_str(), volume.persistent_volume_claim.as_ref()))
        .collect();
    templates(set).iter().all(|template| {
        let used = volumes.get(name(&template.metadata)).copied().flatten();
        used.is_some_and(|used| used.claim_name == claim_name(set, template, ordinal))
    })
}

pub fn set_identity(set: &StatefulSet, pod: &mut Pod, ordinal: i32) {
    let pod_name = format!("{}-{ordinal}", name(&set.metadata));
    pod.metadata.namespace.clone_from(&set.metadata.namespace);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME_LABEL.to_owned(), pod_name.clone());
    labels.insert(POD_INDEX_LABEL.to_owned(), ordinal.to_string());
    pod.metadata.name = Some(pod_name);
}

pub fn set_storage(set: &StatefulSet, pod: &mut Pod, ordinal: i32) {
    let claims = claims(set, ordinal);
    let spec = pod.spec.get_or_insert_default();
    let others: Vec<_> = spec
        .volumes
        .take()
        .unwrap_or_default()
        .into_iter()
        .filter(|volume| !claims.iter().any(|(name, _)| *name == volume.name))
        .collect();
    let volume = |(name, claim): (String, PersistentVolumeClaim)| Volume {
        name,
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.metadata.name.unwrap_or_default(),
            read_only: None,
        }),
        ..Volume::default()
    };
    let all: Vec<_> = claims.into_iter().map(volume).chain(others).collect();
    spec.volumes = Some(all).filter(|volumes| !volumes.is_empty());
}

#[must_use]
pub fn reference(api_version: &str, kind: &str, meta: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: name(meta).to_owned(),
        uid: meta.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Claim retention policy: delete claims when the set is deleted, and when it is scaled down.
#[must_use]
pub fn retention(set: &StatefulSet) -> (bool, bool) {
    let policy = set.spec.as_ref().and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
    let deletes = |when: Option<&String>| when.is_some_and(|when| when == "Delete");
    (
        deletes(policy.and_then(|policy| policy.when_deleted.as_ref())),
        deletes(policy.and_then(|policy| policy.when_scaled.as_ref())),
    )
}

fn names(owner: &OwnerReference, api_version: &str, kind: &str, meta: &ObjectMeta) -> bool {
    owner.api_version == api_version && owner.kind == kind && owner.name == name(meta)
}

/// True if the claim is owned by an earlier object of the same name, which is not deleted yet.
#[must_use]
pub fn is_stale(claim: &PersistentVolumeClaim, api_version: &str, kind: &str, meta: &ObjectMeta) -> bool {
    let owner =
        claim.metadata.owner_references.iter().flatten().find(|owner| names(owner, api_version, kind, meta));
    owner.is_some_and(|owner| Some(&owner.uid) != meta.uid.as_ref())
}

/// Owners of the claim by the retention policy; `None` if up to date.
#[must_use]
pub fn wanted_owners(
    set: &StatefulSet,
    pod: &Pod,
    claim: &PersistentVolumeClaim,
) -> Option<Vec<OwnerReference>> {
    let owners = claim.metadata.owner_references.clone().unwrap_or_default();
    if is_stale(claim, "apps/v1", "StatefulSet", &set.metadata) || is_stale(claim, "v1", "Pod", &pod.metadata)
    {
        return None;
    }
    let ours = |owner: &OwnerReference| {
        names(owner, "apps/v1", "StatefulSet", &set.metadata) || names(owner, "v1", "Pod", &pod.metadata)
    };
    let (when_deleted, when_scaled) = retention(set);
    let mut wanted: Vec<_> = owners.iter().filter(|owner| !ours(owner)).cloned().collect();
    let others_rule =
        (when_deleted || when_scaled) && wanted.iter().any(|owner| owner.controller == Some(true));
    if !others_rule {
        let scaled_down = !in_range(set, pod);
        if when_scaled && scaled_down {
            wanted.push(reference("v1", "Pod", &pod.metadata));
        } else if when_deleted {
            wanted.push(reference("apps/v1", "StatefulSet", &set.metadata));
        }
    }
    let same = |a: &[OwnerReference], b: &[OwnerReference]| {
        let key = |owner: &OwnerReference| (owner.uid.clone(), owner.controller == Some(true));
        let sorted = |list: &[OwnerReference]| {
            let mut keys: Vec<_> = list.iter().map(key).collect();
            keys.sort();
            keys
        };
        sorted(a) == sorted(b)
    };
    (!same(&owners, &wanted)).then_some(wanted)
}
