//! Watches: a stream of events decoded one by one.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use http_body::Body as _;
use objects::meta::v1::Status;
use objects::{Codec, PartialObject};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{Body, ClientError};

/// Longest event; objects are far smaller.
const MAX_EVENT: usize = 64 << 20;
const VERB: &str = "WATCH";
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// A change, or a bookmark.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent<K> {
    Added(K),
    Modified(K),
    Deleted(K),
    Bookmark {
        resource_version: String,
        /// All initial objects have been sent.
        initial_events_end: bool,
    },
}

/// Decoder of the objects of a list or watch.
pub(crate) type Decode<T> = fn(&[u8]) -> Result<T, serde_json::Error>;

/// The events of one watch.
pub struct WatchStream<T> {
    lines: Lines,
    decode: Decode<T>,
    /// True if objects retain their `managedFields`.
    whole: bool,
}

/// Prefix of events of Kubernetes' and Ferry's servers; the kind and the object follow.
const HEAD: &[u8] = b"{\"type\":\"";
const OBJECT: &[u8] = b"\",\"object\":";

/// The lines of a body; not generic, so that it is compiled once.
struct Lines {
    body: Pin<Box<Body>>,
    pending: BytesMut,
    /// Offset from which to search for the end of the next line.
    scanned: usize,
    path: String,
}

impl Lines {
    /// The next line that is not blank; `None` at the end of the body.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<BytesMut>, ClientError>> {
        loop {
            let unseen = self.pending.get(self.scanned..).unwrap_or_default();
            if let Some(at) = memchr::memchr(b'\n', unseen) {
                let line = self.pending.split_to(self.scanned + at);
                self.pending.advance(1);
                self.scanned = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Poll::Ready(Ok(Some(line)));
            }
            self.scanned = self.pending.len();
            if self.scanned > MAX_EVENT {
                return Poll::Ready(Err(ClientError::LongEvent(self.scanned)));
            }
            match ready!(self.body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.pending.extend_from_slice(&data);
                    }
                }
                Some(Err(source)) => {
                    let (verb, path) = (VERB.to_owned(), self.path.clone());
                    return Poll::Ready(Err(ClientError::Transport { verb, path, source: Box::new(source) }));
                }
                None => return Poll::Ready(Ok(None)),
            }
        }
    }

    fn undecodable(&self, source: serde_json::Error) -> ClientError {
        ClientError::Decode { verb: VERB.to_owned(), path: self.path.clone(), source }
    }
}

enum EventKind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

impl EventKind {
    fn of(name: &[u8]) -> Self {
        match name {
            b"ADDED" => Self::Added,
            b"MODIFIED" => Self::Modified,
            b"DELETED" => Self::Deleted,
            b"BOOKMARK" => Self::Bookmark,
            _ => Self::Error,
        }
    }
}

/// An event whose object is not decoded yet.
struct RawEvent {
    kind: EventKind,
    line: BytesMut,
    /// Range of the object in the line.
    object: Range<usize>,
}

impl RawEvent {
    fn read(mut line: BytesMut, whole: bool) -> Result<Self, serde_json::Error> {
        if let Some(start) = plain(&line) {
            if !whole {
                crate::trim::managed_fields(&mut line, start);
            }
            let kind = EventKind::of(&line[HEAD.len()..start - OBJECT.len()]);
            let object = start..line.len() - 1;
            return Ok(Self { kind, line, object });
        }
        let raw: RawEnvelope<'_> = serde_json::from_slice(&line)?;
        let (kind, object) = (EventKind::of(raw.kind.as_bytes()), raw.object.get());
        let start = object.as_ptr().addr() - line.as_ptr().addr();
        let object = start..start + object.len();
        Ok(Self { kind, line, object })
    }

    fn object(&self) -> &[u8] {
        &self.line[self.object.clone()]
    }
}

/// Envelope of an event in any member order.
#[derive(Deserialize)]
struct RawEnvelope<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Revision of a bookmark, and a flag that it ends the initial events.
fn bookmark(object: &[u8]) -> Result<(String, bool), serde_json::Error> {
    let meta = PartialObject::decode(object)?.metadata;
    let ends = meta.annotations.as_ref().and_then(|all| all.get(INITIAL_EVENTS_END));
    let ends = ends.is_some_and(|value| value == "true");
    Ok((meta.resource_version.unwrap_or_default(), ends))
}

/// Offset of the object of an event in the usual form; it ends before the last byte.
fn plain(line: &[u8]) -> Option<usize> {
    let rest = line.strip_prefix(HEAD)?;
    let kind = rest.iter().take(16).position(|byte| !byte.is_ascii_uppercase())?;
    rest[kind..].starts_with(OBJECT).then_some(())?;
    line.ends_with(b"}").then_some(HEAD.len() + kind + OBJECT.len())
}

impl<T> WatchStream<T> {
    pub(crate) fn new(body: Body, path: String, decode: Decode<T>) -> Self {
        let lines = Lines { body: Box::pin(body), pending: BytesMut::new(), scanned: 0, path };
        Self { lines, decode, whole: true }
    }

    /// Removes `managedFields` from objects.
    #[must_use]
    pub(crate) fn without_managed_fields(self) -> Self {
        Self { whole: false, ..self }
    }

    /// The next event; `None` at the orderly end of the stream. An error status within the stream, such as an expired
    /// revision, is an error with its `Status`. Cancel-safe: no events are lost.
    pub async fn next(&mut self) -> Result<Option<WatchEvent<T>>, ClientError> {
        let Some(line) = std::future::poll_fn(|cx| self.lines.poll_next(cx)).await? else { return Ok(None) };
        let event = RawEvent::read(line, self.whole).map_err(|source| self.lines.undecodable(source))?;
        let object = event.object();
        let typed = || (self.decode)(object).map_err(|source| self.lines.undecodable(source));
        match event.kind {
            EventKind::Added => Ok(Some(WatchEvent::Added(typed()?))),
            EventKind::Modified => Ok(Some(WatchEvent::Modified(typed()?))),
            EventKind::Deleted => Ok(Some(WatchEvent::Deleted(typed()?))),
            EventKind::Bookmark => {
                let (resource_version, initial_events_end) =
                    bookmark(object).map_err(|source| self.lines.undecodable(source))?;
                Ok(Some(WatchEvent::Bookmark { resource_version, initial_events_end }))
            }
            EventKind::Error => {
                let status = Status::decode(object).map_err(|source| self.lines.undecodable(source))?;
                Err(ClientError::Status { status: Box::new(status), retry_after: None })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::BodyExt;
    use objects::core::v1::ConfigMap;

    /// A body that yields `text` in chunks of `size`.
    fn stream(text: &str, size: usize) -> WatchStream<ConfigMap> {
        let pieces: Vec<Bytes> = text.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
        let mut body = Body::new(http_body_util::Empty::new().map_err(|never| match never {}));
        for piece in pieces.into_iter().rev() {
            body = Chained { first: Some(piece), rest: body }.boxed_unsync();
        }
        WatchStream::new(body, "/x".to_owned(), ConfigMap::decode)
    }

    struct Chained {
        first: Option<Bytes>,
        rest: Body,
    }

    impl http_body::Body for Chained {
        type Data = Bytes;
        type Error = crate::TransportError;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            match self.first.take() {
                Some(first) => std::task::Poll::Ready(Some(Ok(http_body::Frame::data(first)))),
                None => std::pin::Pin::new(&mut self.rest).poll_frame(cx),
            }
        }
    }

    const EVENTS: &str = concat!(
        r#"{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}}"#,
        "\n",
        r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
        "\n",
        r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","code":410,"reason":"Expired","message":"old"}}"#,
        "\n",
    );

    #[tokio::test]
    async fn events_in_any_chunks_are_decoded() {
        for size in [1, 7, 1000] {
            let mut stream = stream(EVENTS, size);
            let Some(WatchEvent::Added(added)) = stream.next().await.expect("decodes") else { panic!() };
            assert_eq!(added.metadata.name.as_deref(), Some("a"));
            let want = WatchEvent::Bookmark { resource_version: "7".to_owned(), initial_events_end: true };
            assert_eq!(stream.next().await.expect("decodes"), Some(want));
            assert!(stream.next().await.expect_err("expired").is_gone());
            assert!(stream.next().await.expect("the end").is_none());
        }
    }
}
