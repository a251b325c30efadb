//! Replicated pods: shared by replica sets and replication controllers.

mod kinds;
mod plan;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::{ClientError, Object, delete_options};
use objects::core::v1::{Pod, PodTemplateSpec};
use objects::meta::v1::LabelSelector;
use runtime::{Action, Cache, Change, Context, Expectations, Key, Loop, LoopError, controller_of};

use crate::shared::adoption::{claim, controller_reference, index_orphans};
use crate::shared::slow_start::slow_start;
use crate::shared::{metrics, pod_facts, selector};

pub(crate) use kinds::replicated;
pub use plan::{Condition, Failure, ObservedReplicas, ReplicasPlan, Status, plan, status};

/// A kind with a number of replicas.
pub trait Replicated: Object {
    /// True if its status counts terminating pods.
    const COUNTS_TERMINATING: bool;

    fn replicas(&self) -> i32;
    fn min_ready_seconds(&self) -> i32;
    fn selector(&self) -> LabelSelector;
    fn template(&self) -> Option<&PodTemplateSpec>;
    fn status(&self) -> Status;
    fn set_status(&mut self, status: Status);
}

/// Loop of one such kind.
pub struct Replicas<R: Replicated> {
    sets: Cache<R>,
    pods: Cache<Pod>,
    expectations: Expectations,
}

impl<R: Replicated> Replicas<R> {
    pub fn new(ctx: &Context) -> Self {
        let sets = ctx.watch_self::<R>();
        let expectations = Expectations::default();
        let (known, expected) = (sets.clone(), expectations.clone());
        let pods = ctx.watch::<Pod>(move |change| pod_changed(change, &known, &expected));
        index_orphans(&pods);
        Self { sets, pods, expectations }
    }
}

/// Sets affected by a change of a pod; lowers their expectations.
fn pod_changed<R: Replicated>(
    change: &Change<Pod>,
    sets: &Cache<R>,
    expectations: &Expectations,
) -> Vec<Key> {
    let pod = change.object();
    let owner = owner_of(pod, sets);
    if let Some(key) = &owner {
        let gone = matches!(change, Change::Deleted(_)) || pod.metadata.deletion_timestamp.is_some();
        if gone {
            expectations.deleted(key, pod.metadata.uid.as_deref().unwrap_or_default());
        } else if matches!(change, Change::Added(_)) {
            expectations.created(key);
        }
    }
    let mut keys: Vec<Key> = owner.into_iter().collect();
    let former = change.old().and_then(|old| owner_of(old, sets));
    keys.extend(former.filter(|former| keys.first() != Some(former)));
    if controller_of(&pod.metadata).is_none() && !matches!(change, Change::Deleted(_)) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let wants = |set: &Arc<R>| {
            let wanted = set.selector();
            !selector::is_empty(&wanted) && selector::matches(&wanted, pod.metadata.labels.as_ref())
        };
        keys.extend(sets.list(namespace).iter().filter(|set| wants(set)).map(|set| Key::of(&**set)));
    }
    keys
}

fn owner_of<R: Replicated>(pod: &Pod, sets: &Cache<R>) -> Option<Key> {
    let owner = controller_of(&pod.metadata).filter(|owner| owner.kind == R::KIND)?;
    let set = sets.get(pod.metadata.namespace.as_deref().unwrap_or_default(), &owner.name)?;
    (set.metadata().uid.as_deref() == Some(&owner.uid)).then(|| Key::of(&*set))
}

#[async_trait]
impl<R: Replicated> Loop for Replicas<R> {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(set) = self.sets.get_key(key) else {
            self.expectations.forget(key);
            return Ok(Action::Done);
        };
        // Before the cache is read: what appears in between is seen next time.
        let settled = self.expectations.satisfied(key);
        // Finished orphans are not adopted; controlled pods are kept while they match.
        let suits = |pod: &Pod| pod_facts::is_active(pod) || controller_of(&pod.metadata).is_some();
        let pods = claim(&ctx.client, &self.pods, &*set, &set.selector(), suits).await?;
        let observed =
            ObservedReplicas { set: &*set, pods: &pods, related: self.related(&*set), now: ctx.clock.now() };
        let mut failure = None;
        if settled && set.metadata().deletion_timestamp.is_none() {
            failure = self.apply(key, &*set, plan(&observed), ctx).await;
        }
        let problem = failure.as_ref().map(|error| error.to_string());
        let (new, next_requeue) = status(&observed, problem.as_deref());
        self.write_status(&*set, new, ctx).await?;
        match failure {
            Some(error) => Err(error.into()),
            None => Ok(next_requeue.map_or(Action::Done, Action::RequeueAfter)),
        }
    }
}

impl<R: Replicated> Replicas<R> {
    /// Active pods of sets with the same controller, by node: surplus pods are deleted from crowded nodes first.
    fn related(&self, set: &R) -> Vec<Arc<Pod>> {
        let Some(owner) = controller_of(set.metadata()) else {
            return self.pods.owned_by(set.metadata().uid.as_deref().unwrap_or_default());
        };
        let siblings = self.sets.owned_by(&owner.uid);
        let uids = siblings.iter().filter_map(|sibling| sibling.metadata().uid.as_deref());
        uids.flat_map(|uid| self.pods.owned_by(uid)).collect()
    }

    /// Applies the plan's creations and deletions; returns the first failure.
    async fn apply(&self, key: &Key, set: &R, plan: ReplicasPlan, ctx: &Context) -> Option<ClientError> {
        if plan.create > 0 {
            return self.create(key, set, plan.create, ctx).await;
        }
        if plan.delete.is_empty() {
            return None;
        }
        if let Some(metrics) = metrics::of(ctx) {
            plan.age_ratios.iter().for_each(|ratio| metrics.others.age_ratio.observe(*ratio));
        }
        let uids = plan.delete.iter().filter_map(|pod| pod.metadata.uid.as_deref());
        self.expectations.expect_deletions(key, uids);
        let deletions = plan.delete.iter().map(|pod| async {
            let (name, uid) = (pod.metadata.name.as_deref().unwrap_or_default(), pod.metadata.uid.as_deref());
            let outcome = ctx.client.delete::<Pod>(&key.namespace, name, &delete_options(uid, None)).await;
            match outcome {
                Ok(()) => {
                    ctx.recorder.normal(set, "SuccessfulDelete", format!("Deleted pod: {name}"));
                    None
                }
                Err(error) => {
                    self.expectations.deleted(key, uid.unwrap_or_default());
                    if error.is_not_found() {
                        return None;
                    }
                    ctx.recorder.warning(set, "FailedDelete", format!("Error deleting: {error}"));
                    Some(error)
                }
            }
        });
        futures_util::future::join_all(deletions).await.into_iter().flatten().next()
    }

    async fn create(&self, key: &Key, set: &R, count: usize, ctx: &Context) -> Option<ClientError> {
        let template = set.template()?;
        let mut pod = pod_facts::from_template(template, &key.namespace, controller_reference(set));
        pod.metadata.generate_name = Some(format!("{}-", key.name));
        self.expectations.expect_creations(key, count);
        let write = |()| async {
            match ctx.client.create::<Pod>(&key.namespace, &pod).await {
                Ok(created) => {
                    let name = created.metadata.name.unwrap_or_default();
                    ctx.recorder.normal(set, "SuccessfulCreate", format!("Created pod: {name}"));
                    Ok(())
                }
                Err(error) => {
                    if !error.is_namespace_terminating() {
                        ctx.recorder.warning(set, "FailedCreate", format!("Error creating: {error}"));
                    }
                    Err(error)
                }
            }
        };
        let (created, failure) = slow_start(vec![(); count], write).await;
        self.expectations.creations_failed(key, count - created);
        // Creation is permanently forbidden there; the set is deleted with its namespace.
        failure.filter(|error| !error.is_namespace_terminating())
    }

    async fn write_status(&self, set: &R, new: Status, ctx: &Context) -> Result<(), ClientError> {
        if set.status() == new {
            return Ok(());
        }
        let mut written = set.clone();
        written.set_status(new.clone());
        match ctx.client.update_status(&written).await {
            Err(error) if error.is_conflict() => {
                let meta = set.metadata();
                let (ns, name) = (meta.namespace.as_deref(), meta.name.as_deref());
                let mut fresh: R = ctx.client.get(ns.unwrap_or_default(), name.unwrap_or_default()).await?;
                fresh.set_status(new);
                ctx.client.update_status(&fresh).await?;
            }
            Err(error) if error.is_not_found() => {}
            outcome => {
                outcome?;
            }
        }
        Ok(())
    }
}

/// Requeue time from the remaining time until pods become available.
pub(crate) fn as_wait(left: jiff::SignedDuration) -> Duration {
    // Slightly longer, so that the time has passed by then.
    left.unsigned_abs().saturating_add(Duration::from_millis(10))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{controlled_by, meta, pod, time};
    use objects::apps::v1::ReplicaSet;

    #[test]
    fn pod_changes_lower_expectations() {
        let (sets, expectations, key) = (Cache::new(), Expectations::default(), Key::new("ns", "web"));
        sets.apply(ReplicaSet { metadata: meta("web"), ..ReplicaSet::default() });
        let mine = Arc::new(controlled_by(pod("a", "Pending"), "ReplicaSet", "web"));
        expectations.expect_creations(&key, 1);
        let keys_of = |change: Change<Pod>| pod_changed::<ReplicaSet>(&change, &sets, &expectations);
        assert!(
            keys_of(Change::Added(Arc::new(controlled_by(pod("b", "Pending"), "Job", "web")))).is_empty()
        );
        assert!(!expectations.satisfied(&key));
        assert_eq!(keys_of(Change::Added(Arc::clone(&mine))), std::slice::from_ref(&key));
        assert!(expectations.satisfied(&key));
        expectations.expect_deletions(&key, ["uid-a"]);
        let mut leaving = (*mine).clone();
        leaving.metadata.deletion_timestamp = Some(time(1));
        assert_eq!(
            keys_of(Change::Updated { old: mine, new: Arc::new(leaving) }),
            std::slice::from_ref(&key)
        );
        assert!(expectations.satisfied(&key));
    }
}
