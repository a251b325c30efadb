//! Status of a deployment: counts, conditions, and progress.

use std::time::Duration;

use base::clock::time_left;
use jiff::{SignedDuration, Timestamp};
use objects::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use objects::meta::v1::Time;

use super::plan::Work;
use super::replica_sets::{max_unavailable, observed, replicas, wanted};

const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
const REPLICA_FAILURE: &str = "ReplicaFailure";
const NEW_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

fn condition(kind: &str, status: &str, reason: &str, message: String, now: Timestamp) -> DeploymentCondition {
    DeploymentCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

fn get<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// Sets a condition unless status and reason are the same; the transition time follows its status.
fn set(status: &mut DeploymentStatus, mut new: DeploymentCondition) {
    if let Some(old) = get(status, &new.type_) {
        if old.status == new.status && old.reason == new.reason {
            return;
        }
        if old.status == new.status {
            new.last_transition_time = old.last_transition_time.clone();
        }
    }
    remove(status, &new.type_);
    status.conditions.get_or_insert_default().push(new);
}

fn remove(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != kind);
    }
}

fn deadline(deployment: &Deployment) -> Option<i32> {
    let seconds = deployment.spec.as_ref()?.progress_deadline_seconds?;
    (seconds != i32::MAX).then_some(seconds)
}

/// Records the start or end of a pause, so that its duration does not count against the progress deadline.
pub fn note_pause(deployment: &mut Deployment, now: Timestamp) {
    if deadline(deployment).is_none() {
        return;
    }
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
    let status = deployment.status.get_or_insert_default();
    let reason = get(status, PROGRESSING).and_then(|condition| condition.reason.as_deref());
    match (paused, reason) {
        (_, Some(TIMED_OUT)) | (true, Some(PAUSED)) => {}
        (true, _) => {
            set(status, condition(PROGRESSING, "Unknown", PAUSED, "Deployment is paused".to_owned(), now));
        }
        (false, Some(PAUSED)) => {
            let text = "Deployment is resumed".to_owned();
            set(status, condition(PROGRESSING, "Unknown", "DeploymentResumed", text, now));
        }
        (false, _) => {}
    }
}

/// Records an existing replica set as the start of progress.
pub fn found_replica_set(deployment: &mut Deployment, name: &str, now: Timestamp) {
    if deadline(deployment).is_none() {
        return;
    }
    let status = deployment.status.get_or_insert_default();
    if get(status, PROGRESSING).is_none() {
        let text = format!("Found new replica set \"{name}\"");
        set(status, condition(PROGRESSING, "True", "FoundNewReplicaSet", text, now));
    }
}

pub fn created(deployment: &mut Deployment, name: &str, now: Timestamp) {
    if deadline(deployment).is_none() {
        return;
    }
    let text = format!("Created new replica set \"{name}\"");
    let status = deployment.status.get_or_insert_default();
    set(status, condition(PROGRESSING, "True", "NewReplicaSetCreated", text, now));
}

pub fn creation_failed(deployment: &Deployment, status: &mut DeploymentStatus, text: &str, now: Timestamp) {
    if deadline(deployment).is_some() {
        set(status, condition(PROGRESSING, "False", "ReplicaSetCreateError", text.to_owned(), now));
    }
}

/// Maps 0 to absent, as in the API.
fn nonzero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

/// Counts, and the `Available` condition.
pub fn counts(work: &Work<'_>, now: Timestamp) -> DeploymentStatus {
    let sum = |count: &dyn Fn(&ReplicaSet) -> i32| work.sets.iter().map(count).sum::<i32>();
    let available = sum(&|set| observed(set).available_replicas.unwrap_or(0));
    let requested = sum(&replicas);
    let terminating: Option<Vec<i32>> =
        work.sets.iter().map(|set| observed(set).terminating_replicas).collect();
    let old = work.deployment.status.clone().unwrap_or_default();
    let mut status = DeploymentStatus {
        observed_generation: work.original.metadata.generation,
        replicas: nonzero(sum(&|set| observed(set).replicas)),
        updated_replicas: nonzero(work.new.map_or(0, |new| observed(&work.sets[new]).replicas)),
        ready_replicas: nonzero(sum(&|set| observed(set).ready_replicas.unwrap_or(0))),
        available_replicas: nonzero(available),
        unavailable_replicas: nonzero((requested - available).max(0)),
        terminating_replicas: terminating.map(|counts| counts.iter().sum()),
        collision_count: old.collision_count,
        conditions: old.conditions,
    };
    let least = wanted(work.original) - max_unavailable(work.original);
    let availability = if available >= least {
        let text = "Deployment has minimum availability.".to_owned();
        condition(AVAILABLE, "True", "MinimumReplicasAvailable", text, now)
    } else {
        let text = "Deployment does not have minimum availability.".to_owned();
        condition(AVAILABLE, "False", "MinimumReplicasUnavailable", text, now)
    };
    set(&mut status, availability);
    status
}

/// True if everything is updated and available, and no old replicas are left.
pub fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = wanted(deployment);
    let all = |count: Option<i32>| count.unwrap_or(0) == wanted;
    all(status.updated_replicas)
        && all(status.replicas)
        && all(status.available_replicas)
        && status.observed_generation.unwrap_or(0) >= deployment.metadata.generation.unwrap_or(0)
}

fn progresses(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    let count = |count: Option<i32>| count.unwrap_or(0);
    let outdated = |status: &DeploymentStatus| count(status.replicas) - count(status.updated_replicas);
    count(new.updated_replicas) > count(old.updated_replicas)
        || outdated(new) < outdated(old)
        || count(new.ready_replicas) > count(old.ready_replicas)
        || count(new.available_replicas) > count(old.available_replicas)
}

fn timed_out(deployment: &Deployment, status: &DeploymentStatus, now: Timestamp) -> bool {
    let (Some(deadline), Some(condition)) = (deadline(deployment), get(status, PROGRESSING)) else {
        return false;
    };
    match condition.reason.as_deref() {
        Some(NEW_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => left(condition, deadline, now).is_negative(),
    }
}

/// Time until a deployment without progress exceeds its deadline.
fn left(condition: &DeploymentCondition, deadline: i32, now: Timestamp) -> SignedDuration {
    let since = condition.last_update_time.as_ref().map_or(now, |time| time.0);
    time_left(SignedDuration::from_secs(deadline.into()), since, now)
}

/// Status during a rollout: counts, progress, and failures of the replica sets.
pub fn rollout(work: &Work<'_>, now: Timestamp) -> DeploymentStatus {
    let mut status = counts(work, now);
    let old = work.deployment.status.clone().unwrap_or_default();
    let current = get(&old, PROGRESSING).cloned();
    if deadline(work.original).is_none() {
        remove(&mut status, PROGRESSING);
    } else {
        let was_complete = current.as_ref().is_some_and(|c| c.reason.as_deref() == Some(NEW_AVAILABLE));
        let settled = was_complete && status.replicas == status.updated_replicas;
        if !settled {
            let subject = match work.new {
                Some(new) => {
                    format!("ReplicaSet \"{}\"", work.sets[new].metadata.name.as_deref().unwrap_or_default())
                }
                None => {
                    format!("Deployment \"{}\"", work.original.metadata.name.as_deref().unwrap_or_default())
                }
            };
            let before = work.original.status.clone().unwrap_or_default();
            if is_complete(work.original, &status) {
                let text = format!("{subject} has successfully progressed.");
                set(&mut status, condition(PROGRESSING, "True", NEW_AVAILABLE, text, now));
            } else if progresses(&before, &status) {
                let text = format!("{subject} is progressing.");
                let mut new = condition(PROGRESSING, "True", "ReplicaSetUpdated", text, now);
                // Every step counts as progress, even with the same reason: the deadline restarts.
                if let Some(current) = current.filter(|current| current.status == "True") {
                    new.last_transition_time = current.last_transition_time;
                }
                remove(&mut status, PROGRESSING);
                set(&mut status, new);
            } else if timed_out(work.original, &status, now) {
                let text = format!("{subject} has timed out progressing.");
                set(&mut status, condition(PROGRESSING, "False", TIMED_OUT, text, now));
            }
        }
    }
    match failure(work) {
        Some(failure) => set(&mut status, failure),
        None => remove(&mut status, REPLICA_FAILURE),
    }
    status
}

/// Replica failure condition, of the new replica set first.
fn failure(work: &Work<'_>) -> Option<DeploymentCondition> {
    let order = work.new.into_iter().chain(work.old());
    let failed = |at: usize| {
        let conditions = work.sets[at].status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == REPLICA_FAILURE)
    };
    let found = order.filter_map(failed).next()?;
    Some(DeploymentCondition {
        type_: REPLICA_FAILURE.to_owned(),
        status: found.status.clone(),
        reason: found.reason.clone(),
        message: found.message.clone(),
        last_transition_time: found.last_transition_time.clone(),
        last_update_time: found.last_transition_time.clone(),
    })
}

/// Time of the next check of the progress deadline.
pub fn next_requeue(deployment: &Deployment, now: Timestamp) -> Option<Duration> {
    let (deadline, status) = (deadline(deployment)?, deployment.status.as_ref()?);
    let condition = get(status, PROGRESSING)?;
    let settled = matches!(condition.reason.as_deref(), Some(TIMED_OUT | PAUSED));
    if settled || is_complete(deployment, status) || condition.reason.as_deref() == Some(NEW_AVAILABLE) {
        return None;
    }
    let left = left(condition, deadline, now);
    let left = if left.is_negative() { Duration::ZERO } else { left.unsigned_abs() };
    // One second more, so that the deadline has passed by then.
    Some(left.saturating_add(Duration::from_secs(1)))
}
