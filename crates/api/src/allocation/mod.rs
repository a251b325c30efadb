//! Allocation of cluster IPs and node ports to Services.
//!
//! Pure state machines without IO. The API server owns one [`service::Allocators`], fills it from the stored services
//! at start, and around every write of a service calls [`service::plan`], then commits or reverts.

mod allocators;
mod families;
pub mod ip;
pub mod port;
mod random;
pub mod service;
