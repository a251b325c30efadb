//! The scheduling loop: watches the cluster, takes pods from the queue, and writes results to the API server. One
//! task owns all state; changes wait in an inbox between two pods, so that a cycle never sees a partial change.
//! Requests to the API server run in separate tasks and report back through the inbox.

mod attempt;
mod changes;
mod claims;
mod inbox;
mod tasks;
mod wait;

use futures_util::future::BoxFuture;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use objects::core::v1::Pod;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use runtime::{Cache, Context, Descriptor, Recorder};
use tokio::sync::Semaphore;

use crate::config::{ConfigError, Configuration};
use crate::extender::Extender;
use crate::metrics::{ProfileMetrics, SchedulerMetrics};
use crate::profile::Profile;
use crate::queue::Queue;
use crate::state::Cluster;

use inbox::Inbox;
use tasks::Writer;

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "kube-scheduler", resource: "pods", identity: "system:kube-scheduler", workers: 1 };

/// Concurrent bindings; each is a write, and the API server commits many together.
const BINDINGS: usize = 128;
/// Concurrent writes other than bindings.
const WRITES: usize = 32;
/// Pods tried in a row before yielding to other tasks of the process.
const BATCH: u32 = 16;

struct ActiveProfile {
    profile: Profile,
    recorder: Recorder,
    metrics: Option<ProfileMetrics>,
}

/// A configured scheduler.
pub struct Scheduler {
    ctx: Context,
    cluster: Cluster,
    queue: Queue,
    profiles: HashMap<String, ActiveProfile>,
    extenders: Vec<Extender>,
    inbox: Arc<Inbox>,
    pods: Cache<Pod>,
    writer: Arc<Writer>,
    bindings: Arc<Semaphore>,
    /// Start of the next node search.
    start: usize,
    rng: SmallRng,
    metrics: Option<SchedulerMetrics>,
}

impl Scheduler {
    /// Builds a scheduler from its configuration; watching starts with `run`.
    pub fn new(
        ctx: Context,
        configuration: &Configuration,
        metrics: Option<SchedulerMetrics>,
    ) -> Result<Self, ConfigError> {
        let mut profiles = HashMap::new();
        for mut profile in configuration.profiles()? {
            let recorder = Recorder::new(ctx.client.clone(), &profile.name, ctx.clock.clone(), &ctx.tasks);
            let metrics = metrics.as_ref().map(|metrics| metrics.profile(&profile.name));
            profile.metrics.clone_from(&metrics);
            profiles.insert(profile.name.clone(), ActiveProfile { profile, recorder, metrics });
        }
        let extenders = configuration.extenders.iter().map(Extender::new).collect::<Result<_, _>>()?;
        let inbox = Arc::new(Inbox::default());
        let writer = Arc::new(Writer::new(&ctx, WRITES, metrics.clone()));
        Ok(Self {
            cluster: Cluster::new(),
            queue: Queue::new(configuration.backoff())
                .with_metrics(metrics.as_ref().map(SchedulerMetrics::queue)),
            profiles,
            extenders,
            inbox,
            pods: ctx.informers.of(),
            writer,
            bindings: Arc::new(Semaphore::new(BINDINGS)),
            start: 0,
            rng: SmallRng::from_os_rng(),
            metrics,
            ctx,
        })
    }

    /// Schedules until the context's tasks stop.
    pub fn run(mut self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let stopping = self.ctx.tasks.stopping();
            tokio::pin!(stopping);
            let synced = inbox::follow(&self.ctx.informers, &self.inbox);
            if self.ctx.tasks.until_stopped(synced).await.is_none() {
                return;
            }
            tracing::info!("caches synced");
            let mut tried = 0;
            while !self.ctx.tasks.is_stopping() {
                self.take_changes();
                let now = self.ctx.clock.now();
                self.queue.flush(now);
                if let Some(pod) = self.queue.pop(now) {
                    self.attempt(pod).await;
                    tried += 1;
                    if tried >= BATCH {
                        tried = 0;
                        self.measure();
                        tokio::task::yield_now().await;
                    }
                    continue;
                }
                tried = 0;
                self.measure();
                let wake = self.queue.next_flush().map(|at| until(now, at));
                tokio::select! {
                    () = &mut stopping => return,
                    () = self.inbox.filled() => {}
                    () = sleep(wake) => {}
                }
            }
        })
    }
}

impl Scheduler {
    /// Updates the size gauges.
    fn measure(&self) {
        if let Some(metrics) = &self.metrics {
            metrics.sizes(self.queue.depth(), &self.cluster);
        }
    }
}

fn until(now: Timestamp, at: Timestamp) -> Duration {
    // Rounded up, so that the timer never fires early.
    Duration::try_from(at.duration_since(now)).unwrap_or_default().saturating_add(Duration::from_millis(1))
}

async fn sleep(wake: Option<Duration>) {
    match wake {
        Some(wake) => tokio::time::sleep(wake).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
