//! The TCP stream under TLS: disconnects clients that do not read, and records when bytes arrive.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::Connection;

/// A blocked client that reads less than this per timeout is disconnected, because unread data stays in memory.
const MIN_PROGRESS: usize = 64 * 1024;

/// A TCP stream whose writes must make progress. The timer exists only while a write is blocked.
pub(super) struct GuardedStream {
    inner: TcpStream,
    write_timeout: Duration,
    blocked: Option<Pin<Box<Sleep>>>,
    progress: Option<ReadProgress>,
    connection: Option<Arc<Connection>>,
}

impl GuardedStream {
    pub fn new(inner: TcpStream, write_timeout: Duration) -> Self {
        Self { inner, write_timeout, blocked: None, progress: None, connection: None }
    }

    /// Reports every read to `connection` from now on.
    pub fn observe(&mut self, connection: Arc<Connection>) {
        self.connection = Some(connection);
    }

    fn guard_write(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let (Poll::Ready(Ok(taken)), Some(progress)) = (&outcome, &mut self.progress) {
            progress.taken += taken;
        }
        self.guard(cx, outcome)
    }

    fn guard<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.blocked = None;
            return outcome;
        }
        let now = Instant::now();
        if self.progress.get_or_insert_with(|| ReadProgress::new(now)).is_too_slow(now, self.write_timeout) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "client reads too slowly")));
        }
        let deadline = now + self.write_timeout;
        let timer = self.blocked.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => {
                self.blocked = None;
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "client stopped reading")))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for GuardedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_read(cx, buf);
        if let (Poll::Ready(Ok(())), Some(connection)) = (&outcome, &self.connection) {
            connection.activity.bytes_read();
        }
        outcome
    }
}

impl AsyncWrite for GuardedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.guard_write(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.guard_write(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.guard(cx, outcome)
    }
}

/// Bytes that a blocked client has read since `since`.
struct ReadProgress {
    since: Instant,
    taken: usize,
}

impl ReadProgress {
    fn new(since: Instant) -> Self {
        Self { since, taken: 0 }
    }

    /// Reports whether a blocked client has read too little since the last check.
    fn is_too_slow(&mut self, now: Instant, limit: Duration) -> bool {
        if now.saturating_duration_since(self.since) < limit {
            return false;
        }
        let too_slow = self.taken < MIN_PROGRESS;
        *self = Self::new(now);
        too_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_reading_byte_by_byte_is_disconnected() {
        let (start, limit) = (Instant::now(), Duration::from_secs(60));
        let mut progress = ReadProgress::new(start);
        for second in [1, 30, 59] {
            progress.taken += 1;
            assert!(!progress.is_too_slow(start + Duration::from_secs(second), limit));
        }
        progress.taken += MIN_PROGRESS;
        assert!(!progress.is_too_slow(start + Duration::from_secs(61), limit), "it has taken enough");
        progress.taken += 1000;
        assert!(progress.is_too_slow(start + Duration::from_secs(122), limit));
    }
}
