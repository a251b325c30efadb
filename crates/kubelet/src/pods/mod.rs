//! Pods at work: one worker per pod, which compares what should be with what is and acts.

mod admit;
mod cgroups;
mod finish;
mod followed;
mod garbage;
mod hooks;
mod kill;
mod last_words;
mod making;
mod publish;
mod pull;
mod registry_auth;
mod resize;
mod start;
mod sync;
mod sysctls;
mod users;
mod worker;
mod workers;

pub use cgroups::Cgroups;
pub use followed::Followed;
pub use pull::Pulls;
pub use users::Users;
pub use worker::Order;
pub use workers::{Workers, WorkingPod};
