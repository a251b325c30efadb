//! Registries: where they are, how they are asked, and how blobs come from them.
//!
//! The protocol is the distribution API, version 2. Nothing here knows about images: manifests are bytes, and blobs are
//! files whose digest was checked while they came.

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
pub use http::{Connections, Patience};
pub use source::{RegistryError, Source};

use std::collections::BTreeMap;
use std::sync::Arc;

/// Connections for these servers, with the trust that each is given.
#[must_use]
pub fn connections(patience: Patience, endpoints: &[Endpoint]) -> Arc<Connections> {
    let trust: BTreeMap<_, _> =
        endpoints.iter().map(|endpoint| (endpoint.authority(), endpoint.tls.clone())).collect();
    Arc::new(Connections::new(patience, trust))
}
