//! Harnesses shared by tests: a server on a free port, its client, waits that report what they saw.

mod client;
mod etcd;
mod kubectl;
mod responder;
mod server;
mod signing_key;
mod wait;

pub use client::{Client, Identity, Reply, Streaming};
pub use etcd::Etcd;
pub use kubectl::Kubectl;
pub use responder::Responder;
pub use server::Server;
pub use signing_key::SigningKey;
pub use wait::eventually;
