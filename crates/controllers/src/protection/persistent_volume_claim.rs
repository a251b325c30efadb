//! Protection of claims. Watches claims and pods; a claim is in use while a pod that has it as a volume is assigned to
//! a node and has not finished.

use async_trait::async_trait;
use client::ListOptions;
use objects::core::v1::{PersistentVolumeClaim, Pod};
use runtime::{Cache, Change, Context, Descriptor, Key, Loop, LoopError};

use super::{Protection, Usage};
use crate::shared::pod_facts::{self, claims_of};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolumeclaim-protection-controller",
    resource: "persistentvolumeclaims",
    identity: "system:serviceaccount:kube-system:pvc-protection-controller",
    workers: 2,
};

/// Index of pods by the claims they use.
const BY_CLAIM: &str = "claim";

struct Pods(Cache<Pod>);

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let claims = ctx.watch_self::<PersistentVolumeClaim>();
    let all = claims.clone();
    let pods = ctx.watch::<Pod>(move |change| {
        let pod = change.object();
        // Only a pod that stops using a claim can release it.
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
    Box::new(Protection { objects: claims, usage: Pods(pods) })
}

#[async_trait]
impl Usage for Pods {
    type Kind = PersistentVolumeClaim;
    const FINALIZER: &'static str = "kubernetes.io/pvc-protection";

    async fn is_used(&self, claim: &PersistentVolumeClaim, ctx: &Context) -> Result<bool, LoopError> {
        let key = Key::of(claim);
        if self.0.indexed(BY_CLAIM, &key.to_string()).iter().any(|pod| uses(pod, claim)) {
            return Ok(true);
        }
        // The cache may not show a new pod yet.
        let live = ctx.client.list::<Pod>(&key.namespace, &ListOptions::default()).await?;
        Ok(live.items.iter().any(|pod| uses(pod, claim)))
    }
}

/// A pod that was never assigned to a node, or has finished, uses nothing.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    if pod_facts::is_finished(pod) {
        return false;
    }
    let assigned =
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).is_some_and(|name| !name.is_empty());
    let name = claim.metadata.name.clone().unwrap_or_default();
    assigned && claims_of(pod).contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{meta, pod};
    use serde_json::json;

    #[test]
    fn unassigned_and_finished_pods_use_no_claim() {
        let claim = PersistentVolumeClaim { metadata: meta("data"), ..Default::default() };
        let mut user = pod("p", "Running");
        user.spec = serde_json::from_value(json!({
            "nodeName": "n", "containers": [],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        }))
        .expect("a spec");
        assert!(uses(&user, &claim));
        let mut finished = user.clone();
        finished.status.get_or_insert_default().phase = Some("Failed".into());
        assert!(!uses(&finished, &claim));
        user.spec.get_or_insert_default().node_name = None;
        assert!(!uses(&user, &claim));
    }
}
