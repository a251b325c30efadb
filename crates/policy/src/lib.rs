//! Network policies: one planner from policies, pods and namespaces to rules, and nftables that apply the difference.
//!
//! `model` is what is known of policies and pods, `selector` and `ranges` its words, `state` says which chains and sets
//! this node needs and how they change (all pure); `nftables` gives them to the kernel; `feed` follows the API and
//! `driver` ties the two together. `access` is what the driver may read. A pod of this node is
//! under its policies before its containers start (`early`).
//!
//! The name service that nodes run themselves is always reachable, like the node a pod is on.
//! As in Kubernetes, a pod and the node it runs on always reach each other; pods in the network of their node are
//! neither selected nor found by selectors; connections that exist go on when a policy comes.

pub mod access;
pub mod driver;
pub mod early;
pub mod feed;
pub mod model;
pub mod nftables;
pub mod ranges;
pub mod selector;
pub mod state;

pub use driver::{Driver, run};
pub use early::{Early, OnFailure};
