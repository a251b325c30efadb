//! Changes of one reconciliation of a deployment, computed on copies.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use objects::apps::v1::{Deployment, ReplicaSet};
use runtime::EventType;

use super::replica_sets::{
    DESIRED, REVISION, ROLL_BACK_TO, by_age, count_in, fresh, note_revision, note_size, observed, replicas,
    revision, set_replicas, take_back, wanted,
};
use super::{rolling, scaling, status, template};
use crate::shared::selector;

/// Input of a reconciliation.
pub struct ObservedDeployment<'a> {
    pub deployment: &'a Deployment,
    pub replica_sets: Vec<ReplicaSet>,
    /// Uids of the replica sets with unfinished pods.
    pub running_pods: HashSet<String>,
    pub now: Timestamp,
}

/// Writes of a reconciliation, in this order.
#[derive(Debug, Default)]
pub struct DeploymentPlan {
    pub create: Option<ReplicaSet>,
    pub update: Vec<ReplicaSet>,
    pub delete: Vec<ReplicaSet>,
    /// Events to record afterwards.
    pub notes: Vec<Note>,
    /// Deployment with its new status; `None` if it is up to date.
    pub status: Option<Box<Deployment>>,
    /// Deployment with an earlier template, written instead of its status.
    pub roll_back: Option<Box<Deployment>>,
    /// Requeue time if nothing changes.
    pub requeue_after: Option<Duration>,
}

/// An event to record.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    pub kind: EventType,
    pub reason: &'static str,
    pub text: String,
}

pub fn recreates(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate")
}

/// Working state: copies of everything that may change.
pub(super) struct Work<'a> {
    pub original: &'a Deployment,
    /// With the new revision and conditions.
    pub deployment: Deployment,
    /// New state, oldest first; `new` is one of them.
    pub sets: Vec<ReplicaSet>,
    pub new: Option<usize>,
    running_pods: HashSet<String>,
    now: Timestamp,
    /// Current state.
    before: Vec<ReplicaSet>,
    created: bool,
    plan: DeploymentPlan,
}

/// Plans one reconciliation of a deployment.
#[must_use]
pub fn plan(observed: ObservedDeployment<'_>) -> DeploymentPlan {
    let ObservedDeployment { deployment, mut replica_sets, running_pods, now } = observed;
    replica_sets.sort_by(by_age);
    let new = replica_sets.iter().position(|set| template::is_of(deployment, set));
    let work = Work {
        original: deployment,
        deployment: deployment.clone(),
        before: replica_sets.clone(),
        sets: replica_sets,
        new,
        running_pods,
        now,
        created: false,
        plan: DeploymentPlan::default(),
    };
    work.run()
}

impl Work<'_> {
    fn run(mut self) -> DeploymentPlan {
        let Some(spec) = self.original.spec.clone() else { return self.plan };
        if selector::is_empty(&spec.selector) {
            let text = "This deployment is selecting all pods. A non-empty selector is required.";
            self.note(EventType::Warning, "SelectingAll", text.to_owned());
            let mut status = self.deployment.status.clone().unwrap_or_default();
            status.observed_generation = self.deployment.metadata.generation;
            return self.finish(status);
        }
        if self.original.metadata.deletion_timestamp.is_some() {
            let status = status::counts(&self, self.now);
            return self.finish(status);
        }
        status::note_pause(&mut self.deployment, self.now);
        self.sync_new();
        if spec.paused == Some(true) {
            scaling::scale(&mut self);
            self.clean_up();
            let status = status::counts(&self, self.now);
            return self.finish(status);
        }
        if let Some(target) = self.roll_back_to() {
            return self.roll_back(target);
        }
        if self.was_scaled() {
            scaling::scale(&mut self);
            let status = status::counts(&self, self.now);
            return self.finish(status);
        }
        if recreates(self.original) { self.recreate() } else { self.roll() }
    }

    /// Updates the annotations of the current replica set, and the deployment's revision.
    fn sync_new(&mut self) {
        let latest = self.latest();
        let Some(new) = self.new else { return };
        let set = &mut self.sets[new];
        note_revision(set, self.original, latest);
        let min_ready = self.original.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
        if let Some(spec) = &mut set.spec
            && spec.min_ready_seconds.unwrap_or(0) != min_ready.unwrap_or(0)
        {
            spec.min_ready_seconds = min_ready;
        }
        let number = set.metadata.annotations.as_ref().and_then(|all| all.get(REVISION)).cloned();
        let name = set.metadata.name.clone().unwrap_or_default();
        if let Some(number) = number {
            self.deployment.metadata.annotations.get_or_insert_default().insert(REVISION.to_owned(), number);
        }
        status::found_replica_set(&mut self.deployment, &name, self.now);
    }

    /// One more than the highest revision of the old replica sets.
    fn latest(&self) -> i64 {
        self.old().map(|at| revision(&self.sets[at])).max().unwrap_or(0).saturating_add(1)
    }

    /// Positions of the replica sets of earlier templates.
    pub fn old(&self) -> impl Iterator<Item = usize> + use<'_> {
        (0..self.sets.len()).filter(|at| Some(*at) != self.new)
    }

    pub fn total(&self) -> i32 {
        self.sets.iter().map(replicas).sum()
    }

    /// Adds a replica set for the current template, at the end.
    fn create_new(&mut self) {
        let latest = self.latest();
        let Some(set) = fresh(&self.deployment, latest) else { return };
        let name = set.metadata.name.clone().unwrap_or_default();
        self.sets.push(set);
        self.new = Some(self.sets.len() - 1);
        self.created = true;
        let count = rolling::size_of_new(self);
        if let Some(set) = self.sets.last_mut() {
            set_replicas(set, count);
        }
        let annotations = self.deployment.metadata.annotations.get_or_insert_default();
        annotations.insert(REVISION.to_owned(), latest.to_string());
        status::created(&mut self.deployment, &name, self.now);
    }

    /// Sets the size of a replica set and records the deployment's current size on it.
    pub fn resize(&mut self, at: usize, count: i32) {
        set_replicas(&mut self.sets[at], count);
        note_size(&mut self.sets[at], self.original);
    }

    fn roll(mut self) -> DeploymentPlan {
        if self.new.is_none() {
            self.create_new();
        }
        if !rolling::grow_new(&mut self) && !rolling::shrink_old(&mut self) && self.is_complete() {
            self.clean_up();
        }
        let status = status::rollout(&self, self.now);
        self.finish(status)
    }

    fn recreate(mut self) -> DeploymentPlan {
        let active: Vec<usize> = self.old().filter(|at| replicas(&self.sets[*at]) > 0).collect();
        let shrunk = !active.is_empty();
        for at in active {
            self.resize(at, 0);
        }
        if !shrunk && !self.old_pods_run() {
            if self.new.is_none() {
                self.create_new();
            } else if let Some(new) = self.new
                && replicas(&self.sets[new]) != wanted(self.original)
            {
                self.resize(new, wanted(self.original));
            }
            if self.is_complete() {
                self.clean_up();
            }
        }
        let status = status::rollout(&self, self.now);
        self.finish(status)
    }

    fn old_pods_run(&self) -> bool {
        self.old().any(|at| {
            let set = &self.sets[at];
            observed(set).replicas > 0
                || self.running_pods.contains(set.metadata.uid.as_deref().unwrap_or_default())
        })
    }

    /// True if the deployment is complete by its last status.
    fn is_complete(&self) -> bool {
        let status = self.original.status.clone().unwrap_or_default();
        status::is_complete(self.original, &status)
    }

    /// True if the deployment was resized since a replica set in use was last scaled.
    fn was_scaled(&self) -> bool {
        let active = self.sets.iter().filter(|set| replicas(set) > 0);
        active.filter_map(|set| count_in(set, DESIRED)).any(|desired| desired != wanted(self.original))
    }

    /// Deletes the oldest unused replica sets beyond the revision history limit.
    fn clean_up(&mut self) {
        let limit = self.original.spec.as_ref().and_then(|spec| spec.revision_history_limit);
        let Some(limit) =
            limit.filter(|limit| *limit != i32::MAX).and_then(|limit| usize::try_from(limit).ok())
        else {
            return;
        };
        let alive = |at: &usize| self.sets[*at].metadata.deletion_timestamp.is_none();
        let mut old: Vec<usize> = self.old().filter(alive).collect();
        let surplus = old.len().saturating_sub(limit);
        old.sort_by_key(|at| revision(&self.sets[*at]));
        for at in old.into_iter().take(surplus) {
            let set = &self.sets[at];
            let status = observed(set);
            let seen = set.metadata.generation.unwrap_or(0) <= status.observed_generation.unwrap_or(0);
            if status.replicas == 0 && replicas(set) == 0 && seen {
                self.plan.delete.push(set.clone());
            }
        }
    }

    fn roll_back_to(&self) -> Option<i64> {
        self.original.metadata.annotations.as_ref()?.get(ROLL_BACK_TO)?.parse().ok()
    }

    /// Rolls back to an earlier template, as the annotation requests; the annotation is removed in any case.
    fn roll_back(mut self, target: i64) -> DeploymentPlan {
        let mut numbers: Vec<i64> = self.sets.iter().map(revision).collect();
        numbers.sort_unstable();
        let before_last = numbers.len().checked_sub(2).and_then(|at| numbers.get(at)).copied().unwrap_or(0);
        let target = if target == 0 { before_last } else { target };
        let mut rolled_back = self.original.clone();
        let name = self.original.metadata.name.clone().unwrap_or_default();
        let found = self.sets.iter().find(|set| target != 0 && revision(set) == target).cloned();
        match found {
            None => {
                let text = if target == 0 {
                    "Unable to find last revision."
                } else {
                    "Unable to find the revision to rollback to."
                };
                self.note(EventType::Warning, "DeploymentRollbackRevisionNotFound", text.to_owned());
            }
            Some(set) if template::is_of(self.original, &set) => {
                let text = format!(
                    "The rollback revision contains the same template as current deployment \"{name}\""
                );
                self.note(EventType::Warning, "DeploymentRollbackTemplateUnchanged", text);
            }
            Some(set) => {
                take_back(&mut rolled_back, &set);
                let text = format!("Rolled back deployment \"{name}\" to revision {target}");
                self.note(EventType::Normal, "DeploymentRollback", text);
            }
        }
        if let Some(annotations) = &mut rolled_back.metadata.annotations {
            annotations.remove(ROLL_BACK_TO);
        }
        self.plan.roll_back = Some(Box::new(rolled_back));
        self.write_sets();
        self.plan
    }

    fn note(&mut self, kind: EventType, reason: &'static str, text: String) {
        self.plan.notes.push(Note { kind, reason, text });
    }

    /// Converts the copies to writes.
    fn write_sets(&mut self) {
        if self.created {
            self.plan.create = self.sets.pop();
        }
        let created = self.plan.create.clone();
        let pairs: Vec<(String, i32, i32)> = {
            let changed: Vec<(&ReplicaSet, &ReplicaSet)> =
                self.before.iter().zip(&self.sets).filter(|(before, after)| before != after).collect();
            self.plan.update = changed.iter().map(|(_, after)| (*after).clone()).collect();
            let sizes = changed.iter().map(|(before, after)| {
                (after.metadata.name.clone().unwrap_or_default(), replicas(before), replicas(after))
            });
            let new =
                created.iter().map(|set| (set.metadata.name.clone().unwrap_or_default(), 0, replicas(set)));
            new.chain(sizes).filter(|(_, from, to)| from != to).collect()
        };
        for (name, from, to) in pairs {
            let direction = if from < to { "up" } else { "down" };
            let text = format!("Scaled {direction} replica set {name} from {from} to {to}");
            self.note(EventType::Normal, "ScalingReplicaSet", text);
        }
    }

    fn finish(mut self, status: objects::apps::v1::DeploymentStatus) -> DeploymentPlan {
        self.write_sets();
        self.deployment.status = Some(status);
        let changed = self.deployment.status != self.original.status
            || self.deployment.metadata.annotations != self.original.metadata.annotations;
        if changed {
            self.plan.status = Some(Box::new(self.deployment));
        } else {
            self.plan.requeue_after = status::next_requeue(self.original, self.now);
        }
        self.plan
    }
}
