//! Network policies: one planner from policies, pods and namespaces to rules, and an nftables backend that applies the
//! difference.
//!
//! `model` describes policies and pods, `selector` and `ranges` its terms, `state` computes the chains and sets of
//! this node and their changes (all pure); `nftables` applies them to the kernel; `feed` converts API objects and
//! `driver` connects the parts. `access` has the driver's permissions. The policies of a pod are
//! enforced before its containers start (`pod_start_gate`).
//!
//! The DNS server on nodes is always reachable, like the node of a pod. As in Kubernetes, a pod and its node always
//! reach each other; host-network pods are neither selected nor matched by selectors; existing connections continue
//! when a policy is added.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod access;
pub mod driver;
pub mod feed;
pub mod model;
pub mod nftables;
pub mod pod_start_gate;
pub mod ranges;
pub mod selector;
pub mod state;

pub use driver::{Driver, run};
pub use pod_start_gate::{OnFailure, PodStartGate};
