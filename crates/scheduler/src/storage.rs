//! Shared by the volume plugins: storage classes of claims, and node affinity of volumes.

use objects::core::v1::{PersistentVolume, PersistentVolumeClaim, VolumeNodeAffinity};
use objects::csi_topology::{in_tree_plugin, is_migrated_on, translated_affinity};
use objects::storage::v1::{CSINode, StorageClass};

use crate::state::{NodeInfo, NodeTerms};

/// Storage class of a claim; the legacy annotation takes effect too.
#[must_use]
pub fn class_of(claim: &PersistentVolumeClaim) -> &str {
    let old = claim.metadata.annotations.as_ref();
    let old = old.and_then(|annotations| annotations.get("volume.beta.kubernetes.io/storage-class"));
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    old.or(class).map(String::as_str).unwrap_or_default()
}

#[must_use]
pub fn class_of_volume(volume: &PersistentVolume) -> &str {
    let old = volume.metadata.annotations.as_ref();
    let old = old.and_then(|annotations| annotations.get("volume.beta.kubernetes.io/storage-class"));
    let class = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    old.or(class).map(String::as_str).unwrap_or_default()
}

/// True if claims of this class wait for their first consumer.
#[must_use]
pub fn is_delayed(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// True if a volume is accessible from a node.
#[must_use]
pub fn reaches(volume: &PersistentVolume, node: &NodeInfo) -> bool {
    fits(volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()), node)
}

/// Reports whether the volume of a bound claim is accessible from a node: for a migrated in-tree plugin by the labels
/// of its CSI driver, if the node uses that.
#[must_use]
pub fn reaches_bound(volume: &PersistentVolume, node: &NodeInfo, csi_node: Option<&CSINode>) -> bool {
    let is_migrated = in_tree_plugin(volume).is_some_and(|plugin| is_migrated_on(plugin, csi_node));
    match translated_affinity(volume).filter(|_| is_migrated) {
        Some(affinity) => fits(Some(&affinity), node),
        None => reaches(volume, node),
    }
}

fn fits(affinity: Option<&VolumeNodeAffinity>, node: &NodeInfo) -> bool {
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|required| NodeTerms::of(required).matches(&node.name, &node.labels))
}
