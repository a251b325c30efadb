//! The exporter: one task per process that sends finished spans to a collector in batches.

use super::causes::Causes;
use super::endpoint::Endpoint;
use super::otlp::{self, FinishedSpan, Resource};
use super::queue::Queue;
use super::sampler::Sampler;
use super::tracer::{Component, Tracer};
use super::transport::{SendError, Transport};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::http::OriginError;
use crate::metrics::{Metrics, MetricsError};
use crate::tasks::TaskGroup;
use bytes::Bytes;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::Instant;

/// Spans of a batch, as in OpenTelemetry's batch processor.
const BATCH: usize = 512;

/// Times of an exporter; the defaults are OpenTelemetry's, with a shorter delay at the end of the process.
#[derive(Clone, Debug)]
pub struct ExporterConfig {
    pub endpoint: Endpoint,
    /// Time after the first span of a batch until it is sent.
    pub delay: Duration,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// Delays between attempts.
    pub backoff: Backoff,
    /// Time limit of all attempts for a batch.
    pub retries: Duration,
    /// Time limit of the last batches when the process stops.
    pub flush: Duration,
}

impl ExporterConfig {
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            delay: Duration::from_secs(5),
            timeout: Duration::from_secs(10),
            backoff: Backoff::new(Duration::from_secs(5), Duration::from_secs(30)).with_jitter(0.5, 1.5),
            retries: Duration::from_secs(60),
            flush: Duration::from_secs(2),
        }
    }
}

/// Reason why an exporter cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {
    #[error("invalid endpoint")]
    Endpoint(#[from] OriginError),
    #[error("failed to create metrics")]
    Metrics(#[from] MetricsError),
}

/// Queue and task that all tracers of a process share. Clones share them.
#[derive(Clone)]
pub struct Exporter {
    endpoint: Endpoint,
    queue: Arc<Queue>,
    causes: Arc<Causes>,
    clock: Clock,
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").field("endpoint", &self.endpoint.text).finish_non_exhaustive()
    }
}

impl Exporter {
    /// Starts the task, which ends with `tasks` after it has sent the queued spans. The collector is connected when
    /// there are spans.
    pub fn start(config: ExporterConfig, clock: &Clock, tasks: &TaskGroup) -> Result<Self, ExporterError> {
        let transport = Transport::new(&config.endpoint, config.timeout)?;
        let (queue, receiver) = Queue::new()?;
        let queue = Arc::new(queue);
        let exporter = Self {
            endpoint: config.endpoint.clone(),
            queue: Arc::clone(&queue),
            causes: Arc::default(),
            clock: clock.clone(),
        };
        super::current::turn_on();
        tasks.spawn(Task { config, transport, queue, receiver, tasks: tasks.clone() }.run());
        Ok(exporter)
    }

    /// Adds the counters of exported and dropped spans.
    pub fn register(&self, metrics: &Metrics) -> Result<(), MetricsError> {
        self.queue.register(metrics)
    }

    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Tracer of a component.
    #[must_use]
    pub fn tracer(&self, service: &str, instance: &str, sampler: Sampler) -> Tracer {
        Tracer::of(Component {
            resource: Arc::new(Resource { service: service.to_owned(), instance: instance.to_owned() }),
            sampler,
            clock: self.clock.clone(),
            queue: Arc::clone(&self.queue),
            causes: Arc::clone(&self.causes),
        })
    }
}

struct Task {
    config: ExporterConfig,
    transport: Transport,
    queue: Arc<Queue>,
    receiver: Receiver<FinishedSpan>,
    tasks: TaskGroup,
}

impl Task {
    async fn run(mut self) {
        let mut failing = false;
        while let Some(batch) = self.next_batch().await {
            let stopping = self.tasks.clone();
            let (count, bytes, message) = encode(batch);
            let sent = match stopping.until_stopped(self.export(&message)).await {
                Some(sent) => sent,
                None => self.transport.send(message, self.config.flush).await,
            };
            self.settle(&sent, count, bytes, &mut failing);
        }
        // The last spans end while the process stops.
        let until = Instant::now() + self.config.flush;
        loop {
            let wait = until.min(Instant::now() + self.config.flush / 4);
            let Ok(Some(batch)) = tokio::time::timeout_at(wait, self.last_batch()).await else { break };
            let (count, bytes, message) = encode(batch);
            let left = until.saturating_duration_since(Instant::now());
            let sent = self.transport.send(message, left).await;
            self.settle(&sent, count, bytes, &mut failing);
        }
        self.receiver.close();
        while let Ok(span) = self.receiver.try_recv() {
            self.queue.release(span.size());
            self.queue.drop_spans("stopped", 1);
        }
    }

    /// Next batch, complete or after the delay; `None` once the process stops.
    async fn next_batch(&mut self) -> Option<Vec<FinishedSpan>> {
        let tasks = self.tasks.clone();
        let mut batch = vec![tasks.until_stopped(self.receiver.recv()).await.flatten()?];
        let until = Instant::now() + self.config.delay;
        while batch.len() < BATCH {
            let next = tasks.until_stopped(tokio::time::timeout_at(until, self.receiver.recv())).await;
            match next {
                Some(Ok(Some(span))) => batch.push(span),
                _ => break,
            }
        }
        Some(batch)
    }

    /// Spans that are queued; waits for one.
    async fn last_batch(&mut self) -> Option<Vec<FinishedSpan>> {
        let mut batch = vec![self.receiver.recv().await?];
        while batch.len() < BATCH
            && let Ok(span) = self.receiver.try_recv()
        {
            batch.push(span);
        }
        Some(batch)
    }

    /// Sends a batch, again after transient errors.
    async fn export(&mut self, message: &Bytes) -> Result<u64, SendError> {
        let until = Instant::now() + self.config.retries;
        let mut backoff = self.config.backoff.clone();
        loop {
            match self.transport.send(message.clone(), self.config.timeout).await {
                Err(error) if error.is_transient() && Instant::now() < until => {
                    tracing::debug!(error = crate::errors::chain(&error), "failed to export spans, retrying");
                    tokio::time::sleep(backoff.next_delay()).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Counts the spans of a batch and logs the first of consecutive failures.
    fn settle(&self, sent: &Result<u64, SendError>, count: u64, bytes: usize, failing: &mut bool) {
        self.queue.release(bytes);
        match sent {
            Ok(rejected) => {
                let rejected = (*rejected).min(count);
                self.queue.exported.inc_by(count - rejected);
                self.queue.drop_spans("rejected", rejected);
                *failing = false;
            }
            Err(error) => {
                self.queue.drop_spans("export_failed", count);
                if !std::mem::replace(failing, true) {
                    let (endpoint, error) = (&self.config.endpoint, crate::errors::chain(error));
                    tracing::warn!(%endpoint, error, "failed to export spans, dropped");
                }
            }
        }
    }
}

/// Number, memory and encoded form of a batch.
fn encode(batch: Vec<FinishedSpan>) -> (u64, usize, Bytes) {
    let bytes = batch.iter().map(FinishedSpan::size).sum();
    let count = batch.len() as u64;
    (count, bytes, otlp::request(batch.into_iter()).encode_to_vec().into())
}
