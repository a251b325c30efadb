//! Combines the writes of one poll of an HTTP/2 connection, so that they leave in few TLS records.
//!
//! The HTTP/2 library flushes after every frame. Where many streams share a connection, such as the watches of one
//! client, that is a record and a system call for each event of each stream. Here a flush is only recorded; the bytes
//! are written at the end of the connection's poll (a turn), after other ready streams have added theirs.

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Limit of gathered bytes.
const FULL: usize = 64 * 1024;
/// Deferrals of a write, at most.
const MAX_DEFERRALS: u32 = 16;
/// Retained buffer capacity of an idle connection.
const RETAINED_CAPACITY: usize = 4 * 1024;

thread_local! {
    /// Buffer reused by all turns of this thread, so that gathering does not allocate.
    static SPARE: RefCell<BytesMut> = RefCell::default();
}

/// Takes an empty buffer.
fn take_spare() -> BytesMut {
    let mut buffer = SPARE.with(RefCell::take);
    buffer.reserve(FULL);
    buffer
}

/// Returns the buffer of a finished turn.
fn put_spare(mut buffer: BytesMut) {
    buffer.clear();
    SPARE.with(|spare| *spare.borrow_mut() = buffer);
}

/// A stream with gathered output.
struct Output<T> {
    io: T,
    held: BytesMut,
    /// True if the inner stream has unflushed bytes.
    unflushed: bool,
    /// Deferrals since the first gathered byte, and the number of gathered bytes at the last one.
    deferrals: u32,
    seen: usize,
    /// Error of a write at the end of a turn, returned by the connection's next operation.
    failed: Option<io::ErrorKind>,
}

/// The connection's half, for the HTTP library.
pub(super) struct Gathered<T>(Arc<Mutex<Output<T>>>);

/// The driver's half: writes the gathered bytes.
pub(super) struct Release<T>(Arc<Mutex<Output<T>>>);

/// Creates both halves of a stream.
pub(super) fn gather<T>(io: T) -> (Gathered<T>, Release<T>) {
    let output = Output { io, held: BytesMut::new(), unflushed: false, deferrals: 0, seen: 0, failed: None };
    let shared = Arc::new(Mutex::new(output));
    (Gathered(Arc::clone(&shared)), Release(shared))
}

impl<T> Output<T> {
    fn check(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |kind| Err(kind.into()))
    }
}

impl<T: AsyncWrite + Unpin> Output<T> {
    /// Writes all gathered bytes.
    fn write_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        while !self.held.is_empty() {
            let written = std::task::ready!(Pin::new(&mut self.io).poll_write(cx, &self.held))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.held.advance(written);
            self.unflushed = true;
        }
        (self.deferrals, self.seen) = (0, 0);
        if self.held.capacity() > RETAINED_CAPACITY {
            put_spare(std::mem::take(&mut self.held));
        }
        Poll::Ready(Ok(()))
    }

    fn flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.write_held(cx))?;
        if self.unflushed {
            std::task::ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> TurnEnd for Release<T> {
    /// Ends a turn. When several streams share the connection, other ready tasks run first, and again as long as they
    /// add bytes.
    fn end(&self, cx: &mut Context<'_>, shared: bool) {
        let mut output = self.0.lock();
        let held = output.held.len();
        if shared && held > output.seen && held < FULL && output.deferrals < MAX_DEFERRALS {
            output.deferrals += 1;
            output.seen = held;
            defer(cx);
            return;
        }
        if let Poll::Ready(Err(error)) = output.flush(cx) {
            output.failed = Some(error.kind());
            cx.waker().wake_by_ref();
        }
    }
}

/// Reschedules this task after those that are ready now.
fn defer(cx: &mut Context<'_>) {
    let mut later = std::pin::pin!(tokio::task::yield_now());
    let _ = later.as_mut().poll(cx);
}

/// End of a turn of a connection whose streams share this output.
pub(super) trait TurnEnd {
    fn end(&self, cx: &mut Context<'_>, shared: bool);
}

/// For connections without gathering.
impl TurnEnd for () {
    fn end(&self, _: &mut Context<'_>, _: bool) {}
}

impl<T: AsyncRead + Unpin> AsyncRead for Gathered<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut output = self.0.lock();
        output.check()?;
        Pin::new(&mut output.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gathered<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut output = self.0.lock();
        output.check()?;
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        if output.held.len() + length > FULL {
            std::task::ready!(output.write_held(cx))?;
        }
        if length >= FULL / 2 {
            // Large enough on its own.
            std::task::ready!(output.write_held(cx))?;
            output.unflushed = true;
            return Pin::new(&mut output.io).poll_write_vectored(cx, bufs);
        }
        if output.held.capacity() == 0 {
            output.held = take_spare();
        }
        for buf in bufs {
            output.held.extend_from_slice(buf);
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Deferred to the end of the turn.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut output = self.0.lock();
        std::task::ready!(output.flush(cx))?;
        Pin::new(&mut output.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Waker;
    use tokio::io::AsyncWriteExt;

    /// Records each write, or fails them.
    #[derive(Default)]
    struct Recording {
        writes: Arc<Mutex<Vec<usize>>>,
        broken: Arc<AtomicBool>,
        full: Arc<AtomicBool>,
    }

    impl AsyncRead for Recording {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Recording {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            if self.broken.load(Ordering::Relaxed) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if self.full.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            self.writes.lock().push(buf.len());
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn frames_of_one_turn_are_written_together() {
        let io = Recording::default();
        let writes = Arc::clone(&io.writes);
        let (mut connection, release) = gather(io);
        let cx = &mut Context::from_waker(Waker::noop());
        for _ in 0..50 {
            connection.write_all(&[1; 1000]).await.unwrap();
            connection.flush().await.unwrap();
        }
        assert!(writes.lock().is_empty());
        release.end(cx, true);
        assert!(writes.lock().is_empty(), "the others go first");
        connection.write_all(&[1; 1000]).await.unwrap();
        release.end(cx, true);
        assert!(writes.lock().is_empty(), "there may be more of them");
        release.end(cx, true);
        assert_eq!(*writes.lock(), [51_000]);
        for _ in 0..=MAX_DEFERRALS {
            connection.write_all(&[1; 10]).await.unwrap();
            release.end(cx, true);
        }
        assert_eq!(writes.lock().pop(), Some(170), "but not for ever");
        connection.write_all(&[1; 10]).await.unwrap();
        release.end(cx, false);
        assert_eq!(*writes.lock(), [51_000, 10], "no other stream to wait for");
    }

    #[tokio::test]
    async fn gathered_bytes_are_bounded() {
        let io = Recording::default();
        let (writes, full) = (Arc::clone(&io.writes), Arc::clone(&io.full));
        let (mut connection, release) = gather(io);
        let cx = &mut Context::from_waker(Waker::noop());
        for _ in 0..100 {
            connection.write_all(&[1; 1000]).await.unwrap();
        }
        assert_eq!(*writes.lock(), [65_000]);
        connection.write_all(&[1; 100_000]).await.unwrap();
        assert_eq!(*writes.lock(), [65_000, 35_000, 100_000], "in order, and large ones as they are");
        full.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            connection.write_all(&[1; 30_000]).await.unwrap();
        }
        release.end(cx, false);
        let more = Pin::new(&mut connection).poll_write(cx, &[1; 10_000]);
        assert!(more.is_pending(), "the client has to read first: {more:?}");
        full.store(false, Ordering::Relaxed);
        connection.shutdown().await.unwrap();
        assert_eq!(writes.lock().last(), Some(&60_000));
    }

    #[tokio::test]
    async fn write_failure_at_end_of_turn_ends_connection() {
        let io = Recording::default();
        let broken = Arc::clone(&io.broken);
        let (mut connection, release) = gather(io);
        let cx = &mut Context::from_waker(Waker::noop());
        connection.write_all(&[1; 10]).await.unwrap();
        broken.store(true, Ordering::Relaxed);
        release.end(cx, false);
        let read = Pin::new(&mut connection).poll_read(cx, &mut ReadBuf::new(&mut [0; 8]));
        assert!(matches!(read, Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::TimedOut));
    }
}
