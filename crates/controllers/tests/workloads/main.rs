//! Loops against a real API server in this process: what they are documented to do, through restarts, with a fake
//! kubelet that takes pods where a test wants them.

mod chaos;
mod cluster_wide;
mod cron_jobs;
mod daemon_sets;
mod jobs;
mod nodes;
mod stateful_sets;
mod world;
