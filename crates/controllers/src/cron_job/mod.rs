//! Cron jobs.

pub mod plan;
pub mod schedule;
