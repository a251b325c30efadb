//! Tests of the pure parts of the job loop, one reconciliation at a time.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::SignedDuration;
use objects::batch::v1::{
    Job, JobSpec, JobStatus, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule,
    SuccessPolicy, SuccessPolicyRule,
};
use objects::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodSpec, PodTemplateSpec,
};
use objects::meta::v1::OwnerReference;

use super::account::{Account, JobOutcome, account, finish, settle};
use super::backoff::Backoff;
use super::observed::{
    COMPLETION_INDEX, FAILURE_COUNT, FINALIZER, IGNORED_FAILURE_COUNT, ObservedJob, is_true,
};
use super::plan::{Decision, NewPod, decide, make_pod};
use crate::shared::fixture::{at, controlled_by, meta, pod, ready_at, time};

fn job(change: impl FnOnce(&mut JobSpec)) -> Job {
    let mut spec = JobSpec {
        parallelism: Some(2),
        completions: Some(3),
        backoff_limit: Some(6),
        completion_mode: Some("NonIndexed".into()),
        template: PodTemplateSpec {
            spec: Some(PodSpec {
                containers: vec![Container { name: "main".into(), ..Container::default() }],
                restart_policy: Some("Never".into()),
                ..PodSpec::default()
            }),
            ..PodTemplateSpec::default()
        },
        ..JobSpec::default()
    };
    change(&mut spec);
    Job { metadata: meta("j"), spec: Some(spec), status: None }
}

fn tracked(name: &str, phase: &str) -> Pod {
    let mut pod = pod(name, phase);
    pod.metadata.finalizers = Some(vec![FINALIZER.into()]);
    pod.metadata.creation_timestamp = Some(time(10));
    pod
}

fn indexed(name: &str, phase: &str, index: u32) -> Pod {
    let mut pod = tracked(name, phase);
    pod.metadata.annotations.get_or_insert_default().insert(COMPLETION_INDEX.into(), index.to_string());
    pod
}

fn exited(mut pod: Pod, code: i32, second: i64) -> Pod {
    pod.status.get_or_insert_default().container_statuses = Some(vec![ContainerStatus {
        name: "main".into(),
        state: Some(ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: code,
                finished_at: Some(time(second)),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }]);
    pod
}

fn observe(job: Job, pods: Vec<Pod>) -> ObservedJob {
    ObservedJob {
        job: Arc::new(job),
        pods: pods.into_iter().map(Arc::new).collect(),
        released: HashSet::new(),
        backoff: Backoff::default(),
        settled: true,
        now: at(1000),
    }
}

/// Status after a reconciliation in which every write succeeds.
fn decide_and_count(observed: &ObservedJob) -> (Decision, Account, JobStatus, bool) {
    let decision = decide(observed);
    let ready = decision.delete.iter().filter(|pod| crate::shared::pod_facts::is_ready(pod)).count();
    let outcome =
        JobOutcome { deleted: decision.delete.len(), deleted_ready: ready, created: decision.create.len() };
    let account = account(observed, &decision, outcome);
    let mut status = account.status.clone();
    let mut left = account.tracked.clone();
    for pod in &account.release {
        left.remove(pod.metadata.uid.as_deref().unwrap_or_default());
    }
    settle(&mut status, &left);
    let finished = account.finished.as_ref().is_some_and(|finished| {
        !account.more && finish(&mut status, finished, account.terminating, observed.now)
    });
    (decision, account, status, finished)
}

fn conditions(status: &JobStatus) -> Vec<(&str, &str, &str)> {
    let conditions = status.conditions.iter().flatten();
    conditions
        .map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_deref().unwrap_or_default()))
        .collect()
}

#[test]
fn pods_are_created_up_to_parallelism_and_completions() {
    for (parallelism, completions, succeeded, running, expected) in [
        (Some(2), Some(3), 0, 0, 2),
        (Some(5), Some(3), 0, 0, 3),
        (Some(5), Some(3), 2, 0, 1),
        (Some(2), Some(3), 0, 1, 1),
        (Some(0), Some(3), 0, 0, 0),
        (Some(4), None, 0, 1, 3),
        // A work queue job with a success creates no more pods.
        (Some(4), None, 1, 1, 0),
    ] {
        let mut job = job(|spec| {
            spec.parallelism = parallelism;
            spec.completions = completions;
        });
        job.status = Some(JobStatus { succeeded: Some(succeeded), ..JobStatus::default() });
        let pods = (0..running).map(|n| tracked(&format!("p{n}"), "Running")).collect();
        let (decision, _, status, finished) = decide_and_count(&observe(job, pods));
        assert_eq!(decision.create.len(), expected, "{parallelism:?} {completions:?} {succeeded} {running}");
        assert_eq!(status.active, Some(running + expected as i32));
        assert!(status.start_time.is_some() && !finished);
    }
}

#[test]
fn unmet_expectations_create_nothing() {
    let mut observed = observe(job(|_| {}), vec![]);
    observed.settled = false;
    let decision = decide(&observed);
    assert!(decision.create.is_empty() && !decision.tended);
}

#[test]
fn interim_condition_precedes_completion() {
    let pods = ["a", "b", "c"].map(|name| exited(tracked(name, "Succeeded"), 0, 900));
    let (_, account, status, finished) = decide_and_count(&observe(job(|_| {}), pods.to_vec()));
    // First the uids and the interim condition are written, then finalizers removed, then the numbers and the
    // terminal condition.
    assert_eq!(conditions(&account.status), [("SuccessCriteriaMet", "True", "CompletionsReached")]);
    let uncounted = account.status.uncounted_terminated_pods.expect("uncounted");
    assert_eq!(uncounted.succeeded.map_or(0, |uids| uids.len()), 3);
    assert_eq!(account.release.len(), 3);
    assert!(finished);
    assert_eq!(status.succeeded, Some(3));
    assert_eq!(
        conditions(&status),
        [("SuccessCriteriaMet", "True", "CompletionsReached"), ("Complete", "True", "CompletionsReached")]
    );
    assert_eq!(status.completion_time, Some(time(1000)));
}

#[test]
fn restart_between_writes_counts_pod_once() {
    let mut job = job(|spec| spec.completions = Some(5));
    let done = exited(tracked("a", "Succeeded"), 0, 900);
    let (_, first, ..) = decide_and_count(&observe(job.clone(), vec![done.clone()]));
    // The status with the uid was written, then the process crashed before it removed the finalizer.
    job.status = Some(first.status.clone());
    let (_, again, status, _) = decide_and_count(&observe(job.clone(), vec![done.clone()]));
    assert!(
        again
            .status
            .uncounted_terminated_pods
            .as_ref()
            .is_some_and(|pods| pods.succeeded.as_ref().is_some_and(|uids| uids.len() == 1))
    );
    assert_eq!(status.succeeded, Some(1));
    // Or it crashed after that, and the pod is deleted.
    let (_, _, status, _) = decide_and_count(&observe(job.clone(), vec![]));
    assert_eq!(status.succeeded, Some(1));
    // Or the cache still shows the removed finalizer.
    let mut lagging = observe(job, vec![done]);
    lagging.released.insert("uid-a".into());
    let (_, account, status, _) = decide_and_count(&lagging);
    assert_eq!((account.release.len(), status.succeeded), (0, Some(1)));
}

#[test]
fn backoff_limit_fails_job_and_deletes_active_pods() {
    let job = job(|spec| spec.backoff_limit = Some(1));
    let pods = vec![
        exited(tracked("a", "Failed"), 1, 800),
        exited(tracked("b", "Failed"), 1, 810),
        ready_at(tracked("c", "Running"), 10),
    ];
    let (decision, account, status, finished) = decide_and_count(&observe(job.clone(), pods));
    assert_eq!(decision.delete.len(), 1);
    assert!(!decision.release_deleted);
    assert_eq!(conditions(&account.status), [("FailureTarget", "True", "BackoffLimitExceeded")]);
    assert!(!finished, "a pod still ends");
    assert_eq!(
        (status.active, status.ready, status.terminating, status.failed),
        (Some(0), Some(0), Some(1), Some(3))
    );
    // Once it is deleted, the job has failed.
    let mut job = job;
    job.status = Some(status);
    let (_, _, status, finished) = decide_and_count(&observe(job, vec![]));
    assert!(finished);
    assert_eq!(
        conditions(&status),
        [("FailureTarget", "True", "BackoffLimitExceeded"), ("Failed", "True", "BackoffLimitExceeded")]
    );
    assert_eq!(status.completion_time, None);
}

#[test]
fn failed_pod_delays_replacement() {
    let pods = vec![exited(tracked("a", "Failed"), 1, 995)];
    let (decision, _, status, _) = decide_and_count(&observe(job(|spec| spec.parallelism = Some(1)), pods));
    assert!(decision.create.is_empty());
    assert_eq!(decision.requeue_after, Some(SignedDuration::from_secs(5)));
    assert_eq!(status.failed, Some(1));
}

#[test]
fn active_deadline_fails_job() {
    let job_with = |started| {
        let mut job = job(|spec| spec.active_deadline_seconds = Some(100));
        job.status = Some(JobStatus { start_time: Some(time(started)), ..JobStatus::default() });
        job
    };
    let (decision, _, _, finished) = decide_and_count(&observe(job_with(950), vec![]));
    assert!(!finished);
    assert_eq!(decision.requeue_after, Some(SignedDuration::from_secs(50)));
    let (_, _, status, finished) = decide_and_count(&observe(job_with(900), vec![]));
    assert!(finished && is_true(&status, "Failed"));
    assert_eq!(conditions(&status)[1].2, "DeadlineExceeded");
}

#[test]
fn suspend_deletes_pods_uncounted_and_resume_resets_start_time() {
    let mut suspended = job(|spec| spec.suspend = Some(true));
    suspended.status = Some(JobStatus { start_time: Some(time(5)), ..JobStatus::default() });
    let (decision, account, status, _) = decide_and_count(&observe(suspended, vec![tracked("a", "Running")]));
    assert!(decision.release_deleted && decision.delete.len() == 1);
    assert_eq!(conditions(&status), [("Suspended", "True", "JobSuspended")]);
    assert_eq!((status.start_time.clone(), status.failed.unwrap_or(0)), (None, 0));
    assert_eq!(account.notices[0].reason, "Suspended");
    let mut resumed = job(|spec| spec.suspend = Some(false));
    resumed.status = Some(status);
    let (decision, account, status, _) = decide_and_count(&observe(resumed, vec![]));
    assert_eq!(decision.create.len(), 2);
    assert_eq!(conditions(&status), [("Suspended", "False", "JobResumed")]);
    assert_eq!(status.start_time, Some(time(1000)));
    assert_eq!(account.notices[0].reason, "Resumed");
}

#[test]
fn indexes_are_filled_in_order_without_duplicates() {
    let job = job(|spec| {
        spec.completion_mode = Some("Indexed".into());
        spec.completions = Some(5);
        spec.parallelism = Some(3);
    });
    let pods = vec![
        exited(indexed("a", "Succeeded", 0), 0, 900),
        indexed("b", "Running", 2),
        indexed("c", "Pending", 2),
        indexed("d", "Running", 9),
        tracked("e", "Running"),
    ];
    let (decision, ..) = decide_and_count(&observe(job.clone(), pods.clone()));
    let mut deleted: Vec<_> = decision.delete.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
    deleted.sort_unstable();
    assert_eq!(deleted, ["c", "d", "e"]);
    let (decision, _, status, _) = decide_and_count(&observe(job, pods[..2].to_vec()));
    assert_eq!(decision.create.iter().filter_map(|new| new.index).collect::<Vec<_>>(), [1, 3]);
    assert_eq!((status.completed_indexes.as_deref(), status.succeeded), (Some("0"), Some(1)));
}

#[test]
fn backoff_limit_per_index_fails_index() {
    let job = job(|spec| {
        spec.completion_mode = Some("Indexed".into());
        spec.completions = Some(3);
        spec.parallelism = Some(3);
        spec.backoff_limit = Some(i32::MAX);
        spec.backoff_limit_per_index = Some(1);
    });
    let mut worn = exited(indexed("a", "Failed", 0), 1, 900);
    worn.metadata.annotations.get_or_insert_default().insert(FAILURE_COUNT.into(), "1".into());
    let first = exited(indexed("b", "Failed", 1), 1, 900);
    let recent = exited(indexed("c", "Failed", 2), 1, 999);
    let (decision, account, status, _) = decide_and_count(&observe(job.clone(), vec![worn, first, recent]));
    assert_eq!(decision.create, [NewPod { index: Some(1), failures: Some((1, 0)) }]);
    assert_eq!(status.failed_indexes.as_deref(), Some("0"));
    // Pods that await a replacement keep their finalizer: it carries the count.
    let released: Vec<_> = account.release.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
    assert_eq!(released, ["a"]);
    let mut over = job;
    over.status = Some(JobStatus {
        completed_indexes: Some("1,2".into()),
        failed_indexes: Some("0".into()),
        ..JobStatus::default()
    });
    let (_, _, status, finished) = decide_and_count(&observe(over, vec![]));
    assert!(finished);
    assert_eq!(conditions(&status)[1], ("Failed", "True", "FailedIndexes"));
}

#[test]
fn policies_decide_success_and_failure() {
    let leader = job(|spec| {
        spec.completion_mode = Some("Indexed".into());
        let rule = SuccessPolicyRule { succeeded_indexes: Some("0".into()), succeeded_count: None };
        spec.success_policy = Some(SuccessPolicy { rules: vec![rule] });
    });
    let pods = vec![exited(indexed("a", "Succeeded", 0), 0, 900), indexed("b", "Running", 1)];
    let (decision, _, status, _) = decide_and_count(&observe(leader, pods));
    assert_eq!(decision.delete.len(), 1);
    assert_eq!(conditions(&status), [("SuccessCriteriaMet", "True", "SuccessPolicy")]);
    assert_eq!(status.failed.unwrap_or(0), 0, "pods that a success stops have not failed");

    let rule = |action: &str, code| PodFailurePolicyRule {
        action: action.into(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: None,
            operator: "In".into(),
            values: vec![code],
        }),
        on_pod_conditions: None,
    };
    let strict = job(|spec| {
        spec.pod_failure_policy =
            Some(PodFailurePolicy { rules: vec![rule("Ignore", 3), rule("FailJob", 42)] });
    });
    let (_, account, status, _) =
        decide_and_count(&observe(strict.clone(), vec![exited(tracked("a", "Failed"), 3, 1)]));
    assert_eq!((account.release.len(), status.failed.unwrap_or(0)), (1, 0));
    let (_, _, status, finished) =
        decide_and_count(&observe(strict.clone(), vec![exited(tracked("a", "Failed"), 42, 1)]));
    assert!(finished);
    assert_eq!(conditions(&status)[0], ("FailureTarget", "True", "PodFailurePolicy"));
    // Such a job waits for the termination of a deleted pod before it replaces it.
    let mut deleted = tracked("a", "Running");
    deleted.metadata.deletion_timestamp = Some(time(990));
    let (decision, _, status, _) = decide_and_count(&observe(strict, vec![deleted]));
    assert_eq!((decision.create.len(), status.terminating, status.failed.unwrap_or(0)), (1, Some(1), 0));
}

#[test]
fn restarts_count_with_on_failure_policy() {
    let job = job(|spec| {
        spec.backoff_limit = Some(3);
        spec.template.spec.get_or_insert_default().restart_policy = Some("OnFailure".into());
    });
    let restarting = |count| {
        let mut pod = tracked("a", "Running");
        pod.status.get_or_insert_default().container_statuses =
            Some(vec![ContainerStatus { name: "main".into(), restart_count: count, ..Default::default() }]);
        pod
    };
    assert!(decide(&observe(job.clone(), vec![restarting(2)])).finishing.is_none());
    assert!(decide(&observe(job, vec![restarting(3)])).finishing.is_some());
}

#[test]
fn indexed_pods_have_index_annotation_and_label() {
    let job = job(|spec| spec.completion_mode = Some("Indexed".into()));
    let pod = make_pod(&job, &NewPod { index: Some(4), failures: Some((1, 2)) }, OwnerReference::default());
    assert_eq!(pod.metadata.generate_name.as_deref(), Some("j-4-"));
    let annotations = pod.metadata.annotations.expect("annotations");
    assert_eq!((&*annotations[FAILURE_COUNT], &*annotations[IGNORED_FAILURE_COUNT]), ("1", "2"));
    assert_eq!(pod.metadata.labels.expect("labels")[COMPLETION_INDEX], "4");
    let spec = pod.spec.expect("a spec");
    assert_eq!(spec.hostname.as_deref(), Some("j-4"));
    assert_eq!(spec.containers[0].env.as_ref().map(|env| env[0].name.as_str()), Some("JOB_COMPLETION_INDEX"));
    assert_eq!(pod.metadata.finalizers, Some(vec![FINALIZER.to_owned()]));
}

#[test]
fn pods_have_job_labels_and_owner() {
    assert_eq!(super::job_of(&controlled_by(pod("p", "Running"), "Job", "j")).to_string(), "ns/j");
    assert!(super::job_of(&controlled_by(pod("p", "Running"), "ReplicaSet", "j")).name.is_empty());
}

#[test]
fn active_deadline_of_any_length_does_not_overflow() {
    let long = job(|spec| spec.active_deadline_seconds = Some(i64::MAX));
    let observed = observe(long, vec![]);
    // The start is after the present where clocks differ.
    for start in [time(0), time(1_000), time(9_000_000_000)] {
        assert!(observed.deadline_in(Some(&start)).is_some_and(|left| left.is_positive()));
    }
}
