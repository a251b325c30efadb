//! What loops ask of a pod: its phase, whether it is active, ready, available or on its way out.

use std::cmp::Ordering;

use base::clock::time_left;
use jiff::{SignedDuration, Timestamp};
use objects::core::v1::{Pod, PodCondition, PodStatus, PodTemplateSpec};
use objects::meta::v1::{ObjectMeta, OwnerReference};

/// The phase of the pod; one without a status is pending.
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

/// Neither of its phases to come changes any more.
#[must_use]
pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

#[must_use]
pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Counts toward the wanted number of pods.
#[must_use]
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_deleting(pod)
}

/// Deleted, and its containers may still run.
#[must_use]
pub fn is_terminating(pod: &Pod) -> bool {
    !is_finished(pod) && is_deleting(pod)
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

/// Ready for at least `min_ready` seconds. The second value says in how long that will be so, if it is not yet.
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

/// How long until a ready pod becomes available; none if it is not ready or is available already.
#[must_use]
pub fn available_in(pod: &Pod, min_ready: i32, now: Timestamp) -> Option<SignedDuration> {
    let ready = condition(pod, "Ready").filter(|condition| condition.status == "True")?;
    let since = ready.last_transition_time.as_ref()?;
    let left = time_left(SignedDuration::from_secs(min_ready.into()), since.0, now);
    left.is_positive().then_some(left)
}

/// Restarts of the container that restarted most.
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

/// The order in which surplus pods go: unassigned before assigned, pending before running, not ready before ready,
/// most recently ready first, most restarted first, youngest first.
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
    // No time counts as earlier than any, and the later time goes first.
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

/// The reference of the object's controller.
#[must_use]
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

/// A pod made from a template, controlled by `owner`; without a name of its own.
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
    use crate::fixture::{pod, ready_at};

    #[test]
    fn pods_that_lose_least_go_first() {
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
    fn availability_needs_time() {
        let ready = ready_at(pod("a", "Running"), 100);
        let at = |second| Timestamp::from_second(second).expect("in range");
        assert!(is_available(&ready, 0, at(100)));
        assert!(!is_available(&ready, 10, at(109)));
        assert!(is_available(&ready, 10, at(110)));
        assert_eq!(available_in(&ready, 10, at(104)), Some(SignedDuration::from_secs(6)));
        assert_eq!(available_in(&ready, 10, at(110)), None);
    }
}
