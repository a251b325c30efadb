//! Protection of volumes. Watches volumes; a volume is in use while a claim is bound to it.

use async_trait::async_trait;
use objects::core::v1::PersistentVolume;
use runtime::{Context, Descriptor, Loop, LoopError};

use super::{Protection, Usage};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-protection-controller",
    resource: "persistentvolumes",
    identity: "system:serviceaccount:kube-system:pv-protection-controller",
    workers: 1,
};

struct Binding;

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    Box::new(Protection { objects: ctx.watch_self(), usage: Binding })
}

#[async_trait]
impl Usage for Binding {
    type Kind = PersistentVolume;
    const FINALIZER: &'static str = "kubernetes.io/pv-protection";

    async fn is_used(&self, volume: &PersistentVolume, _: &Context) -> Result<bool, LoopError> {
        Ok(is_bound(volume))
    }
}

fn is_bound(volume: &PersistentVolume) -> bool {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::core::v1::PersistentVolumeStatus;

    #[test]
    fn only_bound_volume_is_in_use() {
        let phase = |phase: &str| PersistentVolume {
            status: Some(PersistentVolumeStatus { phase: Some(phase.into()), ..Default::default() }),
            ..Default::default()
        };
        assert!(is_bound(&phase("Bound")));
        assert!(!is_bound(&phase("Released")) && !is_bound(&PersistentVolume::default()));
    }
}
