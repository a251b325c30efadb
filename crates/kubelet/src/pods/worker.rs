//! Worker of one pod: observes, plans, acts, publishes the status, then waits for the next change.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use base::trace;
use cri::v1::LinuxContainerResources;
use jiff::{SignedDuration, Timestamp};
use objects::core::v1::{Pod, PodStatus};
use tokio::sync::{Notify, watch};

use super::kill::KillProgress;
use super::mounted_objects::Follower;
use super::resize::Applied;
use super::spans;
use super::startup::Startup;
use super::termination_message;
use super::uncancelled::CreateCalls;
use crate::engine::EngineError;
use crate::lifecycle::phase::has_ended;
use crate::lifecycle::status::Waiting;
use crate::lifecycle::{Backoff, ObservedPod, Verdict};
use crate::probes::ProbeSet;
use crate::shared::Shared;
use crate::volumes::{Measure, PodDirectories, Prepared};

/// Retry delays after failures.
const RETRY: base::backoff::Backoff =
    base::backoff::Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Interval of volume refreshes without a known change.
const REFRESH: SignedDuration = SignedDuration::from_mins(10);
/// Interval of expansion checks of CSI and local volumes.
const REFRESH_CLAIMS: SignedDuration = SignedDuration::from_secs(30);

/// Desired state passed to a worker.
#[derive(Clone, Debug)]
pub struct Order {
    pub pod: Arc<Pod>,
    /// The pod no longer exists in the API server.
    pub gone: bool,
    /// Termination reason, message and optional grace period in seconds.
    pub evicted: Option<(String, String, Option<i64>)>,
    /// Reason and message of a pending resize.
    pub resize: Option<(String, String)>,
    /// Number of mirror pods created for a static pod.
    pub shown: u32,
}

impl Order {
    /// Returns true if the pod must terminate regardless of its containers.
    #[must_use]
    pub fn ends(&self) -> bool {
        self.gone || self.evicted.is_some() || self.pod.metadata.deletion_timestamp.is_some()
    }

    /// Remaining grace period in seconds.
    #[must_use]
    pub fn grace(&self) -> i64 {
        let meta = &self.pod.metadata;
        let of_spec =
            self.pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
        let of_eviction = self.evicted.as_ref().and_then(|evicted| evicted.2);
        if self.gone {
            return 1;
        }
        of_eviction.unwrap_or_else(|| meta.deletion_grace_period_seconds.unwrap_or(of_spec)).max(1)
    }
}

/// Worker of one pod.
pub struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) orders: watch::Receiver<Order>,
    /// Notified on runtime events and probe results.
    pub(super) news: Arc<Notify>,
    pub(super) uid: String,
    /// Uncancellable create calls of the pod.
    pub(super) create_calls: CreateCalls,
    pub(super) directories: PodDirectories,
    pub(super) backoff: Backoff,
    pub(super) waiting: BTreeMap<String, Waiting>,
    pub(super) probes: ProbeSet,
    pub(super) prepared: Option<Arc<Prepared>>,
    /// Time of the next volume refresh.
    pub(super) refresh_at: Option<Timestamp>,
    /// Notified of changes of volume sources.
    pub(super) follower: Arc<Follower>,
    /// Pod for which the volumes were prepared.
    pub(super) prepared_for: Option<Arc<Pod>>,
    /// Termination progress of containers.
    pub(super) kill_progress: Arc<KillProgress>,
    pub(super) written: Option<PodStatus>,
    /// Status of the last attempt to write, if that failed; its terminated containers are counted.
    pub(super) unwritten: Option<PodStatus>,
    /// Revision of the last status that was written.
    pub(super) published: Arc<AtomicU64>,
    /// Mirror pod generation that the status was written to.
    pub(super) written_to: u32,
    retry: base::backoff::Backoff,
    /// Reason and message of an exceeded deadline.
    pub(super) verdict: Option<(String, String)>,
    /// Sandbox admitted by the gate.
    pub(super) passed_gate: Option<String>,
    /// True if the pod had container statuses before this kubelet started.
    pub(super) seen_before: bool,
    /// Limits of running containers, by ID.
    pub(super) applied: HashMap<String, Applied>,
    /// Set while a resize is in progress, with its error if any.
    pub(super) resizing: Option<Option<String>>,
    /// Limits of the pod's cgroup.
    pub(super) applied_to_pod: Option<LinuxContainerResources>,
    pub(super) startup: Startup,
    /// Time at which the status began to differ from the written one.
    pub(super) status_changed: Option<Instant>,
    /// Set once the pod has its node resources, or does not get them.
    pub(super) has_resources: bool,
}

/// Outcome of a sync.
pub(super) enum Round {
    /// Wait for a notification, at most until the given time.
    Wait(Option<Timestamp>),
    /// A step failed; retry with backoff.
    Retry,
    /// The pod is removed.
    Done,
}

impl Worker {
    pub fn new(
        shared: Arc<Shared>,
        orders: watch::Receiver<Order>,
        news: Arc<Notify>,
        published: Arc<AtomicU64>,
    ) -> Self {
        let pod = Arc::clone(&orders.borrow().pod);
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let directories = PodDirectories::of_uid(&shared.config.directory, &uid);
        let probes = ProbeSet::new(
            Arc::clone(&news),
            shared.tasks.clone(),
            shared.recorder.clone(),
            shared.clock.clone(),
            Arc::clone(&shared.probes),
        );
        let follower = Follower::new(Arc::clone(&news));
        let create_calls = CreateCalls::new(shared.tasks.clone());
        let seen_before = pod.status.as_ref().is_some_and(|status| status.container_statuses.is_some());
        Self {
            shared,
            orders,
            news,
            uid,
            create_calls,
            directories,
            backoff: Backoff::default(),
            waiting: BTreeMap::new(),
            probes,
            prepared: None,
            refresh_at: None,
            follower,
            prepared_for: None,
            kill_progress: Arc::default(),
            written: None,
            unwritten: None,
            published,
            written_to: 0,
            retry: RETRY,
            verdict: None,
            passed_gate: None,
            seen_before,
            applied: HashMap::new(),
            resizing: None,
            applied_to_pod: None,
            startup: Startup::new(seen_before),
            status_changed: None,
            has_resources: false,
        }
    }

    /// Runs until the pod is removed or the kubelet stops; true if the pod is removed.
    pub async fn run(mut self) -> bool {
        let mut operation = "create";
        self.shared.metrics.pods.worker_start.observe(self.startup.since_seen().as_secs_f64());
        loop {
            let order = self.orders.borrow_and_update().clone();
            let begun = Instant::now();
            let operation_type = if order.ends() { "kill" } else { operation };
            let span = spans::sync(&self.shared.config.tracer, &order, operation_type).await;
            let round = trace::scope(span.handle(), self.round(&order)).await;
            drop(span);
            self.shared.metrics.pod_synced(operation_type, begun);
            let until = match round {
                Round::Done => return true,
                Round::Wait(until) => {
                    self.retry.reset();
                    until.map(|until| {
                        Duration::try_from(until.duration_since(self.shared.clock.now()))
                            .unwrap_or(Duration::ZERO)
                    })
                }
                Round::Retry => Some(self.retry.next_delay()),
            };
            let timer = async {
                match until {
                    Some(until) => tokio::time::sleep(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.news.notified() => operation = "sync",
                () = timer => operation = "sync",
                changed = self.orders.changed() => {
                    if changed.is_err() {
                        return false;
                    }
                    operation = "update";
                }
            }
        }
    }

    async fn round(&mut self, order: &Order) -> Round {
        match self.attempt(order).await {
            Ok(round) => round,
            Err(error) => {
                tracing::warn!(pod = %self.uid, %error, "container runtime call failed, retrying");
                Round::Retry
            }
        }
    }

    async fn attempt(&mut self, order: &Order) -> Result<Round, EngineError> {
        self.create_calls.settled().await;
        let observed = self.observe(&order.pod).await?;
        if let Some(verdict) = self.deadline_exceeded(&order.pod) {
            self.verdict.get_or_insert(verdict);
        }
        let ends = order.ends() || has_ended(&order.pod);
        if !ends && self.verdict.is_none() && !std::mem::replace(&mut self.has_resources, true) {
            self.verdict = self.allocate(&order.pod, &observed).await;
        }
        if ends || self.verdict.is_some() {
            return Box::pin(self.finish(order, observed)).await;
        }
        self.sync_until_terminated(order, observed).await
    }

    /// Runs a sync of a running pod, aborted as soon as the pod has to terminate.
    async fn sync_until_terminated(
        &mut self,
        order: &Order,
        observed: ObservedPod,
    ) -> Result<Round, EngineError> {
        let mut orders = self.orders.clone();
        let notification = async move {
            while orders.wait_for(Order::ends).await.is_err() {
                std::future::pending().await
            }
        };
        tokio::select! {
            round = Box::pin(self.sync(order, observed)) => round,
            () = notification => Ok(Round::Wait(Some(Timestamp::UNIX_EPOCH))),
        }
    }

    /// Observes the runtime state including termination messages, and removes probes of stopped containers.
    pub(super) async fn observe(&mut self, pod: &Pod) -> Result<ObservedPod, EngineError> {
        let mut observed = self.shared.engine.observe(&self.uid).await?;
        termination_message::add(&mut observed, pod, &self.directories);
        let probes = &mut self.probes;
        probes.retain(|id| observed.running().any(|container| container.id == id));
        Ok(observed)
    }

    pub(super) fn verdict_of(&self, container_id: &str) -> Verdict {
        self.probes.verdict(container_id)
    }

    /// Returns true if the pod exceeded its active deadline.
    fn deadline_exceeded(&self, pod: &Pod) -> Option<(String, String)> {
        self.deadline(pod).filter(|deadline| *deadline <= self.shared.clock.now())?;
        Some((
            "DeadlineExceeded".to_owned(),
            "Pod was active on the node longer than the specified deadline".to_owned(),
        ))
    }

    /// Active deadline of the pod.
    pub(super) fn deadline(&self, pod: &Pod) -> Option<Timestamp> {
        let limit = pod.spec.as_ref()?.active_deadline_seconds?;
        let started = pod.status.as_ref()?.start_time.as_ref()?.0;
        started.saturating_add(SignedDuration::from_secs(limit)).ok()
    }

    /// Retry time of a failed volume refresh.
    pub(super) fn soon(&self) -> Timestamp {
        let now = self.shared.clock.now();
        now.saturating_add(REFRESH_CLAIMS).unwrap_or(now)
    }

    /// Time of the next volume refresh: a token renewal, or the regular interval.
    pub(super) fn next_refresh(&self) -> Timestamp {
        let now = self.shared.clock.now();
        let mut volumes = self.prepared.iter().flat_map(|prepared| prepared.values());
        let claims = volumes.any(|volume| {
            matches!(volume.measure, Measure::Driver { .. } | Measure::FileSystem | Measure::Device)
        });
        let later = now.saturating_add(if claims { REFRESH_CLAIMS } else { REFRESH }).unwrap_or(now);
        self.shared.tokens.renewal(&self.uid, now).map_or(later, |renewal| renewal.min(later))
    }
}
