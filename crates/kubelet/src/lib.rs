//! The node agent: pod lifecycle, probes, volumes, resources, node status, its own HTTPS API.
//!
//! [`lifecycle`] and [`configure`] are pure: next actions for a pod, its status, and the CRI configuration.
//! [`engine`] wraps the runtime behind CRI, [`volumes`] manages pod files. [`pods`] combines them in one worker per
//! pod; [`node`] maintains the node object, [`server`] serves port 10250.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod config;
pub mod configure;
pub mod cpus;
pub mod csi;
pub mod devices;
pub mod dra;
pub mod engine;
pub mod events;
pub mod housekeeping;
pub mod housekeeping_config;
mod keyed_locks;
mod kubelet;
pub mod lifecycle;
pub mod logs;
mod metrics;
pub mod node;
mod plugins;
mod pod_resources;
pub mod pods;
pub mod probes;
pub mod server;
mod shared;
pub mod shutdown;
pub mod static_pods;
pub mod volumes;

pub use config::{CertificateStatus, Config, Gate, PeerObserver};
pub use housekeeping_config::HousekeepingConfig;
pub use kubelet::{Kubelet, KubeletError, NodeStarted};
