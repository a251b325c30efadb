//! The container runtime interface: messages, client and server plumbing.
//!
//! [`v1`] holds the messages, a client and a server trait per service, generated and checked in; [`client`] connects
//! to a runtime's unix socket, [`server`] serves on one. The same applies to the other gRPC services of a node:
//! [`csi`] of storage drivers, and [`registration`] of plugins.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod client;
pub mod csi;
pub mod registration;
pub mod server;
pub mod v1;

pub use client::{Runtime, connect};
