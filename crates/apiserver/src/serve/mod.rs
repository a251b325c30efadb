//! The serving layer: one TLS port with HTTP/1.1 and HTTP/2, and an in-process transport.
//!
//! It handles connections, certificates, limits and draining, and is independent of Kubernetes: requests go to a
//! [`Service`], which is the request chain.

mod body;
mod connection;
mod driver;
mod gather;
mod in_process;
mod listener;
mod stream;
mod tls;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub use body::{BodyError, BodySender, RequestBody, ResponseBody, Segment};
pub use connection::{Connection, Peer, PeerCertificates, Verification};
pub use in_process::InProcess;
pub use listener::{ServeError, bind, serve};
pub use tls::{ClientTrust, NamedCertificate, Tls, TlsError, TlsOptions, check_pair};

/// Handles requests. One instance serves every connection.
pub trait Service: Send + Sync + 'static {
    fn call(
        &self,
        request: http::Request<RequestBody>,
        connection: Arc<Connection>,
    ) -> impl Future<Output = http::Response<ResponseBody>> + Send;
}

/// Limits of the listener. The defaults are Kubernetes' where it has one.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Time limit of a TLS handshake.
    pub handshake_timeout: Duration,
    /// Time limit of an HTTP/1.1 request head, from its first byte.
    pub header_timeout: Duration,
    /// Idle timeout of a connection without requests.
    pub idle_timeout: Duration,
    /// A client that reads nothing for this long is disconnected.
    pub write_timeout: Duration,
    /// Largest request head; larger ones return 431.
    pub max_header_bytes: usize,
    /// Concurrent HTTP/2 streams per connection.
    pub max_concurrent_streams: u32,
    /// Maximum open connections; more wait in the kernel's backlog.
    pub max_connections: usize,
    /// Maximum open connections per client address (per /64 network for IPv6); more are closed. Without it one silent
    /// client could lock out all others.
    pub max_connections_per_address: usize,
    /// Time limit of requests in flight once the drain has begun.
    pub drain_grace: Duration,
    /// Probability that a request of an HTTP/2 connection is its last: clients then reconnect, and a load balancer
    /// can choose another server.
    pub goaway_chance: f64,
    /// Accepts connections during the drain, so that their requests return 429.
    pub accept_while_draining: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(32),
            idle_timeout: Duration::from_secs(90),
            write_timeout: Duration::from_secs(60),
            max_header_bytes: 1 << 20,
            max_concurrent_streams: 100,
            max_connections: 16_384,
            max_connections_per_address: 8_192,
            drain_grace: Duration::from_secs(60),
            goaway_chance: 0.0,
            accept_while_draining: false,
        }
    }
}
