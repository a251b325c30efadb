//! The container runtime interface: messages, client and server plumbing.
//!
//! [`v1`] holds the messages, a client and a server trait per service, generated and checked in; [`client`] connects
//! to a runtime's unix socket, [`server`] serves on one. The same applies to the other gRPC services of a node:
//! [`csi`] of storage drivers, [`registration`] of plugins, [`device_plugin`] of device plugins, [`dra`] and [`dra_health`]
//! of drivers of dynamic resource allocation, and [`pod_resources`] of the kubelet.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod client;
mod connections;
pub mod csi;
pub mod device_plugin;
pub mod dra;
pub mod dra_health;
pub mod pod_resources;
pub mod registration;
pub mod server;
pub mod v1;

pub use client::{Runtime, connect};
pub use connections::Connections;
