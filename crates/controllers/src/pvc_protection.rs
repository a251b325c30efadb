//! The claim protection loop. Watches claims and pods; a claim has a finalizer while it lives, which goes only when no
//! pod uses it any more.

use async_trait::async_trait;
use client::ListOptions;
use objects::core::v1::{PersistentVolumeClaim, Pod};
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};

use crate::pod_facts;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolumeclaim-protection-controller",
    resource: "persistentvolumeclaims",
    identity: "system:serviceaccount:kube-system:pvc-protection-controller",
    workers: 2,
};

const FINALIZER: &str = "kubernetes.io/pvc-protection";
/// The index of pods by the claims they use.
const BY_CLAIM: &str = "claim";

struct Protection {
    claims: Cache<PersistentVolumeClaim>,
    pods: Cache<Pod>,
}

/// Names of the claims that a pod uses, generic ephemeral volumes included.
#[must_use]
pub fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let name = |volume: &objects::core::v1::Volume| match (&volume.persistent_volume_claim, &volume.ephemeral)
    {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => {
            Some(format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name))
        }
        _ => None,
    };
    volumes.filter_map(name).collect()
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let claims = ctx.watch_self::<PersistentVolumeClaim>();
    let all = claims.clone();
    let pods = ctx.watch::<Pod>(move |change| {
        let pod = change.object();
        // Only a pod that stops using a claim can make it free.
        if !matches!(change, Change::Deleted(_)) && !pod_facts::is_finished(pod) {
            return Vec::new();
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let going = claims_of(pod).into_iter().filter_map(|name| all.get(namespace, &name));
        going
            .filter(|claim| claim.metadata.deletion_timestamp.is_some())
            .map(|claim| Key::of(&*claim))
            .collect()
    });
    pods.add_index(BY_CLAIM, |pod: &Pod| {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        claims_of(pod).into_iter().map(|name| format!("{namespace}/{name}")).collect()
    });
    Box::new(Protection { claims, pods })
}

#[async_trait]
impl Loop for Protection {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(claim) = self.claims.get_key(key) else { return Ok(Action::Done) };
        let protected = claim.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER);
        let mut updated = claim.as_ref().clone();
        if claim.metadata.deletion_timestamp.is_none() {
            if protected {
                return Ok(Action::Done);
            }
            updated.metadata.finalizers.get_or_insert_default().push(FINALIZER.to_owned());
        } else {
            if !protected || self.pods.indexed(BY_CLAIM, &key.to_string()).iter().any(|pod| uses(pod, &claim))
            {
                return Ok(Action::Done);
            }
            // The cache may not show a pod that has just come.
            let live = ctx.client.list::<Pod>(&key.namespace, &ListOptions::default()).await?;
            if live
                .items
                .iter()
                .any(|pod| claims_of(pod).contains(&key.name.to_string()) && uses(pod, &claim))
            {
                return Ok(Action::Done);
            }
            updated.metadata.finalizers.get_or_insert_default().retain(|finalizer| finalizer != FINALIZER);
        }
        match ctx.client.update(&updated).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Action::Done),
        }
    }
}

/// A pod that was never on a node, or has ended, uses nothing.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    if pod_facts::is_finished(pod) {
        return false;
    }
    let assigned =
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|name| !name.is_empty());
    let name = claim.metadata.name.clone().unwrap_or_default();
    assigned && claims_of(pod).contains(&name)
}
