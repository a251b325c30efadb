//! Loops against a real API server in the same process: documented behaviour, restarts in the middle, stale caches,
//! and concurrent writers.

mod allocation;
mod causes;
mod certificates;
mod cleanup;
mod deployments;
mod devices;
mod legacy_tokens;
mod migrations;
mod scenarios;
mod steps;
mod world;
