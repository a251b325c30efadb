//! The embedded container runtime: images, snapshots, sandboxes, containers, logs, streaming, networks.
//!
//! [`Runtime`] runs in the daemon and implements CRI; [`shim`] is a small process per container.
//! Everything that must survive the daemon is in files, from which a restarted daemon restores its state.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod attach;
mod cdi;
pub mod control;
pub mod images;
mod launch;
pub mod network;
mod registry;
mod service;
pub mod shim;

pub use service::{Config, Runtime, RuntimeError};
