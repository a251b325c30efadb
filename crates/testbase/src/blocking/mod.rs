//! Support for tests without an async runtime, which start programs and use kubectl.

mod kubectl;
mod objects;
mod wait;

pub use kubectl::Kubectl;
pub use objects::wait_until;
pub use wait::{try_until, until};
