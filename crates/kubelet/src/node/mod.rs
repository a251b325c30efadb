//! The node object: registration, status, heartbeats.

mod addresses;
mod capacity;
mod facts;
mod heartbeat;
mod register;
mod status;

pub use addresses::{NodeAddresses, PodAddress, follow as follow_addresses};
pub use capacity::{
    FileSystem, file_system, file_system_of, is_extended, memory_available, memory_capacity, processes,
    swap_capacity,
};
pub use facts::{hostname, machine_network, node_ips};
pub use heartbeat::{NodeLoop, Pressure};
pub use objects::core::v1::Taint;
pub use register::RegistrationConfig;
