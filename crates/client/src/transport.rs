//! Transport of requests to an API server and of its responses.

use std::error::Error;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;

/// A streaming response body.
pub type Body = UnsyncBoxBody<Bytes, TransportError>;

/// A call in progress.
pub type Call<'a> = Pin<Box<dyn Future<Output = Result<http::Response<Body>, TransportError>> + Send + 'a>>;

/// A transport to one API server with one identity. Requests contain only path and query.
pub trait Transport: Send + Sync + 'static {
    fn call(&self, request: http::Request<Bytes>) -> Call<'_>;

    /// Host and port of the server, for metrics.
    fn authority(&self) -> &str {
        "in-process"
    }
}

/// Reason for a missing or incomplete response.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("failed to connect to {address}")]
    Connect { address: String, source: std::io::Error },
    #[error("{address} did not accept the connection within {limit:?}")]
    Slow { address: String, limit: Duration },
    #[error("TLS handshake with {address} failed")]
    Handshake { address: String, source: std::io::Error },
    #[error("HTTP connection failed")]
    Http(#[source] hyper::Error),
    #[error("failed to load credentials for {address}")]
    Credentials { address: String, source: crate::KubeconfigError },
    #[error("failed to request a token for service account {account}")]
    Token { account: String, source: Box<crate::ClientError> },
    #[error("the request is malformed")]
    Request(#[source] http::Error),
    #[error("response interrupted")]
    Broken(#[source] Box<dyn Error + Send + Sync>),
}
