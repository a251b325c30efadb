//! Loops against a real API server in this process: documented behaviour, through restarts, with a fake kubelet that
//! the tests control.

mod chaos;
mod cluster_wide;
mod cron_jobs;
mod daemon_sets;
mod jobs;
mod nodes;
mod stateful_sets;
mod world;
