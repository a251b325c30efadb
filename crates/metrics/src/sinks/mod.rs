//! Sinks: everything collected is pushed to monitoring systems.
//!
//! After each cycle, the worker of every sink receives a [`snapshot::Snapshot`], which it encodes and sends in parts.
//! While the server does not accept them, the worker backs off and queues payloads on disk, up to a size limit; beyond
//! it the oldest are dropped. The queue survives restarts. Every dropped payload is counted and logged.

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
