//! The plugin interface: extension points of a scheduling cycle and their results.
//!
//! A plugin keeps no state between cycles, except caches for the current one. For a pod it returns a [`Filter`], which borrows the cluster and is called
//! for each node; scoring is called once, with all feasible nodes.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use objects::core::v1::{ContainerExtendedResourceRequest, PersistentVolume, PersistentVolumeClaim};
use objects::resource::v1::{AllocationResult, DeviceClass, ResourceClaim};

use crate::cycle::ActiveFilter;
use crate::diagnosis::Diagnosis;
use crate::state::{Cluster, NodeInfo, PodInfo};

pub const MAX_NODE_SCORE: i64 = 100;

pub type Reason = Cow<'static, str>;

/// Reasons of a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reasons: Reasons,
    /// Preemption cannot resolve it.
    pub unresolvable: bool,
}

/// Nearly always one reason, which needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reasons {
    One(Reason),
    Many(Vec<Reason>),
    /// An error, which ends the whole attempt.
    Error(Reason),
}

impl Reasons {
    pub fn iter(&self) -> impl Iterator<Item = &Reason> {
        match self {
            Self::One(reason) | Self::Error(reason) => std::slice::from_ref(reason).iter(),
            Self::Many(reasons) => reasons.iter(),
        }
    }
}

impl Rejection {
    /// Rejection that removing another pod could resolve.
    #[must_use]
    pub fn unschedulable(reason: impl Into<Reason>) -> Self {
        Self { reasons: Reasons::One(reason.into()), unresolvable: false }
    }

    #[must_use]
    pub fn unresolvable(reason: impl Into<Reason>) -> Self {
        Self { reasons: Reasons::One(reason.into()), unresolvable: true }
    }

    /// Error that ends the attempt; the pod is retried after its backoff.
    #[must_use]
    pub fn error(reason: impl Into<Reason>) -> Self {
        Self { reasons: Reasons::Error(reason.into()), unresolvable: true }
    }

    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self.reasons, Reasons::Error(_))
    }

    /// Status as a label of metrics.
    #[must_use]
    pub fn status(&self) -> &'static str {
        if self.is_error() {
            "Error"
        } else if self.unresolvable {
            "UnschedulableAndUnresolvable"
        } else {
            "Unschedulable"
        }
    }

    /// Reasons joined to one text.
    #[must_use]
    pub fn message(&self) -> String {
        self.reasons.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ")
    }
}

/// The pod to schedule and the state of the cluster.
#[derive(Clone, Copy)]
pub struct Cycle<'a> {
    pub cluster: &'a Cluster,
    pub pod: &'a Arc<PodInfo>,
}

/// Node filter of a plugin for one pod.
pub trait Filter<'a>: Send + Sync {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection>;

    /// Simulates adding `pod` to `node`.
    fn add(&mut self, _pod: &PodInfo, _node: &NodeInfo) {}

    /// Simulates removing `pod` from `node`.
    fn remove(&mut self, _pod: &PodInfo, _node: &NodeInfo) {}

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a>;
}

/// Result of PreFilter.
pub enum PreFilter<'a> {
    /// The plugin does not apply to this pod.
    Skip,
    Check(Box<dyn Filter<'a> + 'a>),
    /// Only these nodes are feasible.
    Only(Vec<String>, Box<dyn Filter<'a> + 'a>),
    Reject(Rejection),
}

/// Extension points at which a profile can enable or disable a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    PreEnqueue,
    QueueSort,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Permit,
    PreBind,
    Bind,
    PostBind,
}

impl Point {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PreEnqueue => "PreEnqueue",
            Self::QueueSort => "QueueSort",
            Self::PreFilter => "PreFilter",
            Self::Filter => "Filter",
            Self::PostFilter => "PostFilter",
            Self::PreScore => "PreScore",
            Self::Score => "Score",
            Self::Reserve => "Reserve",
            Self::Permit => "Permit",
            Self::PreBind => "PreBind",
            Self::Bind => "Bind",
            Self::PostBind => "PostBind",
        }
    }
}

/// Kinds of cluster events, one bit each, that can make an unschedulable pod schedulable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions(pub u32);

impl Actions {
    pub const NODE_ADD: Self = Self(1);
    pub const NODE_LABEL: Self = Self(1 << 1);
    pub const NODE_TAINT: Self = Self(1 << 2);
    pub const NODE_ALLOCATABLE: Self = Self(1 << 3);
    pub const NODE_DELETE: Self = Self(1 << 4);
    /// A pod was assigned to a node.
    pub const POD_ADD: Self = Self(1 << 5);
    pub const POD_LABEL: Self = Self(1 << 6);
    pub const POD_SCALE_DOWN: Self = Self(1 << 7);
    pub const POD_TOLERATION: Self = Self(1 << 8);
    pub const POD_GATES: Self = Self(1 << 9);
    pub const POD_DELETE: Self = Self(1 << 10);
    pub const CLAIM_ADD: Self = Self(1 << 11);
    pub const CLAIM_UPDATE: Self = Self(1 << 12);
    pub const VOLUME_ADD: Self = Self(1 << 13);
    pub const VOLUME_UPDATE: Self = Self(1 << 14);
    pub const CLASS_ADD: Self = Self(1 << 15);
    pub const CLASS_UPDATE: Self = Self(1 << 16);
    pub const CSI_NODE_ADD: Self = Self(1 << 17);
    pub const CSI_NODE_UPDATE: Self = Self(1 << 18);
    pub const CSI_DRIVER: Self = Self(1 << 19);
    pub const CAPACITY: Self = Self(1 << 20);
    pub const ATTACHMENT_DELETE: Self = Self(1 << 21);
    pub const RESOURCE_CLAIM_ADD: Self = Self(1 << 22);
    pub const RESOURCE_CLAIM_UPDATE: Self = Self(1 << 23);
    pub const DEVICE_CLASS_ADD: Self = Self(1 << 24);
    pub const DEVICE_CLASS_UPDATE: Self = Self(1 << 25);
    pub const RESOURCE_SLICE_ADD: Self = Self(1 << 26);
    pub const RESOURCE_SLICE_UPDATE: Self = Self(1 << 27);
    /// The resource claims of a pod were generated.
    pub const POD_GENERATED_CLAIM: Self = Self(1 << 28);

    /// Metric label of one kind of event.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NODE_ADD => "NodeAdd",
            Self::NODE_LABEL => "NodeLabelUpdate",
            Self::NODE_TAINT => "NodeTaintUpdate",
            Self::NODE_ALLOCATABLE => "NodeAllocatableUpdate",
            Self::NODE_DELETE => "NodeDelete",
            Self::POD_ADD => "AssignedPodAdd",
            Self::POD_LABEL => "PodLabelUpdate",
            Self::POD_SCALE_DOWN => "PodScaleDown",
            Self::POD_TOLERATION => "PodTolerationUpdate",
            Self::POD_GATES => "PodSchedulingGatesEliminated",
            Self::POD_DELETE => "AssignedPodDelete",
            Self::CLAIM_ADD => "PvcAdd",
            Self::CLAIM_UPDATE => "PvcUpdate",
            Self::VOLUME_ADD => "PvAdd",
            Self::VOLUME_UPDATE => "PvUpdate",
            Self::CLASS_ADD => "StorageClassAdd",
            Self::CLASS_UPDATE => "StorageClassUpdate",
            Self::CSI_NODE_ADD => "CSINodeAdd",
            Self::CSI_NODE_UPDATE => "CSINodeUpdate",
            Self::CSI_DRIVER => "CSIDriverUpdate",
            Self::CAPACITY => "CSIStorageCapacityUpdate",
            Self::ATTACHMENT_DELETE => "VolumeAttachmentDelete",
            Self::RESOURCE_CLAIM_ADD => "ResourceClaimAdd",
            Self::RESOURCE_CLAIM_UPDATE => "ResourceClaimUpdate",
            Self::DEVICE_CLASS_ADD => "DeviceClassAdd",
            Self::DEVICE_CLASS_UPDATE => "DeviceClassUpdate",
            Self::RESOURCE_SLICE_ADD => "ResourceSliceAdd",
            Self::RESOURCE_SLICE_UPDATE => "ResourceSliceUpdate",
            Self::POD_GENERATED_CLAIM => "UpdatePodGeneratedResourceClaim",
            _ => "Update",
        }
    }

    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Details of a change, for queueing hints.
#[derive(Clone, Copy)]
pub enum Changed<'a> {
    Pod {
        old: Option<&'a PodInfo>,
        new: Option<&'a PodInfo>,
    },
    /// Nodes without their pods.
    Node {
        old: Option<&'a NodeInfo>,
        new: Option<&'a NodeInfo>,
    },
    Claim(&'a PersistentVolumeClaim),
    Volume {
        old: Option<&'a PersistentVolume>,
        new: &'a PersistentVolume,
    },
    Class(&'a objects::storage::v1::StorageClass),
    CsiNode {
        old: Option<&'a objects::storage::v1::CSINode>,
        new: &'a objects::storage::v1::CSINode,
    },
    ResourceClaim {
        old: Option<&'a ResourceClaim>,
        new: &'a ResourceClaim,
    },
    DeviceClass {
        old: Option<&'a DeviceClass>,
        new: &'a DeviceClass,
    },
    Other,
}

/// A pod that is currently unschedulable.
pub struct Failed<'a, 'c> {
    pub cluster: &'c Cluster,
    pub pod: &'c Arc<PodInfo>,
    pub filters: &'a [ActiveFilter<'c>],
    pub diagnosis: &'a Diagnosis,
    /// Start offset among the nodes, so that preemption does not always hit the same ones.
    pub offset: usize,
}

/// A preemption candidate: a node and its victims.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub node: Arc<str>,
    /// Most important first.
    pub victims: Vec<Arc<PodInfo>>,
    /// Number of victims whose disruption budget is violated.
    pub violations: usize,
}

/// Reason why preemption is impossible.
#[derive(Clone, Debug, PartialEq)]
pub struct NoCandidates {
    pub message: String,
    /// True if the nominated node stays: preemption is in progress there.
    pub keep_nomination: bool,
    /// Claim whose allocation keeps the pod from every node, and is to be removed.
    pub deallocation: Option<Arc<ResourceClaim>>,
}

impl NoCandidates {
    #[must_use]
    pub fn new(message: impl Into<String>, keep_nomination: bool) -> Self {
        Self { message: message.into(), keep_nomination, deallocation: None }
    }
}

/// Writes to one resource claim of a pod.
#[derive(Clone, Debug)]
pub struct ClaimBinding {
    /// The claim as cached. That for extended resources does not exist yet; its UID is temporary.
    pub claim: ResourceClaim,
    /// Allocation to write, unless the claim has one.
    pub allocation: Option<AllocationResult>,
    /// Requests of the containers that the claim for extended resources satisfies.
    pub extended: Option<Vec<ContainerExtendedResourceRequest>>,
}

/// Writes and conditions that must precede the binding of a pod.
#[derive(Clone, Debug, Default)]
pub struct BeforeBinding {
    pub volumes: Vec<PersistentVolume>,
    pub claims: Vec<PersistentVolumeClaim>,
    /// Claims of the pod's namespace that must be bound first.
    pub await_claims: Vec<String>,
    pub timeout: Duration,
    pub devices: Vec<ClaimBinding>,
    /// Time limit of the binding conditions of devices.
    pub device_timeout: Duration,
}

impl BeforeBinding {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.has_volumes() && self.devices.is_empty()
    }

    #[must_use]
    pub fn has_volumes(&self) -> bool {
        !(self.volumes.is_empty() && self.claims.is_empty() && self.await_claims.is_empty())
    }

    /// Adds what another plugin requires.
    pub fn merge(&mut self, other: Self) {
        self.timeout = self.timeout.max(other.timeout);
        self.device_timeout = self.device_timeout.max(other.device_timeout);
        self.volumes.extend(other.volumes);
        self.claims.extend(other.claims);
        self.await_claims.extend(other.await_claims);
        self.devices.extend(other.devices);
    }
}

/// One plugin of the scheduling framework. Default methods mean that it does not take part at that extension point.
pub trait Plugin: Send + Sync {
    /// Reason why a pod may not be tried yet.
    fn pre_enqueue(&self, _cluster: &Cluster, _pod: &PodInfo) -> Result<(), Reason> {
        Ok(())
    }

    fn pre_filter<'a>(&'a self, _cycle: Cycle<'a>) -> PreFilter<'a> {
        PreFilter::Skip
    }

    /// Writes scores of `nodes` from 0 to 100 into `scores`; `false` skips the plugin and all nodes get 0.
    fn score(&self, _cycle: Cycle<'_>, _nodes: &[&NodeInfo], _scores: &mut [i64]) -> bool {
        false
    }

    /// Preemption candidates for an unschedulable pod.
    fn post_filter(&self, _failed: &Failed<'_, '_>) -> Result<Vec<Candidate>, NoCandidates> {
        Err(NoCandidates::new("", true))
    }

    /// Reserves the pod's resources beyond the node itself, such as volumes; returns the writes that must precede
    /// binding.
    fn reserve(
        &self,
        _cluster: &mut Cluster,
        _pod: &PodInfo,
        _node: &str,
    ) -> Result<BeforeBinding, Rejection> {
        Ok(BeforeBinding::default())
    }

    fn unreserve(&self, _cluster: &mut Cluster, _reserved: &BeforeBinding) {}

    /// Events that can make a pod schedulable which this plugin rejected.
    fn interests(&self) -> Actions {
        Actions::default()
    }

    /// Queueing hint: true if this change can make this pod schedulable.
    fn helps(&self, _cluster: &Cluster, _pod: &PodInfo, _action: Actions, _changed: Changed<'_>) -> bool {
        true
    }
}

/// Normalizes scores to percentages of the highest one; `reverse` prefers the lowest.
pub fn normalize(scores: &mut [i64], reverse: bool) {
    let highest = scores.iter().copied().max().unwrap_or(0);
    if highest == 0 {
        if reverse {
            scores.fill(MAX_NODE_SCORE);
        }
        return;
    }
    for score in scores {
        let share = MAX_NODE_SCORE * *score / highest;
        *score = if reverse { MAX_NODE_SCORE - share } else { share };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalize_scales_scores_to_highest() {
        for (mut scores, reverse, expected) in [
            (vec![1, 2, 4], false, vec![25, 50, 100]),
            (vec![0, 0], false, vec![0, 0]),
            (vec![0, 0], true, vec![100, 100]),
            (vec![0, 3, 1], true, vec![100, 0, 67]),
        ] {
            normalize(&mut scores, reverse);
            assert_eq!(scores, expected);
        }
    }
}
