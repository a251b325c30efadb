//! The embedded container runtime: images, snapshots, sandboxes, containers, logs, streaming, networks.
//!
//! [`Runtime`] is the daemon's side and implements CRI; [`shim`] is the other side, a small process per container.
//! Everything that must survive the daemon is in files, so that a new one finds what the old one left.

pub mod attach;
pub mod control;
pub mod images;
mod launch;
pub mod network;
mod registry;
mod service;
pub mod shim;

pub use service::{Config, Runtime, RuntimeError};
