//! DynamicResources: a pod with resource claims needs a node on which their devices are accessible. Allocates
//! unallocated claims, also one for extended resources that are backed by devices.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::clock::Clock;
use objects::core::v1::ContainerExtendedResourceRequest;
use objects::meta::v1::{ObjectMeta, OwnerReference};
use objects::resource::v1::{AllocationResult, DeviceClaim, ResourceClaim, ResourceClaimSpec};
use parking_lot::Mutex;

use crate::devices::claims::{
    extended_resources, is_allocated, is_unused_by_others, is_usable_by, user_claims,
};
use crate::devices::conditions::{self, Readiness};
use crate::devices::{
    ALTERNATIVES_MAX, AllocationError, Allocator, EXTENDED_CLAIM, Inventory, SelectorCache, Target,
    extended_requests, validate_requests,
};
use crate::framework::{
    Actions, BeforeBinding, Candidate, Changed, ClaimBinding, Cycle, Failed, Filter, NoCandidates, Plugin,
    PreFilter, Reason, Rejection, normalize,
};
use crate::state::{Cluster, NodeInfo, NodeTerms, PodInfo};

const REASON_UNAVAILABLE: &str = "resourceclaim not available on the node";
const REASON_UNALLOCATED: &str = "cannot allocate all claims";
const REASON_STALE: &str = "cannot schedule extended resource claim";
const REASON_RESOURCE: &str = "cannot fit resource";

/// Finalizer of allocated claims.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

#[derive(Debug)]
pub struct DynamicResources {
    /// Time limit of the search for devices in one attempt.
    pub filter_timeout: Option<Duration>,
    /// Time limit of the binding conditions of devices.
    pub binding_timeout: Duration,
    clock: Clock,
    selectors: SelectorCache,
    found: Mutex<Found>,
}

impl Default for DynamicResources {
    fn default() -> Self {
        Self {
            filter_timeout: Some(Duration::from_secs(10)),
            binding_timeout: Duration::from_secs(600),
            clock: Clock::system(),
            selectors: SelectorCache::default(),
            found: Mutex::default(),
        }
    }
}

/// Allocations found for a pod in the current attempt, by node.
#[derive(Debug, Default)]
struct Found {
    pod: Arc<str>,
    nodes: HashMap<Arc<str>, Arc<NodeAllocation>>,
}

/// Allocation results of the unallocated claims, in their order; that for extended resources comes last.
#[derive(Debug, Default)]
struct NodeAllocation {
    results: Vec<AllocationResult>,
    /// Claim to create for extended resources, and the requests of containers that it satisfies.
    extended: Option<(ResourceClaim, Vec<ContainerExtendedResourceRequest>)>,
}

/// Claims of a pod.
struct PodClaims {
    user: Vec<Arc<ResourceClaim>>,
    /// Claim for extended resources of an earlier attempt, which is deleted before the next one.
    stale: Option<Arc<ResourceClaim>>,
    /// Reports whether some extended resource of the pod is backed by devices.
    has_extended: bool,
}

impl PodClaims {
    fn of(inventory: &Inventory, pod: &PodInfo) -> Result<Self, String> {
        let has_extended =
            extended_resources(pod).any(|(name, _)| inventory.class_of_resource(name).is_some());
        let stale =
            has_extended.then(|| inventory.extended_claim(&pod.namespace, &pod.uid)).flatten().cloned();
        Ok(Self { user: user_claims(inventory, pod)?, stale, has_extended })
    }

    fn is_empty(&self) -> bool {
        self.user.is_empty() && !self.has_extended
    }

    fn unallocated(&self) -> impl Iterator<Item = &Arc<ResourceClaim>> {
        self.user.iter().filter(|claim| !is_allocated(claim))
    }
}

/// Claim for the extended resources of a pod, without requests and with a temporary UID.
fn extended_claim(pod: &PodInfo) -> ResourceClaim {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name.to_string(),
        uid: pod.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let metadata = ObjectMeta {
        namespace: Some(pod.namespace.to_string()),
        generate_name: Some(format!("{}-extended-resources-", pod.name)),
        uid: Some(uuid::Uuid::new_v4().to_string()),
        owner_references: Some(vec![owner]),
        annotations: Some(BTreeMap::from([(EXTENDED_CLAIM.to_owned(), "true".to_owned())])),
        ..ObjectMeta::default()
    };
    ResourceClaim { metadata, spec: ResourceClaimSpec::default(), status: None }
}

struct DynamicResourcesFilter<'a> {
    plugin: &'a DynamicResources,
    cluster: &'a Cluster,
    pod: &'a Arc<PodInfo>,
    claims: PodClaims,
    /// Nodes of each allocated claim of the user, unless it is available on all.
    available: Vec<Option<NodeTerms>>,
    allocator: Allocator<'a>,
}

impl<'a> DynamicResourcesFilter<'a> {
    fn check_node(&self, node: &NodeInfo) -> Result<(), Rejection> {
        if self.claims.stale.is_some() {
            return Err(Rejection::unresolvable(REASON_STALE));
        }
        let extended = self.extended(node)?;
        if extended.is_none() && self.claims.user.is_empty() {
            return Ok(());
        }
        if (0..self.claims.user.len()).any(|index| !self.is_available(index, node)) {
            return Err(Rejection::unresolvable(REASON_UNAVAILABLE));
        }
        let is_known = {
            let found = self.plugin.found.lock();
            found.pod == self.pod.uid && found.nodes.contains_key(&node.name)
        };
        // The state of devices does not change during an attempt.
        if is_known { Ok(()) } else { self.allocate(node, extended) }
    }

    /// Claim for the extended resources that only devices provide on this node.
    fn extended(
        &self,
        node: &NodeInfo,
    ) -> Result<Option<(ResourceClaim, Vec<ContainerExtendedResourceRequest>)>, Rejection> {
        if !self.claims.has_extended {
            return Ok(None);
        }
        let inventory = &self.cluster.devices;
        let mut by_devices = BTreeMap::new();
        for (name, _) in extended_resources(self.pod) {
            let allocatable = node.allocatable.scalar(name);
            match inventory.class_of_resource(name) {
                Some(class) if allocatable.unwrap_or(0) == 0 => {
                    by_devices.insert(name, class.metadata.name.as_deref().unwrap_or_default());
                }
                _ if allocatable.is_none() => return Err(Rejection::unresolvable(REASON_RESOURCE)),
                _ => {}
            }
        }
        if by_devices.is_empty() {
            return Ok(None);
        }
        let made = extended_requests(&self.pod.pod, &by_devices);
        if made.requests.is_empty() {
            return Ok(None);
        }
        let mut claim = extended_claim(self.pod);
        claim.spec.devices = Some(DeviceClaim { requests: Some(made.requests), ..DeviceClaim::default() });
        Ok(Some((claim, made.mappings)))
    }

    /// Reports whether an allocated claim can be used on a node.
    fn is_available(&self, index: usize, node: &NodeInfo) -> bool {
        let Some(claim) = self.claims.user.get(index).filter(|claim| is_allocated(claim)) else {
            return true;
        };
        let terms = self.available.get(index).and_then(Option::as_ref);
        terms.is_none_or(|terms| terms.matches(&node.name, &node.labels))
            && match conditions::readiness(claim) {
                Readiness::Ready => true,
                Readiness::Failed(_) => false,
                Readiness::Pending => {
                    !conditions::has_timed_out(claim, self.plugin.binding_timeout, self.plugin.clock.now())
                }
            }
    }

    /// Searches devices for the unallocated claims, and keeps the results.
    fn allocate(
        &self,
        node: &NodeInfo,
        extended: Option<(ResourceClaim, Vec<ContainerExtendedResourceRequest>)>,
    ) -> Result<(), Rejection> {
        let mut claims: Vec<&ResourceClaim> = self.claims.unallocated().map(AsRef::as_ref).collect();
        claims.extend(extended.as_ref().map(|(claim, _)| claim));
        let target = Target { name: &node.name, labels: &node.labels };
        let results = if claims.is_empty() {
            Vec::new()
        } else {
            match self.allocator.allocate(&target, &claims) {
                Ok(Some(results)) => results,
                Ok(None) => return Err(Rejection::unresolvable(REASON_UNALLOCATED)),
                Err(AllocationError::Node(reason)) => return Err(Rejection::unresolvable(reason)),
                Err(AllocationError::Claim(error)) => return Err(Rejection::error(error)),
                Err(error @ AllocationError::Timeout) => {
                    // The limit is that of the attempt: a node that was found before is used.
                    let found = self.plugin.found.lock();
                    return Err(if found.pod == self.pod.uid && !found.nodes.is_empty() {
                        Rejection::unresolvable(error.to_string())
                    } else {
                        Rejection::error(format!("node {}: {error}", node.name))
                    });
                }
            }
        };
        let allocation = Arc::new(NodeAllocation { results, extended });
        self.plugin.found.lock().nodes.insert(Arc::clone(&node.name), allocation);
        Ok(())
    }
}

/// The filter as the framework copies it.
#[derive(Clone)]
struct SharedFilter<'a>(Arc<DynamicResourcesFilter<'a>>);

impl<'a> Filter<'a> for SharedFilter<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        self.0.check_node(node)
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl DynamicResources {
    fn filter<'a>(&'a self, cycle: Cycle<'a>, claims: PodClaims) -> Result<SharedFilter<'a>, String> {
        let inventory = &cycle.cluster.devices;
        let mut available = Vec::with_capacity(claims.user.len());
        for claim in &claims.user {
            let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
            available.push(allocation.and_then(|own| own.node_selector.as_ref()).map(NodeTerms::of));
            if allocation.is_some() {
                if !is_usable_by(claim, &cycle.pod.uid) {
                    return Err("resourceclaim in use".to_owned());
                }
                continue;
            }
            if inventory.is_in_flight(claim) {
                let metadata = &claim.metadata;
                let name = metadata.name.as_deref().unwrap_or_default();
                let namespace = metadata.namespace.as_deref().unwrap_or_default();
                return Err(format!(
                    "resource claim {namespace}/{name} is in the process of being allocated"
                ));
            }
            validate_requests(claim, |class| inventory.classes.get("", class).is_some())?;
        }
        *self.found.lock() = Found { pod: Arc::clone(&cycle.pod.uid), nodes: HashMap::new() };
        let deadline = self.filter_timeout.and_then(|limit| Instant::now().checked_add(limit));
        Ok(SharedFilter(Arc::new(DynamicResourcesFilter {
            plugin: self,
            cluster: cycle.cluster,
            pod: cycle.pod,
            claims,
            available,
            allocator: Allocator::new(inventory, &self.selectors, deadline),
        })))
    }

    fn found(&self, pod: &PodInfo, node: &str) -> Option<Arc<NodeAllocation>> {
        let found = self.found.lock();
        found.nodes.get(node).filter(|_| found.pod == pod.uid).cloned()
    }
}

/// Sum over all requests with alternatives: the earlier the chosen alternative, the higher.
fn score(claims: &[Arc<ResourceClaim>], results: &[AllocationResult]) -> i64 {
    let mut results = results.iter();
    let mut score = 0;
    for claim in claims {
        let known = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let Some(allocation) = known.or_else(|| results.next()) else { break };
        let chosen = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
        let chosen: Vec<&str> = chosen.map(|result| result.request.as_str()).collect();
        let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
        for request in requests.filter(|request| request.exactly.is_none()) {
            for (index, alternative) in request.first_available.iter().flatten().enumerate() {
                if chosen.contains(&&*format!("{}/{}", request.name, alternative.name)) {
                    score += i64::try_from(ALTERNATIVES_MAX.saturating_sub(index)).unwrap_or(0);
                }
            }
        }
    }
    score
}

impl Plugin for DynamicResources {
    fn pre_enqueue(&self, cluster: &Cluster, pod: &PodInfo) -> Result<(), Reason> {
        user_claims(&cluster.devices, pod).map(drop).map_err(Reason::from)
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        let filter = PodClaims::of(&cycle.cluster.devices, cycle.pod).and_then(|claims| {
            if claims.is_empty() { Ok(None) } else { self.filter(cycle, claims).map(Some) }
        });
        match filter {
            Ok(None) => PreFilter::Skip,
            Ok(Some(filter)) => PreFilter::Check(Box::new(filter)),
            Err(reason) => PreFilter::Reject(Rejection::unresolvable(reason)),
        }
    }

    fn score(&self, cycle: Cycle<'_>, nodes: &[&NodeInfo], scores: &mut [i64]) -> bool {
        let Ok(claims) = PodClaims::of(&cycle.cluster.devices, cycle.pod) else { return false };
        if claims.is_empty() {
            return false;
        }
        for (node, own) in nodes.iter().zip(scores.iter_mut()) {
            if let Some(found) = self.found(cycle.pod, &node.name) {
                *own = score(&claims.user, &found.results);
            }
        }
        normalize(scores, false);
        true
    }

    fn post_filter(&self, failed: &Failed<'_, '_>) -> Result<Vec<Candidate>, NoCandidates> {
        let refuse = |message: &str| Err(NoCandidates::new(message, true));
        let cycle = Cycle { cluster: failed.cluster, pod: failed.pod };
        let claims = match PodClaims::of(&failed.cluster.devices, failed.pod) {
            Ok(claims) if !claims.is_empty() => claims,
            _ => return refuse("no new claims to deallocate"),
        };
        let deallocate = |claim: &Arc<ResourceClaim>, message: &str| {
            let deallocation = Some(Arc::clone(claim));
            Err(NoCandidates { deallocation, ..NoCandidates::new(message, true) })
        };
        if let Some(stale) = &claims.stale {
            return deallocate(stale, "deletion of ResourceClaim completed");
        }
        let Ok(SharedFilter(filter)) = self.filter(cycle, claims) else {
            return refuse("no new claims to deallocate");
        };
        let rejected = failed
            .diagnosis
            .rejections
            .iter()
            .filter(|(_, rejection)| rejection.reasons.iter().any(|reason| reason == REASON_UNAVAILABLE));
        for (slot, _) in rejected {
            let node = failed.cluster.node_at(*slot);
            let mut claims = filter.claims.user.iter().enumerate();
            let unavailable = claims.find(|(index, claim)| {
                !filter.is_available(*index, node) && is_unused_by_others(claim, &failed.pod.uid)
            });
            if let Some((_, claim)) = unavailable {
                return deallocate(claim, "deallocation of ResourceClaim completed");
            }
        }
        refuse("still not schedulable")
    }

    fn reserve(&self, cluster: &mut Cluster, pod: &PodInfo, node: &str) -> Result<BeforeBinding, Rejection> {
        let claims = PodClaims::of(&cluster.devices, pod).map_err(Rejection::unresolvable)?;
        if claims.is_empty() {
            return Ok(BeforeBinding::default());
        }
        let found = self.found(pod, node);
        let mut results = found.iter().flat_map(|found| found.results.iter().cloned());
        let mut before = BeforeBinding { device_timeout: self.binding_timeout, ..BeforeBinding::default() };
        for claim in &claims.user {
            let allocation = if is_allocated(claim) {
                None
            } else {
                Some(results.next().ok_or_else(|| Rejection::error("claim allocation not found for node"))?)
            };
            let claim = ResourceClaim::clone(claim);
            before.devices.push(ClaimBinding { claim, allocation, extended: None });
        }
        let extended = found.as_ref().and_then(|found| found.extended.clone());
        if let (Some((claim, mappings)), Some(allocation)) = (extended, results.next()) {
            let allocation = Some(allocation);
            before.devices.push(ClaimBinding { claim, allocation, extended: Some(mappings) });
        }
        for binding in &before.devices {
            if let Some(allocation) = &binding.allocation {
                let mut claim = binding.claim.clone();
                claim.status.get_or_insert_default().allocation = Some(allocation.clone());
                cluster.devices.assume(Arc::new(claim));
            }
        }
        Ok(before)
    }

    fn unreserve(&self, cluster: &mut Cluster, reserved: &BeforeBinding) {
        for binding in reserved.devices.iter().filter(|binding| binding.allocation.is_some()) {
            cluster.devices.unreserve(binding.claim.metadata.uid.as_deref().unwrap_or_default());
        }
    }

    fn interests(&self) -> Actions {
        Actions::NODE_ADD
            .or(Actions::NODE_LABEL)
            .or(Actions::NODE_ALLOCATABLE)
            .or(Actions::POD_GENERATED_CLAIM)
            .or(Actions::RESOURCE_CLAIM_ADD)
            .or(Actions::RESOURCE_CLAIM_UPDATE)
            .or(Actions::DEVICE_CLASS_ADD)
            .or(Actions::DEVICE_CLASS_UPDATE)
            .or(Actions::RESOURCE_SLICE_ADD)
            .or(Actions::RESOURCE_SLICE_UPDATE)
    }

    fn helps(&self, cluster: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        match changed {
            Changed::ResourceClaim { old, new } => {
                let Ok(claims) = user_claims(&cluster.devices, pod) else { return false };
                // A deallocated device may be what the pod needs.
                if old.is_some_and(is_allocated) && !is_allocated(new) {
                    return true;
                }
                let is_own = claims.iter().any(|claim| claim.metadata.uid == new.metadata.uid);
                is_own && old.is_none_or(|old| old.status != new.status)
            }
            Changed::Pod { new: Some(new), .. } => {
                new.uid == pod.uid && user_claims(&cluster.devices, new).is_ok()
            }
            _ => true,
        }
    }
}

/// Adds the finalizer of allocated claims; reports whether it was missing.
pub fn add_finalizer(claim: &mut ResourceClaim) -> bool {
    let finalizers = claim.metadata.finalizers.get_or_insert_default();
    let is_missing = !finalizers.iter().any(|finalizer| finalizer == FINALIZER);
    if is_missing {
        finalizers.push(FINALIZER.to_owned());
    }
    is_missing
}

/// Removes the finalizer of allocated claims; reports whether it was there.
pub fn remove_finalizer(claim: &mut ResourceClaim) -> bool {
    let Some(finalizers) = &mut claim.metadata.finalizers else { return false };
    let before = finalizers.len();
    finalizers.retain(|finalizer| finalizer != FINALIZER);
    finalizers.len() < before
}

#[cfg(test)]
#[path = "dynamic_resources_tests.rs"]
mod tests;
