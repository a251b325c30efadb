//! Resource claims of a pod.

use std::sync::Arc;

use objects::resource::v1::ResourceClaim;

use super::{Inventory, RESERVED_FOR_MAX, is_mappable};
use crate::state::PodInfo;

/// Reports whether devices are searched for a pod.
#[must_use]
pub fn needs_devices(inventory: &Inventory, pod: &PodInfo) -> bool {
    let has_claims =
        pod.spec().is_some_and(|spec| spec.resource_claims.as_ref().is_some_and(|all| !all.is_empty()));
    has_claims || extended_resources(pod).any(|(name, _)| inventory.class_of_resource(name).is_some())
}

/// Resources that a pod requests and that devices may provide.
pub fn extended_resources(pod: &PodInfo) -> impl Iterator<Item = (&str, i64)> {
    let scalars = pod.requests.exact.scalar.iter().map(|(name, amount)| (&**name, *amount));
    scalars.filter(|(name, amount)| *amount != 0 && is_mappable(name))
}

/// Claims that a pod names, or the reason why it cannot be scheduled yet. An entry for which no claim was necessary has
/// none.
pub fn user_claims(inventory: &Inventory, pod: &PodInfo) -> Result<Vec<Arc<ResourceClaim>>, String> {
    let entries = pod.spec().and_then(|spec| spec.resource_claims.as_deref()).unwrap_or_default();
    let status = pod.pod.status.as_ref();
    let statuses = status.and_then(|status| status.resource_claim_statuses.as_deref()).unwrap_or_default();
    let mut claims = Vec::with_capacity(entries.len());
    for entry in entries {
        let (name, is_generated) = match (&entry.resource_claim_name, &entry.resource_claim_template_name) {
            (Some(name), _) => (name, false),
            (None, Some(_)) => {
                let status = statuses.iter().find(|status| status.name == entry.name);
                let Some(status) = status else {
                    return Err(format!("pod \"{}\": ResourceClaim not created yet", pod.key()));
                };
                match &status.resource_claim_name {
                    Some(name) => (name, true),
                    None => continue,
                }
            }
            (None, None) => {
                return Err(format!(
                    "pod \"{}\", spec.resourceClaim {:?}: none of the supported fields are set",
                    pod.key(),
                    entry.name
                ));
            }
        };
        let Some(claim) = inventory.claims.get(&pod.namespace, name) else {
            return Err(format!("could not find ResourceClaim \"{}/{name}\"", pod.namespace));
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("resourceclaim {name:?} is being deleted"));
        }
        if is_generated && !is_owned_by(claim, pod) {
            let namespace = &pod.namespace;
            return Err(format!(
                "ResourceClaim {namespace}/{name} was not created for Pod {} (Pod is not owner)",
                pod.key()
            ));
        }
        claims.push(Arc::clone(claim));
    }
    Ok(claims)
}

fn is_owned_by(claim: &ResourceClaim, pod: &PodInfo) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && *owner.uid == *pod.uid)
}

/// Reports whether a claim is reserved for a pod.
pub fn is_reserved_for(claim: &ResourceClaim, pod_uid: &str) -> bool {
    let reserved = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    reserved.into_iter().any(|consumer| consumer.uid == pod_uid)
}

/// Reports whether a pod can use an allocated claim beside those for which it is reserved.
pub fn is_usable_by(claim: &ResourceClaim, pod_uid: &str) -> bool {
    let reserved = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
    reserved.is_none_or(|reserved| reserved.len() < RESERVED_FOR_MAX) || is_reserved_for(claim, pod_uid)
}

/// Reports whether nothing but the pod uses a claim.
pub fn is_unused_by_others(claim: &ResourceClaim, pod_uid: &str) -> bool {
    let reserved =
        claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or_default();
    match reserved {
        [] => true,
        [one] => one.uid == pod_uid,
        _ => false,
    }
}

pub fn is_allocated(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.allocation.is_some())
}
