//! Protection of volume attributes classes. Watches classes, claims and volumes; a class is in use while a claim or a
//! volume names it.

use async_trait::async_trait;
use objects::core::v1::{PersistentVolume, PersistentVolumeClaim};
use objects::storage::v1::VolumeAttributesClass;
use runtime::{Cache, Context, Descriptor, Key, Loop, LoopError};

use super::{Protection, Usage};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "volumeattributesclass-protection-controller",
    resource: "volumeattributesclasses",
    identity: "system:serviceaccount:kube-system:volumeattributesclass-protection-controller",
    workers: 1,
};

/// Index of claims and volumes by the classes they name.
const BY_CLASS: &str = "class";

struct Volumes {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
}

/// Classes of a claim: desired, current, and target of a modification.
#[must_use]
pub fn of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
    let status = claim.status.as_ref();
    let current = status.and_then(|status| status.current_volume_attributes_class_name.clone());
    let target = status
        .and_then(|status| status.modify_volume_status.as_ref())
        .and_then(|modify| modify.target_volume_attributes_class_name.clone());
    [wanted, current, target].into_iter().flatten().filter(|name| !name.is_empty()).collect()
}

fn of_volume(volume: &PersistentVolume) -> Vec<String> {
    let class = volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
    class.into_iter().filter(|name| !name.is_empty()).collect()
}

/// Classes that only the old version of an object names may be unused now.
fn keys(old: Option<Vec<String>>, new: Vec<String>) -> Vec<Key> {
    old.unwrap_or(new).into_iter().map(|name| Key::new("", &name)).collect()
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let claims = ctx.watch::<PersistentVolumeClaim>(|change| {
        keys(change.old().map(|old| of_claim(old)), of_claim(change.object()))
    });
    claims.add_index(BY_CLASS, of_claim);
    let volumes = ctx.watch::<PersistentVolume>(|change| {
        keys(change.old().map(|old| of_volume(old)), of_volume(change.object()))
    });
    volumes.add_index(BY_CLASS, of_volume);
    Box::new(Protection { objects: ctx.watch_self(), usage: Volumes { claims, volumes } })
}

#[async_trait]
impl Usage for Volumes {
    type Kind = VolumeAttributesClass;
    const FINALIZER: &'static str = "kubernetes.io/vac-protection";

    async fn is_used(&self, class: &VolumeAttributesClass, _: &Context) -> Result<bool, LoopError> {
        let name = class.metadata.name.as_deref().unwrap_or_default();
        Ok(!self.claims.indexed(BY_CLASS, name).is_empty()
            || !self.volumes.indexed(BY_CLASS, name).is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claim_names_classes_in_three_fields() {
        let claim = serde_json::from_value(json!({
            "spec": {"volumeAttributesClassName": "a"},
            "status": {"currentVolumeAttributesClassName": "b",
                "modifyVolumeStatus": {"status": "Pending", "targetVolumeAttributesClassName": "c"}},
        }));
        assert_eq!(of_claim(&claim.expect("a claim")), ["a", "b", "c"]);
    }
}
