//! Gives pods a node: queue, cache, plugins, preemption, profiles, extenders.
//!
//! [`state`] is what is known of the cluster, [`queue`] the pods that wait, [`plugins`] what judges nodes, [`cycle`] the
//! way of one pod through them. All of that is pure; [`Scheduler`] runs it against an API server.

#![warn(clippy::arithmetic_side_effects)]

mod allocation;
pub mod config;
pub mod cycle;
pub mod diagnosis;
mod driver;
pub mod extender;
pub mod framework;
mod metrics;
pub mod plugins;
pub mod profile;
pub mod queue;
pub mod state;
mod storage;
#[cfg(test)]
mod testing;

pub use config::Configuration;
pub use driver::{DESCRIPTOR, Scheduler};
pub use metrics::SchedulerMetrics;
