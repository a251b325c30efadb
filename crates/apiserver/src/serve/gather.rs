//! Gathers what one turn of an HTTP/2 connection writes, so that it leaves in few TLS records.
//!
//! The HTTP/2 library flushes after every frame. Where many streams share a connection, such as the
//! watches of one client, that is a record and a system call for each event of each stream. Here a flush
//! is only noted; the bytes leave at the end of the connection's turn, and before that the streams that
//! are ready get theirs.

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// More than this is not held back, and not gathered any further.
const FULL: usize = 64 * 1024;
/// How often a turn ends with waiting for more, at most.
const PATIENCE: u32 = 16;
/// Room that a connection keeps while nothing is written.
const KEPT: usize = 4 * 1024;

thread_local! {
    /// Room for the turns of this thread, so that gathering neither allocates nor grows.
    static SPARE: RefCell<BytesMut> = RefCell::default();
}

/// Empty room for a turn.
fn take_spare() -> BytesMut {
    let mut room = SPARE.with(RefCell::take);
    room.reserve(FULL);
    room
}

/// Returns the room of a turn that is over.
fn put_spare(mut room: BytesMut) {
    room.clear();
    SPARE.with(|spare| *spare.borrow_mut() = room);
}

/// A stream whose output is gathered.
struct Output<T> {
    io: T,
    held: BytesMut,
    /// The stream below has bytes that it was not yet asked to flush.
    unflushed: bool,
    /// How often the others went first since the first of the held bytes came, and what was held the last time.
    waits: u32,
    seen: usize,
    /// Writing failed at the end of a turn: whatever the connection tries next, fails likewise.
    failed: Option<io::ErrorKind>,
}

/// The connection's side of the stream: hand it to the HTTP library.
pub(super) struct Gathered<T>(Arc<Mutex<Output<T>>>);

/// The driver's side: lets go of what was gathered.
pub(super) struct Release<T>(Arc<Mutex<Output<T>>>);

/// Both sides of one stream.
pub(super) fn gather<T>(io: T) -> (Gathered<T>, Release<T>) {
    let output = Output { io, held: BytesMut::new(), unflushed: false, waits: 0, seen: 0, failed: None };
    let shared = Arc::new(Mutex::new(output));
    (Gathered(Arc::clone(&shared)), Release(shared))
}

impl<T> Output<T> {
    fn check(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |kind| Err(kind.into()))
    }
}

impl<T: AsyncWrite + Unpin> Output<T> {
    /// Writes everything that is held.
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
        (self.waits, self.seen) = (0, 0);
        if self.held.capacity() > KEPT {
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
    /// Ends a turn. When several streams share the connection, some of the other tasks that are ready go first,
    /// and again as long as they have something to add.
    fn end(&self, cx: &mut Context<'_>, shared: bool) {
        let mut output = self.0.lock();
        let held = output.held.len();
        if shared && held > output.seen && held < FULL && output.waits < PATIENCE {
            output.waits += 1;
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

/// Has this task polled again once those that are ready now have been.
fn defer(cx: &mut Context<'_>) {
    let mut later = std::pin::pin!(tokio::task::yield_now());
    let _ = later.as_mut().poll(cx);
}

/// Ends the turns of a connection that shares this output among its streams.
pub(super) trait TurnEnd {
    fn end(&self, cx: &mut Context<'_>, shared: bool);
}

/// For connections that write for themselves.
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

    /// Done at the end of the turn.
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

    /// Remembers each write, or refuses them.
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
    async fn a_turn_s_frames_leave_together() {
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
        for _ in 0..=PATIENCE {
            connection.write_all(&[1; 10]).await.unwrap();
            release.end(cx, true);
        }
        assert_eq!(writes.lock().pop(), Some(170), "but not for ever");
        connection.write_all(&[1; 10]).await.unwrap();
        release.end(cx, false);
        assert_eq!(*writes.lock(), [51_000, 10], "nobody to wait for");
    }

    #[tokio::test]
    async fn what_is_held_is_bounded() {
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
    async fn a_failure_at_the_end_of_a_turn_ends_the_connection() {
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
