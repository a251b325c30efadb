//! One scheduling attempt: filter, score, assume; on failure, preempt and report the reason.

use std::sync::Arc;
use std::time::Instant;

use objects::resource::v1::ResourceClaim;
use rand::Rng;
use runtime::{EventType, Occurrence, reference};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::inbox::{Input, NotBound};
use super::tasks::{Condition, Nomination, Preparation};
use super::wait::BindingPermit;
use super::{ActiveProfile, Scheduler};
use crate::cycle::{Search, choose, search};
use crate::devices::needs_devices;
use crate::diagnosis::{NO_NODES, truncated};
use crate::extender::{self, Extender};
use crate::framework::{BeforeBinding, Candidate, Failed, Point};
use crate::metrics::{self, ProfileMetrics, SUCCESS, SchedulerMetrics};
use crate::plugins::{PluginId, least_harm};
use crate::profile::Profile;
use crate::queue::QueuedPod;
use crate::state::{Cluster, PodInfo};

/// Result of an attempt.
enum AttemptOutcome {
    Node(Arc<str>),
    /// Plugins rejected the pod; preemption may have nominated a node.
    Unfit {
        message: String,
        nomination: Nomination,
        victims: Option<Candidate>,
        deallocation: Option<Arc<ResourceClaim>>,
    },
    /// An internal error.
    Failed(String),
}

impl Scheduler {
    pub(super) async fn attempt(&mut self, mut pod: QueuedPod) {
        let info = Arc::clone(&pod.info);
        let Some(served) = self.profiles.get(info.scheduler_name()) else { return };
        if info.terminating {
            let note = format!("skip schedule deleting pod: {}", info.key());
            served.recorder.record(failed_scheduling(&info, note));
            return;
        }
        if self.cluster.is_placed(&info.uid) {
            return;
        }
        let begin = Instant::now();
        self.cluster.refresh();
        if self.cluster.order().is_empty() {
            // Only an added node can help.
            pod.rejecting.extend(PluginId::named("NodeName"));
            return self.give_up(pod, NO_NODES, true);
        }
        let mut rejecting = pod.rejecting;
        let outcome = find(
            served,
            &self.cluster,
            &self.extenders,
            &info,
            &mut self.start,
            &mut self.rng,
            &mut rejecting,
        )
        .await;
        pod.rejecting = rejecting;
        if let Some(metrics) = &self.metrics {
            metrics.searched(begin.elapsed());
            if let (AttemptOutcome::Unfit { victims, .. }, false) =
                (&outcome, served.profile.post_filters.is_empty())
            {
                metrics.preemption(victims.as_ref().map(|candidate| candidate.victims.len()));
            }
        }
        let ended = match &outcome {
            AttemptOutcome::Node(_) => None,
            AttemptOutcome::Failed(_) => Some(metrics::AttemptLabel::Error),
            AttemptOutcome::Unfit { .. } => Some(metrics::AttemptLabel::Unschedulable),
        };
        if let (Some(ended), Some(metrics)) = (ended, &served.metrics) {
            metrics.attempt(ended, begin.elapsed());
        }
        match outcome {
            AttemptOutcome::Node(node) => self.commit(pod, &node, begin).await,
            AttemptOutcome::Failed(error) => self.give_up(pod, &error, false),
            AttemptOutcome::Unfit { message, nomination, victims, deallocation } => {
                match &nomination {
                    Nomination::Set(node) => self.cluster.nominate(Arc::clone(&info), node),
                    Nomination::Clear => self.cluster.withdraw_nomination(&info.uid),
                    Nomination::Keep => {}
                }
                if let Some(candidate) = victims {
                    self.preempt(&info, candidate);
                }
                if let Some(claim) = deallocation {
                    let (inbox, uid) = (Arc::clone(&self.inbox), Arc::clone(&info.uid));
                    self.writer.deallocate(&info, claim, move || inbox.put(Input::NotDeallocated(uid)));
                }
                self.report(&info, &message, true, nomination);
                self.queue.failed(pod, self.ctx.clock.now());
            }
        }
    }

    /// Assumes the pod on its node and starts the binding.
    async fn commit(&mut self, pod: QueuedPod, node: &Arc<str>, begin: Instant) {
        let Some(served) = self.profiles.get(pod.info.scheduler_name()) else { return };
        let mut before = BeforeBinding::default();
        let mut refused = None;
        let reserving = Instant::now();
        for enabled in &served.profile.reserves {
            match enabled.plugin.reserve(&mut self.cluster, &pod.info, node) {
                Ok(more) if more.is_empty() => {}
                Ok(more) => before.merge(more),
                Err(rejection) => refused = Some((enabled.id, rejection)),
            }
        }
        if let Some(metrics) = &served.metrics {
            let status = refused.as_ref().map_or(SUCCESS, |(_, rejection)| rejection.status());
            metrics.point(Point::Reserve, status, reserving.elapsed());
        }
        if let Some((plugin, rejection)) = refused {
            for enabled in &served.profile.reserves {
                enabled.plugin.unreserve(&mut self.cluster, &before);
            }
            if rejection.is_error() {
                let error = format!("running Reserve plugin {:?}: {}", plugin.name(), rejection.message());
                return self.give_up(pod, &error, false);
            }
            let mut pod = pod;
            pod.rejecting.insert(plugin);
            return self.give_up(pod, &format!("0/1 nodes are available: 1 {}.", rejection.message()), true);
        }
        self.cluster.assume(Arc::clone(&pod.info), node);
        let Some(permit) = BindingPermit::acquire(&self.bindings).await else { return };
        let binder = self.extenders.iter().find(|extender| extender.binds(&pod.info)).cloned();
        let (writer, inbox, node) = (Arc::clone(&self.writer), Arc::clone(&self.inbox), Arc::clone(node));
        let recorder = served.recorder.clone();
        let (all, own, clock) = (self.metrics.clone(), served.metrics.clone(), self.ctx.clock.clone());
        self.ctx.tasks.spawn(async move {
            let task = all.as_ref().map(SchedulerMetrics::binding_task);
            let preparation =
                Preparation { before: &before, inbox: &inbox, recorder: &recorder, permit: &permit };
            let outcome = writer.bind(&pod.info, &node, preparation, binder.as_ref(), own.as_ref()).await;
            drop((permit, task));
            if let (Some(all), Some(own)) = (all, own) {
                if outcome.is_ok() {
                    own.attempt(metrics::AttemptLabel::Scheduled, begin.elapsed());
                    let now = clock.now();
                    let waited = now.duration_since(pod.first_tried.unwrap_or(now)).unsigned_abs();
                    all.bound(pod.attempts, waited, pod.was_flushed);
                } else {
                    own.attempt(metrics::AttemptLabel::Error, begin.elapsed());
                }
            }
            match outcome {
                Ok(()) => recorder.record(Occurrence {
                    regarding: reference(&*pod.info.pod),
                    related: None,
                    kind: EventType::Normal,
                    reason: "Scheduled".to_owned(),
                    action: "Binding".to_owned(),
                    note: format!("Successfully assigned {} to {node}", pod.info.key()),
                }),
                Err(failure) => inbox.put(Input::NotBound(Box::new(NotBound {
                    pod,
                    reserved: before,
                    error: failure.message,
                    settled: failure.settled,
                }))),
            }
        });
    }

    /// Requeues a pod that was not scheduled.
    pub(super) fn give_up(&mut self, pod: QueuedPod, message: &str, unschedulable: bool) {
        self.cluster.withdraw_nomination(&pod.info.uid);
        self.report(&pod.info, message, unschedulable, Nomination::Clear);
        self.queue.failed(pod, self.ctx.clock.now());
    }

    /// Reports why a pod is unschedulable: an event and a condition.
    fn report(&self, info: &Arc<PodInfo>, message: &str, unschedulable: bool, nomination: Nomination) {
        if let Some(served) = self.profiles.get(info.scheduler_name()) {
            served.recorder.record(failed_scheduling(info, truncated(message)));
        }
        let reason = if unschedulable { "Unschedulable" } else { "SchedulerError" };
        let condition = Condition { reason, message: message.to_owned() };
        self.writer.set_status(Arc::clone(info), condition, nomination);
    }

    /// Evicts the victims and clears the nominations of lower-priority pods for this node.
    fn preempt(&mut self, preemptor: &Arc<PodInfo>, candidate: Candidate) {
        let Some(served) = self.profiles.get(preemptor.scheduler_name()) else { return };
        let lower: Vec<Arc<PodInfo>> = self
            .cluster
            .nominated_to(&candidate.node)
            .filter(|other| other.priority < preemptor.priority)
            .cloned()
            .collect();
        for other in lower {
            self.cluster.withdraw_nomination(&other.uid);
            self.writer.clear_nomination(other);
        }
        let inbox = Arc::clone(&self.inbox);
        self.writer.preempt(preemptor, candidate, served.recorder.clone(), move |uid| {
            inbox.put(Input::NotPreempted(uid));
        });
    }
}

fn failed_scheduling(info: &PodInfo, note: String) -> Occurrence {
    Occurrence {
        regarding: reference(&*info.pod),
        related: None,
        kind: EventType::Warning,
        reason: "FailedScheduling".to_owned(),
        action: "Scheduling".to_owned(),
        note,
    }
}

/// Runs `work`. If it can take long, as a search for devices, the other tasks of the thread move to another one.
fn unblocked<T>(is_long: bool, work: impl FnOnce() -> T) -> T {
    // A single-threaded runtime has no other thread for them.
    let can_move =
        Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_long && can_move { tokio::task::block_in_place(work) } else { work() }
}

async fn find<'c>(
    served: &'c ActiveProfile,
    cluster: &'c Cluster,
    extenders: &[Extender],
    pod: &'c Arc<PodInfo>,
    start: &mut usize,
    rng: &mut rand::rngs::SmallRng,
    rejecting: &mut crate::plugins::PluginSet,
) -> AttemptOutcome {
    let profile = &served.profile;
    let metrics: Option<&ProfileMetrics> = served.metrics.as_ref();
    let is_long = needs_devices(&cluster.devices, pod);
    let mut found = unblocked(is_long, || search(profile, cluster, pod, start));
    if let Some(failure) = found.failure {
        return AttemptOutcome::Failed(failure);
    }
    let mut extra = None;
    if !extenders.is_empty() && !found.feasible.is_empty() {
        if let Err(error) = extender::filter(extenders, cluster, pod, &mut found).await {
            return AttemptOutcome::Failed(error.to_string());
        }
        if found.feasible.len() > 1 {
            extra = extender::prioritize(extenders, cluster, pod, &found.feasible).await;
        }
    }
    let begin = Instant::now();
    if let Some(slot) = choose(profile, cluster, pod, &found.feasible, extra.as_deref(), rng) {
        if let Some(metrics) = metrics.filter(|_| found.feasible.len() > 1) {
            metrics.point(Point::Score, SUCCESS, begin.elapsed());
        }
        return AttemptOutcome::Node(Arc::clone(&cluster.node_at(slot).name));
    }
    *rejecting = rejecting.union(found.diagnosis.rejecting);
    let begin = Instant::now();
    let outcome = run_post_filters(profile, cluster, extenders, pod, found, rng).await;
    if let Some(metrics) = metrics.filter(|_| !profile.post_filters.is_empty()) {
        let status = match &outcome {
            AttemptOutcome::Unfit { victims: Some(_), .. } => SUCCESS,
            _ => "Unschedulable",
        };
        metrics.point(Point::PostFilter, status, begin.elapsed());
    }
    outcome
}

/// Runs preemption: the victims, or the reason why there are none.
async fn run_post_filters<'c>(
    profile: &'c Profile,
    cluster: &'c Cluster,
    extenders: &[Extender],
    pod: &'c Arc<PodInfo>,
    mut found: Search<'c>,
    rng: &mut rand::rngs::SmallRng,
) -> AttemptOutcome {
    let mut nomination = if profile.post_filters.is_empty() { Nomination::Clear } else { Nomination::Keep };
    let (mut victims, mut deallocation) = (None, None);
    let mut messages: Vec<String> = Vec::new();
    for enabled in &profile.post_filters {
        let offset = rng.random_range(0..cluster.order().len().max(1));
        let failed = Failed { cluster, pod, filters: &found.filters, diagnosis: &found.diagnosis, offset };
        match unblocked(needs_devices(&cluster.devices, pod), || enabled.plugin.post_filter(&failed)) {
            Ok(candidates) => match extender::preemption(extenders, pod, candidates).await {
                Ok(candidates) => {
                    if let Some(candidate) = least_harm(candidates) {
                        nomination = Nomination::Set(candidate.node.to_string());
                        victims = Some(candidate);
                        messages.clear();
                        break;
                    }
                    messages.push("preemption: no candidate node for preemption".to_owned());
                }
                Err(error) => messages.push(format!("preemption: {error}")),
            },
            Err(refused) => {
                if !refused.keep_nomination {
                    nomination = Nomination::Clear;
                }
                messages.push(refused.message);
                deallocation = deallocation.or(refused.deallocation);
            }
        }
    }
    found.diagnosis.after_filters = messages.join(", ");
    AttemptOutcome::Unfit { message: found.diagnosis.message(), nomination, victims, deallocation }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_search_blocks_no_other_task() {
        let (sender, receiver) = mpsc::channel();
        let search =
            tokio::spawn(async move { unblocked(true, || receiver.recv_timeout(Duration::from_secs(10))) });
        let other = tokio::spawn(async move { sender.send(()) });
        assert_eq!(search.await.expect("a search"), Ok(()));
        assert!(other.await.is_ok());
    }
}
