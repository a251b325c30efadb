//! Test support that needs no part of a cluster: an HTTP client, a scripted HTTPS server, etcd, kubectl, container
//! images, bounded waits, shared scenario tables. `testkit` adds an API server.

pub mod blocking;
mod client;
mod collector;
pub mod escape_table;
mod etcd;
pub mod images;
mod kubectl;
pub mod memory;
mod network_namespaces;
pub mod programs;
mod responder;
mod scenarios;
mod signing_key;
mod wait;

pub use client::{Client, Identity, Reply, Streaming};
pub use collector::{Behaviour, Collector, RecordedSpan};
pub use etcd::Etcd;
pub use kubectl::Kubectl;
pub use network_namespaces::{NetworkNamespaces, ip};
pub use responder::Responder;
pub use scenarios::Scenarios;
pub use signing_key::SigningKey;
pub use wait::eventually;
