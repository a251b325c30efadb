//! Collects events into batches and delivers them, with a limited number of retries.

use super::batch::{self, QueuedEvent};
use super::{Message, Throttle, WebhookConfig};
use crate::outbound::{CallError, Client};
use base::backoff::Backoff;
use base::metrics::IntCounter;
use base::tasks::TaskGroup;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Attempts per batch, as in Kubernetes.
const ATTEMPTS: u32 = 5;
/// Time limit of one attempt.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// Batches in flight. While all are stuck, events queue, and are lost when the queue is full.
const IN_FLIGHT: u32 = 8;

/// The webhook server and its delivery settings.
pub struct Delivery {
    client: Client,
    pub config: WebhookConfig,
    lost: IntCounter,
    /// Set at shutdown: no waiting for more events, one attempt each.
    pub closing: CancellationToken,
}

/// Events sent in one request.
struct Batch {
    events: Vec<QueuedEvent>,
    /// Flush requests, notified when everything is delivered.
    flush: Option<oneshot::Sender<()>>,
}

/// Receiver of events, and the event that did not fit into the last batch.
struct Source {
    messages: mpsc::Receiver<Message>,
    left_over: Option<QueuedEvent>,
}

impl Delivery {
    pub fn new(client: Client, config: WebhookConfig, lost: IntCounter) -> Self {
        Self { client, config, lost, closing: CancellationToken::new() }
    }

    /// Delivers events until all senders are dropped. Sleeps while the queue is empty.
    pub async fn run(self: Arc<Self>, messages: mpsc::Receiver<Message>, tasks: TaskGroup) {
        let room = Arc::new(Semaphore::new(IN_FLIGHT as usize));
        let mut bucket = self.config.throttle.map(|throttle| Bucket::new(throttle, Instant::now()));
        let mut source = Source { messages, left_over: None };
        while let Some(Batch { events, flush }) = self.gather(&mut source).await {
            if let Some(bucket) = bucket.as_mut().filter(|_| !events.is_empty()) {
                self.pause(bucket.wait(Instant::now())).await;
            }
            // A flush waits for batches in flight, too.
            let places = if flush.is_some() { IN_FLIGHT } else { 1 };
            let Ok(place) = Arc::clone(&room).acquire_many_owned(places).await else { return };
            let delivery = Arc::clone(&self);
            tasks.spawn(async move {
                delivery.deliver_or_lose(&events).await;
                if let Some(flush) = flush {
                    // The flush may have timed out and dropped its receiver.
                    let _ = flush.send(());
                }
                drop(place);
            });
        }
    }

    /// Next batch; `None` when all senders are dropped.
    async fn gather(&self, source: &mut Source) -> Option<Batch> {
        let mut batch = Batch { events: Vec::new(), flush: None };
        let mut size = 0;
        let mut until = None;
        loop {
            let held = match source.left_over.take() {
                Some(held) => held,
                None => match self.next(&mut source.messages, until).await {
                    Next::Message(Message::Event(held)) => held,
                    Next::Message(Message::Flush(done)) => {
                        batch.flush = Some(done);
                        return Some(batch);
                    }
                    Next::TimeIsUp => return Some(batch),
                    Next::Nothing => return Some(batch).filter(|batch| !batch.events.is_empty()),
                },
            };
            let length = held.event.len();
            if size > 0 && size + length > self.config.max_batch_bytes {
                source.left_over = Some(held);
                return Some(batch);
            }
            size += length;
            batch.events.push(held);
            if batch.events.len() >= self.config.max_batch {
                return Some(batch);
            }
            until.get_or_insert_with(|| Instant::now() + self.config.max_wait);
        }
    }

    async fn next(&self, messages: &mut mpsc::Receiver<Message>, until: Option<Instant>) -> Next {
        let time_is_up = async {
            match until {
                Some(until) if !self.closing.is_cancelled() => {
                    tokio::select! {
                        () = tokio::time::sleep_until(until) => {}
                        () = self.closing.cancelled() => {}
                    }
                }
                Some(_) => {}
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            message = messages.recv() => message.map_or(Next::Nothing, Next::Message),
            () = time_is_up => Next::TimeIsUp,
        }
    }

    async fn deliver_or_lose(&self, events: &[QueuedEvent]) {
        if events.is_empty() {
            return;
        }
        let body = batch::list(events.iter().map(|held| &held.event));
        if let Err(error) = self.deliver(body).await {
            self.lost.inc_by(events.len() as u64);
            tracing::error!(
                error = error.chain(),
                events = events.len(),
                "failed to send events to the audit webhook, events are lost"
            );
        }
    }

    /// Every kind of error is retried, because a lost audit event cannot be recovered.
    pub async fn deliver(&self, body: Bytes) -> Result<(), CallError> {
        // Growth and jitter as in Kubernetes.
        let mut retry =
            Backoff::new(self.config.initial_back_off, Duration::MAX).growing_by(3, 2).with_jitter(1.0, 1.2);
        let mut attempt = 1;
        loop {
            let last = attempt == ATTEMPTS || self.closing.is_cancelled();
            match self.client.send(body.clone(), CALL_LIMIT).await {
                Ok(()) => return Ok(()),
                Err(error) if last => return Err(error),
                Err(error) => {
                    tracing::debug!(
                        error = error.chain(),
                        attempt,
                        "failed to send events to the audit webhook, retrying"
                    )
                }
            }
            self.pause(retry.next_delay()).await;
            attempt += 1;
        }
    }

    /// Sleeps; returns early at shutdown.
    async fn pause(&self, time: Duration) {
        if !time.is_zero() {
            let _ = tokio::time::timeout(time, self.closing.cancelled()).await;
        }
    }
}

enum Next {
    Message(Message),
    TimeIsUp,
    Nothing,
}

/// Token bucket: batches per second, with a burst.
struct Bucket {
    throttle: Throttle,
    tokens: f64,
    since: Instant,
}

impl Bucket {
    fn new(throttle: Throttle, now: Instant) -> Self {
        let per_second = throttle.per_second.max(0.001);
        let burst = throttle.burst.max(1);
        Self { throttle: Throttle { per_second, burst }, tokens: f64::from(burst), since: now }
    }

    /// Takes a token and returns the time to wait for it.
    fn wait(&mut self, now: Instant) -> Duration {
        let Throttle { per_second, burst } = self.throttle;
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.since = now;
        self.tokens = (self.tokens + passed * per_second).min(f64::from(burst)) - 1.0;
        Duration::from_secs_f64((-self.tokens / per_second).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_bucket_throttles_batches() {
        let now = Instant::now();
        let mut bucket = Bucket::new(Throttle { per_second: 10.0, burst: 2 }, now);
        assert_eq!([bucket.wait(now), bucket.wait(now)], [Duration::ZERO; 2]);
        assert_eq!(bucket.wait(now), Duration::from_millis(100));
        assert_eq!(bucket.wait(now + Duration::from_secs(5)), Duration::ZERO);
    }
}
