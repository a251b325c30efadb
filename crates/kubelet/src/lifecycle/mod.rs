//! The life of one pod, as pure functions: what is observed, what should be done next, what its status says.
//!
//! Nothing here talks to a runtime or an API server, and time comes in as an argument.

pub mod backoff;
pub mod conditions;
pub mod members;
pub mod observed;
pub mod phase;
pub mod plan;
pub mod qos;
pub mod restart;
pub mod status;

pub use backoff::Backoff;
pub use members::{Member, MemberKind};
pub use observed::{Observed, ObservedContainer, ObservedSandbox, RunState};
pub use plan::{Kill, KillReason, Plan, ProbeView, Start, Verdict, plan};
