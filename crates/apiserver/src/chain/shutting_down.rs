//! Requests that arrive while the server drains (`--shutdown-send-retry-after`): they are refused with 429, so that clients
//! try another server.

use super::Chain;
use crate::reply::{self, Reply};
use crate::serve::{Connection, Peer};
use http::header::{CONNECTION, RETRY_AFTER, USER_AGENT};
use http::request::Parts;
use http::{HeaderValue, Version};
use std::sync::atomic::Ordering;

/// Seconds after which a client is to try again.
const RETRY_SECONDS: u16 = 5;
/// Paths that are served to the end.
const EXEMPT: [&str; 4] = ["/readyz", "/livez", "/healthz", "/metrics"];

impl Chain {
    /// Refuses requests from now on, if the server is configured to.
    pub fn begin_drain(&self) {
        self.draining.store(self.config.retry_after_while_draining, Ordering::Release);
    }

    /// The refusal of a request that arrives during the drain. Its connection ends with it.
    pub(super) fn refusal_while_draining(&self, request: &Parts, connection: &Connection) -> Option<Reply> {
        if !self.draining.load(Ordering::Acquire) || is_exempt(request, connection) {
            return None;
        }
        let mut reply = reply::text(429, "The apiserver is shutting down, please try again later.\n");
        reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_SECONDS));
        // HTTP/2 has no such header: a GOAWAY frame says the same.
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
