//! Startup, liveness and readiness probes.

mod check;
mod grpc;
mod http;
mod run;
mod tally;

pub use check::{ProbeOutcome, Target, check};
pub use run::{ProbeResults, ProbeSet};
pub use tally::{BUCKETS, Counted, Durations, Tally};
