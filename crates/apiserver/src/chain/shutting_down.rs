//! Returns 429 to requests that arrive while the server drains (`--shutdown-send-retry-after`), so that clients retry
//! on another server.

use super::Chain;
use crate::serve::{Connection, Peer};
use crate::wire::reply::{self, Reply};
use http::header::{CONNECTION, RETRY_AFTER, USER_AGENT};
use http::request::Parts;
use http::{HeaderValue, Version};
use std::sync::atomic::Ordering;

/// Value of `Retry-After`, in seconds.
const RETRY_SECONDS: u16 = 5;
/// Paths that are served until the end.
const EXEMPT: [&str; 4] = ["/readyz", "/livez", "/healthz", "/metrics"];

impl Chain {
    /// Rejects requests from now on, if the server is configured to.
    pub fn begin_drain(&self) {
        self.draining.store(self.config.retry_after_while_draining, Ordering::Release);
    }

    /// Response to a request that arrives during the drain; it closes the connection.
    pub(super) fn refusal_while_draining(&self, request: &Parts, connection: &Connection) -> Option<Reply> {
        if !self.draining.load(Ordering::Acquire) || is_exempt(request, connection) {
            return None;
        }
        let mut reply = reply::text(429, "The apiserver is shutting down, please try again later.\n");
        reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        // HTTP/2 has no such header; a GOAWAY frame is its equivalent.
        if request.version < Version::HTTP_2 {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        } else {
            connection.close_after_requests();
        }
        Some(reply)
    }
}

fn is_exempt(request: &Parts, connection: &Connection) -> bool {
    let agent = request.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    connection.peer == Peer::InProcess
        || agent.starts_with("kube-apiserver/")
        || EXEMPT.iter().any(|path| request.uri.path().starts_with(path))
}
