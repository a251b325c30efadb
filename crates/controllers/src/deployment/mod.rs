//! The deployment loop. Watches deployments, replica sets and pods; creates, scales and deletes replica sets, writes
//! the status of deployments.
//!
//! Invariant: the replica set of the current template reaches all replicas without ever having more pods or fewer
//! available ones than the strategy allows. A reconciliation plans on copies and writes the changes, which trigger
//! the next step.

mod plan;
mod replica_sets;
mod rolling;
mod scaling;
mod status;
mod template;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use client::{ClientError, delete_options};
use objects::apps::v1::{Deployment, ReplicaSet};
use objects::core::v1::Pod;
use runtime::{Action, Cache, Change, Context, Descriptor, EventType, Key, Loop, LoopError, controller_of};

use crate::shared::adoption::{claim, index_orphans};
use crate::shared::{pod_facts, selector};

pub use plan::{DeploymentPlan, Note, ObservedDeployment, plan};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "deployment-controller",
    resource: "deployments.apps",
    identity: "system:serviceaccount:kube-system:deployment-controller",
    workers: 5,
};

#[derive(Debug, thiserror::Error)]
enum DeploymentError {
    #[error("failed to create replica set {name}")]
    Create { name: String, source: ClientError },
    #[error("failed to scale replica set {name}")]
    Scale { name: String, source: ClientError },
    #[error("failed to delete replica set {name}")]
    Delete { name: String, source: ClientError },
    #[error("replica set {0} exists and has another owner")]
    Collision(String),
}

struct Deployments {
    deployments: Cache<Deployment>,
    replica_sets: Cache<ReplicaSet>,
    pods: Cache<Pod>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let deployments = ctx.watch_self::<Deployment>();
    let known = deployments.clone();
    let replica_sets = ctx.watch::<ReplicaSet>(move |change| replica_set_changed(change, &known));
    let (known, sets) = (deployments.clone(), replica_sets.clone());
    let pods = ctx.watch::<Pod>(move |change| pod_changed(change, &sets, &known));
    index_orphans(&replica_sets);
    Box::new(Deployments { deployments, replica_sets, pods })
}

fn replica_set_changed(change: &Change<ReplicaSet>, deployments: &Cache<Deployment>) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for set in change.old().into_iter().chain([change.object()]) {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        match controller_of(&set.metadata) {
            Some(owner) if owner.kind == "Deployment" => keys.push(Key::new(namespace, &owner.name)),
            Some(_) => {}
            None => {
                let wants = |deployment: &Arc<Deployment>| {
                    let spec = deployment.spec.as_ref();
                    spec.is_some_and(|spec| selector::matches(&spec.selector, set.metadata.labels.as_ref()))
                };
                keys.extend(deployments.list(namespace).iter().filter(|d| wants(d)).map(|d| Key::of(&**d)));
            }
        }
    }
    keys.sort();
    keys.dedup();
    keys
}

/// Only the Recreate strategy depends on pods: it waits for the old ones to be deleted.
fn pod_changed(
    change: &Change<Pod>,
    replica_sets: &Cache<ReplicaSet>,
    deployments: &Cache<Deployment>,
) -> Vec<Key> {
    let pod = change.object();
    let over = matches!(change, Change::Deleted(_)) || pod_facts::is_finished(pod);
    let owner = controller_of(&pod.metadata).filter(|owner| over && owner.kind == "ReplicaSet");
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let set = owner.and_then(|owner| replica_sets.get(namespace, &owner.name));
    let name = set.as_ref().and_then(|set| controller_of(&set.metadata)).map(|owner| owner.name.as_str());
    let deployment = name.and_then(|name| deployments.get(namespace, name));
    deployment.filter(|deployment| plan::recreates(deployment)).map(|d| Key::of(&*d)).into_iter().collect()
}

#[async_trait]
impl Loop for Deployments {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(deployment) = self.deployments.get_key(key) else { return Ok(Action::Done) };
        let Some(spec) = &deployment.spec else { return Ok(Action::Done) };
        let sets = if selector::is_empty(&spec.selector) {
            Vec::new()
        } else {
            claim(&ctx.client, &self.replica_sets, &*deployment, &spec.selector, |_| true).await?
        };
        let pods = sets.iter().map(|set| {
            let uid = set.metadata.uid.clone().unwrap_or_default();
            let running = self.pods.owned_by(&uid).iter().any(|pod| !pod_facts::is_finished(pod));
            (uid, running)
        });
        let observed = ObservedDeployment {
            deployment: &deployment,
            replica_sets: sets.iter().map(|set| (**set).clone()).collect(),
            running_pods: pods.filter(|(_, running)| *running).map(|(uid, _)| uid).collect(),
            now: ctx.clock.now(),
        };
        let plan = plan(observed);
        let requeue = plan.requeue_after;
        self.apply(key, &deployment, plan, ctx).await?;
        Ok(requeue.map_or(Action::Done, Action::RequeueAfter))
    }
}

impl Deployments {
    async fn apply(
        &self,
        key: &Key,
        deployment: &Deployment,
        mut plan: DeploymentPlan,
        ctx: &Context,
    ) -> Result<(), DeploymentError> {
        if let Some(new) = &plan.create
            && let Err(error) = self.create(key, deployment, new, ctx).await
        {
            self.creation_failed(deployment, new, &error, ctx).await;
            return Err(error);
        }
        for set in &plan.update {
            let name = set.metadata.name.clone().unwrap_or_default();
            match ctx.client.update(set).await {
                Ok(_) => {}
                Err(source) => return Err(DeploymentError::Scale { name, source }),
            }
        }
        for set in &plan.delete {
            let name = set.metadata.name.clone().unwrap_or_default();
            let options = delete_options(set.metadata.uid.as_deref(), None);
            match ctx.client.delete::<ReplicaSet>(&key.namespace, &name, &options).await {
                Err(source) if !source.is_not_found() => {
                    return Err(DeploymentError::Delete { name, source });
                }
                _ => {}
            }
        }
        for Note { kind, reason, text } in plan.notes.drain(..) {
            record_event(ctx, deployment, kind, reason, text);
        }
        if let Some(rolled_back) = plan.roll_back {
            let update = ctx.client.update(&*rolled_back).await;
            update.map_err(|source| DeploymentError::Scale { name: key.to_string(), source })?;
        } else if let Some(new) = plan.status {
            self.write_status(deployment, *new, ctx).await;
        }
        Ok(())
    }

    /// Creates a replica set. An existing one of the same name, owner and template is used instead.
    async fn create(
        &self,
        key: &Key,
        deployment: &Deployment,
        new: &ReplicaSet,
        ctx: &Context,
    ) -> Result<(), DeploymentError> {
        let name = new.metadata.name.clone().unwrap_or_default();
        let fail = |source| DeploymentError::Create { name: name.clone(), source };
        match ctx.client.create(&key.namespace, new).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_already_exists() => {
                let known: ReplicaSet = ctx.client.get(&key.namespace, &name).await.map_err(fail)?;
                let owner = controller_of(&known.metadata).map(|owner| owner.uid.as_str());
                let mine = owner == deployment.metadata.uid.as_deref();
                if mine && template::is_of(deployment, &known) {
                    return Ok(());
                }
                Err(DeploymentError::Collision(name))
            }
            Err(error) => Err(fail(error)),
        }
    }

    /// Reports a failed creation in the status, if that can be written.
    async fn creation_failed(
        &self,
        deployment: &Deployment,
        new: &ReplicaSet,
        error: &DeploymentError,
        ctx: &Context,
    ) {
        let mut changed = deployment.clone();
        match error {
            DeploymentError::Collision(_) => {
                let mut status = deployment.status.clone().unwrap_or_default();
                status.collision_count = Some(status.collision_count.unwrap_or(0).saturating_add(1));
                changed.status = Some(status);
            }
            DeploymentError::Create { source, .. } if source.is_namespace_terminating() => return,
            DeploymentError::Create { source, .. } => {
                let name = new.metadata.name.as_deref().unwrap_or_default();
                let text = format!("Failed to create new replica set \"{name}\": {source}");
                let mut status = deployment.status.clone().unwrap_or_default();
                status::creation_failed(deployment, &mut status, &text, ctx.clock.now());
                changed.status = Some(status);
                record_event(ctx, deployment, EventType::Warning, "ReplicaSetCreateError", text);
            }
            _ => return,
        }
        if changed.status != deployment.status {
            self.write_status(deployment, changed, ctx).await;
        }
    }

    /// A status whose write failed is recomputed when the conflicting change is observed.
    async fn write_status(&self, deployment: &Deployment, new: Deployment, ctx: &Context) {
        if let Err(error) = ctx.client.update_status(&new).await {
            tracing::debug!(deployment = deployment.metadata.name, %error, "failed to update deployment status");
            if !error.is_not_found() {
                ctx.queue.retry(Key::of(deployment));
            }
        }
    }
}

fn record_event(ctx: &Context, deployment: &Deployment, kind: EventType, reason: &str, text: String) {
    match kind {
        EventType::Normal => ctx.recorder.normal(deployment, reason, text),
        EventType::Warning => ctx.recorder.warning(deployment, reason, text),
    }
}
