//! The device taint eviction loop. Watches pods, resource claims and resource slices; deletes pods that use a device with
//! a NoExecute taint which their claim does not tolerate, or no longer tolerates.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use client::{Patch, delete_options};
use jiff::{SignedDuration, Timestamp};
use objects::core::v1::Pod;
use objects::meta::v1::Time;
use objects::resource::v1::{DeviceTaint, DeviceToleration, ResourceClaim, ResourceSlice};
use parking_lot::Mutex;
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use crate::requeue;
use crate::shared::{metrics, pod_facts};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "device-taint-eviction-controller",
    resource: "pods",
    identity: "system:serviceaccount:kube-system:device-taint-eviction-controller",
    workers: 4,
};

struct DeviceEviction {
    pods: Cache<Pod>,
    claims: Cache<ResourceClaim>,
    slices: Cache<ResourceSlice>,
    /// Pods with a pending eviction.
    waiting: Mutex<HashSet<Key>>,
}

const REASON: &str = "DeviceTaintManagerEviction";

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let pods = ctx.watch::<Pod>(|change| {
        let pod = change.object();
        let uses = pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.resource_claims.as_ref().is_some_and(|all| !all.is_empty()));
        if uses { vec![Key::of(&**pod)] } else { Vec::new() }
    });
    let claims = ctx.watch::<ResourceClaim>(|change| users(change.object()));
    let all = claims.clone();
    let slices = ctx.watch::<ResourceSlice>(move |change| {
        let driver = &change.object().spec.driver;
        let uses = |claim: &ResourceClaim| results(claim).any(|result| result.driver == *driver);
        all.all().iter().filter(|claim| uses(claim)).flat_map(|claim| users(claim)).collect()
    });
    Box::new(DeviceEviction { pods, claims, slices, waiting: Mutex::default() })
}

fn results(
    claim: &ResourceClaim,
) -> impl Iterator<Item = &objects::resource::v1::DeviceRequestAllocationResult> {
    let allocation = claim.status.iter().filter_map(|status| status.allocation.as_ref());
    allocation
        .filter_map(|allocation| allocation.devices.as_ref())
        .flat_map(|devices| devices.results.iter().flatten())
}

fn users(claim: &ResourceClaim) -> Vec<Key> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let reserved = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    reserved.filter(|user| user.resource == "pods").map(|user| Key::new(namespace, &user.name)).collect()
}

#[async_trait]
impl Loop for DeviceEviction {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let was_waiting = self.waiting.lock().remove(key);
        let Some(pod) = self.pods.get_key(key) else { return Ok(Action::Done) };
        let is_scheduled = pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.as_ref().is_some_and(|node| !node.is_empty()));
        if !is_scheduled || pod_facts::is_deleting(&pod) || pod_facts::is_finished(&pod) {
            return Ok(Action::Done);
        }
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mine = |claim: &ResourceClaim| {
            let reserved = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
            reserved.into_iter().any(|user| user.uid == uid)
        };
        let claims: Vec<_> =
            self.claims.list(&key.namespace).into_iter().filter(|claim| mine(claim)).collect();
        let now = ctx.clock.now();
        let Some(end) = plan(&claims, &self.slices.all(), now) else {
            if was_waiting {
                ctx.recorder.normal(&*pod, REASON, "Cancelling deletion");
            }
            return Ok(Action::Done);
        };
        let left = end.duration_since(now);
        if left.is_positive() {
            self.waiting.lock().insert(key.clone());
            return Ok(requeue(Some(left)));
        }
        ctx.recorder.normal(&*pod, REASON, "Marking for deletion");
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByDeviceTaintManager",
            "message": "Device Taint manager: deleting due to NoExecute taint", "lastTransitionTime": Time(now),
        });
        let patch = Patch::Strategic(json!({
            "metadata": { "uid": pod.metadata.uid },
            "status": { "conditions": [condition] },
        }));
        ctx.client.patch::<Pod>(&key.namespace, &key.name, Some("status"), &patch).await?;
        let options = delete_options(pod.metadata.uid.as_deref(), None);
        match ctx.client.delete::<Pod>(&key.namespace, &key.name, &options).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => {
                metrics::device_taint_eviction(ctx, ctx.clock.now().duration_since(end));
                Ok(Action::Done)
            }
        }
    }
}

/// Time at which a user of these claims must be evicted; `None` if it may stay.
fn plan(claims: &[Arc<ResourceClaim>], slices: &[Arc<ResourceSlice>], now: Timestamp) -> Option<Timestamp> {
    let mut earliest: Option<Timestamp> = None;
    for result in claims.iter().flat_map(|claim| results(claim)) {
        let is_pool = |slice: &&Arc<ResourceSlice>| {
            slice.spec.driver == result.driver && slice.spec.pool.name == result.pool
        };
        // While a pool is republished, its older generation no longer counts.
        let generation = slices.iter().filter(is_pool).map(|slice| slice.spec.pool.generation).max();
        let pool =
            slices.iter().filter(is_pool).filter(|slice| Some(slice.spec.pool.generation) == generation);
        let devices = pool.flat_map(|slice| slice.spec.devices.iter().flatten());
        let tolerations = result.tolerations.as_deref().unwrap_or_default();
        for taint in devices
            .filter(|device| device.name == result.device)
            .flat_map(|device| device.taints.iter().flatten())
        {
            if let Some(end) = end(taint, tolerations, now) {
                earliest = Some(earliest.map_or(end, |known| known.min(end)));
            }
        }
    }
    earliest
}

fn end(taint: &DeviceTaint, tolerations: &[DeviceToleration], now: Timestamp) -> Option<Timestamp> {
    if taint.effect != "NoExecute" {
        return None;
    }
    let since = taint.time_added.as_ref().map_or(now, |time| time.0);
    let mut matching = tolerations.iter().filter(|toleration| tolerates(toleration, taint)).peekable();
    if matching.peek().is_none() {
        return Some(since);
    }
    // The first toleration without an end, or the shortest.
    let mut shortest: Option<i64> = None;
    for toleration in matching {
        let seconds = toleration.toleration_seconds?;
        shortest = Some(shortest.map_or(seconds, |known| known.min(seconds)));
    }
    since.checked_add(SignedDuration::from_secs(shortest?.max(0))).ok()
}

/// Unlike for nodes, only a toleration that names the effect tolerates it.
fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if toleration.effect.as_deref() != Some(&taint.effect) {
        return false;
    }
    if given(&toleration.key).is_some_and(|key| key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => given(&toleration.value) == given(&taint.value),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{at, time};

    #[test]
    fn tainted_device_evicts_after_toleration() {
        let slice: ResourceSlice = serde_json::from_value(json!({
            "spec": { "driver": "d", "pool": { "name": "p", "generation": 1, "resourceSliceCount": 1 }, "devices": [
                { "name": "gpu0", "taints": [{ "key": "broken", "effect": "NoExecute", "timeAdded": time(100) }] },
                { "name": "gpu1" },
            ] },
        })).expect("a slice");
        let claim = |device: &str, tolerations: serde_json::Value| -> Arc<ResourceClaim> {
            Arc::new(serde_json::from_value(json!({
                "spec": {},
                "status": { "allocation": { "devices": { "results": [
                    { "request": "r", "driver": "d", "pool": "p", "device": device, "tolerations": tolerations },
                ] } } },
            })).expect("a claim"))
        };
        let slices = [Arc::new(slice.clone())];
        let when = |claim| plan(&[claim], &slices, at(500));
        assert_eq!(when(claim("gpu1", json!([]))), None);
        assert_eq!(when(claim("gpu0", json!([]))), Some(at(100)));
        let tolerate = |seconds: serde_json::Value| json!([{ "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds }]);
        assert_eq!(when(claim("gpu0", tolerate(json!(60)))), Some(at(160)));
        assert_eq!(when(claim("gpu0", tolerate(json!(-5)))), Some(at(100)));
        assert_eq!(when(claim("gpu0", tolerate(json!(null)))), None);
        assert_eq!(when(claim("gpu0", json!([{ "operator": "Exists" }]))), Some(at(100)), "no effect");
        // Older generation of the pool.
        let mut newer = slice;
        newer.spec.pool.generation = 2;
        newer.spec.devices.iter_mut().flatten().for_each(|device| device.taints = None);
        let both = [slices[0].clone(), Arc::new(newer)];
        assert_eq!(plan(&[claim("gpu0", json!([]))], &both, at(500)), None);
        let equal = |value: &str| json!([{ "key": "broken", "effect": "NoExecute", "value": value }]);
        assert_eq!(when(claim("gpu0", equal(""))), None);
        assert_eq!(when(claim("gpu0", equal("x"))), Some(at(100)));
    }
}
