//! Pod predicates shared by the loops: phase, active, ready, available, terminating.

use std::cmp::Ordering;

use base::clock::time_left;
use jiff::{SignedDuration, Timestamp};
use objects::core::v1::{Pod, PodCondition, PodStatus, PodTemplateSpec, Volume};
use objects::meta::v1::{ObjectMeta, OwnerReference};

/// Phase of the pod; without a status it is pending.
#[must_use]
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

#[must_use]
pub fn is_succeeded(pod: &Pod) -> bool {
    phase(pod) == "Succeeded"
}

#[must_use]
pub fn is_failed(pod: &Pod) -> bool {
    phase(pod) == "Failed"
}

/// True for a terminal phase.
#[must_use]
pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

#[must_use]
pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// True if the pod counts toward the desired number of pods.
#[must_use]
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_deleting(pod)
}

/// True if the pod is deleted and its containers may still run.
#[must_use]
pub fn is_terminating(pod: &Pod) -> bool {
    !is_finished(pod) && is_deleting(pod)
}

/// Names of the claims that a pod uses, generic ephemeral volumes included.
#[must_use]
pub fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let name = |volume: &Volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => {
            Some(format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name))
        }
        _ => None,
    };
    volumes.filter_map(name).collect()
}

#[must_use]
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    status_condition(pod.status.as_ref()?, kind)
}

fn status_condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    status.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// True if ready for at least `min_ready` seconds. The second value is the remaining time, if it is not yet.
#[must_use]
pub fn is_available(pod: &Pod, min_ready: i32, now: Timestamp) -> bool {
    let Some(ready) = condition(pod, "Ready").filter(|condition| condition.status == "True") else {
        return false;
    };
    if min_ready <= 0 {
        return true;
    }
    ready
        .last_transition_time
        .as_ref()
        .is_some_and(|since| now.duration_since(since.0) >= SignedDuration::from_secs(min_ready.into()))
}

/// Time until a ready pod becomes available; `None` if it is not ready or already available.
#[must_use]
pub fn available_in(pod: &Pod, min_ready: i32, now: Timestamp) -> Option<SignedDuration> {
    let ready = condition(pod, "Ready").filter(|condition| condition.status == "True")?;
    let since = ready.last_transition_time.as_ref()?;
    let left = time_left(SignedDuration::from_secs(min_ready.into()), since.0, now);
    left.is_positive().then_some(left)
}

/// Highest restart count of its containers.
fn restarts(pod: &Pod) -> i32 {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    containers.iter().map(|status| status.restart_count).max().unwrap_or(0)
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    condition(pod, "Ready")
        .filter(|condition| condition.status == "True")?
        .last_transition_time
        .as_ref()
        .map(|t| t.0)
}

/// Deletion order of surplus pods: unassigned before assigned, pending before running, not ready before ready, most
/// recently ready first, most restarted first, youngest first.
#[must_use]
pub fn deletion_order(a: &Pod, b: &Pod) -> Ordering {
    let assigned = |pod: &Pod| {
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).is_some_and(|name| !name.is_empty())
    };
    let phase_rank = |pod: &Pod| match phase(pod) {
        "Pending" => 0,
        "Running" => 2,
        _ => 1,
    };
    // A missing time counts as earliest, and the later time is deleted first.
    let later_first = |a: Option<Timestamp>, b: Option<Timestamp>| match (a, b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (Some(a), Some(b)) => b.cmp(&a),
    };
    assigned(a)
        .cmp(&assigned(b))
        .then_with(|| phase_rank(a).cmp(&phase_rank(b)))
        .then_with(|| is_ready(a).cmp(&is_ready(b)))
        .then_with(|| later_first(ready_since(a), ready_since(b)))
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| later_first(created(a), created(b)))
}

fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Controller reference of the object.
#[must_use]
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

/// Pod built from a template and controlled by `owner`; without a name of its own.
#[must_use]
pub fn from_template(template: &PodTemplateSpec, namespace: &str, owner: OwnerReference) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    let mut owners = meta.owner_references.unwrap_or_default();
    owners.push(owner);
    Pod {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(owners),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{pod, ready_at};

    #[test]
    fn finished_phases_match_vectors() {
        for (phase, finished) in vectors::PHASES {
            assert_eq!(is_finished(&pod("p", phase)), finished, "{phase}");
        }
        assert!(!is_finished(&Pod::default()));
    }

    #[test]
    fn deletion_order_of_surplus_pods() {
        let unassigned = pod("a", "Pending");
        let mut assigned = pod("b", "Pending");
        assigned.spec.get_or_insert_default().node_name = Some("n".into());
        let mut running = pod("c", "Running");
        running.spec.get_or_insert_default().node_name = Some("n".into());
        let mut ready_long = ready_at(running.clone(), 10);
        ready_long.metadata.name = Some("d".into());
        let ready_lately = ready_at(running.clone(), 20);
        let order = [&unassigned, &assigned, &running, &ready_lately, &ready_long];
        for pair in order.windows(2) {
            assert_eq!(deletion_order(pair[0], pair[1]), Ordering::Less, "{:?}", pair[0].metadata.name);
        }
    }

    #[test]
    fn pod_is_available_after_min_ready_seconds() {
        let ready = ready_at(pod("a", "Running"), 100);
        let at = |second| Timestamp::from_second(second).expect("in range");
        assert!(is_available(&ready, 0, at(100)));
        assert!(!is_available(&ready, 10, at(109)));
        assert!(is_available(&ready, 10, at(110)));
        assert_eq!(available_in(&ready, 10, at(104)), Some(SignedDuration::from_secs(6)));
        assert_eq!(available_in(&ready, 10, at(110)), None);
    }
}
