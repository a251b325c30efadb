//! Connects the request chain to auditing: audit ID, request body, end of the response.

use super::Chain;
use super::audit::{Audit, Record};
use super::offload;
use crate::admission::webhooks::annotations::PATCH_PREFIX;
use crate::context::Context;
use crate::serve::{RequestBody, ResponseBody};
use crate::wire::reply::Reply;
use bytes::Bytes;
use futures_util::Stream;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use machinery::status::Status;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

/// Captured bytes of a streamed response, at most.
const MAX_RECORDED: usize = 8 << 20;

/// Client-supplied audit IDs are truncated to this many bytes, as Kubernetes does for its logs.
const MAX_ID: usize = 64;

pub const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Audit ID of a request: the client's own, or a new one.
pub fn id(headers: &HeaderMap) -> HeaderValue {
    match headers.get(AUDIT_ID) {
        Some(given) if given.len() > MAX_ID => {
            HeaderValue::from_bytes(&given.as_bytes()[..MAX_ID]).unwrap_or(HeaderValue::from_static(""))
        }
        Some(given) if !given.is_empty() => given.clone(),
        _ => {
            let id = uuid::Builder::from_random_bytes(rand::random()).into_uuid();
            let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
            let text = id.hyphenated().encode_lower(&mut text);
            HeaderValue::from_bytes(text.as_bytes()).unwrap_or(HeaderValue::from_static(""))
        }
    }
}

impl Chain {
    /// Returns the request body, buffered first if the policy records it.
    pub(super) async fn audited_body(
        &self,
        context: &mut Context,
        body: RequestBody,
    ) -> Result<RequestBody, Status> {
        let Some(record) = &context.audit else { return Ok(body) };
        if record.wants_response() {
            // The response is recorded as sent, and audit events must not hold compressed bodies.
            context.accepts_gzip = false;
        }
        if !record.wants_request() || context.is_long_running() {
            return Ok(body);
        }
        let bytes = self.rest.read_body(body).await?;
        record.request_body(&bytes, content_type(&context.headers));
        Ok(RequestBody::Bytes(bytes))
    }

    /// Records the response: immediately, or when its body has been sent.
    pub(super) fn audited(&self, context: &mut Context, reply: Reply) -> Reply {
        let (Some(audit), Some(record)) = (&self.audit, context.audit.take()) else { return reply };
        for (key, value) in context.record.take_annotations() {
            if record.wants_request() || !key.starts_with(PATCH_PREFIX) {
                record.annotate(key, value);
            }
        }
        let status = reply.extensions().get::<Arc<Status>>().map(|status| &**status);
        record.answered(reply.status().as_u16(), status);
        let long_running = context.is_long_running();
        if long_running {
            audit.started(&record);
        }
        let wanted = record.wants_response() && !long_running;
        if wanted && let ResponseBody::Full(bytes) = reply.body() {
            let media = content_type(reply.headers());
            offload::blocking(bytes.len(), || record.response_body(bytes, media));
        }
        let recorded = wanted
            .then(|| CapturedResponse { media: content_type(reply.headers()).to_owned(), bytes: Vec::new() });
        let ending = CompletionGuard { audit: audit.clone(), record, recorded };
        reply.map(|body| match body.into_pieces() {
            Ok(pieces) => ResponseBody::stream(RecordedStream { pieces, ending }),
            Err(body) => body,
        })
    }
}

fn content_type(headers: &HeaderMap) -> &str {
    headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("")
}

/// Records the end of a request on drop, however it ends.
struct CompletionGuard {
    audit: Arc<Audit>,
    record: Box<Record>,
    recorded: Option<CapturedResponse>,
}

/// A response body that is captured while it streams.
struct CapturedResponse {
    media: String,
    bytes: Vec<u8>,
}

impl Drop for CompletionGuard {
    fn drop(&mut self) {
        if let Some(CapturedResponse { media, bytes }) =
            self.recorded.take().filter(|answer| !answer.bytes.is_empty())
        {
            offload::blocking(bytes.len(), || self.record.response_body(&bytes, &media));
        }
        self.audit.completed(&self.record);
    }
}

struct RecordedStream<S> {
    pieces: S,
    ending: CompletionGuard,
}

impl<S: Stream<Item = Bytes> + Unpin> Stream for RecordedStream<S> {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Bytes>> {
        let outcome = Pin::new(&mut self.pieces).poll_next(cx);
        if let (Poll::Ready(Some(piece)), Some(recorded)) = (&outcome, &mut self.ending.recorded) {
            if recorded.bytes.len() + piece.len() > MAX_RECORDED {
                self.ending.record.annotate("audit.k8s.io/truncated", "true");
                self.ending.recorded = None;
            } else {
                recorded.bytes.extend_from_slice(piece);
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_id_sent_by_client_is_kept() {
        let mut headers = HeaderMap::new();
        let (one, two) = (id(&headers), id(&headers));
        assert!(one != two && one.len() == 36);
        headers.insert("audit-id", HeaderValue::from_static("mine"));
        assert_eq!(id(&headers), "mine");
    }

    #[test]
    fn audit_id_longer_than_limit_is_truncated() {
        let mut headers = HeaderMap::new();
        let long = "x".repeat(100_000);
        headers.insert("audit-id", HeaderValue::from_str(&long).expect("a header"));
        assert_eq!(id(&headers), long[..MAX_ID]);
        headers.insert("audit-id", HeaderValue::from_str(&long[..MAX_ID]).expect("a header"));
        assert_eq!(id(&headers), long[..MAX_ID]);
    }
}
