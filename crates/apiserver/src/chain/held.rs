//! What a response keeps until its body has gone out, or until it waits for news.

use super::fairness::{Seat, Watched};
use crate::reply::Reply;
use crate::serve::ResponseBody;
use bytes::Bytes;
use futures_util::Stream;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

/// A request's place among those that run, and its mark among the watches.
#[derive(Default)]
pub struct Place {
    pub seat: Option<Seat>,
    pub watched: Option<Watched>,
}

/// Keeps the place of a request while its body is made as the client takes it. A body that is there already needs no
/// place any more. A watch gives its seat back when it has told what there was and waits for news. Nobody keeps a seat
/// beyond `until`: a client that reads slowly must not keep others out.
pub fn hold(reply: Reply, place: Place, until: Instant) -> Reply {
    if place.seat.is_none() && place.watched.is_none() {
        return reply;
    }
    reply.map(|body| match body.into_pieces() {
        Ok(pieces) => ResponseBody::stream(Held { pieces, place, until }),
        Err(body) => body,
    })
}

struct Held<S> {
    pieces: S,
    place: Place,
    until: Instant,
}

impl<S: Stream<Item = Bytes> + Unpin> Stream for Held<S> {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let outcome = Pin::new(&mut self.pieces).poll_next(cx);
        match outcome {
            Poll::Ready(None) => self.place = Place::default(),
            Poll::Pending => self.place.seat = None,
            Poll::Ready(Some(_)) => {
                if self.place.seat.is_some() && Instant::now() >= self.until {
                    self.place.seat = None;
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
    async fn bodies_pass_unchanged() {
        let (sender, body) = ResponseBody::channel(4);
        let pieces = body.into_pieces().expect("it has pieces");
        let mut held = Held { pieces, place: Place::default(), until: Instant::now() };
        sender.send(Bytes::from_static(b"a")).await.expect("open");
        drop(sender);
        assert_eq!(held.next().await, Some(Bytes::from_static(b"a")));
        assert_eq!(held.next().await, None);
        assert!(ResponseBody::from("text").into_pieces().is_err());
    }
}
