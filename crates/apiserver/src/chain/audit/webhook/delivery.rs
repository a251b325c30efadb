//! Gathers events into batches and delivers them, again and again if need be, but not for ever.

use super::batch::{self, Held};
use super::{Message, Throttle, WebhookConfig};
use crate::outbound::{CallError, Client};
use base::metrics::IntCounter;
use base::tasks::TaskGroup;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often a batch is tried, and how the time between grows; as Kubernetes does it.
const ATTEMPTS: u32 = 5;
const BACK_OFF_FACTOR: f64 = 1.5;
const JITTER: f64 = 0.2;
/// How long one attempt may take.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// Batches on their way at the same time. While they are stuck, events wait, and then are lost.
const IN_FLIGHT: u32 = 8;

/// The other side, and how it is treated.
pub struct Delivery {
    client: Client,
    pub config: WebhookConfig,
    lost: IntCounter,
    /// The server ends: no waiting for more events, one attempt each.
    pub closing: CancellationToken,
}

/// Events that go together.
struct Batch {
    events: Vec<Held>,
    /// Who wants to know that everything is delivered.
    flush: Option<oneshot::Sender<()>>,
}

/// Where events come from, and the one that did not fit into the last batch.
struct Source {
    messages: mpsc::Receiver<Message>,
    left_over: Option<Held>,
}

impl Delivery {
    pub fn new(client: Client, config: WebhookConfig, lost: IntCounter) -> Self {
        Self { client, config, lost, closing: CancellationToken::new() }
    }

    /// Delivers what comes in until nobody can send any more. Sleeps while there is nothing.
    pub async fn run(self: Arc<Self>, messages: mpsc::Receiver<Message>, tasks: TaskGroup) {
        let room = Arc::new(Semaphore::new(IN_FLIGHT as usize));
        let mut bucket = self.config.throttle.map(|throttle| Bucket::new(throttle, Instant::now()));
        let mut source = Source { messages, left_over: None };
        while let Some(Batch { events, flush }) = self.gather(&mut source).await {
            if let Some(bucket) = bucket.as_mut().filter(|_| !events.is_empty()) {
                self.pause(bucket.wait(Instant::now())).await;
            }
            // Whoever flushes waits for those on their way, too.
            let places = if flush.is_some() { IN_FLIGHT } else { 1 };
            let Ok(place) = Arc::clone(&room).acquire_many_owned(places).await else { return };
            let delivery = Arc::clone(&self);
            tasks.spawn(async move {
                delivery.deliver_or_lose(&events).await;
                if let Some(flush) = flush {
                    // Whoever asked may have lost patience.
                    let _ = flush.send(());
                }
                drop(place);
            });
        }
    }

    /// The next batch; `None` when there will be no more.
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

    async fn deliver_or_lose(&self, events: &[Held]) {
        if events.is_empty() {
            return;
        }
        let body = batch::list(events.iter().map(|held| &held.event));
        if let Err(error) = self.deliver(body).await {
            self.lost.inc_by(events.len() as u64);
            tracing::error!(
                error = error.chain(),
                events = events.len(),
                "the audit webhook did not take events"
            );
        }
    }

    /// Whatever went wrong may go better the next time: an audit event is worth another attempt.
    pub async fn deliver(&self, body: Bytes) -> Result<(), CallError> {
        let mut back_off = self.config.initial_back_off;
        let mut attempt = 1;
        loop {
            let last = attempt == ATTEMPTS || self.closing.is_cancelled();
            match self.client.send(body.clone(), CALL_LIMIT).await {
                Ok(()) => return Ok(()),
                Err(error) if last => return Err(error),
                Err(error) => {
                    tracing::debug!(error = error.chain(), attempt, "the audit webhook is tried again")
                }
            }
            self.pause(back_off.mul_f64(1.0 + JITTER * rand::random::<f64>())).await;
            back_off = back_off.mul_f64(BACK_OFF_FACTOR);
            attempt += 1;
        }
    }

    /// Waits, unless the server ends.
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

/// So many batches per second, and a few at once.
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

    /// Takes a token, and tells how long to wait for it.
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
    fn batches_are_throttled() {
        let now = Instant::now();
        let mut bucket = Bucket::new(Throttle { per_second: 10.0, burst: 2 }, now);
        assert_eq!([bucket.wait(now), bucket.wait(now)], [Duration::ZERO; 2]);
        assert_eq!(bucket.wait(now), Duration::from_millis(100));
        assert_eq!(bucket.wait(now + Duration::from_secs(5)), Duration::ZERO);
    }
}
