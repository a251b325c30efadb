//! The protection loop of volume attributes classes. Watches classes, claims and volumes; a class has a finalizer while it
//! lives, which goes only when no claim and no volume names it.

use async_trait::async_trait;
use objects::core::v1::{PersistentVolume, PersistentVolumeClaim};
use objects::storage::v1::VolumeAttributesClass;
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "volumeattributesclass-protection-controller",
    resource: "volumeattributesclasses",
    identity: "system:serviceaccount:kube-system:volumeattributesclass-protection-controller",
    workers: 1,
};

const FINALIZER: &str = "kubernetes.io/vac-protection";
/// The index of claims and volumes by the classes they name.
const BY_CLASS: &str = "class";

struct Protection {
    classes: Cache<VolumeAttributesClass>,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
}

/// The classes that a claim wants, has, or is on the way to.
fn of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
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

/// Classes that the old form of an object named may be free now.
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
    Box::new(Protection { classes: ctx.watch_self(), claims, volumes })
}

#[async_trait]
impl Loop for Protection {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(class) = self.classes.get_key(key) else { return Ok(Action::Done) };
        let in_use = !self.claims.indexed(BY_CLASS, &key.name).is_empty()
            || !self.volumes.indexed(BY_CLASS, &key.name).is_empty();
        let Some(updated) = plan(&class, in_use) else { return Ok(Action::Done) };
        match ctx.client.update(&updated).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Action::Done),
        }
    }
}

/// The class with its finalizer put on or taken off, if that is to be done.
fn plan(class: &VolumeAttributesClass, in_use: bool) -> Option<VolumeAttributesClass> {
    let protected = class.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER);
    let mut updated = class.clone();
    let finalizers = updated.metadata.finalizers.get_or_insert_default();
    match (class.metadata.deletion_timestamp.is_some(), protected) {
        (false, false) => finalizers.push(FINALIZER.to_owned()),
        (true, true) if !in_use => finalizers.retain(|finalizer| finalizer != FINALIZER),
        _ => return None,
    }
    Some(updated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{meta, time};
    use serde_json::json;

    #[test]
    fn classes_in_use_keep_their_finalizer() {
        let mut class = VolumeAttributesClass { metadata: meta("gold"), ..Default::default() };
        class = plan(&class, false).expect("a finalizer");
        assert!(plan(&class, false).is_none());
        class.metadata.deletion_timestamp = Some(time(1));
        assert!(plan(&class, true).is_none());
        assert_eq!(plan(&class, false).expect("a change").metadata.finalizers, Some(vec![]));
    }

    #[test]
    fn claims_name_classes_in_three_places() {
        let claim = serde_json::from_value(json!({
            "spec": {"volumeAttributesClassName": "a"},
            "status": {"currentVolumeAttributesClassName": "b",
                "modifyVolumeStatus": {"status": "Pending", "targetVolumeAttributesClassName": "c"}},
        }));
        assert_eq!(of_claim(&claim.expect("a claim")), ["a", "b", "c"]);
    }
}
