//! Loops against a real API server in the same process: what they do, and what happens when they restart in the middle,
//! when their caches lag, and when others write too.

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
