//! Audit backends: files and webhooks. Each backend decides whether a request waits for it.

use super::event::Event;
use super::log_file::LogFile;
use crate::outbound::CallError;
use async_trait::async_trait;
use base::clock::Clock;
use parking_lot::{Condvar, Mutex};
use std::cell::RefCell;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Error of recording an event.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("audit buffer queue blocked")]
    BufferFull,
    #[error("event is too large even after truncating")]
    TooLarge,
    #[error("failed to send events to the audit webhook")]
    Webhook(#[source] CallError),
    #[error("blocking audit webhook needs a multi-threaded runtime")]
    SingleThreadedRuntime,
    #[error("failed to write the audit log")]
    Write(#[from] std::io::Error),
    #[error("failed to start the audit log writer thread")]
    Thread(#[source] std::io::Error),
}

/// Receives events. Called while the request runs, so an implementation must not block unless the operator configured
/// blocking mode.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Plugin name in metrics.
    fn plugin(&self) -> &'static str;

    fn process(&self, event: &Event<'_>) -> Result<(), AuditError>;

    /// True if a request that cannot be recorded is rejected.
    fn is_strict(&self) -> bool {
        false
    }

    /// Starts background tasks.
    fn start(&self) {}

    /// Waits until all accepted events are recorded, at most for this long.
    async fn flush(&self, _limit: Duration) {}
}

/// Blocking behaviour of the log (`--audit-log-mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Batch,
    Blocking,
    /// As blocking, and a request whose RequestReceived event cannot be recorded is rejected.
    BlockingStrict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Legacy,
}

/// Formats an event into a reused thread-local buffer and passes the line to `take`.
fn with_line<T>(
    event: &Event<'_>,
    format: Format,
    max_bytes: usize,
    take: impl FnOnce(&[u8]) -> Result<T, AuditError>,
) -> Result<T, AuditError> {
    thread_local! {
        static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    LINE.with_borrow_mut(|line| {
        line.clear();
        match format {
            Format::Json if !event.write_line(line, max_bytes) => return Err(AuditError::TooLarge),
            Format::Json => {}
            Format::Legacy => {
                line.extend_from_slice(event.legacy().as_bytes());
                line.push(b'\n');
            }
        }
        let taken = take(line);
        line.shrink_to(RETAINED_LINE_BYTES);
        taken
    })
}

/// A log that is written before the request proceeds.
pub struct BlockingLog {
    pub file: Mutex<LogFile>,
    pub format: Format,
    pub max_event_bytes: usize,
    pub strict: bool,
    pub clock: Clock,
}

#[async_trait]
impl Backend for BlockingLog {
    fn plugin(&self) -> &'static str {
        "log"
    }

    fn is_strict(&self) -> bool {
        self.strict
    }

    fn process(&self, event: &Event<'_>) -> Result<(), AuditError> {
        with_line(event, self.format, self.max_event_bytes, |line| {
            Ok(self.file.lock().write(line, self.clock.now())?)
        })
    }
}

/// Batching delay of the writer thread.
const BATCH_DELAY: Duration = Duration::from_millis(10);
/// Size of a batch of lines, in bytes.
const BATCH_BYTES: usize = 1 << 20;

/// Retained capacity of the writer's buffer, in bytes.
const RETAINED_LINES_BYTES: usize = 64 * 1024;
/// Retained capacity of a thread's line buffer, in bytes.
const RETAINED_LINE_BYTES: usize = 4 * 1024;

/// Lines queued for the writer.
#[derive(Default)]
struct QueuedLines {
    lines: Vec<u8>,
    events: usize,
    /// Flush requests, notified when everything queued before them has been written.
    flushes: Vec<oneshot::Sender<()>>,
    closed: bool,
}

impl QueuedLines {
    fn is_idle(&self) -> bool {
        self.events == 0 && self.flushes.is_empty() && !self.closed
    }

    /// Without a pending flush, waiting briefly combines many lines into one write.
    fn may_wait(&self) -> bool {
        self.flushes.is_empty() && !self.closed && self.lines.len() < BATCH_BYTES
    }
}

#[derive(Default)]
struct Buffer {
    waiting: Mutex<QueuedLines>,
    changed: Condvar,
}

/// A log written by a dedicated thread. Events that do not fit into its buffer are lost and counted.
pub struct BufferedLog {
    buffer: Arc<Buffer>,
    /// Maximum number of queued events.
    most: usize,
    writer: Option<JoinHandle<()>>,
    format: Format,
    max_event_bytes: usize,
}

impl BufferedLog {
    #[expect(clippy::disallowed_methods, reason = "a named thread, which reports failures to start")]
    pub fn start(
        file: LogFile,
        format: Format,
        max_event_bytes: usize,
        most: usize,
        clock: Clock,
    ) -> Result<Self, AuditError> {
        let buffer = Arc::new(Buffer::default());
        let source = Arc::clone(&buffer);
        let writer = std::thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(move || write_lines(file, &source, &clock))
            .map_err(AuditError::Thread)?;
        Ok(Self { buffer, most: most.max(1), writer: Some(writer), format, max_event_bytes })
    }
}

#[async_trait]
impl Backend for BufferedLog {
    fn plugin(&self) -> &'static str {
        "buffered"
    }

    fn process(&self, event: &Event<'_>) -> Result<(), AuditError> {
        with_line(event, self.format, self.max_event_bytes, |line| {
            let mut waiting = self.buffer.waiting.lock();
            if waiting.events >= self.most {
                return Err(AuditError::BufferFull);
            }
            let before = waiting.lines.len();
            waiting.lines.extend_from_slice(line);
            waiting.events += 1;
            // Wakes the writer for the first line, and when a batch is full.
            let full = before < BATCH_BYTES && waiting.lines.len() >= BATCH_BYTES;
            let wake = waiting.events == 1 || full;
            drop(waiting);
            if wake {
                self.buffer.changed.notify_one();
            }
            Ok(())
        })
    }

    async fn flush(&self, limit: Duration) {
        let (done, wait) = oneshot::channel();
        self.buffer.waiting.lock().flushes.push(done);
        self.buffer.changed.notify_one();
        let _ = tokio::time::timeout(limit, wait).await;
    }
}

impl Drop for BufferedLog {
    fn drop(&mut self) {
        self.buffer.waiting.lock().closed = true;
        self.buffer.changed.notify_one();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Runs until the log is dropped. Sleeps while the queue is empty.
fn write_lines(mut file: LogFile, buffer: &Buffer, clock: &Clock) {
    let mut lines = Vec::new();
    let mut troubled = false;
    loop {
        let mut waiting = buffer.waiting.lock();
        while waiting.is_idle() {
            buffer.changed.wait(&mut waiting);
        }
        let until = Instant::now() + BATCH_DELAY;
        while waiting.may_wait() && !buffer.changed.wait_until(&mut waiting, until).timed_out() {}
        std::mem::swap(&mut lines, &mut waiting.lines);
        waiting.events = 0;
        let (flushes, closed) = (std::mem::take(&mut waiting.flushes), waiting.closed);
        drop(waiting);
        if !lines.is_empty() {
            match file.write(&lines, clock.now()) {
                Ok(()) => troubled = false,
                Err(error) if !troubled => {
                    troubled = true;
                    tracing::error!(%error, "failed to write the audit log, events are lost");
                }
                Err(_) => {}
            }
        }
        lines.clear();
        lines.shrink_to(RETAINED_LINES_BYTES);
        for done in flushes {
            // The flush may have timed out and dropped its receiver.
            let _ = done.send(());
        }
        if closed {
            return;
        }
    }
}

/// Backends in order of invocation.
pub type Backends = Vec<Arc<dyn Backend>>;
