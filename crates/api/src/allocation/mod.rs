//! Cluster IPs and node ports: who has which, and what a Service needs of them.
//!
//! Pure state machines without IO. The API server keeps one [`service::Allocators`], fills it from the stored
//! services at start, and around every write of a service calls [`service::plan`], then commits or reverts.

mod allocators;
mod families;
pub mod ip;
pub mod port;
mod random;
pub mod service;
