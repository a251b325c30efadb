//! Pending changes of a stateful set. Pure: every change is listed, in the required order.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use objects::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use objects::core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec};

use super::identity::{
    REVISION_LABEL, claims, identity_matches, in_range, is_stale, name, ordinal, range, reference, retention,
    set_identity, set_storage, storage_matches, wanted_owners,
};
use crate::shared::percent::scaled;
use crate::shared::{history, pod_facts};

/// Maximum number of unavailable pods of a rolling update.
#[must_use]
pub fn max_unavailable(set: &StatefulSet) -> Option<i32> {
    let spec = set.spec.as_ref()?;
    let rolling = spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    let replicas = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
    let most = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let most = most.map_or(1, |most| scaled(most, replicas, false).max(1));
    i32::try_from(most).ok()
}

#[derive(Clone, Debug)]
pub struct ObservedStatefulSet {
    pub set: Arc<StatefulSet>,
    /// Pods of the set, claimed.
    pub pods: Vec<Arc<Pod>>,
    /// Claims of the namespace, by name.
    pub claims: HashMap<String, Arc<PersistentVolumeClaim>>,
    pub current: Arc<ControllerRevision>,
    pub update: Arc<ControllerRevision>,
    pub collisions: i32,
    pub now: Timestamp,
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum StatefulSetChange {
    CreateClaim(Box<PersistentVolumeClaim>, Arc<Pod>),
    UpdateClaim(Box<PersistentVolumeClaim>),
    Create(Arc<Pod>),
    Update(Arc<Pod>),
    Delete(Arc<Pod>),
    /// Blocked until this is resolved.
    Blocked(String),
}

#[derive(Clone, Debug, Default)]
pub struct StatefulSetPlan {
    pub changes: Vec<StatefulSetChange>,
    pub status: StatefulSetStatus,
    /// Time until a pod becomes available without a change.
    pub requeue_after: Option<SignedDuration>,
}

/// One replica of the set: an existing pod, or one to create.
struct Replica {
    pod: Arc<Pod>,
    created: bool,
}

#[must_use]
pub fn plan(observed: &ObservedStatefulSet) -> StatefulSetPlan {
    let set = observed.set.as_ref();
    let mut steps = Steps { observed, plan: StatefulSetPlan::default(), min_ready: min_ready(set) };
    let (start, count) = range(set);
    let mut replicas: Vec<Replica> = Vec::new();
    for place in 0..count {
        let existing = observed.pods.iter().find(|pod| ordinal(pod) == Some(start + place));
        replicas.push(match existing {
            Some(pod) => Replica { pod: Arc::clone(pod), created: true },
            None => Replica { pod: Arc::new(steps.new_pod(start + place)), created: false },
        });
    }
    let out_of_range = observed.pods.iter().filter(|pod| ordinal(pod).is_some() && !in_range(set, pod));
    let mut condemned: Vec<Arc<Pod>> = out_of_range.cloned().collect();
    condemned.sort_by_key(|pod| std::cmp::Reverse(ordinal(pod)));

    steps.plan.status = steps.status(&replicas, &condemned);
    steps.plan.requeue_after = observed
        .pods
        .iter()
        .filter_map(|pod| pod_facts::available_in(pod, steps.min_ready, observed.now))
        .min();
    if set.metadata.deletion_timestamp.is_none() {
        steps.run(&replicas, &condemned);
    }
    complete_rollout(set, &mut steps.plan.status);
    steps.plan
}

fn min_ready(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
}

/// True if the status differs in a relevant field.
#[must_use]
pub fn status_differs(old: Option<&StatefulSetStatus>, new: &StatefulSetStatus) -> bool {
    let Some(old) = old else { return true };
    let key = |status: &StatefulSetStatus| {
        (
            status.observed_generation.unwrap_or(0),
            status.replicas,
            [
                status.current_replicas,
                status.ready_replicas,
                status.updated_replicas,
                status.available_replicas,
            ]
            .map(|count| count.unwrap_or(0)),
            status.current_revision.clone(),
            status.update_revision.clone(),
        )
    };
    key(old) != key(new)
}

fn complete_rollout(set: &StatefulSet, status: &mut StatefulSetStatus) {
    let (_, replicas) = range(set);
    let all = [status.updated_replicas, status.ready_replicas, Some(status.replicas)];
    if is_rolling(set) && all.iter().all(|count| count.unwrap_or(0) == replicas) {
        status.current_replicas = status.updated_replicas;
        status.current_revision.clone_from(&status.update_revision);
    }
}

fn is_rolling(set: &StatefulSet) -> bool {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()).unwrap_or("RollingUpdate") == "RollingUpdate"
}

fn revision_of(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(REVISION_LABEL).map(String::as_str)
}

fn is_running_and_ready(pod: &Pod) -> bool {
    pod_facts::phase(pod) == "Running" && pod_facts::is_ready(pod)
}

struct Steps<'a> {
    observed: &'a ObservedStatefulSet,
    plan: StatefulSetPlan,
    min_ready: i32,
}

impl Steps<'_> {
    fn is_available(&self, pod: &Pod) -> bool {
        pod_facts::is_available(pod, self.min_ready, self.observed.now)
    }

    fn is_unavailable(&self, replica: &Replica) -> bool {
        !replica.created || !self.is_available(&replica.pod) || pod_facts::is_deleting(&replica.pod)
    }

    fn status(&self, replicas: &[Replica], condemned: &[Arc<Pod>]) -> StatefulSetStatus {
        let observed = self.observed;
        let (current, update) = (name(&observed.current.metadata), name(&observed.update.metadata));
        let mut counts = [0; 5];
        let created = replicas.iter().filter(|replica| replica.created).map(|replica| &replica.pod);
        for pod in created.chain(condemned) {
            let alive = !pod_facts::is_deleting(pod);
            let ready = is_running_and_ready(pod);
            for (count, holds) in counts.iter_mut().zip([
                true,
                ready,
                ready && self.is_available(pod),
                alive && revision_of(pod) == Some(current),
                alive && revision_of(pod) == Some(update),
            ]) {
                *count += i32::from(holds);
            }
        }
        let [replicas, ready, available, current_count, updated] = counts;
        StatefulSetStatus {
            observed_generation: observed.set.metadata.generation,
            replicas,
            ready_replicas: Some(ready),
            available_replicas: Some(available),
            current_replicas: Some(current_count),
            updated_replicas: Some(updated),
            current_revision: Some(current.to_owned()),
            update_revision: Some(update.to_owned()),
            collision_count: Some(observed.collisions),
            conditions: observed.set.status.as_ref().and_then(|status| status.conditions.clone()),
        }
    }

    fn run(&mut self, replicas: &[Replica], condemned: &[Arc<Pod>]) {
        let spec = self.observed.set.spec.as_ref();
        let ordered = spec.and_then(|spec| spec.pod_management_policy.as_deref()) != Some("Parallel");
        for replica in replicas {
            if self.tend(replica, ordered) && ordered {
                return;
            }
        }
        for pod in condemned {
            self.fix_claims(pod);
        }
        let first_unhealthy = replicas
            .iter()
            .find(|replica| self.is_unavailable(replica))
            .map(|replica| name(&replica.pod.metadata))
            .or_else(|| {
                let mut ascending = condemned.iter().rev();
                let sick = |pod: &&Arc<Pod>| !self.is_available(pod) || pod_facts::is_deleting(pod);
                ascending.find(sick).map(|pod| name(&pod.metadata))
            });
        let first_unhealthy = first_unhealthy.map(str::to_owned);
        for pod in condemned {
            if pod_facts::is_deleting(pod) {
                if ordered {
                    return;
                }
                continue;
            }
            let healthy = is_running_and_ready(pod) && self.is_available(pod);
            if ordered && !healthy && first_unhealthy.as_deref() != Some(name(&pod.metadata)) {
                return;
            }
            self.plan.changes.push(StatefulSetChange::Delete(Arc::clone(pod)));
            if ordered {
                return;
            }
        }
        if is_rolling(&self.observed.set) {
            self.roll(replicas);
        }
    }

    /// Processes one replica; true if an ordered set must wait for it.
    fn tend(&mut self, replica: &Replica, ordered: bool) -> bool {
        let pod = &replica.pod;
        if pod_facts::is_finished(pod) && replica.created {
            if !pod_facts::is_deleting(pod) {
                self.plan.changes.push(StatefulSetChange::Delete(Arc::clone(pod)));
            }
            return true;
        }
        if !replica.created {
            if self.create(pod) && !ordered {
                return false;
            }
            return true;
        }
        if pod_facts::phase(pod) == "Pending" {
            if !self.create_claims(pod) {
                return true;
            }
            self.fix_claims(pod);
        }
        let steady = !pod_facts::is_deleting(pod) && is_running_and_ready(pod) && self.is_available(pod);
        if ordered && !steady {
            return true;
        }
        self.fix_claims(pod);
        let set = self.observed.set.as_ref();
        let right = identity_matches(set, pod) && storage_matches(set, pod);
        if !right && !pod_facts::is_deleting(pod) {
            let Some(ordinal) = ordinal(pod) else { return false };
            let mut fixed = pod.as_ref().clone();
            set_identity(set, &mut fixed, ordinal);
            set_storage(set, &mut fixed, ordinal);
            self.plan.changes.push(StatefulSetChange::Update(Arc::new(fixed)));
        }
        false
    }

    /// Lists the writes that create a pod; false if a deletion must complete first.
    fn create(&mut self, pod: &Arc<Pod>) -> bool {
        let (_, when_scaled) = retention(&self.observed.set);
        let Some(ordinal) = ordinal(pod) else { return false };
        if when_scaled {
            let stale = claims(&self.observed.set, ordinal).into_iter().find(|(_, claim)| {
                let known = self.observed.claims.get(name(&claim.metadata));
                known.is_some_and(|known| is_stale(known, "v1", "Pod", &pod.metadata))
            });
            if let Some((_, claim)) = stale {
                let claim = name(&claim.metadata);
                self.plan.changes.push(StatefulSetChange::Blocked(format!(
                    "claim {claim} still belongs to the previous pod"
                )));
                return false;
            }
        }
        if !self.create_claims(pod) {
            return false;
        }
        self.plan.changes.push(StatefulSetChange::Create(Arc::clone(pod)));
        self.fix_claims(pod);
        true
    }

    /// Lists missing claims; false if one is being deleted.
    fn create_claims(&mut self, pod: &Arc<Pod>) -> bool {
        let Some(ordinal) = ordinal(pod) else { return false };
        for (_, claim) in claims(&self.observed.set, ordinal) {
            match self.observed.claims.get(name(&claim.metadata)) {
                None => {
                    self.plan.changes.push(StatefulSetChange::CreateClaim(Box::new(claim), Arc::clone(pod)))
                }
                Some(known) if known.metadata.deletion_timestamp.is_some() => {
                    let claim = name(&claim.metadata);
                    self.plan
                        .changes
                        .push(StatefulSetChange::Blocked(format!("pvc {claim} is being deleted")));
                    return false;
                }
                Some(_) => {}
            }
        }
        true
    }

    /// Sets the owners of claims by the retention policy.
    fn fix_claims(&mut self, pod: &Pod) {
        let Some(ordinal) = ordinal(pod) else { return };
        for (_, claim) in claims(&self.observed.set, ordinal) {
            let Some(known) = self.observed.claims.get(name(&claim.metadata)) else { continue };
            let Some(owners) = wanted_owners(&self.observed.set, pod, known) else { continue };
            let mut fixed = known.as_ref().clone();
            fixed.metadata.owner_references = Some(owners);
            let change = StatefulSetChange::UpdateClaim(Box::new(fixed));
            if !self.plan.changes.contains(&change) {
                self.plan.changes.push(change);
            }
        }
    }

    /// Deletes pods of other revisions, from the highest ordinal down.
    fn roll(&mut self, replicas: &[Replica]) {
        let set = self.observed.set.as_ref();
        let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let partition = rolling.and_then(|rolling| rolling.partition).unwrap_or(0);
        let partition = usize::try_from(partition).unwrap_or(0);
        let several = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        let update = name(&self.observed.update.metadata).to_owned();
        let outdated = |replica: &Replica| {
            replica.created
                && revision_of(&replica.pod) != Some(&update)
                && !pod_facts::is_deleting(&replica.pod)
        };
        let mut allowed = match several {
            Some(most) => {
                let unavailable = replicas.iter().filter(|replica| self.is_unavailable(replica)).count();
                scaled(most, replicas.len(), false).max(1).saturating_sub(unavailable)
            }
            None => 1,
        };
        for replica in replicas.iter().skip(partition).rev() {
            if allowed == 0 {
                return;
            }
            if outdated(replica) {
                self.plan.changes.push(StatefulSetChange::Delete(Arc::clone(&replica.pod)));
                let status = &mut self.plan.status;
                status.current_replicas = status.current_replicas.map(|count| count - 1);
                allowed -= 1;
            } else if several.is_none() && self.is_unavailable(replica) {
                return;
            }
        }
    }

    /// Pod for an ordinal: of the current revision below the partition, else of the update revision.
    fn new_pod(&self, ordinal: i32) -> Pod {
        let observed = self.observed;
        let set = observed.set.as_ref();
        let (start, _) = range(set);
        let spec = set.spec.as_ref();
        let rolling = spec
            .and_then(|spec| spec.update_strategy.as_ref())
            .and_then(|strategy| strategy.rolling_update.as_ref());
        let recorded = set.status.as_ref().and_then(|status| status.current_replicas).unwrap_or(0);
        let keep_current = match rolling {
            None => is_rolling(set) && ordinal < start.saturating_add(recorded),
            Some(rolling) => ordinal < start.saturating_add(rolling.partition.unwrap_or(0)),
        };
        let revision = if keep_current { &observed.current } else { &observed.update };
        let fallback = || spec.map(|spec| spec.template.clone()).unwrap_or_default();
        let template: PodTemplateSpec = history::template(revision).unwrap_or_else(fallback);
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let owner = reference("apps/v1", "StatefulSet", &set.metadata);
        let mut pod = pod_facts::from_template(&template, namespace, owner);
        set_identity(set, &mut pod, ordinal);
        set_storage(set, &mut pod, ordinal);
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(REVISION_LABEL.to_owned(), name(&revision.metadata).to_owned());
        let hostname = pod.metadata.name.clone();
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = hostname;
        spec.subdomain =
            set.spec.as_ref().and_then(|spec| spec.service_name.clone()).filter(|name| !name.is_empty());
        pod
    }
}
