//! The worker of one pod: observe, plan, act, tell; then wait for something to happen.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cri::v1::LinuxContainerResources;
use jiff::{SignedDuration, Timestamp};
use objects::core::v1::{Pod, PodStatus};
use tokio::sync::{Notify, watch};

use super::followed::Follower;
use super::kill::Ending;
use super::last_words;
use super::making::Making;
use super::resize::Applied;
use crate::engine::EngineError;
use crate::lifecycle::status::Waiting;
use crate::lifecycle::{Backoff, Observed, Verdict};
use crate::probes::ProbeSet;
use crate::shared::Shared;
use crate::volumes::{Measure, PodDirectories, Prepared};

/// How long to wait after something failed, doubling.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_LIMIT: Duration = Duration::from_secs(60);
/// How often the contents of volumes are looked at although nothing is known to have changed.
const REFRESH: SignedDuration = SignedDuration::from_mins(10);
/// Interval of checks whether volumes of drivers and local volumes have to be expanded.
const REFRESH_CLAIMS: SignedDuration = SignedDuration::from_secs(30);

/// What a worker is told.
#[derive(Clone, Debug)]
pub struct Order {
    pub pod: Arc<Pod>,
    /// The API server does not know the pod any more.
    pub gone: bool,
    /// The pod must end with this reason and message, within that many seconds if given.
    pub evicted: Option<(String, String, Option<i64>)>,
    /// Why the pod has not the resources it asks for now: reason and message.
    pub resize: Option<(String, String)>,
    /// How often the pod, which is a file of the node, was shown at the API server.
    pub shown: u32,
}

impl Order {
    /// Whether the pod should end, whatever its containers do.
    #[must_use]
    pub fn ends(&self) -> bool {
        self.gone || self.evicted.is_some() || self.pod.metadata.deletion_timestamp.is_some()
    }

    /// Seconds that containers have left to end.
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

/// The worker of one pod.
pub struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) orders: watch::Receiver<Order>,
    /// Told when the runtime or a probe has news.
    pub(super) news: Arc<Notify>,
    pub(super) uid: String,
    /// What the runtime makes for the pod.
    pub(super) making: Making,
    pub(super) directories: PodDirectories,
    pub(super) backoff: Backoff,
    pub(super) waiting: BTreeMap<String, Waiting>,
    pub(super) probes: ProbeSet,
    pub(super) prepared: Option<Arc<Prepared>>,
    /// When volumes are looked at again.
    pub(super) refresh_at: Option<Timestamp>,
    /// Told of changes of what volumes are made of.
    pub(super) follower: Arc<Follower>,
    /// The pod as its volumes have it.
    pub(super) prepared_for: Option<Arc<Pod>>,
    /// What was done for containers that end.
    pub(super) ending: Ending,
    pub(super) written: Option<PodStatus>,
    /// To which of the objects that show the pod it was written.
    pub(super) written_to: u32,
    pub(super) retry: Duration,
    /// The pod ran out of time: reason and message.
    pub(super) verdict: Option<(String, String)>,
    /// The sandbox that the gate has let pass.
    pub(super) passed_gate: Option<String>,
    /// What the pod's conditions said before this kubelet began.
    pub(super) seen_before: bool,
    /// Limits of running containers, by id.
    pub(super) applied: HashMap<String, Applied>,
    /// Whether containers are on their way to new limits, and what is wrong with that.
    pub(super) resizing: Option<Option<String>>,
    /// Limits of the pod's control group.
    pub(super) applied_to_pod: Option<LinuxContainerResources>,
}

/// What a round came to.
pub(super) enum Round {
    /// Wait for news, at most until then.
    Wait(Option<Timestamp>),
    /// Something failed; try again a little later.
    Retry,
    /// The pod is gone.
    Done,
}

impl Worker {
    pub fn new(shared: Arc<Shared>, orders: watch::Receiver<Order>, news: Arc<Notify>) -> Self {
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
        let making = Making::new(shared.tasks.clone());
        let seen_before = pod.status.as_ref().is_some_and(|status| status.container_statuses.is_some());
        Self {
            shared,
            orders,
            news,
            uid,
            making,
            directories,
            backoff: Backoff::default(),
            waiting: BTreeMap::new(),
            probes,
            prepared: None,
            refresh_at: None,
            follower,
            prepared_for: None,
            ending: Ending::default(),
            written: None,
            written_to: 0,
            retry: RETRY,
            verdict: None,
            passed_gate: None,
            seen_before,
            applied: HashMap::new(),
            resizing: None,
            applied_to_pod: None,
        }
    }

    /// Runs until the pod is gone, or the kubelet stops; true if the pod is gone.
    pub async fn run(mut self) -> bool {
        loop {
            let order = self.orders.borrow_and_update().clone();
            let round = self.round(&order).await;
            let until = match round {
                Round::Done => return true,
                Round::Wait(until) => {
                    self.retry = RETRY;
                    until.map(|until| {
                        Duration::try_from(until.duration_since(self.shared.clock.now()))
                            .unwrap_or(Duration::ZERO)
                    })
                }
                Round::Retry => {
                    let wait = self.retry;
                    self.retry = (self.retry * 2).min(RETRY_LIMIT);
                    Some(wait)
                }
            };
            let timer = async {
                match until {
                    Some(until) => tokio::time::sleep(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.news.notified() => {}
                () = timer => {}
                changed = self.orders.changed() => if changed.is_err() { return false },
            }
        }
    }

    async fn round(&mut self, order: &Order) -> Round {
        match self.attempt(order).await {
            Ok(round) => round,
            Err(error) => {
                tracing::warn!(pod = %self.uid, %error, "the runtime did not answer");
                Round::Retry
            }
        }
    }

    async fn attempt(&mut self, order: &Order) -> Result<Round, EngineError> {
        self.making.settled().await;
        let observed = self.observe(&order.pod).await?;
        if let Some(verdict) = self.out_of_time(&order.pod) {
            self.verdict.get_or_insert(verdict);
        }
        if order.ends() || self.verdict.is_some() || has_ended(&order.pod) {
            return Box::pin(self.finish(order, observed)).await;
        }
        self.sync_until_told_to_end(order, observed).await
    }

    /// Runs a round of bringing the pod up, given up as soon as the pod is told to end.
    async fn sync_until_told_to_end(
        &mut self,
        order: &Order,
        observed: Observed,
    ) -> Result<Round, EngineError> {
        let mut orders = self.orders.clone();
        let told = async move {
            while orders.wait_for(Order::ends).await.is_err() {
                std::future::pending().await
            }
        };
        tokio::select! {
            round = Box::pin(self.sync(order, observed)) => round,
            () = told => Ok(Round::Wait(Some(Timestamp::UNIX_EPOCH))),
        }
    }

    /// What the runtime says now, last words included. Probes follow what runs.
    pub(super) async fn observe(&mut self, pod: &Pod) -> Result<Observed, EngineError> {
        let mut observed = self.shared.engine.observe(&self.uid).await?;
        last_words::add(&mut observed, pod, &self.directories);
        let probes = &mut self.probes;
        probes.retain(|id| observed.running().any(|container| container.id == id));
        Ok(observed)
    }

    pub(super) fn verdict_of(&self, container_id: &str) -> Verdict {
        self.probes.verdict(container_id)
    }

    /// Whether the pod may not run any longer.
    fn out_of_time(&self, pod: &Pod) -> Option<(String, String)> {
        self.deadline(pod).filter(|deadline| *deadline <= self.shared.clock.now())?;
        Some((
            "DeadlineExceeded".to_owned(),
            "Pod was active on the node longer than the specified deadline".to_owned(),
        ))
    }

    /// When the pod must have ended.
    pub(super) fn deadline(&self, pod: &Pod) -> Option<Timestamp> {
        let limit = pod.spec.as_ref()?.active_deadline_seconds?;
        let started = pod.status.as_ref()?.start_time.as_ref()?.0;
        started.saturating_add(SignedDuration::from_secs(limit)).ok()
    }

    /// When volumes that could not be brought up to date are tried again.
    pub(super) fn soon(&self) -> Timestamp {
        let now = self.shared.clock.now();
        now.saturating_add(REFRESH_CLAIMS).unwrap_or(now)
    }

    /// When volumes are due: when a token is, or after a while.
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

/// Whether the API server knows that the pod has run to its end.
pub(super) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
