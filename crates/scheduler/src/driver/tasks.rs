//! Writes to the API server, each in its own task: bindings, conditions, evictions of victims.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::tasks::TaskGroup;
use client::{Cause, Client, ClientError, Patch, Status, delete_options};
use objects::core::v1::{Binding, ObjectReference, PersistentVolumeClaim, Pod, PodCondition};
use objects::meta::v1::{ObjectMeta, Time};
use objects::resource::v1::ResourceClaim;
use runtime::{Cache, Context, EventType, Occurrence, Recorder, reference};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};

use super::claims::DeviceBinder;
use super::inbox::Inbox;
use super::wait::{BindingPermit, WaitEnd};
use crate::extender::Extender;
use crate::framework::{BeforeBinding, Candidate, Point};
use crate::metrics::{ProfileMetrics, SUCCESS, SchedulerMetrics};
use crate::plugins::is_bound;
use crate::state::PodInfo;

/// `PodScheduled` condition of an unscheduled pod.
pub struct Condition {
    pub reason: &'static str,
    pub message: String,
}

/// Update of `status.nominatedNodeName`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nomination {
    Keep,
    Clear,
    Set(String),
}

/// Error of a binding.
pub struct BindFailure {
    pub message: String,
    pub settled: bool,
}

/// Work that precedes a binding, and the receivers of its progress.
#[derive(Clone, Copy)]
pub struct Preparation<'a> {
    pub before: &'a BeforeBinding,
    pub inbox: &'a Inbox,
    pub recorder: &'a Recorder,
    pub permit: &'a BindingPermit,
}

/// Interval at which the existence of a pod is checked during waits.
const POD_CHECK: Duration = Duration::from_secs(5);

/// Writes on behalf of the scheduling task.
pub struct Writer {
    client: Client,
    pub(super) clock: base::clock::Clock,
    tasks: TaskGroup,
    permits: Arc<Semaphore>,
    pods: Cache<Pod>,
    claims: Cache<PersistentVolumeClaim>,
    /// Changes whenever a claim does, for tasks that wait for one.
    claim_changed: watch::Receiver<u64>,
    pub(super) resource_claims: Cache<ResourceClaim>,
    pub(super) resource_claim_changed: watch::Receiver<u64>,
    pub(super) metrics: Option<SchedulerMetrics>,
}

/// Labels of calls beside the scheduling loop.
const BINDING: &str = "pod_binding";
const STATUS_PATCH: &str = "pod_status_patch";

impl Writer {
    pub fn new(ctx: &Context, at_once: usize, metrics: Option<SchedulerMetrics>) -> Self {
        let claims = ctx.informers.of::<PersistentVolumeClaim>();
        let (changes, claim_changed) = watch::channel(0u64);
        claims.on_event(move |_| changes.send_modify(|count| *count = count.wrapping_add(1)));
        let resource_claims = ctx.informers.of::<ResourceClaim>();
        let (changes, resource_claim_changed) = watch::channel(0u64);
        resource_claims.on_event(move |_| changes.send_modify(|count| *count = count.wrapping_add(1)));
        Self {
            client: ctx.client.clone(),
            clock: ctx.clock.clone(),
            tasks: ctx.tasks.clone(),
            permits: Arc::new(Semaphore::new(at_once)),
            pods: ctx.informers.of(),
            claims,
            claim_changed,
            resource_claims,
            resource_claim_changed,
            metrics,
        }
    }

    pub(super) fn client_for(&self, info: &PodInfo) -> Client {
        self.client.with_cause(&Cause {
            controller: super::DESCRIPTOR.name.to_owned(),
            object: format!("pods/{}", info.key()),
            revision: info.pod.metadata.resource_version.clone().unwrap_or_default(),
        })
    }

    /// Performs the pre-binding writes, then binds.
    pub async fn bind(
        &self,
        info: &PodInfo,
        node: &str,
        preparation: Preparation<'_>,
        binder: Option<&Extender>,
        metrics: Option<&ProfileMetrics>,
    ) -> Result<(), BindFailure> {
        let before = preparation.before;
        let client = self.client_for(info);
        let record = |point, is_ok: bool, begin: Instant| {
            if let Some(metrics) = metrics {
                metrics.point(point, if is_ok { SUCCESS } else { "Error" }, begin.elapsed());
            }
        };
        let failed = |plugin: &str, message: String| BindFailure {
            message: format!("running PreBind plugin {plugin:?}: {message}"),
            settled: false,
        };
        let begin = Instant::now();
        if before.has_volumes() {
            let prepared = self.prepare(&client, info, preparation).await;
            record(Point::PreBind, prepared.is_ok(), begin);
            prepared.map_err(|message| failed("VolumeBinding", message))?;
        }
        let mut devices = DeviceBinder::new(self, &client, info, preparation);
        if !before.devices.is_empty() {
            let prepared = devices.prepare(node).await;
            record(Point::PreBind, prepared.is_ok(), begin);
            if let Err(message) = prepared {
                devices.unreserve().await;
                return Err(failed("DynamicResources", message));
            }
        }
        let begin = Instant::now();
        let outcome = self.bind_prepared(&client, info, node, binder).await;
        record(Point::Bind, outcome.is_ok(), begin);
        if outcome.is_err() {
            devices.unreserve().await;
        }
        outcome
    }

    async fn bind_prepared(
        &self,
        client: &Client,
        info: &PodInfo,
        node: &str,
        binder: Option<&Extender>,
    ) -> Result<(), BindFailure> {
        if let Some(binder) = binder {
            match binder.bind(info, node).await {
                Ok(()) => return Ok(()),
                Err(error) if binder.is_ignorable() => {
                    tracing::warn!(%error, pod = info.key(), "extender failed to bind, binding without it");
                }
                Err(error) => return Err(BindFailure { message: error.to_string(), settled: false }),
            }
        }
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(info.name.to_string()),
                namespace: Some(info.namespace.to_string()),
                uid: Some(info.uid.to_string()),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(node.to_owned()),
                ..ObjectReference::default()
            },
        };
        let path = format!("/api/v1/namespaces/{}/pods/{}/binding", info.namespace, info.name);
        let begin = Instant::now();
        let pending = self.metrics.as_ref().map(|metrics| metrics.pending_call(BINDING));
        let posted = client.post::<_, Status>(&path, &binding).await;
        drop(pending);
        self.called(BINDING, posted.is_ok(), begin);
        match posted {
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::debug!(pod = info.key(), %error, "failed to bind pod");
                let settled = error.is_not_found();
                Err(BindFailure {
                    message: format!("running Bind plugin \"DefaultBinder\": {error}"),
                    settled,
                })
            }
        }
    }

    /// Reserves volumes, requests provisioning, and waits until all claims are bound.
    async fn prepare(
        &self,
        client: &Client,
        info: &PodInfo,
        preparation: Preparation<'_>,
    ) -> Result<(), String> {
        let before = preparation.before;
        for volume in &before.volumes {
            client.update(volume).await.map_err(|error| error.to_string())?;
        }
        for claim in &before.claims {
            client.update(claim).await.map_err(|error| error.to_string())?;
        }
        let mut changed = self.claim_changed.clone();
        let bound =
            |name: &String| self.claims.get(&info.namespace, name).is_some_and(|claim| is_bound(&claim));
        let all_bound = async {
            while !before.await_claims.iter().all(bound) {
                if changed.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let waited = preparation.permit.wait(all_bound, before.timeout, self.deleted(info)).await;
        waited.map_err(|end| match end {
            WaitEnd::TimedOut => "binding volumes: context deadline exceeded".to_owned(),
            WaitEnd::PodDeleted => "binding volumes: pod was deleted".to_owned(),
        })
    }

    /// Completes when a pod that was scheduled is gone.
    pub(super) async fn deleted(&self, info: &PodInfo) {
        let exists = || {
            let latest = self.pods.get(&info.namespace, &info.name);
            latest.is_some_and(|latest| latest.metadata.uid.as_deref() == Some(&*info.uid))
        };
        while exists() {
            tokio::time::sleep(POD_CHECK).await;
        }
    }

    pub(super) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let permits = Arc::clone(&self.permits);
        self.tasks.spawn(async move {
            if let Ok(_permit) = permits.acquire().await {
                work.await;
            }
        });
    }

    /// Writes the reason to the pod's status, unless it is already set.
    pub fn set_status(self: &Arc<Self>, info: Arc<PodInfo>, condition: Condition, nomination: Nomination) {
        let mut status = serde_json::Map::new();
        if let Some(condition) = self.unscheduled(&info.pod, &condition) {
            status.insert("conditions".to_owned(), json!([condition]));
        }
        match nomination {
            Nomination::Set(node) if info.nominated_node() != Some(&node) => {
                status.insert("nominatedNodeName".to_owned(), node.into());
            }
            Nomination::Clear if info.nominated_node().is_some() => {
                status.insert("nominatedNodeName".to_owned(), Value::Null);
            }
            _ => {}
        }
        self.patch_status(info, status.into());
    }

    pub fn clear_nomination(self: &Arc<Self>, info: Arc<PodInfo>) {
        self.patch_status(info, json!({"nominatedNodeName": null}));
    }

    fn patch_status(self: &Arc<Self>, info: Arc<PodInfo>, status: Value) {
        if status.as_object().is_some_and(serde_json::Map::is_empty) {
            return;
        }
        let writer = Arc::clone(self);
        let pending = self.metrics.as_ref().map(|metrics| metrics.pending_call(STATUS_PATCH));
        self.spawn(async move {
            let begin = Instant::now();
            let written = writer.write_status(&info, status).await;
            drop(pending);
            writer.called(STATUS_PATCH, written.is_ok(), begin);
            if let Err(error) = written {
                tracing::debug!(pod = info.key(), %error, "failed to update pod status");
            }
        });
    }

    fn called(&self, call: &str, is_ok: bool, begin: Instant) {
        if let Some(metrics) = &self.metrics {
            metrics.called(call, is_ok, begin.elapsed());
        }
    }

    async fn write_status(&self, info: &PodInfo, status: Value) -> Result<(), ClientError> {
        let patch = Patch::Strategic(json!({"metadata": {"uid": &*info.uid}, "status": status}));
        let written =
            self.client_for(info).patch::<Pod>(&info.namespace, &info.name, Some("status"), &patch).await;
        match written {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }

    /// Condition to write; `None` if it is up to date.
    fn unscheduled(&self, pod: &Pod, condition: &Condition) -> Option<PodCondition> {
        let conditions =
            pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let old = conditions.iter().find(|old| old.type_ == "PodScheduled");
        let same = |old: &PodCondition| {
            old.status == "False"
                && old.reason.as_deref() == Some(condition.reason)
                && old.message.as_deref() == Some(&condition.message)
                && old.observed_generation == pod.metadata.generation
        };
        if old.is_some_and(same) {
            return None;
        }
        let since = old.filter(|old| old.status == "False").and_then(|old| old.last_transition_time.clone());
        Some(PodCondition {
            type_: "PodScheduled".to_owned(),
            status: "False".to_owned(),
            reason: Some(condition.reason.to_owned()),
            message: Some(condition.message.clone()),
            observed_generation: pod.metadata.generation,
            last_transition_time: Some(since.unwrap_or_else(|| Time(self.clock.now()))),
            ..PodCondition::default()
        })
    }

    /// Sets the victims' condition and deletes them; calls `failed` if one deletion fails.
    pub fn preempt(
        self: &Arc<Self>,
        preemptor: &Arc<PodInfo>,
        candidate: Candidate,
        recorder: Recorder,
        failed: impl FnOnce(Arc<str>) + Send + 'static,
    ) {
        let (writer, preemptor) = (Arc::clone(self), Arc::clone(preemptor));
        self.spawn(async move {
            let begin = Instant::now();
            let ended = |is_ok| {
                if let Some(metrics) = &writer.metrics {
                    metrics.evicted(is_ok, begin.elapsed());
                }
            };
            for victim in candidate.victims.iter().filter(|victim| !victim.terminating) {
                match writer.evict(victim, &preemptor).await {
                    Ok(()) => recorder.record(Occurrence {
                        regarding: reference(&*victim.pod),
                        related: Some(reference(&*preemptor.pod)),
                        kind: EventType::Normal,
                        reason: "Preempted".to_owned(),
                        action: "Preempting".to_owned(),
                        note: format!("Preempted by pod {} on node {}", preemptor.uid, candidate.node),
                    }),
                    Err(error) if error.is_not_found() => {}
                    Err(error) => {
                        tracing::warn!(victim = victim.key(), %error, "failed to preempt pod");
                        ended(false);
                        return failed(Arc::clone(&preemptor.uid));
                    }
                }
            }
            ended(true);
        });
    }

    async fn evict(&self, victim: &PodInfo, preemptor: &PodInfo) -> Result<(), ClientError> {
        let client = self.client_for(preemptor);
        let condition = PodCondition {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
            reason: Some("PreemptionByScheduler".to_owned()),
            message: Some(format!(
                "{}: preempting to accommodate a higher priority pod",
                preemptor.scheduler_name()
            )),
            observed_generation: victim.pod.metadata.generation,
            last_transition_time: Some(Time(self.clock.now())),
            ..PodCondition::default()
        };
        let patch = Patch::Strategic(json!({
            "metadata": {"uid": &*victim.uid}, "status": {"conditions": [condition]},
        }));
        client.patch::<Pod>(&victim.namespace, &victim.name, Some("status"), &patch).await?;
        client.delete::<Pod>(&victim.namespace, &victim.name, &delete_options(Some(&victim.uid), None)).await
    }
}
