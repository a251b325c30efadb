//! What carries a request to an API server and its answer back.

use std::error::Error;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;

/// An answer's body, as it comes.
pub type Body = UnsyncBoxBody<Bytes, TransportError>;

/// A call under way.
pub type Call<'a> = Pin<Box<dyn Future<Output = Result<http::Response<Body>, TransportError>> + Send + 'a>>;

/// A way to one API server with one identity. Requests name only path and query.
pub trait Transport: Send + Sync + 'static {
    fn call(&self, request: http::Request<Bytes>) -> Call<'_>;
}

/// Why an answer did not come, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("connecting to {address}")]
    Connect { address: String, source: std::io::Error },
    #[error("{address} did not accept the connection within {limit:?}")]
    Slow { address: String, limit: Duration },
    #[error("the TLS handshake with {address}")]
    Handshake { address: String, source: std::io::Error },
    #[error("the HTTP connection")]
    Http(#[source] hyper::Error),
    #[error("credentials for {address}")]
    Credentials { address: String, source: crate::KubeconfigError },
    #[error("a token for the service account {account}")]
    Token { account: String, source: Box<crate::ClientError> },
    #[error("the request is malformed")]
    Request(#[source] http::Error),
    #[error("the answer broke off")]
    Broken(#[source] Box<dyn Error + Send + Sync>),
}
