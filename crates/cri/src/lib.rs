//! The container runtime interface: messages, client and server plumbing.
//!
//! [`v1`] holds the messages, a client and a server trait per service, generated and checked in;
//! [`client`] connects to a runtime's unix socket, [`server`] serves on one. The same goes for the other services that
//! are spoken on a node: [`csi`] of storage drivers, and [`registration`] by which plugins make themselves known.

pub mod client;
pub mod csi;
pub mod registration;
pub mod server;
pub mod v1;

pub use client::{Runtime, connect};
