//! Where events go: files, webhooks. Each backend decides whether a request waits for it.

use super::event::Event;
use super::log_file::LogFile;
use crate::outbound::CallError;
use async_trait::async_trait;
use base::clock::Clock;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
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

/// The line of an event, its end included.
fn line(event: &Event<'_>, format: Format, max_bytes: usize) -> Result<Bytes, AuditError> {
    match format {
        Format::Json => event.line_within(max_bytes).ok_or(AuditError::TooLarge),
        Format::Legacy => Ok(format!("{}\n", event.legacy()).into()),
    }
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
        let line = line(event, self.format, self.max_event_bytes)?;
        Ok(self.file.lock().write(&line, self.clock.now())?)
    }
}

/// How long the writer gathers lines before it writes them.
const GATHER: Duration = Duration::from_millis(10);
/// Lines that are written together, in bytes.
const GATHERED_BYTES: usize = 1 << 20;

enum Message {
    Line(Bytes),
    Flush(oneshot::Sender<()>),
}

/// A log that a thread of its own writes. What does not fit into its buffer is lost and counted.
pub struct BufferedLog {
    sender: Option<SyncSender<Message>>,
    writer: Option<JoinHandle<()>>,
    format: Format,
    max_event_bytes: usize,
}

impl BufferedLog {
    pub fn start(
        file: LogFile,
        format: Format,
        max_event_bytes: usize,
        buffer: usize,
        clock: Clock,
    ) -> Result<Self, AuditError> {
        let (sender, receiver) = sync_channel(buffer.max(1));
        let write = move || write_lines(file, &receiver, &clock);
        let writer = std::thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(write)
            .map_err(AuditError::Thread)?;
        Ok(Self { sender: Some(sender), writer: Some(writer), format, max_event_bytes })
    }
}

#[async_trait]
impl Backend for BufferedLog {
    fn plugin(&self) -> &'static str {
        "buffered"
    }

    fn process(&self, event: &Event<'_>) -> Result<(), AuditError> {
        let line = line(event, self.format, self.max_event_bytes)?;
        let sender = self.sender.as_ref().ok_or(AuditError::BufferFull)?;
        sender.try_send(Message::Line(line)).map_err(|_| AuditError::BufferFull)
    }

    async fn flush(&self, limit: Duration) {
        let (done, wait) = oneshot::channel();
        let sent = self.sender.as_ref().is_some_and(|sender| sender.try_send(Message::Flush(done)).is_ok());
        if sent {
            let _ = tokio::time::timeout(limit, wait).await;
        }
    }
}

impl Drop for BufferedLog {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Until everybody who sends is gone. Sleeps while there is nothing to write.
fn write_lines(mut file: LogFile, receiver: &Receiver<Message>, clock: &Clock) {
    let mut lines = Vec::new();
    let mut troubled = false;
    while let Ok(first) = receiver.recv() {
        let mut flushed = Vec::new();
        let mut next = Some(first);
        let until = std::time::Instant::now() + GATHER;
        while let Some(message) = next.take() {
            match message {
                Message::Line(line) => lines.extend_from_slice(&line),
                Message::Flush(done) => flushed.push(done),
            }
            if lines.len() >= GATHERED_BYTES {
                break;
            }
            // While nobody asks to be told, a little patience makes one write of many lines.
            next = match receiver.try_recv() {
                Ok(message) => Some(message),
                Err(_) if !flushed.is_empty() => None,
                Err(_) => {
                    let left = until.saturating_duration_since(std::time::Instant::now());
                    std::thread::sleep(left);
                    receiver.try_recv().ok()
                }
            };
        }
        match file.write(&lines, clock.now()) {
            Ok(()) => troubled = false,
            Err(error) if !troubled => {
                troubled = true;
                tracing::error!(%error, "the audit log cannot be written; events are lost");
            }
            Err(_) => {}
        }
        lines.clear();
        lines.shrink_to(GATHERED_BYTES);
        for done in flushed {
            // Whoever asked may have lost patience.
            let _ = done.send(());
        }
    }
}

/// Backends in the order in which they are asked.
pub type Backends = Vec<Arc<dyn Backend>>;
