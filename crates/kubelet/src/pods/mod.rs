//! Pod workers: one per pod, reconciling observed with desired state.

mod admit;
mod allocation;
mod cgroups;
mod finish;
mod garbage;
mod hooks;
mod image_name;
mod kill;
mod mounted_objects;
mod publish;
mod pull;
mod registry_auth;
mod resize;
mod spans;
mod start;
mod startup;
mod sync;
mod sysctls;
mod termination_message;
mod uncancelled;
mod users;
mod worker;
mod workers;

pub use cgroups::Cgroups;
pub use mounted_objects::MountedObjects;
pub use pull::Pulls;
pub use users::Users;
pub use worker::Order;
pub use workers::{Workers, WorkingPod};
