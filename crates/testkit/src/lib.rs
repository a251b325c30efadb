//! Harnesses shared by tests: a server on a free port, its client, waits that report what they saw.

mod client;
mod etcd;
mod kubectl;
mod server;
mod wait;

pub use client::{Client, Identity, Reply, Streaming};
pub use etcd::Etcd;
pub use kubectl::Kubectl;
pub use server::Server;
pub use wait::eventually;
