//! The stateful set loop. Watches stateful sets, their pods, claims and revisions; keeps pods with stable names, in
//! order, each with its own storage.
//!
//! Invariant: there is never more than one pod of a name, and an ordered set changes one pod at a time.

pub mod identity;
pub mod plan;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use base::metrics::GaugeVec;
use client::{ClientError, delete_options};
use objects::apps::v1::{ControllerRevision, StatefulSet};
use objects::core::v1::{PersistentVolumeClaim, Pod};
use runtime::{Action, Cache, Change as Seen, Context, Descriptor, Key, Loop, LoopError, controller_of};

use self::identity::{REVISION_LABEL, name, parent_and_ordinal};
use self::plan::{ObservedStatefulSet, StatefulSetChange};
use crate::requeue;
use crate::shared::adoption::{claim, index_orphans};
use crate::shared::{history, metrics, revisions, selector};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "statefulset-controller",
    resource: "statefulsets.apps",
    identity: "system:serviceaccount:kube-system:statefulset-controller",
    workers: 5,
};

#[derive(Debug, thiserror::Error)]
enum StatefulSetError {
    #[error("{0}")]
    Blocked(String),
    #[error("failed to update stateful set status")]
    Status(#[source] ClientError),
    #[error("failed to write pod or persistent volume claim")]
    Write(#[source] ClientError),
}

struct StatefulSets {
    sets: Cache<StatefulSet>,
    pods: Cache<Pod>,
    claims: Cache<PersistentVolumeClaim>,
    revisions: Cache<ControllerRevision>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let sets = ctx.watch_self::<StatefulSet>();
    let all_sets = sets.clone();
    let pods = ctx.watch::<Pod>(move |change| pod_changed(change, &all_sets));
    let revisions = ctx.cache::<ControllerRevision>();
    index_orphans(&pods);
    index_orphans(&revisions);
    if let Some(metrics) = metrics::of(ctx).map(|metrics| &metrics.others) {
        let all = sets.clone();
        metrics.unavailable.compute(&ctx.tasks, move |rows| {
            show(&all, rows, |set| {
                let wanted = set.spec.as_ref()?.replicas.unwrap_or(1);
                let available = set.status.as_ref()?.available_replicas.unwrap_or(0);
                Some(wanted.saturating_sub(available).max(0))
            });
        });
        let all = sets.clone();
        metrics.max_unavailable.compute(&ctx.tasks, move |rows| show(&all, rows, plan::max_unavailable));
    }
    Box::new(StatefulSets { sets, pods, claims: ctx.cache(), revisions })
}

/// Sets one row per stateful set.
fn show(sets: &Cache<StatefulSet>, rows: &GaugeVec, value: impl Fn(&StatefulSet) -> Option<i32>) {
    for set in sets.all() {
        let policy = set.spec.as_ref().and_then(|spec| spec.pod_management_policy.as_deref());
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let labels = [namespace, name(&set.metadata), policy.unwrap_or("OrderedReady")];
        if let Some(value) = value(&set) {
            rows.with_label_values(&labels).set(f64::from(value));
        }
    }
}

fn pod_changed(change: &Seen<Pod>, sets: &Cache<StatefulSet>) -> Vec<Key> {
    let mut keys = Vec::new();
    for pod in change.old().into_iter().chain([change.object()]) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        match controller_of(&pod.metadata) {
            Some(owner) if owner.kind == "StatefulSet" => keys.push(Key::new(namespace, &owner.name)),
            Some(_) => {}
            None => {
                let parent = parent_and_ordinal(pod).and_then(|(parent, _)| sets.get(namespace, parent));
                let wanted = parent.filter(|set| wants(set, pod));
                keys.extend(wanted.map(|set| Key::of(&*set)));
            }
        }
    }
    keys.dedup();
    keys
}

fn wants(set: &StatefulSet, pod: &Pod) -> bool {
    let spec = set.spec.as_ref();
    spec.is_some_and(|spec| selector::matches(&spec.selector, pod.metadata.labels.as_ref()))
}

#[async_trait]
impl Loop for StatefulSets {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(set) = self.sets.get_key(key) else { return Ok(Action::Done) };
        let spec = set.spec.clone().unwrap_or_default();
        let member =
            |pod: &Pod| parent_and_ordinal(pod).is_some_and(|(parent, _)| parent == name(&set.metadata));
        let pods = claim(&ctx.client, &self.pods, &*set, &spec.selector, member).await?;
        let status = set.status.clone().unwrap_or_default();
        let collisions = status.collision_count.unwrap_or(0);
        let known = revisions::ensure(
            &ctx.client,
            &self.revisions,
            &*set,
            &spec.selector,
            &spec.template,
            collisions,
        )
        .await?;
        let current = known.all.iter().find(|revision| revision.metadata.name == status.current_revision);
        let current = current.unwrap_or(&known.update);
        let claims = self.claims.list(&key.namespace).into_iter();
        let observed = ObservedStatefulSet {
            set: Arc::clone(&set),
            claims: claims.map(|claim| (name(&claim.metadata).to_owned(), claim)).collect(),
            current: Arc::clone(current),
            update: Arc::clone(&known.update),
            collisions: known.collisions,
            now: ctx.clock.now(),
            pods,
        };
        let plan = plan::plan(&observed);
        let mut trouble = None;
        for change in &plan.changes {
            if let Err(error) = apply(ctx, &set, change).await {
                trouble = Some(error);
                break;
            }
        }
        if plan::status_differs(set.status.as_ref(), &plan.status) {
            let mut updated = set.as_ref().clone();
            updated.status = Some(plan.status.clone());
            ctx.client.update_status(&updated).await.map_err(StatefulSetError::Status)?;
        }
        let label = |pod: &Pod| pod.metadata.labels.as_ref()?.get(REVISION_LABEL).cloned();
        let mut live: HashSet<String> = observed.pods.iter().filter_map(|pod| label(pod)).collect();
        live.extend([name(&current.metadata).to_owned(), name(&known.update.metadata).to_owned()]);
        let limit = spec.revision_history_limit.unwrap_or(10);
        revisions::truncate(&ctx.client, history::surplus(&known.all, &live, limit)).await?;
        match trouble {
            Some(error) => Err(error.into()),
            None => Ok(requeue(plan.requeue_after)),
        }
    }
}

async fn apply(ctx: &Context, set: &StatefulSet, change: &StatefulSetChange) -> Result<(), StatefulSetError> {
    let client = &ctx.client;
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    let (verb, pod, result) = match change {
        StatefulSetChange::Blocked(why) => return Err(StatefulSetError::Blocked(why.clone())),
        StatefulSetChange::CreateClaim(claim, pod) => {
            let result = client.create(namespace, &**claim).await;
            let names = (name(&claim.metadata), name(&pod.metadata), name(&set.metadata));
            return match result {
                Ok(_) => {
                    let note = format!(
                        "create Claim {} Pod {} in StatefulSet {} success",
                        names.0, names.1, names.2
                    );
                    ctx.recorder.normal(set, "SuccessfulCreate", note);
                    Ok(())
                }
                Err(error) if error.is_already_exists() => Ok(()),
                Err(error) => {
                    let note = format!(
                        "create Claim {} for Pod {} in StatefulSet {} failed error: {error}",
                        names.0, names.1, names.2
                    );
                    ctx.recorder.warning(set, "FailedCreate", note);
                    Err(StatefulSetError::Write(error))
                }
            };
        }
        StatefulSetChange::UpdateClaim(claim) => {
            return client.update(&**claim).await.map(|_| ()).map_err(StatefulSetError::Write);
        }
        StatefulSetChange::Create(pod) => ("create", pod, client.create(namespace, &**pod).await.map(|_| ())),
        StatefulSetChange::Update(pod) => ("update", pod, client.update(&**pod).await.map(|_| ())),
        StatefulSetChange::Delete(pod) => {
            let options = delete_options(pod.metadata.uid.as_deref(), None);
            let result = client.delete::<Pod>(namespace, name(&pod.metadata), &options).await;
            ("delete", pod, result.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) }))
        }
    };
    let (pod, owner) = (name(&pod.metadata), name(&set.metadata));
    let title = match verb {
        "create" => "Create",
        "update" => "Update",
        _ => "Delete",
    };
    match result {
        Ok(()) => {
            let note = format!("{verb} Pod {pod} in StatefulSet {owner} successful");
            ctx.recorder.normal(set, &format!("Successful{title}"), note);
            Ok(())
        }
        // The cache was stale: the object exists.
        Err(error) if error.is_already_exists() => Err(StatefulSetError::Write(error)),
        Err(error) => {
            let note = format!("{verb} Pod {pod} in StatefulSet {owner} failed error: {error}");
            ctx.recorder.warning(set, &format!("Failed{title}"), note);
            Err(StatefulSetError::Write(error))
        }
    }
}
