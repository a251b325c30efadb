//! The node agent: pod lifecycle, probes, volumes, resources, node status, its own HTTPS API.
//!
//! [`lifecycle`] and [`configure`] are pure: what should be done for a pod, what its status says, what the runtime is
//! told. [`engine`] is the runtime behind CRI, [`volumes`] the files of pods. [`pods`] has a worker per pod that puts
//! them together; [`node`] keeps the node object, [`server`] answers on port 10250.

mod changes;
pub mod config;
pub mod configure;
pub mod csi;
pub mod engine;
pub mod events;
pub mod housekeeping;
mod kubelet;
pub mod lifecycle;
pub mod logs;
pub mod node;
pub mod pods;
pub mod probes;
pub mod server;
mod shared;
pub mod shutdown;
pub mod static_pods;
pub mod upkeep;
pub mod volumes;

pub use config::{Config, Gate};
pub use kubelet::{Begun, Kubelet, KubeletError};
pub use upkeep::Upkeep;

/// The version of Kubernetes that this kubelet behaves as.
pub const KUBERNETES_VERSION: &str = "v1.36.0";
