//! Probes: asking a container whether it has started, is alive, is ready.

mod check;
mod grpc;
mod http;
mod run;
mod tally;

pub use check::{Outcome, Target, check};
pub use run::ProbeSet;
pub use tally::{Counted, Tally};
