//! Webhook backend: sends events in batches in the background, or one by one while the request waits.
//!
//! The queue is bounded in number and in bytes; events that do not fit, or cannot be delivered after some attempts,
//! are lost and counted.

mod batch;
mod delivery;

use super::AuditSetupError;
use super::backend::{AuditError, Backend, Mode};
use super::event::Event;
use crate::outbound;
use async_trait::async_trait;
use base::metrics::IntCounterVec;
use base::tasks::TaskGroup;
use batch::{Budget, QueuedEvent};
use delivery::Delivery;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{mpsc, oneshot};

/// Byte limit of queued and in-flight events, whatever their number.
const MAX_QUEUED_BYTES: usize = 128 << 20;
/// Plugin name in metrics.
const PLUGIN: &str = "webhook";

#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// Kubeconfig of the webhook server.
    pub kubeconfig: PathBuf,
    pub mode: Mode,
    /// Queued events; more are lost.
    pub buffer: usize,
    /// Maximum number of events per batch.
    pub max_batch: usize,
    /// Time an event waits for a batch to fill.
    pub max_wait: Duration,
    pub throttle: Option<Throttle>,
    /// Backoff before the second attempt; it grows with each further one.
    pub initial_back_off: Duration,
    /// Larger events are sent without their objects, or not at all.
    pub max_event_bytes: Option<usize>,
    /// Maximum size of a batch, unless a single event exceeds it.
    pub max_batch_bytes: usize,
}

/// Rate limit of batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttle {
    pub per_second: f64,
    pub burst: u32,
}

pub(super) enum Message {
    Event(QueuedEvent),
    /// Flush: everything queued before is sent, then the sender is notified.
    Flush(oneshot::Sender<()>),
}

pub(super) struct Webhook {
    delivery: Arc<Delivery>,
    budget: Arc<Budget>,
    sender: mpsc::Sender<Message>,
    /// Taken when delivery starts.
    receiver: Mutex<Option<mpsc::Receiver<Message>>>,
    tasks: TaskGroup,
}

impl Webhook {
    pub fn new(config: &WebhookConfig, errors: &IntCounterVec) -> Result<Self, AuditSetupError> {
        let client = outbound::read_kubeconfig(&config.kubeconfig).map_err(AuditSetupError::Webhook)?;
        let lost = errors.with_label_values(&[PLUGIN]);
        let (sender, receiver) = mpsc::channel(config.buffer.max(1));
        Ok(Self {
            delivery: Arc::new(Delivery::new(client, config.clone(), lost)),
            budget: Arc::new(Budget::new(MAX_QUEUED_BYTES)),
            sender,
            receiver: Mutex::new(Some(receiver)),
            // A separate task group: events arrive until the last request of the server has ended.
            tasks: TaskGroup::new(),
        })
    }

    fn mode(&self) -> Mode {
        self.delivery.config.mode
    }
}

#[async_trait]
impl Backend for Webhook {
    fn plugin(&self) -> &'static str {
        match self.mode() {
            Mode::Batch => "buffered",
            Mode::Blocking | Mode::BlockingStrict => PLUGIN,
        }
    }

    fn is_strict(&self) -> bool {
        self.mode() == Mode::BlockingStrict
    }

    fn process(&self, event: &Event<'_>) -> Result<(), AuditError> {
        let limit = self.delivery.config.max_event_bytes.unwrap_or(usize::MAX);
        let event = event.item_within(limit).ok_or(AuditError::TooLarge)?;
        if self.mode() == Mode::Batch {
            let held = self.budget.hold(event).ok_or(AuditError::BufferFull)?;
            return self.sender.try_send(Message::Event(held)).map_err(|_| AuditError::BufferFull);
        }
        let delivered = self.delivery.deliver(batch::list([&event].into_iter()));
        match Handle::try_current() {
            Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => {
                tokio::task::block_in_place(|| runtime.block_on(delivered)).map_err(AuditError::Webhook)
            }
            _ => Err(AuditError::SingleThreadedRuntime),
        }
    }

    fn start(&self) {
        if self.mode() == Mode::Batch
            && let Some(receiver) = self.receiver.lock().take()
        {
            self.tasks.spawn(Arc::clone(&self.delivery).run(receiver, self.tasks.clone()));
        }
    }

    async fn flush(&self, limit: Duration) {
        if self.mode() == Mode::Batch && self.receiver.lock().is_none() {
            // From now on every batch gets one attempt only.
            self.delivery.closing.cancel();
            let (done, wait) = oneshot::channel();
            let flushed = async {
                if self.sender.send(Message::Flush(done)).await.is_ok() {
                    let _ = wait.await;
                }
            };
            if tokio::time::timeout(limit, flushed).await.is_err() {
                tracing::warn!("timed out flushing events to the audit webhook");
            }
        }
        self.tasks.abort();
    }
}
