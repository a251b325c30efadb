//! Connection data for the request chain.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rustls_pki_types::CertificateDer;

use super::ClientTrust;

/// Origin of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Remote(SocketAddr),
    /// A component compiled into this process.
    InProcess,
}

/// Outcome of checking the presented chain against one set of authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    Trusted,
    /// These authorities are not configured.
    NoAuthority,
    Rejected(String),
}

impl Verification {
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        *self == Self::Trusted
    }
}

/// Certificates that a client presented, leaf first. The handshake has proven possession of the leaf's key; trust in
/// the chain is reported separately by the two verifications. As in Kubernetes, an untrusted certificate does not
/// fail the handshake: the request is rejected instead.
#[derive(Clone, Debug)]
pub struct PeerCertificates {
    pub chain: Arc<[CertificateDer<'static>]>,
    /// Against the client CA: the certificate authenticates a user.
    pub client: Verification,
    /// Against the front-proxy CA: the client may assert a user by request headers.
    pub front_proxy: Verification,
}

/// One connection, shared by its requests.
#[derive(Debug)]
pub struct Connection {
    pub peer: Peer,
    /// Absent without a client certificate.
    pub certificates: Option<PeerCertificates>,
    cached: OnceLock<Box<dyn Any + Send + Sync>>,
    pub(super) activity: Activity,
    /// Notifies the driver to close the connection after the requests in flight.
    pub(super) closing: tokio::sync::Notify,
}

impl Connection {
    pub(super) fn new(peer: Peer, certificates: Option<PeerCertificates>) -> Self {
        let closing = tokio::sync::Notify::new();
        Self { peer, certificates, cached: OnceLock::new(), activity: Activity::default(), closing }
    }

    /// A connection of an in-process component. It has no privileges: `chain` is verified against `trust` as a remote
    /// client's would be, and the request chain authenticates it as usual.
    #[must_use]
    pub fn in_process(chain: Vec<CertificateDer<'static>>, trust: &ClientTrust) -> Self {
        Self::new(Peer::InProcess, Some(trust.verify(chain)))
    }

    /// Closes the connection after the requests in flight.
    pub fn close_after_requests(&self) {
        self.closing.notify_one();
    }

    /// A value the request chain derives from the connection once, such as the parsed identity. There is one such
    /// value per connection: every caller must use the same type.
    pub fn cached<T: Any + Send + Sync>(&self, derive: impl FnOnce() -> T) -> Option<&T> {
        self.cached.get_or_init(|| Box::new(derive())).downcast_ref()
    }
}

/// Activity of a connection, by which the driver distinguishes idle from busy. Times are milliseconds since `epoch`,
/// plus one so that zero means "not".
#[derive(Debug)]
pub(super) struct Activity {
    epoch: Instant,
    requests: AtomicU32,
    idle_since: AtomicU64,
    head_since: AtomicU64,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            epoch: Instant::now(),
            requests: AtomicU32::new(0),
            idle_since: AtomicU64::new(1),
            head_since: AtomicU64::new(0),
        }
    }
}

impl Activity {
    fn stamp(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    pub fn request_started(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
    }

    pub fn request_finished(&self) {
        self.idle_since.store(self.stamp(), Ordering::Relaxed);
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }

    /// Requests in flight, including streams and watches.
    pub fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Records received bytes; between requests they begin a request head.
    pub fn bytes_read(&self) {
        if self.requests.load(Ordering::Relaxed) == 0 && self.head_since.load(Ordering::Relaxed) == 0 {
            self.head_since.store(self.stamp(), Ordering::Relaxed);
        }
    }

    /// Milliseconds since the last request ended; `None` while one is in flight.
    pub fn idle_millis(&self) -> Option<u64> {
        (self.requests.load(Ordering::Relaxed) == 0)
            .then(|| self.stamp().saturating_sub(self.idle_since.load(Ordering::Relaxed)))
    }

    /// Milliseconds since an incomplete request head began to arrive.
    pub fn head_millis(&self) -> Option<u64> {
        match self.head_since.load(Ordering::Relaxed) {
            0 => None,
            since => Some(self.stamp().saturating_sub(since)),
        }
    }
}
