//! Claims that are prepared on this node, or being prepared, with their pods and devices.

use std::collections::{BTreeMap, BTreeSet};

use objects::core::v1::{Container, Pod};
use objects::resource::v1::ResourceClaim;
use serde::{Deserialize, Serialize};

use super::DraError;

/// An element of a set in Kubernetes' JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// A device as its driver described it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct PreparedDevice {
    pub pool_name: String,
    pub device_name: String,
    #[serde(rename = "ShareID")]
    pub share_id: Option<String>,
    pub request_names: Option<Vec<String>>,
    #[serde(rename = "CDIDeviceIDs")]
    pub cdi_device_ids: Option<Vec<String>>,
}

/// Devices that one driver prepared for a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DriverState {
    pub devices: Option<Vec<PreparedDevice>>,
}

/// A claim, its pods on this node, and its devices by driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ClaimInfo {
    #[serde(rename = "ClaimUID")]
    pub claim_uid: String,
    pub claim_name: String,
    pub namespace: String,
    #[serde(rename = "PodUIDs")]
    pub pod_uids: BTreeMap<String, Empty>,
    pub driver_state: BTreeMap<String, DriverState>,
    /// All drivers prepared it since the kubelet started.
    #[serde(skip)]
    pub prepared: bool,
}

impl ClaimInfo {
    /// The claim as allocated by the scheduler.
    pub fn of(claim: &ResourceClaim) -> Option<Self> {
        let allocation = claim.status.as_ref()?.allocation.as_ref()?;
        let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Some(Self {
            claim_uid: text(&claim.metadata.uid),
            claim_name: text(&claim.metadata.name),
            namespace: text(&claim.metadata.namespace),
            driver_state: results.map(|result| (result.driver.clone(), DriverState::default())).collect(),
            ..Self::default()
        })
    }

    /// Devices with their drivers, as far as they belong to `request`; empty is every request.
    pub fn devices_of<'a>(
        &'a self,
        request: &'a str,
    ) -> impl Iterator<Item = (&'a String, &'a PreparedDevice)> {
        let all = self
            .driver_state
            .iter()
            .flat_map(|(driver, state)| state.devices.iter().flatten().map(move |device| (driver, device)));
        all.filter(move |(_, device)| {
            let names = device.request_names.as_deref().unwrap_or_default();
            request.is_empty() || names.is_empty() || names.iter().any(|name| name == request)
        })
    }
}

/// Claims by namespace and name.
pub type Claims = BTreeMap<(String, String), ClaimInfo>;

/// A claim of a pod: the name of the object, and true if it was generated for the pod.
pub struct PodClaim {
    pub name: String,
    pub is_generated: bool,
}

/// Name of the claim for an entry of the pod; `None` if no claim was necessary.
pub fn name_of(pod: &Pod, entry: &str) -> Result<Option<PodClaim>, DraError> {
    let entries = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_deref()).unwrap_or_default();
    let missing = || DraError::NoClaim { pod: pod_key(pod), entry: entry.to_owned() };
    let entry = entries.iter().find(|one| one.name == entry).ok_or_else(missing)?;
    if let Some(name) = &entry.resource_claim_name {
        return Ok(Some(PodClaim { name: name.clone(), is_generated: false }));
    }
    let status = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_deref());
    let found = status.unwrap_or_default().iter().find(|status| status.name == entry.name);
    let found = found.ok_or_else(|| DraError::NotCreated { pod: pod_key(pod) })?;
    Ok(found.resource_claim_name.clone().map(|name| PodClaim { name, is_generated: true }))
}

fn pod_key(pod: &Pod) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}/{}", text(&pod.metadata.namespace), text(&pod.metadata.name))
}

/// All claims of a pod, that for its extended resources included.
pub fn of_pod(pod: &Pod) -> Result<Vec<PodClaim>, DraError> {
    let entries = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_deref()).unwrap_or_default();
    let mut found = Vec::new();
    for entry in entries {
        found.extend(name_of(pod, &entry.name)?);
    }
    let extended = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    found.extend(
        extended.map(|status| PodClaim { name: status.resource_claim_name.clone(), is_generated: false }),
    );
    Ok(found)
}

/// Claims that a container uses, each with a request, which is empty for all requests of the claim. The name is the
/// object's.
pub fn of_container(pod: &Pod, container: &Container) -> Result<BTreeSet<(String, String)>, DraError> {
    let mut found = BTreeSet::new();
    let resources = container.resources.as_ref();
    for claim in resources.iter().flat_map(|resources| resources.claims.iter().flatten()) {
        if let Some(object) = name_of(pod, &claim.name)? {
            found.insert((object.name, claim.request.clone().unwrap_or_default()));
        }
    }
    if let Some(status) =
        pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref())
    {
        let rows = status.request_mappings.iter().filter(|row| row.container_name == container.name);
        found.extend(rows.map(|row| (status.resource_claim_name.clone(), row.request_name.clone())));
    }
    Ok(found)
}

/// Checks that a pod may use a claim.
pub fn check(pod: &Pod, wanted: &PodClaim, claim: &ResourceClaim) -> Result<(), DraError> {
    let uid = pod.metadata.uid.as_deref().unwrap_or("");
    let owners = claim.metadata.owner_references.iter().flatten();
    let is_owned = owners.into_iter().any(|owner| owner.controller == Some(true) && owner.uid == uid);
    let claim_uid = claim.metadata.uid.clone().unwrap_or_default();
    if wanted.is_generated && !is_owned {
        return Err(DraError::NotOwner { claim: wanted.name.clone(), pod: pod_key(pod) });
    }
    let reserved = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    if !reserved.into_iter().any(|consumer| consumer.uid == uid) {
        return Err(DraError::NotReserved {
            pod: pod.metadata.name.clone().unwrap_or_default(),
            uid: uid.to_owned(),
            claim: wanted.name.clone(),
            claim_uid,
        });
    }
    Ok(())
}
