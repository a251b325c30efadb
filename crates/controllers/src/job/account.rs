//! Counts finished pods exactly once: their uids go into the status, then their finalizers are removed, then the uids
//! become numbers. A crash between any two steps loses nothing and counts nothing twice. Pure.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use objects::batch::v1::{JobCondition, JobStatus};
use objects::core::v1::Pod;
use objects::meta::v1::Time;

use super::observed::{ObservedJob, completion_index, condition, ensure_condition, new_condition, uid};
use super::plan::{Decision, terminal};
use crate::shared::pod_facts;

/// Maximum number of uids in the status; the rest waits for the next reconciliation.
const MOST_UNCOUNTED: usize = 500;

/// Results of the deletions and creations of a [`Decision`].
#[derive(Clone, Copy, Debug, Default)]
pub struct JobOutcome {
    pub deleted: usize,
    pub deleted_ready: usize,
    pub created: usize,
}

/// An event about the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub warning: bool,
    pub reason: String,
    pub message: String,
}

/// Status after a reconciliation, and the finalizers to remove once it is written.
#[derive(Clone, Debug, Default)]
pub struct Account {
    pub status: JobStatus,
    /// True if the status must be written before finalizers are removed.
    pub write: bool,
    pub release: Vec<Arc<Pod>>,
    /// Pods that still hold the finalizer.
    pub tracked: HashSet<String>,
    /// Terminal condition, once nothing is left to count.
    pub finished: Option<JobCondition>,
    /// True if not all uids fit.
    pub more: bool,
    pub terminating: i32,
    pub notices: Vec<Notice>,
}

/// Computes the status after the decision's deletions and creations.
#[must_use]
pub fn account(observed: &ObservedJob, decision: &Decision, outcome: JobOutcome) -> Account {
    let now = observed.now;
    let spec = observed.spec();
    let before = observed.job.status.clone().unwrap_or_default();
    let mut status = decision.status.clone();
    let mut finishing = decision.finishing.clone();
    let all_active = decision.active.len();
    if finishing.is_some() && (outcome.deleted < all_active || !observed.settled) {
        finishing = None;
    }
    let active = (all_active + outcome.created).saturating_sub(outcome.deleted);
    let was_ready = decision.active.iter().filter(|pod| pod_facts::is_ready(pod)).count();
    let ready = was_ready.saturating_sub(outcome.deleted_ready);
    let was_terminating = observed.pods.iter().filter(|pod| pod_facts::is_terminating(pod)).count();
    let terminating = number(was_terminating + outcome.deleted);
    let mut notices = Vec::new();
    let mut write = false;
    if decision.finishing.is_none() {
        let complete = active == 0
            && match spec.completions {
                None => decision.succeeded > 0,
                Some(completions) => decision.succeeded >= i64::from(completions),
            };
        if complete {
            let message = "Reached expected number of succeeded pods";
            finishing = Some(new_condition("SuccessCriteriaMet", "True", "CompletionsReached", message, now));
        } else if decision.tended {
            write |= report_suspension(&mut status, spec.suspend == Some(true), now, &mut notices);
        }
    }
    write |= before.active.unwrap_or(0) != number(active)
        || before.ready != Some(number(ready))
        || before.terminating != Some(terminating)
        || before.start_time != status.start_time;
    status.active = Some(number(active));
    status.ready = Some(number(ready));
    status.terminating = Some(terminating);

    let tracked: HashSet<String> =
        observed.pods.iter().filter(|pod| observed.is_tracked(pod)).map(|pod| uid(pod).to_owned()).collect();
    write |= settle(&mut status, &tracked);
    let mut account = Account { status, write, tracked, terminating, notices, ..Account::default() };
    collect(observed, decision, finishing.as_ref(), &mut account);
    if observed.is_indexed() {
        record_indexes(decision, &mut account);
    }
    if let Some(interim) = finishing {
        account.finished = Some(match interim.type_.as_str() {
            "FailureTarget" => announce(&mut account, &interim, "Failed", now),
            "SuccessCriteriaMet" => announce(&mut account, &interim, "Complete", now),
            _ => interim,
        });
    }
    account
}

/// Adds the interim condition if it is new, and returns the terminal one.
fn announce(account: &mut Account, interim: &JobCondition, kind: &str, now: Timestamp) -> JobCondition {
    if condition(&account.status, &interim.type_).is_none_or(|known| known.status != "True") {
        ensure_condition(&mut account.status, interim.clone());
        account.write = true;
    }
    terminal(kind, interim, now)
}

fn report_suspension(
    status: &mut JobStatus,
    suspended: bool,
    now: Timestamp,
    notices: &mut Vec<Notice>,
) -> bool {
    let (value, reason, message, event) = if suspended {
        ("True", "JobSuspended", "Job suspended", "Suspended")
    } else {
        ("False", "JobResumed", "Job resumed", "Resumed")
    };
    if !ensure_condition(status, new_condition("Suspended", value, reason, message, now)) {
        return false;
    }
    notices.push(Notice { warning: false, reason: event.into(), message: message.into() });
    status.start_time = (!suspended).then_some(Time(now));
    true
}

/// Adds newly finished pods to the status and lists finalizers to remove.
fn collect(
    observed: &ObservedJob,
    decision: &Decision,
    finishing: Option<&JobCondition>,
    account: &mut Account,
) {
    let failing = finishing.is_some_and(|condition| condition.type_ != "SuccessCriteriaMet");
    let ending = finishing.is_some() || observed.job.metadata.deletion_timestamp.is_some();
    let uncounted = account.status.uncounted_terminated_pods.get_or_insert_default();
    let known: HashSet<String> =
        uncounted.succeeded.iter().chain(&uncounted.failed).flatten().cloned().collect();
    let known_failed: HashSet<String> = uncounted.failed.iter().flatten().cloned().collect();
    let mut pods: Vec<_> = observed.pods.iter().filter(|pod| observed.is_tracked(pod)).collect();
    if observed.is_indexed() {
        pods.sort_by_key(|pod| completion_index(pod));
    }
    let mut count = known.len();
    for pod in pods {
        let failed = observed.counts_as_failed(pod);
        let succeeded = pod_facts::is_succeeded(pod);
        let index = observed.valid_index(pod);
        let awaited =
            index.and_then(|index| decision.awaiting.get(&index)).is_some_and(|known| uid(known) == uid(pod));
        if !(ending || succeeded || (failed && !awaited)) {
            continue;
        }
        account.release.push(Arc::clone(pod));
        if succeeded && !known_failed.contains(uid(pod)) {
            if observed.is_indexed() {
                if index.is_some_and(|index| !decision.recorded_succeeded.contains(index)) {
                    count += 1;
                    account.write = true;
                }
            } else if !known.contains(uid(pod)) {
                uncounted.succeeded.get_or_insert_default().push(uid(pod).to_owned());
                count += 1;
                account.write = true;
            }
        } else if (failed || failing)
            && !known_failed.contains(uid(pod))
            && (!observed.is_indexed() || index.is_some())
            && observed.judge(pod).counts()
        {
            uncounted.failed.get_or_insert_default().push(uid(pod).to_owned());
            count += 1;
            account.write = true;
        }
        if count >= MOST_UNCOUNTED {
            account.more = true;
            break;
        }
    }
}

fn record_indexes(decision: &Decision, account: &mut Account) {
    let status = &mut account.status;
    let text = decision.succeeded_indexes.to_string();
    if status.completed_indexes.as_deref().unwrap_or_default() != text {
        account.write = true;
    }
    status.succeeded = Some(number(decision.succeeded_indexes.len()));
    status.completed_indexes = Some(text).filter(|text| !text.is_empty());
    let failed = decision.failed_indexes.as_ref().map(ToString::to_string);
    if status.failed_indexes != failed {
        status.failed_indexes = failed;
        account.write = true;
    }
}

/// Converts uids of pods without the finalizer to numbers.
pub fn settle(status: &mut JobStatus, tracked: &HashSet<String>) -> bool {
    let Some(uncounted) = &mut status.uncounted_terminated_pods else { return false };
    let count = |uids: &mut Option<Vec<String>>, total: &mut Option<i32>| {
        let Some(list) = uids else { return false };
        let all = list.len();
        list.retain(|uid| tracked.contains(uid));
        let gone = all - list.len();
        if list.is_empty() {
            *uids = None;
        }
        *total = Some(total.unwrap_or(0).saturating_add(number(gone)));
        gone > 0
    };
    let succeeded = count(&mut uncounted.succeeded, &mut status.succeeded);
    let failed = count(&mut uncounted.failed, &mut status.failed);
    succeeded || failed
}

/// Sets the terminal condition if nothing is left to count and no pod is terminating.
pub fn finish(status: &mut JobStatus, finished: &JobCondition, terminating: i32, now: Timestamp) -> bool {
    let uncounted = status.uncounted_terminated_pods.as_ref();
    let left = uncounted.map_or(0, |pods| {
        pods.succeeded.as_ref().map_or(0, Vec::len) + pods.failed.as_ref().map_or(0, Vec::len)
    });
    if left > 0 || terminating > 0 {
        return false;
    }
    let (reason, message) = (finished.reason.as_deref(), finished.message.as_deref());
    let wanted =
        new_condition(&finished.type_, "True", reason.unwrap_or_default(), message.unwrap_or_default(), now);
    ensure_condition(status, wanted);
    if finished.type_ == "Complete" {
        status.completion_time = Some(Time(now));
    }
    true
}

/// Event of a job that has just finished.
#[must_use]
pub fn ending_notices(status: &JobStatus, completions: Option<i32>, finished: &JobCondition) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut record = |warning, reason: &str, message: &str| {
        notices.push(Notice { warning, reason: reason.to_owned(), message: message.to_owned() });
    };
    if finished.type_ == "Complete" {
        if completions.is_some_and(|completions| status.succeeded.unwrap_or(0) > completions) {
            let message = "Too many succeeded pods running after completion count reached";
            record(true, "TooManySucceededPods", message);
        }
        record(false, "Completed", "Job completed");
    } else {
        let (reason, message) = (finished.reason.as_deref(), finished.message.as_deref());
        record(true, reason.unwrap_or_default(), message.unwrap_or_default());
    }
    notices
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
