//! Sinks: everything collected is pushed to monitoring systems.
//!
//! After each cycle a [`snapshot::Snapshot`] is handed to the worker of every sink, which encodes and sends one part of it
//! after the other; while its server does not accept them it backs off, and payloads wait in a queue on disk of bounded size, the oldest
//! giving way. A restart goes on with that queue. Every payload that is given up is counted and logged.

pub mod collect;
mod config;
mod encode;
mod protobuf;
mod queue;
#[cfg(test)]
mod real_tests;
mod snapshot;
mod transport;
#[cfg(test)]
mod wire;
mod worker;

pub use config::{SinkConfig, SinkError};
pub use worker::Sinks;

/// Rows of one payload, at most: some hundred kilobytes.
const BATCH: usize = 250;
/// Size of the queue of a sink by default: an hour of a thousand pods fits several times.
pub const DEFAULT_QUEUE_SIZE: u64 = 256 << 20;
