//! The daemon set loop. Watches daemon sets, nodes, pods and revisions; keeps one pod on every eligible node, and
//! replaces pods of older templates within the limits of the update strategy.

pub mod plan;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::backoff::Backoff;
use base::clock::time_left;
use client::{ClientError, delete_options};
use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use objects::apps::v1::{ControllerRevision, DaemonSet};
use objects::core::v1::{Node, Pod};
use parking_lot::Mutex;
use runtime::{
    Action, Cache, Change, Context, Descriptor, Expectations, Key, Loop, LoopError, controller_of,
};

use self::plan::{DaemonSetPlan, HASH_LABEL, ObservedDaemonSet};
use crate::requeue;
use crate::shared::adoption::{claim, controller_reference, index_orphans};
use crate::shared::slow_start::slow_start;
use crate::shared::{history, pod_facts, revisions, selector};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "daemonset-controller",
    resource: "daemonsets.apps",
    identity: "system:serviceaccount:kube-system:daemon-set-controller",
    workers: 2,
};

/// Backoff before a failed pod is replaced.
const REPLACE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(15 * 60));

#[derive(Debug, thiserror::Error)]
enum DaemonSetError {
    #[error("failed to create or delete pods")]
    Pods(#[source] ClientError),
    #[error("failed to update daemon set status")]
    Status(#[source] ClientError),
}

/// Uid of the set, its generation, and the node.
type FailureKey = (String, i64, String);

struct DaemonSets {
    sets: Cache<DaemonSet>,
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    revisions: Cache<ControllerRevision>,
    expectations: Expectations,
    /// Start of the backoff and number of failures of pods, by set, generation and node.
    failures: Mutex<HashMap<FailureKey, (Timestamp, u32)>>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let sets = ctx.watch_self::<DaemonSet>();
    let expectations = Expectations::default();
    let (all_sets, seen) = (sets.clone(), expectations.clone());
    let pods = ctx.watch::<Pod>(move |change| pod_changed(change, &all_sets, &seen));
    let all_sets = sets.clone();
    let nodes = ctx.watch::<Node>(move |change| node_changed(change, &all_sets));
    let revisions = ctx.cache::<ControllerRevision>();
    index_orphans(&pods);
    index_orphans(&revisions);
    Box::new(DaemonSets { sets, nodes, pods, revisions, expectations, failures: Mutex::default() })
}

fn pod_changed(change: &Change<Pod>, sets: &Cache<DaemonSet>, expectations: &Expectations) -> Vec<Key> {
    let pod = change.object();
    let owner_key = |pod: &Pod| {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let owner = controller_of(&pod.metadata).filter(|owner| owner.kind == "DaemonSet")?;
        Some(Key::new(namespace, &owner.name))
    };
    let mut keys: Vec<Key> = change.old().and_then(|old| owner_key(old)).into_iter().collect();
    if let Some(key) = owner_key(pod) {
        if matches!(change, Change::Added(_)) {
            expectations.created(&key);
        }
        if matches!(change, Change::Deleted(_)) || pod_facts::is_deleting(pod) {
            expectations.deleted(&key, pod.metadata.uid.as_deref().unwrap_or_default());
        }
        keys.push(key);
    } else if controller_of(&pod.metadata).is_none() {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let wanted = |set: &DaemonSet| {
            let spec = set.spec.as_ref();
            spec.is_some_and(|spec| selector::matches(&spec.selector, pod.metadata.labels.as_ref()))
        };
        keys.extend(sets.list(namespace).iter().filter(|set| wanted(set)).map(|set| Key::of(&**set)));
    }
    keys.dedup();
    keys
}

/// Sets affected by the change of a node; heartbeats affect none.
fn node_changed(change: &Change<Node>, sets: &Cache<DaemonSet>) -> Vec<Key> {
    let node = change.object();
    let matters = |set: &DaemonSet| match change {
        Change::Added(_) | Change::Deleted(_) => true,
        Change::Updated { old, .. } => plan::belongs(set, old) != plan::belongs(set, node),
    };
    if let Change::Updated { old, new } = change
        && old.metadata.labels == new.metadata.labels
        && old.spec == new.spec
    {
        return Vec::new();
    }
    sets.all().iter().filter(|set| matters(set)).map(|set| Key::of(&**set)).collect()
}

#[async_trait]
impl Loop for DaemonSets {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(set) = self.sets.get_key(key) else {
            self.expectations.forget(key);
            return Ok(Action::Done);
        };
        let spec = set.spec.clone().unwrap_or_default();
        if selector::is_empty(&spec.selector) {
            let note = "This daemon set is selecting all pods. A non-empty selector is required.";
            ctx.recorder.warning(&*set, "SelectingAll", note);
            return Ok(Action::Done);
        }
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        let collisions = set.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0);
        let known = revisions::ensure(
            &ctx.client,
            &self.revisions,
            &*set,
            &spec.selector,
            &spec.template,
            collisions,
        )
        .await?;
        let pods = claim(&ctx.client, &self.pods, &*set, &spec.selector, |_| true).await?;
        let now = ctx.clock.now();
        let observed = ObservedDaemonSet {
            nodes: self.nodes.all(),
            hash: history::hash_of(&known.update).unwrap_or_default().to_owned(),
            backing_off: self.remaining_backoffs(&set, now),
            set: Arc::clone(&set),
            pods,
            now,
        };
        let mut requeue_after = None;
        let mut trouble = None;
        if self.expectations.satisfied(key) {
            let mut plan = plan::manage(&observed);
            if plan.is_empty() {
                let wait = plan.requeue_after;
                plan = plan::roll(&observed);
                plan.requeue_after = wait;
            }
            requeue_after = plan.requeue_after;
            self.remember_failures(&set, &plan.failed_on, now);
            trouble = self.apply(key, ctx, &observed, &plan).await;
            let live: HashSet<&str> = observed.pods.iter().filter_map(|pod| hash_of(pod)).collect();
            let names = known.all.iter().filter(|revision| {
                revision.metadata.name == known.update.metadata.name
                    || history::hash_of(revision).is_some_and(|hash| live.contains(hash))
            });
            let live = names.filter_map(|revision| revision.metadata.name.clone()).collect();
            let limit = spec.revision_history_limit.unwrap_or(10);
            revisions::truncate(&ctx.client, history::surplus(&known.all, &live, limit)).await?;
        }
        let mut status = plan::status(&observed);
        status.collision_count = Some(known.collisions).filter(|collisions| *collisions > 0);
        if status.number_ready != status.number_available.unwrap_or(0) {
            let seconds = SignedDuration::from_secs(spec.min_ready_seconds.unwrap_or(0).into());
            let wait = observed
                .pods
                .iter()
                .filter_map(|pod| pod_facts::available_in(pod, spec.min_ready_seconds?, now));
            let wait = wait.min().unwrap_or(seconds);
            requeue_after = Some(requeue_after.map_or(wait, |known: SignedDuration| known.min(wait)));
        }
        if plan::status_differs(set.status.as_ref(), &status) {
            let mut updated = set.as_ref().clone();
            updated.status = Some(status);
            ctx.client.update_status(&updated).await.map_err(DaemonSetError::Status)?;
        }
        match trouble {
            Some(error) => Err(DaemonSetError::Pods(error).into()),
            None => Ok(requeue(requeue_after)),
        }
    }
}

fn hash_of(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(HASH_LABEL).map(String::as_str)
}

/// Backoff after this many failures of a pod on one node.
fn backoff(failures: u32) -> SignedDuration {
    SignedDuration::try_from(REPLACE.after(failures)).unwrap_or(SignedDuration::MAX)
}

impl DaemonSets {
    fn remaining_backoffs(&self, set: &DaemonSet, now: Timestamp) -> HashMap<String, SignedDuration> {
        let (uid, generation) = identity(set);
        let mut failures = self.failures.lock();
        failures.retain(|_, (since, count)| now.duration_since(*since) < backoff(*count).saturating_mul(2));
        let mine = failures.iter().filter(|(key, _)| key.0 == uid && key.1 == generation);
        let left = mine.map(|(key, (since, count))| (key.2.clone(), time_left(backoff(*count), *since, now)));
        left.filter(|(_, left)| left.is_positive()).collect()
    }

    fn remember_failures(&self, set: &DaemonSet, nodes: &[String], now: Timestamp) {
        let (uid, generation) = identity(set);
        let mut failures = self.failures.lock();
        for node in nodes {
            let entry = failures.entry((uid.clone(), generation, node.clone()));
            let (since, count) = entry.or_insert((now, 0));
            (*since, *count) = (now, count.saturating_add(1));
        }
    }

    async fn apply(
        &self,
        key: &Key,
        ctx: &Context,
        observed: &ObservedDaemonSet,
        plan: &DaemonSetPlan,
    ) -> Option<ClientError> {
        let set = observed.set.as_ref();
        for (warning, reason, message) in &plan.notices {
            if *warning {
                ctx.recorder.warning(set, reason, message);
            } else {
                ctx.recorder.normal(set, reason, message);
            }
        }
        let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
        let uids: Vec<_> = plan.delete.iter().map(|pod| uid(pod)).collect();
        self.expectations.expect_deletions(key, uids.iter().map(String::as_str));
        self.expectations.expect_creations(key, plan.create.len());
        let owner = controller_reference(set);
        let create = |node: String| {
            let pod = plan::make_pod(set, &node, &observed.hash, owner.clone());
            async move {
                let made = ctx.client.create(&key.namespace, &pod).await?;
                let name = made.metadata.name.unwrap_or_default();
                ctx.recorder.normal(set, "SuccessfulCreate", format!("Created pod: {name}"));
                Ok::<_, ClientError>(())
            }
        };
        let (created, failure) = slow_start(plan.create.clone(), create).await;
        self.expectations.creations_failed(key, plan.create.len() - created);
        let mut trouble = failure.filter(|error| !error.is_namespace_terminating());
        if let Some(error) = &trouble {
            ctx.recorder.warning(set, "FailedCreate", format!("Error creating: {error}"));
        }
        let deletions = plan.delete.iter().map(|pod| {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let options = delete_options(pod.metadata.uid.as_deref(), None);
            async move { ctx.client.delete::<Pod>(&key.namespace, &name, &options).await }
        });
        for (pod, result) in plan.delete.iter().zip(join_all(deletions).await) {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            match result {
                Ok(()) => ctx.recorder.normal(set, "SuccessfulDelete", format!("Deleted pod: {name}")),
                Err(error) => {
                    self.expectations.deleted(key, &uid(pod));
                    if !error.is_not_found() {
                        ctx.recorder.warning(set, "FailedDelete", format!("Error deleting: {error}"));
                        trouble = Some(error);
                    }
                }
            }
        }
        trouble
    }
}

fn identity(set: &DaemonSet) -> (String, i64) {
    let generation = set.status.as_ref().and_then(|status| status.observed_generation).unwrap_or(0);
    (set.metadata.uid.clone().unwrap_or_default(), generation)
}
