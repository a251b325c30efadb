//! The protection loops: keep a finalizer on each object of a kind, and remove it once the object is being deleted and
//! is not in use. One file per kind.

pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod volume_attributes_class;

use async_trait::async_trait;
use client::Object;
use objects::Metadata;
use objects::meta::v1::ObjectMeta;
use runtime::{Action, Cache, Context, Key, Loop, LoopError};

/// The part of a protection loop that depends on the kind.
#[async_trait]
trait Usage: Send + Sync + 'static {
    type Kind: Object;
    const FINALIZER: &'static str;

    /// Reports whether another object still needs this one, which is being deleted.
    async fn is_used(&self, object: &Self::Kind, ctx: &Context) -> Result<bool, LoopError>;
}

struct Protection<U: Usage> {
    objects: Cache<U::Kind>,
    usage: U,
}

#[async_trait]
impl<U: Usage> Loop for Protection<U> {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(object) = self.objects.get_key(key) else { return Ok(Action::Done) };
        let Some(change) = plan(object.metadata(), U::FINALIZER) else { return Ok(Action::Done) };
        if change == FinalizerChange::RemoveIfUnused && self.usage.is_used(&object, ctx).await? {
            return Ok(Action::Done);
        }
        let mut updated = object.as_ref().clone();
        apply(updated.metadata_mut(), U::FINALIZER, change);
        match ctx.client.update(&updated).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Action::Done),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FinalizerChange {
    Add,
    RemoveIfUnused,
}

fn plan(meta: &ObjectMeta, finalizer: &str) -> Option<FinalizerChange> {
    let protected = meta.finalizers.iter().flatten().any(|own| own == finalizer);
    match (meta.deletion_timestamp.is_some(), protected) {
        (false, false) => Some(FinalizerChange::Add),
        (true, true) => Some(FinalizerChange::RemoveIfUnused),
        _ => None,
    }
}

fn apply(meta: &mut ObjectMeta, finalizer: &str, change: FinalizerChange) {
    let finalizers = meta.finalizers.get_or_insert_default();
    match change {
        FinalizerChange::Add => finalizers.push(finalizer.to_owned()),
        FinalizerChange::RemoveIfUnused => finalizers.retain(|own| own != finalizer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{meta, time};

    #[test]
    fn finalizer_is_added_until_deletion_and_then_removed() {
        let finalizer = "example.com/protection";
        let mut object = meta("a");
        object.finalizers = Some(vec!["example.com/other".to_owned()]);
        assert_eq!(plan(&object, finalizer), Some(FinalizerChange::Add));
        apply(&mut object, finalizer, FinalizerChange::Add);
        assert_eq!(plan(&object, finalizer), None);
        object.deletion_timestamp = Some(time(1));
        assert_eq!(plan(&object, finalizer), Some(FinalizerChange::RemoveIfUnused));
        apply(&mut object, finalizer, FinalizerChange::RemoveIfUnused);
        assert_eq!(plan(&object, finalizer), None, "an object that is being deleted gets no finalizer");
        assert_eq!(object.finalizers, Some(vec!["example.com/other".to_owned()]));
    }
}
