//! Where events go: files, webhooks. Each backend decides whether a request waits for it.

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

/// Why an event was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("audit buffer queue blocked")]
    BufferFull,
    #[error("event is too large even after truncating")]
    TooLarge,
    #[error("sending to the audit webhook")]
    Webhook(#[source] CallError),
    #[error("there is no thread on which a request could wait for the audit webhook")]
    NowhereToWait,
    #[error("writing the audit log")]
    Write(#[from] std::io::Error),
    #[error("starting the writer of the audit log")]
    Thread(#[source] std::io::Error),
}

/// What takes events. Called while the request runs: whatever takes time belongs elsewhere, unless the operator wants
/// requests to wait.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Its name in metrics.
    fn plugin(&self) -> &'static str;

    fn process(&self, event: &Event<'_>) -> Result<(), AuditError>;

    /// A request without a record is refused.
    fn is_strict(&self) -> bool {
        false
    }

    /// Begins what it does besides taking events.
    fn start(&self) {}

    /// Waits until what was taken so far is recorded, for so long at most.
    async fn flush(&self, _limit: Duration) {}
}

/// Whether requests wait for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Batch,
    Blocking,
    /// As blocking, and a request that cannot be recorded when it is received is refused.
    BlockingStrict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Legacy,
}

/// Has the line of an event written into room that is used again, and lets `take` have it.
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
        line.shrink_to(KEPT_LINE);
        taken
    })
}

/// A log that is written before the request goes on.
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

/// How long the writer gathers lines before it writes them.
const GATHER: Duration = Duration::from_millis(10);
/// Lines that are written together, in bytes.
const GATHERED_BYTES: usize = 1 << 20;

/// Room for lines that the writer keeps.
const KEPT_LINES: usize = 64 * 1024;
/// Room for a line that a thread keeps.
const KEPT_LINE: usize = 4 * 1024;

/// Lines on their way to the writer.
#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    events: usize,
    /// Who wants to be told when everything so far has been written.
    flushes: Vec<oneshot::Sender<()>>,
    closed: bool,
}

impl Waiting {
    fn is_idle(&self) -> bool {
        self.events == 0 && self.flushes.is_empty() && !self.closed
    }

    /// While nobody asks to be told, a little patience makes one write of many lines.
    fn may_wait(&self) -> bool {
        self.flushes.is_empty() && !self.closed && self.lines.len() < GATHERED_BYTES
    }
}

#[derive(Default)]
struct Buffer {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

/// A log that a thread of its own writes. What does not fit into its buffer is lost and counted.
pub struct BufferedLog {
    buffer: Arc<Buffer>,
    /// Events that may wait.
    most: usize,
    writer: Option<JoinHandle<()>>,
    format: Format,
    max_event_bytes: usize,
}

impl BufferedLog {
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
            // The writer sleeps until there is something, and then until there is enough.
            let full = before < GATHERED_BYTES && waiting.lines.len() >= GATHERED_BYTES;
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

/// Until the log is dropped. Sleeps while there is nothing to write.
fn write_lines(mut file: LogFile, buffer: &Buffer, clock: &Clock) {
    let mut lines = Vec::new();
    let mut troubled = false;
    loop {
        let mut waiting = buffer.waiting.lock();
        while waiting.is_idle() {
            buffer.changed.wait(&mut waiting);
        }
        let until = Instant::now() + GATHER;
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
                    tracing::error!(%error, "the audit log cannot be written; events are lost");
                }
                Err(_) => {}
            }
        }
        lines.clear();
        lines.shrink_to(KEPT_LINES);
        for done in flushes {
            // Whoever asked may have lost patience.
            let _ = done.send(());
        }
        if closed {
            return;
        }
    }
}

/// Backends in the order in which they are asked.
pub type Backends = Vec<Arc<dyn Backend>>;
