//! The ephemeral volume loop. Watches pods; creates the claims of their generic ephemeral volumes, owned by the pod.

use async_trait::async_trait;
use objects::core::v1::{PersistentVolumeClaim, Pod, Volume};
use objects::meta::v1::ObjectMeta;
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};

use crate::shared::adoption::controller_reference;
use crate::shared::{metrics, pod_facts};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "ephemeral-volume-controller",
    resource: "pods",
    identity: "system:serviceaccount:kube-system:ephemeral-volume-controller",
    workers: 5,
};

#[derive(Debug, thiserror::Error)]
#[error("PVC {0} was not created for pod: pod is not owner")]
struct NotOwned(String);

struct Ephemeral {
    pods: Cache<Pod>,
    claims: Cache<PersistentVolumeClaim>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let pods = ctx.watch::<Pod>(|change| {
        let pod = change.object();
        if matches!(change, Change::Added(_)) && ephemeral(pod).next().is_some() {
            vec![Key::of(&**pod)]
        } else {
            Vec::new()
        }
    });
    let all = pods.clone();
    // A claim deleted while its pod exists is recreated.
    let claims = ctx.watch::<PersistentVolumeClaim>(move |change| {
        let Change::Deleted(claim) = change else { return Vec::new() };
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let owner = pod_facts::controller_of(&claim.metadata).filter(|owner| owner.kind == "Pod");
        owner
            .and_then(|owner| all.get(namespace, &owner.name))
            .map(|pod| Key::of(&*pod))
            .into_iter()
            .collect()
    });
    Box::new(Ephemeral { pods, claims })
}

fn ephemeral(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().filter(|volume| volume.ephemeral.is_some())
}

#[async_trait]
impl Loop for Ephemeral {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(pod) = self.pods.get_key(key) else { return Ok(Action::Done) };
        if pod_facts::is_deleting(&pod) || pod_facts::is_finished(&pod) {
            return Ok(Action::Done);
        }
        for volume in ephemeral(&pod) {
            let claim = make_claim(&pod, volume);
            let name = claim.metadata.name.clone().unwrap_or_default();
            if let Some(known) = self.claims.get(&key.namespace, &name) {
                let ours = pod_facts::controller_of(&known.metadata);
                if ours.is_none_or(|owner| Some(&owner.uid) != pod.metadata.uid.as_ref()) {
                    return Err(NotOwned(name).into());
                }
                continue;
            }
            let metrics = metrics::of(ctx).map(|metrics| &metrics.volumes);
            if let Some(metrics) = metrics {
                metrics.ephemeral_creations.inc();
            }
            match ctx.client.create(&key.namespace, &claim).await {
                Ok(_) => {}
                Err(error) if error.is_already_exists() => {}
                Err(error) => {
                    if let Some(metrics) = metrics {
                        metrics.ephemeral_failures.inc();
                    }
                    let note = format!("ephemeral volume {}: create PVC {name}: {error}", volume.name);
                    ctx.recorder.warning(&*pod, "FailedCreate", note);
                    return Err(error.into());
                }
            }
        }
        Ok(Action::Done)
    }
}

fn make_claim(pod: &Pod, volume: &Volume) -> PersistentVolumeClaim {
    let template =
        volume.ephemeral.as_ref().and_then(|source| source.volume_claim_template.clone()).unwrap_or_default();
    let meta = template.metadata.unwrap_or_default();
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name)),
            namespace: pod.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            owner_references: Some(vec![controller_reference(pod)]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::pod;
    use serde_json::json;

    #[test]
    fn claim_is_owned_by_its_pod() {
        let mut pod = pod("p", "Pending");
        pod.spec = serde_json::from_value(json!({
            "containers": [],
            "volumes": [{ "name": "scratch", "ephemeral": { "volumeClaimTemplate": {
                "metadata": { "labels": { "a": "b" } }, "spec": { "accessModes": ["ReadWriteOnce"] },
            } } }],
        }))
        .expect("a spec");
        let volume = ephemeral(&pod).next().expect("a volume");
        let claim = make_claim(&pod, volume);
        assert_eq!(claim.metadata.name.as_deref(), Some("p-scratch"));
        assert_eq!(
            claim.metadata.owner_references.map(|owners| owners[0].uid.clone()).as_deref(),
            Some("uid-p")
        );
        assert_eq!(claim.spec.and_then(|spec| spec.access_modes), Some(vec!["ReadWriteOnce".to_owned()]));
    }
}
