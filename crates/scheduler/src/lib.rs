//! The scheduler: queue, cache, plugins, preemption, profiles, extenders.
//!
//! [`state`] caches the cluster, [`queue`] holds pending pods, [`plugins`] filter and score nodes, and [`cycle`] runs
//! them for one pod. All of that is pure; [`Scheduler`] runs it against an API server.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![warn(clippy::arithmetic_side_effects)]

mod allocation;
pub mod config;
pub mod cycle;
pub mod devices;
pub mod diagnosis;
mod driver;
pub mod extender;
pub mod framework;
mod metrics;
pub mod plugins;
mod pod_resources;
pub mod profile;
pub mod queue;
pub mod state;
mod storage;
#[cfg(test)]
mod testing;

pub use config::Configuration;
pub use driver::{DESCRIPTOR, Scheduler};
pub use metrics::SchedulerMetrics;
pub use pod_resources::pod_resources_page;
