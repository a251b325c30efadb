//! Preparation of the claims of a pod by their drivers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use cri::dra::{Claim, Device, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use objects::core::v1::Pod;
use objects::resource::v1::ResourceClaim;

use super::claims::{self, ClaimInfo, Empty, PreparedDevice};
use super::drivers::DriverPlugin;
use super::{Dra, DraError};

const PREPARE: &str = "NodePrepareResources";
const UNPREPARE: &str = "NodeUnprepareResources";

/// Namespace and name of a claim.
type Key = (String, String);

/// Calls of one driver: the plugin, and the claims by UID.
type Batch = (Arc<DriverPlugin>, BTreeMap<String, (Key, Claim)>);

fn message_of(claim: &ClaimInfo) -> Claim {
    Claim { namespace: claim.namespace.clone(), uid: claim.claim_uid.clone(), name: claim.claim_name.clone() }
}

fn prepared(device: Device) -> PreparedDevice {
    PreparedDevice {
        pool_name: device.pool_name,
        device_name: device.device_name,
        share_id: Some(device.share_id).filter(|id| !id.is_empty()),
        request_names: Some(device.request_names),
        cdi_device_ids: Some(device.cdi_device_ids),
    }
}

/// Returns true if a pod has claims.
fn has_claims(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_deref());
    let status = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    spec.is_some_and(|entries| !entries.is_empty()) || status.is_some()
}

impl Dra {
    /// Prepares the claims of a pod; those that are prepared already are not prepared again.
    pub async fn prepare(&self, pod: &Pod) -> Result<(), DraError> {
        if !has_claims(pod) {
            return Ok(());
        }
        let begun = Instant::now();
        let outcome = self.prepare_claims(pod).await;
        self.0.metrics.operation("PrepareResources", outcome.is_err(), begun);
        outcome
    }

    async fn prepare_claims(&self, pod: &Pod) -> Result<(), DraError> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        // Nothing is recorded until all is known to be there, so that a failing pod can be deleted without its drivers.
        let (mut wanted, mut plugins) = (Vec::new(), BTreeMap::new());
        for claim in claims::of_pod(pod)? {
            let found = self.0.client.get::<ResourceClaim>(&namespace, &claim.name).await;
            let found = found.map_err(|source| DraError::Fetch { claim: claim.name.clone(), source })?;
            claims::check(pod, &claim, &found)?;
            let info = ClaimInfo::of(&found).ok_or_else(|| DraError::NotAllocated(claim.name.clone()))?;
            for driver in info.driver_state.keys() {
                plugins.insert(driver.clone(), self.0.plugins.get(driver)?);
            }
            wanted.push(info);
        }
        let keys = wanted.iter().map(|info| (info.namespace.clone(), info.claim_name.clone()));
        let _locks = self.0.locks.lock_all(keys.collect()).await;
        let batches = self.begin(pod, wanted, &plugins)?;
        self.save().await?;
        for (driver, (plugin, claims)) in &batches {
            self.call_prepare(driver, plugin, claims).await?;
        }
        {
            let mut known = self.0.claims.lock();
            for (key, _) in batches.values().flat_map(|(_, claims)| claims.values()) {
                if let Some(claim) = known.get_mut(key) {
                    claim.prepared = true;
                }
            }
        }
        self.save().await
    }

    /// Adds the pod to its claims; returns the calls for those that are not prepared.
    fn begin(
        &self,
        pod: &Pod,
        wanted: Vec<ClaimInfo>,
        plugins: &BTreeMap<String, Arc<DriverPlugin>>,
    ) -> Result<BTreeMap<String, Batch>, DraError> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut known = self.0.claims.lock();
        let mut batches: BTreeMap<String, Batch> = BTreeMap::new();
        for info in wanted {
            let key = (info.namespace.clone(), info.claim_name.clone());
            let claim = known.entry(key.clone()).or_insert_with(|| info.clone());
            if claim.claim_uid != info.claim_uid {
                return Err(DraError::OtherUid { claim: info.claim_name, uid: claim.claim_uid.clone() });
            }
            claim.pod_uids.insert(uid.clone(), Empty {});
            // A claim without drivers has nothing to prepare.
            claim.prepared |= claim.driver_state.is_empty();
            if claim.prepared {
                continue;
            }
            for driver in claim.driver_state.keys() {
                let Some(plugin) = plugins.get(driver) else {
                    return Err(DraError::NotRegistered(driver.clone()));
                };
                let batch =
                    batches.entry(driver.clone()).or_insert_with(|| (Arc::clone(plugin), BTreeMap::new()));
                batch.1.insert(claim.claim_uid.clone(), (key.clone(), message_of(claim)));
            }
        }
        Ok(batches)
    }

    async fn call_prepare(
        &self,
        driver: &str,
        plugin: &DriverPlugin,
        claims: &BTreeMap<String, (Key, Claim)>,
    ) -> Result<(), DraError> {
        let request = NodePrepareResourcesRequest { claims: messages(claims) };
        let response = plugin.prepare(request, &self.0.metrics).await?;
        let count = response.claims.len();
        for (uid, result) in response.claims {
            let (key, _) = checked(PREPARE, claims, &uid, &result.error)?;
            let mut known = self.0.claims.lock();
            let state = known.get_mut(key).and_then(|claim| claim.driver_state.get_mut(driver));
            if let Some(state) = state {
                // The response replaces devices of an earlier attempt that another driver failed.
                state.devices = Some(result.devices.into_iter().map(prepared).collect());
            }
        }
        all_answered(PREPARE, claims, count)
    }

    /// Unprepares the claims of a pod that no other pod uses.
    pub async fn unprepare(&self, uid: &str) -> Result<(), DraError> {
        if !self.0.claims.lock().values().any(|claim| claim.pod_uids.contains_key(uid)) {
            return Ok(());
        }
        let begun = Instant::now();
        let outcome = self.unprepare_claims(uid).await;
        self.0.metrics.operation("UnprepareResources", outcome.is_err(), begun);
        outcome
    }

    async fn unprepare_claims(&self, uid: &str) -> Result<(), DraError> {
        let of_pod = |(_, claim): &(&Key, &ClaimInfo)| claim.pod_uids.contains_key(uid);
        let keys: Vec<Key> = self.0.claims.lock().iter().filter(of_pod).map(|(key, _)| key.clone()).collect();
        let _locks = self.0.locks.lock_all(keys).await;
        let mut batches: BTreeMap<String, BTreeMap<String, (Key, Claim)>> = BTreeMap::new();
        let mut ended = Vec::new();
        {
            let mut known = self.0.claims.lock();
            for (key, claim) in known.iter_mut().filter(|(_, claim)| claim.pod_uids.contains_key(uid)) {
                if claim.pod_uids.len() > 1 {
                    claim.pod_uids.remove(uid);
                    continue;
                }
                ended.push((key.clone(), claim.claim_uid.clone()));
                // It has to be prepared again if a pod uses it meanwhile.
                claim.prepared = false;
                for driver in claim.driver_state.keys() {
                    let batch = batches.entry(driver.clone()).or_default();
                    batch.insert(claim.claim_uid.clone(), (key.clone(), message_of(claim)));
                }
            }
        }
        for (driver, claims) in &batches {
            let plugin = self.0.plugins.get(driver)?;
            let request = NodeUnprepareResourcesRequest { claims: messages(claims) };
            let response = plugin.unprepare(request, &self.0.metrics).await?;
            for (claim, result) in &response.claims {
                checked(UNPREPARE, claims, claim, &result.error)?;
            }
            all_answered(UNPREPARE, claims, response.claims.len())?;
        }
        {
            let mut known = self.0.claims.lock();
            for (key, claim_uid) in ended {
                if let Some(claim) = known.get_mut(&key).filter(|claim| claim.claim_uid == claim_uid) {
                    claim.pod_uids.remove(uid);
                    if claim.pod_uids.is_empty() {
                        known.remove(&key);
                    }
                }
            }
        }
        self.save().await
    }

    /// Pods with claims that are prepared, or were being prepared.
    #[must_use]
    pub fn pods(&self) -> std::collections::BTreeSet<String> {
        self.0.claims.lock().values().flat_map(|claim| claim.pod_uids.keys().cloned()).collect()
    }
}

fn messages(claims: &BTreeMap<String, (Key, Claim)>) -> Vec<Claim> {
    claims.values().map(|(_, message)| message.clone()).collect()
}

/// The claim of a result without error.
fn checked<'a>(
    call: &'static str,
    claims: &'a BTreeMap<String, (Key, Claim)>,
    uid: &str,
    error: &str,
) -> Result<&'a (Key, Claim), DraError> {
    let claim = claims.get(uid).ok_or_else(|| DraError::UnknownUid { call, uid: uid.to_owned() })?;
    if error.is_empty() {
        return Ok(claim);
    }
    Err(DraError::Failed { call, claim: claim.1.name.clone(), error: error.to_owned() })
}

fn all_answered(
    call: &'static str,
    claims: &BTreeMap<String, (Key, Claim)>,
    count: usize,
) -> Result<(), DraError> {
    match claims.len().saturating_sub(count) {
        0 => Ok(()),
        count => Err(DraError::Skipped { call, count }),
    }
}
