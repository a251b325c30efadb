//! Spans of requests, with the names and attributes of kube-apiserver.
//!
//! The trace context of a request is its parent only if its user is trusted with the sampling decision, as in
//! Kubernetes: members of `system:masters` and `system:monitoring`, and components of this process. Spans of other
//! requests begin a new trace that is linked to theirs, so that no client causes load on the collector.

use crate::context::Context;
use crate::serve::{Connection, Peer, ResponseBody};
use crate::wire::reply::Reply;
use base::trace::{Kind, Parent, Span, SpanContext, Tracer};
use bytes::Bytes;
use futures_util::Stream;
use http::HeaderValue;
use http::header::USER_AGENT;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Instant;

/// Groups whose members decide which of their requests are sampled.
const TRUSTED: [&str; 2] = ["system:masters", "system:monitoring"];

/// Starts the span of an authenticated request that was received at `started`.
pub fn start(
    tracer: &Tracer,
    context: &Context,
    connection: &Connection,
    started: Instant,
    id: &HeaderValue,
) -> Span {
    let mut span = tracer.start(Kind::Server, || parent(context, connection), || name(context));
    span.started_at(started);
    span.record(|attributes| {
        attributes.set_text("http.request.method", context.method.as_str());
        attributes.set("url.scheme", "https");
        attributes.set_text("url.path", &context.path);
        attributes.set_text("http.target", context.uri.path_and_query().map_or("", |target| target.as_str()));
        if let Some(agent) = context.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok()) {
            attributes.set_text("user_agent.original", agent);
        }
        if let Peer::Remote(address) = connection.peer {
            attributes.set("network.peer.address", address.ip().to_string());
            attributes.set("network.peer.port", i64::from(address.port()));
        }
        attributes.set_text("audit-id", id.to_str().unwrap_or_default());
    });
    span
}

fn parent(context: &Context, connection: &Connection) -> Parent {
    let Some(parent) = SpanContext::extract(&context.headers) else { return Parent::Root };
    let trusted = connection.peer == Peer::InProcess || TRUSTED.iter().any(|group| context.user.is_in(group));
    if trusted {
        Parent::Child(parent)
    } else {
        Parent::Linked(SpanContext { hops: 0, state: None, ..parent })
    }
}

/// `GET /api/v1/namespaces/{:namespace}/pods/{:name}`, and the method alone for other paths.
fn name(context: &Context) -> String {
    let (method, info) = (&context.method, &context.info);
    if !info.is_resource {
        return method.to_string();
    }
    let mut name = if info.group.is_empty() {
        format!("{method} /api/{}", info.version)
    } else {
        format!("{method} /apis/{}/{}", info.group, info.version)
    };
    if !info.namespace.is_empty() {
        name.push_str("/namespaces/{:namespace}");
    }
    name.push('/');
    name.push_str(&info.resource);
    if !info.name.is_empty() {
        name.push_str("/{:name}");
    }
    if !info.subresource.is_empty() {
        name.push('/');
        name.push_str(&info.subresource);
    }
    name
}

/// Ends the span with the response: immediately, or when a streamed body has been sent.
pub fn finish(mut span: Span, reply: Reply) -> Reply {
    if !span.is_recording() {
        return reply;
    }
    let status = reply.status();
    span.record(|attributes| attributes.set("http.response.status_code", i64::from(status.as_u16())));
    if status.is_server_error() {
        span.fail(String::new);
    }
    reply.map(|body| match body.into_pieces() {
        Ok(pieces) => ResponseBody::stream(TracedStream { pieces, _span: span }),
        Err(body) => body,
    })
}

/// A response body whose end is the end of the span.
struct TracedStream<S> {
    pieces: S,
    _span: Span,
}

impl<S: Stream<Item = Bytes> + Unpin> Stream for TracedStream<S> {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Bytes>> {
        Pin::new(&mut self.pieces).poll_next(cx)
    }
}
