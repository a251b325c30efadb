//! Cached state of the cluster in the scheduler's own form: converted once from each API object, updated
//! incrementally, never copied for a pod.

mod affinity;
mod cluster;
mod counts;
mod labels;
mod node;
mod node_affinity;
mod objects;
mod pod;
mod resources;
mod taints;
mod topology;

pub use affinity::{AffinityTerm, PodMatch, PodTerms, TermMatch, WeightedTerm};
pub use cluster::{Cluster, Confirmation};
pub use counts::{NamespaceLabels, TermKind, Terms};
pub use labels::{Labels, Operator, Requirement, Selector};
pub use node::NodeInfo;
pub use node_affinity::{Preferred as PreferredNodes, Required as RequiredNodes, Terms as NodeTerms};
pub use objects::{Objects, Table};
pub use pod::{HostPort, PodInfo, SpreadConstraint, normalized_image};
pub use resources::{
    DEFAULT_MEMORY, DEFAULT_MILLI_CPU, PodRequests, Resources, is_extended, is_scalar, pod_requests,
};
pub use taints::{Effect, Taint, Toleration, forbid, is_borne};
pub use topology::{NO_DOMAIN, TopologyKey};
