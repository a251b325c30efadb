//! Ties a fairness seat and a watch registration to the lifetime of a streaming response body.

use super::fairness::{Seat, Watched};
use super::metrics::LongRunning;
use crate::serve::ResponseBody;
use crate::wire::reply::Reply;
use bytes::Bytes;
use futures_util::Stream;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

/// A request's fairness seat, its watch registration, and its count among long-running requests.
#[derive(Default)]
pub struct HeldSeat {
    pub seat: Option<Seat>,
    pub watched: Option<Watched>,
    pub long_running: Option<LongRunning>,
}

/// Holds the seat of a request while its response body is produced lazily; a complete body releases it immediately. A
/// watch releases its seat once the initial events are sent. No seat is held beyond `until`, so that a slow reader
/// cannot block other requests.
pub fn hold(reply: Reply, held_seat: HeldSeat, until: Instant) -> Reply {
    if held_seat.seat.is_none() && held_seat.watched.is_none() && held_seat.long_running.is_none() {
        return reply;
    }
    reply.map(|body| match body.into_pieces() {
        Ok(pieces) => ResponseBody::stream(HoldingStream { pieces, held_seat, until }),
        Err(body) => body,
    })
}

struct HoldingStream<S> {
    pieces: S,
    held_seat: HeldSeat,
    until: Instant,
}

impl<S: Stream<Item = Bytes> + Unpin> Stream for HoldingStream<S> {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let outcome = Pin::new(&mut self.pieces).poll_next(cx);
        match outcome {
            Poll::Ready(None) => self.held_seat = HeldSeat::default(),
            Poll::Pending => self.held_seat.seat = None,
            Poll::Ready(Some(_)) => {
                if self.held_seat.seat.is_some() && Instant::now() >= self.until {
                    self.held_seat.seat = None;
                }
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    #[tokio::test]
    async fn held_body_passes_unchanged() {
        let (sender, body) = ResponseBody::channel(4);
        let pieces = body.into_pieces().expect("it has pieces");
        let mut held = HoldingStream { pieces, held_seat: HeldSeat::default(), until: Instant::now() };
        sender.send(Bytes::from_static(b"a")).await.expect("open");
        drop(sender);
        assert_eq!(held.next().await, Some(Bytes::from_static(b"a")));
        assert_eq!(held.next().await, None);
        assert!(ResponseBody::from("text").into_pieces().is_err());
    }
}
