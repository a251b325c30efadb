//! Registries: endpoints, requests, and blob downloads.
//!
//! The protocol is the distribution API, version 2. This module is independent of images: manifests are bytes, and
//! blobs are files whose digest was verified while downloading.

mod auth;
mod challenge;
mod download;
mod hosts;
mod http;
mod source;
mod tls;

pub use auth::Credentials;
pub use download::{Blob, Progress};
pub use hosts::{Endpoint, HostsError, Registries};
pub use http::{Connections, Timeouts};
pub use source::{RegistryError, Source};

use std::collections::BTreeMap;
use std::sync::Arc;

/// Connections to these servers, with the trust configured for each.
#[must_use]
pub fn connections(timeouts: Timeouts, endpoints: &[Endpoint]) -> Arc<Connections> {
    let trust: BTreeMap<_, _> =
        endpoints.iter().map(|endpoint| (endpoint.authority(), endpoint.tls.clone())).collect();
    Arc::new(Connections::new(timeouts, trust))
}
