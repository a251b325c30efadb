//! The volume protection loop. Watches volumes; a volume has a finalizer while it lives, which goes only when no claim is
//! bound to it.

use async_trait::async_trait;
use objects::core::v1::PersistentVolume;
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-protection-controller",
    resource: "persistentvolumes",
    identity: "system:serviceaccount:kube-system:pv-protection-controller",
    workers: 1,
};

const FINALIZER: &str = "kubernetes.io/pv-protection";

struct Protection {
    volumes: Cache<PersistentVolume>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    Box::new(Protection { volumes: ctx.watch_self() })
}

#[async_trait]
impl Loop for Protection {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(volume) = self.volumes.get_key(key) else { return Ok(Action::Done) };
        let Some(updated) = plan(&volume) else { return Ok(Action::Done) };
        match ctx.client.update(&updated).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Action::Done),
        }
    }
}

/// The volume with its finalizer put on or taken off, if that is to be done.
fn plan(volume: &PersistentVolume) -> Option<PersistentVolume> {
    let protected = volume.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER);
    let bound = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let mut updated = volume.clone();
    let finalizers = updated.metadata.finalizers.get_or_insert_default();
    match (volume.metadata.deletion_timestamp.is_some(), protected) {
        (false, false) => finalizers.push(FINALIZER.to_owned()),
        (true, true) if !bound => finalizers.retain(|finalizer| finalizer != FINALIZER),
        _ => return None,
    }
    Some(updated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{meta, time};
    use objects::core::v1::PersistentVolumeStatus;

    #[test]
    fn bound_volumes_keep_their_finalizer() {
        let mut volume = PersistentVolume { metadata: meta("v"), ..Default::default() };
        volume = plan(&volume).expect("a finalizer");
        assert!(plan(&volume).is_none());
        volume.metadata.deletion_timestamp = Some(time(1));
        volume.status = Some(PersistentVolumeStatus { phase: Some("Bound".into()), ..Default::default() });
        assert!(plan(&volume).is_none());
        volume.status = Some(PersistentVolumeStatus { phase: Some("Released".into()), ..Default::default() });
        assert_eq!(plan(&volume).expect("a change").metadata.finalizers, Some(vec![]));
    }
}
