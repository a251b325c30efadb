//! Watches: a stream of events decoded one by one.

use std::marker::PhantomData;

use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Status};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::{Body, ClientError};

/// Longest event; objects are far smaller.
const LONGEST_EVENT: usize = 64 << 20;
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// A change, or a mark of how far the stream has come.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent<K> {
    Added(K),
    Modified(K),
    Deleted(K),
    Bookmark {
        resource_version: String,
        /// All objects there were at the beginning have been sent.
        initial_events_end: bool,
    },
}

/// The events of one watch.
pub struct WatchStream<K> {
    body: Body,
    pending: BytesMut,
    /// Where to look for the end of the next line: what is before has been looked at.
    scanned: usize,
    path: String,
    /// Whether objects keep their `managedFields`.
    whole: bool,
    kind: PhantomData<fn() -> K>,
}

/// How the events of Kubernetes' servers, and Ferry's, begin: what follows is the kind, then the object.
const HEAD: &[u8] = b"{\"type\":\"";
const OBJECT: &[u8] = b"\",\"object\":";

struct Envelope<'a> {
    kind: &'a str,
    object: &'a str,
}

/// As any server may write it.
#[derive(Deserialize)]
struct RawEnvelope<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Where the object of an event in the usual form begins; it ends before the last byte.
fn plain(line: &[u8]) -> Option<usize> {
    let rest = line.strip_prefix(HEAD)?;
    let kind = rest.iter().take(16).position(|byte| !byte.is_ascii_uppercase())?;
    rest[kind..].starts_with(OBJECT).then_some(())?;
    line.ends_with(b"}").then_some(HEAD.len() + kind + OBJECT.len())
}

fn text(bytes: &[u8]) -> Result<&str, serde_json::Error> {
    std::str::from_utf8(bytes).map_err(serde::de::Error::custom)
}

#[derive(Deserialize)]
struct OnlyMeta {
    #[serde(default)]
    metadata: ObjectMeta,
}

impl<K: DeserializeOwned> WatchStream<K> {
    pub(crate) fn new(body: Body, path: String) -> Self {
        Self { body, pending: BytesMut::new(), scanned: 0, path, whole: true, kind: PhantomData }
    }

    /// Leaves `managedFields` out of objects.
    #[must_use]
    pub(crate) fn without_managed_fields(self) -> Self {
        Self { whole: false, ..self }
    }

    /// The next event; nothing at the orderly end of the stream. A refusal within the stream, such as an expired
    /// revision, is an error with its `Status`. May be dropped and called again without losing events.
    pub async fn next(&mut self) -> Result<Option<WatchEvent<K>>, ClientError> {
        loop {
            let unseen = self.pending.get(self.scanned..).unwrap_or_default();
            if let Some(at) = memchr::memchr(b'\n', unseen) {
                let line = self.pending.split_to(self.scanned + at);
                self.pending.advance(1);
                self.scanned = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return self.decode(line).map(Some);
            }
            self.scanned = self.pending.len();
            if self.scanned > LONGEST_EVENT {
                return Err(ClientError::LongEvent(self.scanned));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.pending.extend_from_slice(&data);
                    }
                }
                Some(Err(source)) => {
                    let (verb, path) = ("WATCH".to_owned(), self.path.clone());
                    return Err(ClientError::Transport { verb, path, source: Box::new(source) });
                }
                None => return Ok(None),
            }
        }
    }

    fn decode(&self, mut line: BytesMut) -> Result<WatchEvent<K>, ClientError> {
        let fail = |source| ClientError::Decode { verb: "WATCH".to_owned(), path: self.path.clone(), source };
        if !self.whole
            && let Some(start) = plain(&line)
        {
            crate::trim::managed_fields(&mut line, start);
        }
        let envelope: Envelope<'_> = match plain(&line).map(|start| line.split_at(start)) {
            Some((head, object)) => Envelope {
                kind: text(&head[HEAD.len()..head.len() - OBJECT.len()]).map_err(fail)?,
                object: text(&object[..object.len() - 1]).map_err(fail)?,
            },
            None => {
                let raw: RawEnvelope<'_> = serde_json::from_slice(&line).map_err(fail)?;
                Envelope { kind: raw.kind, object: raw.object.get() }
            }
        };
        let object = envelope.object;
        let typed = || crate::decode::decode::<K>(object.as_bytes()).map_err(fail);
        match envelope.kind {
            "ADDED" => Ok(WatchEvent::Added(typed()?)),
            "MODIFIED" => Ok(WatchEvent::Modified(typed()?)),
            "DELETED" => Ok(WatchEvent::Deleted(typed()?)),
            "BOOKMARK" => {
                let meta = serde_json::from_str::<OnlyMeta>(object).map_err(fail)?.metadata;
                let ends = meta.annotations.as_ref().and_then(|all| all.get(INITIAL_EVENTS_END));
                Ok(WatchEvent::Bookmark {
                    resource_version: meta.resource_version.unwrap_or_default(),
                    initial_events_end: ends.is_some_and(|value| value == "true"),
                })
            }
            _ => {
                let status: Status = serde_json::from_str(object).map_err(fail)?;
                Err(ClientError::Status { status: Box::new(status), retry_after: None })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use k8s_openapi::api::core::v1::ConfigMap;

    /// A body that hands out `text` in pieces of `size`.
    fn stream(text: &str, size: usize) -> WatchStream<ConfigMap> {
        let pieces: Vec<Bytes> = text.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
        let mut body = Body::new(http_body_util::Empty::new().map_err(|never| match never {}));
        for piece in pieces.into_iter().rev() {
            body = Chained { first: Some(piece), rest: body }.boxed_unsync();
        }
        WatchStream::new(body, "/x".to_owned())
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
    async fn events_come_whole_however_they_are_cut() {
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
