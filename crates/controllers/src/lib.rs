//! The control loops, one per file.

pub mod cron_job;
#[cfg(test)]
mod fixture;
pub mod history;
pub mod job;
pub mod pod_facts;
pub mod stateful_set;
