//! The HTTP/1.1 client of all components that call servers other than the API server: webhooks, token issuers,
//! extenders, registries, kubelets, and backends of proxied requests.
//!
//! A [`Client`] retains connections for the next request to the same [`Origin`]. A request is resent only if nothing of
//! it was sent before: otherwise the server may have acted on it. Every wait and every response has a limit.

mod client;
mod origin;
#[cfg(test)]
mod tests;
mod trust;

pub use client::{Client, Limits, READ_BUFFER, Response};
pub use origin::{Address, Origin, OriginError};
pub use trust::{Authorities, Trust, TrustError};

use std::time::Duration;

/// Reason why a request got no complete response.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("failed to connect to {address}")]
    Connect { address: String, source: std::io::Error },
    #[error("failed to connect to {address} within {limit:?}")]
    ConnectTimeout { address: String, limit: Duration },
    #[error("TLS handshake with {address} failed")]
    Tls { address: String, source: std::io::Error },
    #[error("request failed")]
    Exchange(#[source] hyper::Error),
    #[error("no response within {0:?}")]
    NoResponse(Duration),
    #[error("server did not switch protocols")]
    Upgrade(#[source] hyper::Error),
    #[error("connection closed before the response was complete")]
    Body(#[source] hyper::Error),
    #[error("no data for {0:?}")]
    Silence(Duration),
    #[error("response is longer than {0} bytes")]
    TooLong(usize),
}
