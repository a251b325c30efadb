//! Pod lifecycle as pure functions: observed state, next actions, status.
//!
//! Nothing here calls a runtime or an API server; time is an argument.

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
pub use observed::{ObservedContainer, ObservedPod, ObservedSandbox, RunState};
pub use plan::{Kill, KillReason, PodPlan, ProbeView, Start, Verdict, plan};
