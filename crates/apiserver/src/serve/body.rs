//! Request bodies, and the forms of response bodies.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use futures_util::Stream;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::mpsc;

/// Error of reading a request body.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("failed to read the request body")]
    Transport(#[source] hyper::Error),
}

/// A request body: from the wire, or passed in-process.
#[derive(Debug)]
pub enum RequestBody {
    Wire(Incoming),
    Bytes(Bytes),
}

impl Default for RequestBody {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Vec<u8>> for RequestBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Wire(incoming) => Pin::new(incoming).poll_frame(cx).map_err(BodyError::Transport),
            Self::Bytes(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Bytes(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Wire(incoming) => incoming.is_end_stream(),
            Self::Bytes(bytes) => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Wire(incoming) => incoming.size_hint(),
            Self::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

/// Sends the pieces of a [`ResponseBody::Stream`]; dropping it ends the response.
pub type BodySender = mpsc::Sender<Bytes>;

/// A response body. Its bytes are not copied before TLS.
#[derive(Debug, Default)]
pub enum ResponseBody {
    #[default]
    Empty,
    Full(Bytes),
    /// A response of known length in many slices, such as a list.
    Chunks(VecDeque<Bytes>),
    /// A response of unknown length: pieces are sent as they arrive, each flushed when none follows.
    Stream(mpsc::Receiver<Bytes>),
    /// A response of unknown length whose pieces are produced as the client reads them.
    Pieces(Pieces),
}

/// Produces the pieces of a response in the task of its connection.
pub struct Pieces(Pin<Box<dyn Stream<Item = Bytes> + Send>>);

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pieces")
    }
}

impl ResponseBody {
    /// A streaming body and its sender; at most `capacity` pieces are queued before the sender waits.
    #[must_use]
    pub fn channel(capacity: usize) -> (BodySender, Self) {
        let (sender, receiver) = mpsc::channel(capacity);
        (sender, Self::Stream(receiver))
    }

    /// Pieces that are always ready: a long list.
    pub fn lazy(pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Self {
        Self::stream(futures_util::stream::iter(pieces))
    }

    /// Pieces that arrive over time: a watch.
    pub fn stream(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self::Pieces(Pieces(Box::pin(pieces)))
    }

    /// Stream of pieces, or the body itself if it is not streamed.
    pub fn into_pieces(self) -> Result<impl Stream<Item = Bytes> + Send + 'static, Self> {
        match self {
            Self::Pieces(Pieces(pieces)) => Ok(pieces),
            Self::Stream(mut receiver) => {
                Ok(Box::pin(futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx))) as Pin<Box<_>>)
            }
            other => Err(other),
        }
    }

    /// The length in bytes, unless the body is a stream.
    #[must_use]
    pub fn len(&self) -> Option<usize> {
        match self {
            Self::Empty => Some(0),
            Self::Full(bytes) => Some(bytes.len()),
            Self::Chunks(chunks) => Some(chunks.iter().map(Bytes::len).sum()),
            Self::Stream(_) | Self::Pieces(_) => None,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self::Full(bytes)
    }
}

impl From<Vec<u8>> for ResponseBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Full(bytes.into())
    }
}

impl From<String> for ResponseBody {
    fn from(text: String) -> Self {
        Self::Full(text.into())
    }
}

impl From<&'static str> for ResponseBody {
    fn from(text: &'static str) -> Self {
        Self::Full(Bytes::from_static(text.as_bytes()))
    }
}

impl FromIterator<Bytes> for ResponseBody {
    fn from_iter<I: IntoIterator<Item = Bytes>>(slices: I) -> Self {
        Self::Chunks(slices.into_iter().filter(|slice| !slice.is_empty()).collect())
    }
}

impl Body for ResponseBody {
    type Data = Segment;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Segment>, Infallible>>> {
        let this = self.get_mut();
        if let Self::Stream(receiver) = this {
            return receiver
                .poll_recv(cx)
                .map(|piece| piece.map(|bytes| Ok(Frame::data(Segment::One(bytes)))));
        }
        if let Self::Pieces(Pieces(pieces)) = this {
            return pieces
                .as_mut()
                .poll_next(cx)
                .map(|piece| piece.map(|bytes| Ok(Frame::data(Segment::One(bytes)))));
        }
        let segment = match std::mem::take(this) {
            Self::Full(bytes) => Segment::One(bytes),
            Self::Chunks(chunks) => Segment::many(chunks),
            Self::Empty | Self::Stream(_) | Self::Pieces(_) => return Poll::Ready(None),
        };
        Poll::Ready(segment.has_remaining().then(|| Ok(Frame::data(segment))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.len().map_or_else(SizeHint::default, |length| SizeHint::with_exact(length as u64))
    }
}

/// Bytes to write: one slice, or many that are combined by vectored writes.
#[derive(Debug)]
pub enum Segment {
    One(Bytes),
    Many { slices: VecDeque<Bytes>, remaining: usize },
}

impl Segment {
    fn many(mut slices: VecDeque<Bytes>) -> Self {
        slices.retain(|slice| !slice.is_empty());
        let remaining = slices.iter().map(Bytes::len).sum();
        Self::Many { slices, remaining }
    }
}

impl Buf for Segment {
    fn remaining(&self) -> usize {
        match self {
            Self::One(bytes) => bytes.len(),
            Self::Many { remaining, .. } => *remaining,
        }
    }

    fn chunk(&self) -> &[u8] {
        match self {
            Self::One(bytes) => bytes,
            Self::Many { slices, .. } => slices.front().map_or(&[], |slice| slice),
        }
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        match self {
            Self::One(bytes) => bytes.chunks_vectored(dst),
            Self::Many { slices, .. } => {
                let mut filled = 0;
                for (slot, slice) in dst.iter_mut().zip(slices) {
                    *slot = IoSlice::new(slice);
                    filled += 1;
                }
                filled
            }
        }
    }

    fn advance(&mut self, mut count: usize) {
        match self {
            Self::One(bytes) => bytes.advance(count),
            Self::Many { slices, remaining } => {
                assert!(count <= *remaining, "advanced past the end of a segment");
                *remaining -= count;
                while let Some(front) = slices.front_mut() {
                    if count < front.len() {
                        front.advance(count);
                        return;
                    }
                    count -= front.len();
                    slices.pop_front();
                }
            }
        }
    }
}
