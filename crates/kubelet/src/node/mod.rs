//! The node object: registration, status, heartbeats.

mod capacity;
mod facts;
mod heartbeat;
mod register;
mod status;

pub use capacity::{file_system, memory_available, memory_capacity};
pub use facts::{hostname, node_ips};
pub use heartbeat::{NodeLoop, Pressure, RuntimeHealth};
