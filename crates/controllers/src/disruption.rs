//! The disruption loop. Watches disruption budgets and the pods they select; writes the number of allowed disruptions
//! to each budget's status. Also resets stale DisruptionTarget conditions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use base::clock::time_left;
use client::{ClientError, Patch, ResourceKey};
use jiff::{SignedDuration, Timestamp};
use objects::IntOrString;
use objects::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use objects::core::v1::{Pod, ReplicationController};
use objects::meta::v1::{Condition, OwnerReference, Time};
use objects::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError, controller_of};
use serde_json::{Value, json};

use crate::requeue;
use crate::shared::percent::scaled;
use crate::shared::{pod_facts, selector};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "disruption-controller",
    resource: "poddisruptionbudgets.policy",
    identity: "system:serviceaccount:kube-system:disruption-controller",
    workers: 5,
};

/// Time after which an evicted pod that still exists counts as healthy again.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_secs(120);
/// Time after which the DisruptionTarget condition of a pod that was not deleted is reset.
const STALE_DISRUPTION: SignedDuration = SignedDuration::from_secs(120);

#[derive(Debug, thiserror::Error)]
enum DisruptionError {
    #[error("found no controllers for pod {0:?}")]
    NoController(String),
    #[error("failed to get the scale of {0}")]
    Scale(String, #[source] ClientError),
}

struct Disruption {
    budgets: Cache<PodDisruptionBudget>,
    pods: Cache<Pod>,
    deployments: Cache<Deployment>,
    replica_sets: Cache<ReplicaSet>,
    stateful_sets: Cache<StatefulSet>,
    replication_controllers: Cache<ReplicationController>,
}

/// Prefix of pod keys: both kinds share one queue.
const POD: &str = "pod:";

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let budgets = ctx.watch_self::<PodDisruptionBudget>();
    let all = budgets.clone();
    let pods = ctx.watch::<Pod>(move |change| {
        let pod = change.object();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut keys: Vec<Key> = all
            .list(namespace)
            .iter()
            .filter(|budget| selects(budget, pod) || change.old().is_some_and(|old| selects(budget, old)))
            .map(|budget| Key::of(&**budget))
            .collect();
        if stale_in(pod, Timestamp::MIN).is_some() {
            keys.push(Key::new(
                namespace,
                &format!("{POD}{}", pod.metadata.name.as_deref().unwrap_or_default()),
            ));
        }
        keys
    });
    Box::new(Disruption {
        budgets,
        pods,
        deployments: ctx.cache(),
        replica_sets: ctx.cache(),
        stateful_sets: ctx.cache(),
        replication_controllers: ctx.cache(),
    })
}

/// An empty selector selects every pod of the namespace, a missing one selects none.
fn selects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let wanted = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    wanted.is_some_and(|wanted| selector::matches(wanted, pod.metadata.labels.as_ref()))
}

#[async_trait]
impl Loop for Disruption {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        if let Some(name) = key.name.strip_prefix(POD) {
            return self.unmark(&key.namespace, name, ctx).await;
        }
        let Some(budget) = self.budgets.get_key(key) else { return Ok(Action::Done) };
        let pods: Vec<_> =
            self.pods.list(&key.namespace).into_iter().filter(|pod| selects(&budget, pod)).collect();
        if pods.is_empty() {
            ctx.recorder.normal(&*budget, "NoPods", "No matching pods found");
        }
        let now = ctx.clock.now();
        let scale = match self.expected_scale(&budget, &pods, ctx).await {
            Ok(scale) => scale,
            Err(error) => {
                let note = format!("Failed to calculate the number of expected pods: {error}");
                ctx.recorder.warning(&*budget, "CalculateExpectedPodCountFailed", note);
                let status = fail_safe(&budget, &error.to_string(), now);
                self.write(&budget, status, ctx).await?;
                return Err(error.into());
            }
        };
        let (status, recheck) = plan(&budget, &pods, scale, now);
        self.write(&budget, status, ctx).await?;
        Ok(requeue(recheck))
    }
}

impl Disruption {
    async fn write(
        &self,
        budget: &PodDisruptionBudget,
        status: PodDisruptionBudgetStatus,
        ctx: &Context,
    ) -> Result<(), ClientError> {
        if budget.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let updated = PodDisruptionBudget { status: Some(status), ..budget.clone() };
        ctx.client.update_status(&updated).await.map(|_| ())
    }

    /// Replicas wanted by the controllers of these pods, if the budget is relative to that.
    async fn expected_scale(
        &self,
        budget: &PodDisruptionBudget,
        pods: &[Arc<Pod>],
        ctx: &Context,
    ) -> Result<Option<i32>, DisruptionError> {
        let spec = budget.spec.as_ref();
        let relative = spec.is_some_and(|spec| {
            spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
        });
        if !relative {
            return Ok(None);
        }
        let mut scales: HashMap<String, i32> = HashMap::new();
        let mut unmanaged = false;
        for pod in pods {
            let Some(owner) = controller_of(&pod.metadata) else {
                unmanaged = true;
                continue;
            };
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let Some((uid, scale)) = self.scale_of(namespace, owner, ctx).await? else {
                return Err(DisruptionError::NoController(pod.metadata.name.clone().unwrap_or_default()));
            };
            scales.insert(uid, scale);
        }
        if unmanaged {
            let selector = spec.and_then(|spec| spec.selector.as_ref());
            let note = format!(
                "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.",
                serde_json::to_string(&selector).unwrap_or_default()
            );
            ctx.recorder.warning(budget, "UnmanagedPods", note);
        }
        Ok(Some(scales.values().fold(0, |sum: i32, scale| sum.saturating_add(*scale))))
    }

    async fn scale_of(
        &self,
        namespace: &str,
        owner: &OwnerReference,
        ctx: &Context,
    ) -> Result<Option<(String, i32)>, DisruptionError> {
        let (group, _) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
        let same = |uid: &Option<String>| uid.as_ref() == Some(&owner.uid);
        let known = match (group, owner.kind.as_str()) {
            ("", "ReplicationController") => {
                let found = self.replication_controllers.get(namespace, &owner.name);
                let found = found.filter(|found| same(&found.metadata.uid));
                found.map(|found| found.spec.as_ref().and_then(|spec| spec.replicas))
            }
            ("apps", "ReplicaSet") => {
                let Some(set) =
                    self.replica_sets.get(namespace, &owner.name).filter(|set| same(&set.metadata.uid))
                else {
                    return Ok(None);
                };
                if let Some(above) = controller_of(&set.metadata).filter(|above| above.kind == "Deployment") {
                    let deployment = self.deployments.get(namespace, &above.name);
                    let deployment =
                        deployment.filter(|found| found.metadata.uid.as_ref() == Some(&above.uid));
                    return Ok(deployment.map(|found| {
                        let replicas = found.spec.as_ref().and_then(|spec| spec.replicas);
                        (above.uid.clone(), replicas.unwrap_or(1))
                    }));
                }
                Some(set.spec.as_ref().and_then(|spec| spec.replicas))
            }
            ("apps", "StatefulSet") => {
                let found =
                    self.stateful_sets.get(namespace, &owner.name).filter(|set| same(&set.metadata.uid));
                found.map(|found| found.spec.as_ref().and_then(|spec| spec.replicas))
            }
            _ => return self.scale_subresource(namespace, owner, ctx).await,
        };
        Ok(known.map(|replicas| (owner.uid.clone(), replicas.unwrap_or(1))))
    }

    async fn scale_subresource(
        &self,
        namespace: &str,
        owner: &OwnerReference,
        ctx: &Context,
    ) -> Result<Option<(String, i32)>, DisruptionError> {
        let failed = |error| DisruptionError::Scale(format!("{} {}", owner.kind, owner.name), error);
        let discovery = ctx.client.discover().await.map_err(failed)?;
        let Some(info) = discovery.find(&owner.api_version, &owner.kind) else { return Ok(None) };
        let resource: &ResourceKey = &info.key;
        let path = resource.path(namespace, &owner.name, Some("scale"));
        match ctx.client.read::<Value>(&path).await {
            Ok(scale) => {
                let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
                let uid = scale.pointer("/metadata/uid").and_then(Value::as_str);
                let scale = i32::try_from(replicas).unwrap_or(i32::MAX);
                Ok((uid == Some(&owner.uid)).then(|| (owner.uid.clone(), scale)))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Resets the DisruptionTarget condition of a pod that was not disrupted.
    async fn unmark(&self, namespace: &str, name: &str, ctx: &Context) -> Result<Action, LoopError> {
        let Some(pod) = self.pods.get(namespace, name) else { return Ok(Action::Done) };
        let now = ctx.clock.now();
        let Some(wait) = stale_in(&pod, now) else { return Ok(Action::Done) };
        if wait.is_positive() {
            return Ok(requeue(Some(wait)));
        }
        let condition = json!({ "type": "DisruptionTarget", "status": "False", "reason": null, "message": null,
            "lastTransitionTime": Time(now) });
        let patch = Patch::Strategic(json!({
            "metadata": { "uid": pod.metadata.uid },
            "status": { "conditions": [condition] },
        }));
        ctx.client.patch::<Pod>(namespace, name, Some("status"), &patch).await?;
        Ok(Action::Done)
    }
}

/// Time until the condition of a disruption that did not happen is stale.
fn stale_in(pod: &Pod, now: Timestamp) -> Option<SignedDuration> {
    if pod_facts::is_deleting(pod) || pod_facts::is_finished(pod) {
        return None;
    }
    let mark = pod_facts::condition(pod, "DisruptionTarget").filter(|mark| mark.status == "True")?;
    if mark.reason.as_deref() == Some("TerminationByKubelet") {
        return None;
    }
    let since = mark.last_transition_time.as_ref()?.0;
    Some(time_left(STALE_DISRUPTION, since, now))
}

/// Status of the budget, and the requeue time. `scale` is the controllers' replica count, where it matters.
fn plan(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    scale: Option<i32>,
    now: Timestamp,
) -> (PodDisruptionBudgetStatus, Option<SignedDuration>) {
    let before = budget.status.clone().unwrap_or_default();
    let spec = budget.spec.clone().unwrap_or_default();
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let expected = scale.unwrap_or(count(pods.len()));
    let of = |value: &IntOrString| count(scaled(value, usize::try_from(expected).unwrap_or(0), true));
    let desired = match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => (expected - of(most)).max(0),
        (None, Some(least)) => of(least),
        (None, None) => 0,
    };
    let expected = if spec.max_unavailable.is_none() && spec.min_available.is_none() { 0 } else { expected };
    let mut disrupted = BTreeMap::new();
    let mut recheck: Option<SignedDuration> = None;
    for pod in pods.iter().filter(|pod| !pod_facts::is_deleting(pod)) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let Some(since) = before.disrupted_pods.as_ref().and_then(|known| known.get(&name)) else { continue };
        let left = time_left(DELETION_TIMEOUT, since.0, now);
        if !left.is_negative() {
            recheck = Some(recheck.map_or(left, |known| known.min(left)));
            disrupted.insert(name, since.clone());
        }
    }
    let healthy = pods.iter().filter(|pod| {
        let promised = pod.metadata.name.as_ref().is_some_and(|name| disrupted.contains_key(name));
        !pod_facts::is_deleting(pod) && !promised && pod_facts::is_ready(pod)
    });
    let healthy = count(healthy.count());
    let allowed = if expected <= 0 { 0 } else { (healthy - desired).max(0) };
    let status = PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        expected_pods: Some(expected),
        disruptions_allowed: Some(allowed),
        disrupted_pods: Some(disrupted).filter(|pods| !pods.is_empty()),
        observed_generation: budget.metadata.generation,
        conditions: before.conditions,
    };
    let (value, reason) =
        if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    (with_condition(status, value, reason, "", now), recheck)
}

fn fail_safe(budget: &PodDisruptionBudget, message: &str, now: Timestamp) -> PodDisruptionBudgetStatus {
    let before = budget.status.clone().unwrap_or_default();
    let status = PodDisruptionBudgetStatus { disruptions_allowed: Some(0), ..before };
    with_condition(status, "False", "SyncFailed", message, now)
}

fn with_condition(
    mut status: PodDisruptionBudgetStatus,
    value: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let conditions = status.conditions.get_or_insert_default();
    let known = conditions.iter_mut().find(|condition| condition.type_ == "DisruptionAllowed");
    let since =
        known.as_ref().filter(|known| known.status == value).map(|known| known.last_transition_time.clone());
    let wanted = Condition {
        type_: "DisruptionAllowed".to_owned(),
        status: value.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: status.observed_generation,
        last_transition_time: since.unwrap_or(Time(now)),
    };
    match known {
        Some(known) => *known = wanted,
        None => conditions.push(wanted),
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{at, meta, pod, ready_at, time};
    use objects::core::v1::PodCondition;
    use objects::policy::v1::PodDisruptionBudgetSpec;

    fn budget(min: Option<IntOrString>, max: Option<IntOrString>) -> PodDisruptionBudget {
        let spec = PodDisruptionBudgetSpec { min_available: min, max_unavailable: max, ..Default::default() };
        PodDisruptionBudget { metadata: meta("b"), spec: Some(spec), status: None }
    }

    fn pods(ready: usize, all: usize) -> Vec<Arc<Pod>> {
        let make = |n: usize| {
            let pod = pod(&format!("p{n}"), "Running");
            Arc::new(if n < ready { ready_at(pod, 1) } else { pod })
        };
        (0..all).map(make).collect()
    }

    #[test]
    fn allowed_disruptions_by_healthy_pods() {
        let int = IntOrString::Int;
        let percent = |text: &str| IntOrString::String(text.into());
        for (min, max, scale, ready, all, expected) in [
            (Some(int(2)), None, None, 3, 3, (3, 2, 3, 1)),
            (Some(int(3)), None, None, 3, 3, (3, 3, 3, 0)),
            (Some(int(0)), None, None, 0, 0, (0, 0, 0, 0)),
            (Some(percent("50%")), None, Some(5), 5, 5, (5, 3, 5, 2)),
            (None, Some(int(1)), Some(4), 4, 4, (4, 3, 4, 1)),
            (None, Some(int(1)), Some(4), 3, 4, (3, 3, 4, 0)),
            (None, Some(percent("30%")), Some(10), 10, 10, (10, 7, 10, 3)),
        ] {
            let (status, _) = plan(&budget(min.clone(), max.clone()), &pods(ready, all), scale, at(10));
            let got = (
                status.current_healthy,
                status.desired_healthy,
                status.expected_pods,
                status.disruptions_allowed,
            );
            let (healthy, desired, pods, allowed) = expected;
            assert_eq!(got, (Some(healthy), Some(desired), Some(pods), Some(allowed)), "{min:?} {max:?}");
            let condition = &status.conditions.expect("conditions")[0];
            assert_eq!(condition.status == "True", expected.3 > 0);
        }
    }

    #[test]
    fn disrupted_pods_count_until_timeout() {
        let mut budget = budget(Some(IntOrString::Int(1)), None);
        let disrupted = [("p0".to_owned(), time(100)), ("gone".to_owned(), time(100))];
        budget.status =
            Some(PodDisruptionBudgetStatus { disrupted_pods: Some(disrupted.into()), ..Default::default() });
        let (status, recheck) = plan(&budget, &pods(3, 3), None, at(150));
        assert_eq!((status.current_healthy, status.disruptions_allowed), (Some(2), Some(1)));
        assert_eq!(status.disrupted_pods.map(|pods| pods.len()), Some(1));
        assert_eq!(recheck, Some(SignedDuration::from_secs(70)));
        let (status, recheck) = plan(&budget, &pods(3, 3), None, at(300));
        assert_eq!((status.current_healthy, status.disrupted_pods, recheck), (Some(3), None, None));
    }

    #[test]
    fn disruption_condition_becomes_stale() {
        let mut marked = pod("p", "Running");
        marked.status.get_or_insert_default().conditions = Some(vec![PodCondition {
            type_: "DisruptionTarget".into(),
            status: "True".into(),
            last_transition_time: Some(time(100)),
            ..PodCondition::default()
        }]);
        assert_eq!(stale_in(&marked, at(150)), Some(SignedDuration::from_secs(70)));
        marked.metadata.deletion_timestamp = Some(time(1));
        assert_eq!(stale_in(&marked, at(150)), None);
        assert_eq!(stale_in(&pod("p", "Running"), at(150)), None);
    }
}
