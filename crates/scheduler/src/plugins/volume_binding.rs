//! VolumeBinding: bound claims restrict a pod to nodes that reach their volumes; claims that wait for their first
//! consumer get an existing or a newly provisioned volume for the chosen node.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use objects::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use objects::storage::v1::StorageClass;

use crate::framework::{
    Actions, BeforeBinding, Changed, Cycle, Filter, Plugin, PreFilter, Reason, Reasons, Rejection,
};
use crate::state::{Cluster, Labels, NodeInfo, PodInfo, Selector};
use crate::storage::{class_of, class_of_volume, is_delayed, reaches, reaches_bound};

const REASON_BIND: &str = "node(s) didn't find available persistent volumes to bind";
const REASON_NODE: &str = "node(s) didn't match PersistentVolume's node affinity";
const REASON_SPACE: &str = "node(s) did not have enough free storage";
const REASON_GONE: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

pub struct VolumeBinding {
    /// Wait limit for the binding of a pod's claims.
    pub timeout: Duration,
}

fn has_annotation(claim: &PersistentVolumeClaim, key: &str) -> bool {
    claim.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(key))
}

fn volume_name(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default()
}

/// True if a claim is bound and the binding is complete.
#[must_use]
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    !volume_name(claim).is_empty() && has_annotation(claim, BIND_COMPLETED)
}

fn requested_size(claim: &PersistentVolumeClaim) -> i64 {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests.and_then(|requests| requests.get("storage")).map_or(0, bytes)
}

fn bytes(quantity: &objects::Quantity) -> i64 {
    machinery::quantity::Quantity::parse(&quantity.0).map(|quantity| quantity.value()).unwrap_or(0)
}

/// Claims of a pod by the action they need.
#[derive(Clone, Default)]
struct Claims {
    bound: Vec<Arc<PersistentVolumeClaim>>,
    /// Sorted by size.
    waiting: Vec<Arc<PersistentVolumeClaim>>,
}

fn claims(cluster: &Cluster, pod: &PodInfo) -> Result<Claims, String> {
    let volumes = pod.spec().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let mut claims = Claims::default();
    let mut immediate = false;
    for volume in volumes {
        let ephemeral = volume.ephemeral.is_some();
        let name = match (&volume.persistent_volume_claim, ephemeral) {
            (Some(source), _) => source.claim_name.clone(),
            (None, true) => format!("{}-{}", pod.name, volume.name),
            (None, false) => continue,
        };
        let Some(claim) = cluster.objects.claims.get(&pod.namespace, &name) else {
            return Err(if ephemeral {
                format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
                )
            } else {
                format!("persistentvolumeclaim {name:?} not found")
            });
        };
        if claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Lost") {
            let volume = volume_name(claim);
            return Err(format!(
                "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
            ));
        }
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        let owners = claim.metadata.owner_references.iter().flatten();
        if ephemeral
            && !owners.into_iter().any(|owner| owner.uid == *pod.uid && owner.controller == Some(true))
        {
            let namespace = &pod.namespace;
            return Err(format!(
                "PVC {namespace}/{name} was not created for pod {namespace}/{} (pod is not owner)",
                pod.name
            ));
        }
        if is_bound(claim) {
            claims.bound.push(Arc::clone(claim));
        } else if volume_name(claim).is_empty()
            && class(cluster, claim).is_some_and(|class| is_delayed(class))
        {
            claims.waiting.push(Arc::clone(claim));
        } else {
            immediate = true;
        }
    }
    if immediate {
        return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
    }
    claims.waiting.sort_by_key(|claim| requested_size(claim));
    Ok(claims)
}

fn class<'a>(cluster: &'a Cluster, claim: &PersistentVolumeClaim) -> Option<&'a Arc<StorageClass>> {
    cluster.objects.storage_classes.get("", class_of(claim))
}

/// Binding decisions for the unbound claims on one node.
#[derive(Default)]
struct VolumeBindingPlan {
    matched: Vec<(Arc<PersistentVolume>, Arc<PersistentVolumeClaim>)>,
    provisioned: Vec<Arc<PersistentVolumeClaim>>,
}

fn plan(cluster: &Cluster, claims: &Claims, node: &NodeInfo) -> Result<VolumeBindingPlan, Rejection> {
    let mut reasons: Vec<Reason> = Vec::new();
    let csi_node = cluster.objects.csi_nodes.get("", &node.name).map(|found| &**found);
    for claim in &claims.bound {
        match cluster.objects.volumes.get("", volume_name(claim)) {
            None => {
                reasons.push(REASON_GONE.into());
                break;
            }
            Some(volume) if !reaches_bound(volume, node, csi_node) => {
                reasons.insert(0, REASON_NODE.into());
                break;
            }
            Some(_) => {}
        }
    }
    let plan = match plan_waiting(cluster, claims, node) {
        Ok(plan) => plan,
        Err(reason) => {
            reasons.push(reason.into());
            VolumeBindingPlan::default()
        }
    };
    match reasons.len() {
        0 => Ok(plan),
        1 => Err(Rejection { reasons: Reasons::One(reasons.remove(0)), unresolvable: true }),
        _ => Err(Rejection { reasons: Reasons::Many(reasons), unresolvable: true }),
    }
}

fn plan_waiting(
    cluster: &Cluster,
    claims: &Claims,
    node: &NodeInfo,
) -> Result<VolumeBindingPlan, &'static str> {
    let mut plan = VolumeBindingPlan::default();
    let mut taken: HashSet<String> = HashSet::new();
    for claim in &claims.waiting {
        let selected =
            claim.metadata.annotations.as_ref().and_then(|annotations| annotations.get(SELECTED_NODE));
        if let Some(selected) = selected {
            if **selected != *node.name {
                return Err(REASON_BIND);
            }
            plan.provisioned.push(Arc::clone(claim));
            continue;
        }
        match find_volume(cluster, claim, node, &taken) {
            Some(volume) => {
                taken.extend(volume.metadata.name.clone());
                plan.matched.push((volume, Arc::clone(claim)));
            }
            None => plan.provisioned.push(Arc::clone(claim)),
        }
    }
    for claim in &plan.provisioned {
        let Some(class) = class(cluster, claim) else { return Err(REASON_BIND) };
        if matches!(class.provisioner.as_str(), "" | "kubernetes.io/no-provisioner")
            || !allows(class, &node.labels)
        {
            return Err(REASON_BIND);
        }
        if !has_space(cluster, class, requested_size(claim), node) {
            return Err(REASON_SPACE);
        }
    }
    Ok(plan)
}

fn allows(class: &StorageClass, labels: &Labels) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|term| {
            let expressions = term.match_label_expressions.as_deref().unwrap_or_default();
            !expressions.is_empty()
                && expressions.iter().all(|expression| {
                    labels
                        .get(&expression.key)
                        .is_some_and(|value| expression.values.iter().any(|own| own == value))
                })
        })
}

/// True if the driver has capacity for a new volume accessible from this node; without reported capacity it is
/// assumed.
fn has_space(cluster: &Cluster, class: &StorageClass, size: i64, node: &NodeInfo) -> bool {
    let objects = &cluster.objects;
    let reports_capacity =
        objects.csi_drivers.get("", &class.provisioner).and_then(|driver| driver.spec.storage_capacity);
    if reports_capacity != Some(true) || size == 0 {
        return true;
    }
    objects.csi_capacities.all().any(|capacity| {
        let free_capacity = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref());
        Some(capacity.storage_class_name.as_str()) == class.metadata.name.as_deref()
            && free_capacity.is_some_and(|free_capacity| bytes(free_capacity) >= size)
            && Selector::of(capacity.node_topology.as_ref()).matches(&node.labels)
    })
}

/// Smallest matching volume, or the one already reserved for the claim.
fn find_volume(
    cluster: &Cluster,
    claim: &PersistentVolumeClaim,
    node: &NodeInfo,
    taken: &HashSet<String>,
) -> Option<Arc<PersistentVolume>> {
    let wanted = claim.spec.as_ref()?;
    let size = requested_size(claim);
    let selector = wanted.selector.as_ref().map(|selector| Selector::of(Some(selector)));
    let block = |mode: &Option<String>| mode.as_deref() == Some("Block");
    let mut best: Option<(i64, &Arc<PersistentVolume>)> = None;
    for volume in cluster.objects.volumes.all() {
        let (Some(name), Some(spec)) = (&volume.metadata.name, &volume.spec) else { continue };
        let promised = spec.claim_ref.as_ref();
        let capacity = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage")).map_or(0, bytes);
        if class_of_volume(volume) != class_of(claim)
            || taken.contains(name)
            || promised.is_some_and(|promised| !is_for(promised, claim))
            || capacity < size
            || block(&spec.volume_mode) != block(&wanted.volume_mode)
            || wanted.volume_attributes_class_name.as_deref().unwrap_or_default()
                != spec.volume_attributes_class_name.as_deref().unwrap_or_default()
            || volume.metadata.deletion_timestamp.is_some()
        {
            continue;
        }
        if promised.is_some() {
            return reaches(volume, node).then(|| Arc::clone(volume));
        }
        let modes = spec.access_modes.as_deref().unwrap_or_default();
        let available =
            volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Available");
        let fits = available
            && reaches(volume, node)
            && wanted.access_modes.iter().flatten().all(|mode| modes.contains(mode))
            && selector
                .as_ref()
                .is_none_or(|selector| selector.matches(&Labels::of(volume.metadata.labels.as_ref())));
        if fits && best.is_none_or(|(smallest, _)| capacity < smallest) {
            best = Some((capacity, volume));
        }
    }
    best.map(|(_, volume)| Arc::clone(volume))
}

fn is_for(promised: &ObjectReference, claim: &PersistentVolumeClaim) -> bool {
    let metadata = &claim.metadata;
    promised.name == metadata.name
        && promised.namespace == metadata.namespace
        && (promised.uid.as_deref().unwrap_or_default().is_empty() || promised.uid == metadata.uid)
}

#[derive(Clone)]
struct VolumeBindingFilter<'a> {
    cluster: &'a Cluster,
    claims: Claims,
}

impl<'a> Filter<'a> for VolumeBindingFilter<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        plan(self.cluster, &self.claims, node).map(|_| ())
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Plugin for VolumeBinding {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        if cycle.pod.claims.is_empty() {
            return PreFilter::Skip;
        }
        match claims(cycle.cluster, cycle.pod) {
            Err(reason) => PreFilter::Reject(Rejection::unresolvable(reason)),
            Ok(claims) => PreFilter::Check(Box::new(VolumeBindingFilter { cluster: cycle.cluster, claims })),
        }
    }

    fn reserve(&self, cluster: &mut Cluster, pod: &PodInfo, node: &str) -> Result<BeforeBinding, Rejection> {
        if pod.claims.is_empty() {
            return Ok(BeforeBinding::default());
        }
        let claims = claims(cluster, pod).map_err(Rejection::unresolvable)?;
        let Some(info) = cluster.node(node) else { return Ok(BeforeBinding::default()) };
        let plan = plan(cluster, &claims, info)?;
        let mut before = BeforeBinding { timeout: self.timeout, ..BeforeBinding::default() };
        for (volume, claim) in plan.matched {
            before.await_claims.extend(claim.metadata.name.clone());
            let promised = promise(&volume, &claim);
            cluster.objects.volumes.assume(Arc::new(promised.clone()));
            before.volumes.push(promised);
        }
        for claim in plan.provisioned {
            before.await_claims.extend(claim.metadata.name.clone());
            let mut selected = PersistentVolumeClaim::clone(&claim);
            let annotations = selected.metadata.annotations.get_or_insert_default();
            annotations.insert(SELECTED_NODE.to_owned(), node.to_owned());
            cluster.objects.claims.assume(Arc::new(selected.clone()));
            before.claims.push(selected);
        }
        Ok(before)
    }

    fn unreserve(&self, cluster: &mut Cluster, reserved: &BeforeBinding) {
        for volume in &reserved.volumes {
            cluster.objects.volumes.restore(&volume.metadata);
        }
        for claim in &reserved.claims {
            cluster.objects.claims.restore(&claim.metadata);
        }
    }

    fn interests(&self) -> Actions {
        Actions::CLASS_ADD
            .or(Actions::CLASS_UPDATE)
            .or(Actions::CLAIM_ADD)
            .or(Actions::CLAIM_UPDATE)
            .or(Actions::VOLUME_ADD)
            .or(Actions::VOLUME_UPDATE)
            .or(Actions::NODE_ADD)
            .or(Actions::NODE_LABEL)
            .or(Actions::CSI_DRIVER)
            .or(Actions::CAPACITY)
    }

    fn helps(&self, _: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        match changed {
            Changed::Claim(claim) => {
                claim.metadata.namespace.as_deref() == Some(&*pod.namespace)
                    && pod.claims.iter().any(|name| claim.metadata.name.as_deref() == Some(&**name))
            }
            _ => true,
        }
    }
}

/// The volume with its reference to the claim.
fn promise(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> PersistentVolume {
    let mut volume = volume.clone();
    let spec = volume.spec.get_or_insert_default();
    let metadata = &claim.metadata;
    let complete = spec.claim_ref.as_ref().is_some_and(|promised| {
        promised.name == metadata.name
            && promised.namespace == metadata.namespace
            && promised.uid == metadata.uid
    });
    if !complete {
        let by_hand = spec.claim_ref.is_some();
        spec.claim_ref = Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
            ..ObjectReference::default()
        });
        if !by_hand {
            let annotations = volume.metadata.annotations.get_or_insert_default();
            annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
        }
    }
    volume
}

#[cfg(test)]
#[path = "volume_binding_tests.rs"]
mod tests;
