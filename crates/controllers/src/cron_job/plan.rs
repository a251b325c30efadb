//! Pending actions of a cron job, and its requeue time. Pure.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use objects::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use objects::core::v1::ObjectReference;
use objects::meta::v1::{ObjectMeta, OwnerReference, Time};

use super::schedule::{self, Schedule};

/// Annotation of the job: its scheduled time, in the time zone of its cron job.
const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// Added to the requeue time, so that it is not too early.
const LATER: SignedDuration = SignedDuration::from_millis(100);

#[derive(Clone, Debug)]
pub struct ObservedCronJob {
    pub cron_job: Arc<CronJob>,
    /// Jobs it controls.
    pub jobs: Vec<Arc<Job>>,
    /// Entries of the active list whose jobs are confirmed to be deleted.
    pub missing: HashSet<String>,
    pub local: TimeZone,
    pub now: Timestamp,
}

/// An event about the cron job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

#[derive(Clone, Debug, Default)]
pub struct CronJobPlan {
    pub status: CronJobStatus,
    pub status_changed: bool,
    pub notices: Vec<Notice>,
    /// Running jobs to delete before the new one starts.
    pub replace: Vec<ObjectReference>,
    /// Job to start, and its scheduled time.
    pub start: Option<(Job, Timestamp)>,
    /// Finished jobs beyond the history limits.
    pub prune: Vec<Arc<Job>>,
    pub requeue_after: Option<SignedDuration>,
}

impl CronJobPlan {
    fn record(&mut self, warning: bool, reason: &'static str, message: String) {
        self.notices.push(Notice { warning, reason, message });
    }
}

/// Removes a job from the active list.
pub fn forget(status: &mut CronJobStatus, uid: &str) -> bool {
    let Some(active) = &mut status.active else { return false };
    let before = active.len();
    active.retain(|job| job.uid.as_deref() != Some(uid));
    let changed = active.len() != before;
    if active.is_empty() {
        status.active = None;
    }
    changed
}

/// Terminal condition of a job: `Complete` or `Failed`.
#[must_use]
pub fn ending(job: &Job) -> Option<&str> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let end = conditions.iter().find(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    })?;
    Some(end.type_.as_str())
}

#[must_use]
pub fn plan(observed: &ObservedCronJob) -> CronJobPlan {
    let cron_job = observed.cron_job.as_ref();
    let mut plan =
        CronJobPlan { status: cron_job.status.clone().unwrap_or_default(), ..CronJobPlan::default() };
    account(observed, &mut plan);
    if cron_job.metadata.deletion_timestamp.is_none() {
        start(observed, &mut plan);
    }
    prune(observed, &mut plan);
    plan
}

/// Updates the active list and the last successful time.
fn account(observed: &ObservedCronJob, plan: &mut CronJobPlan) {
    let is_active = |status: &CronJobStatus, uid: Option<&str>| {
        status.active.iter().flatten().any(|known| known.uid.as_deref() == uid)
    };
    for job in &observed.jobs {
        let (name, uid) = (job.metadata.name.as_deref().unwrap_or_default(), job.metadata.uid.as_deref());
        let Some(end) = ending(job) else {
            if !is_active(&plan.status, uid) {
                let message = format!("Saw a job that the controller did not create or forgot: {name}");
                plan.record(true, "UnexpectedJob", message);
            }
            continue;
        };
        if forget(&mut plan.status, uid.unwrap_or_default()) {
            plan.record(false, "SawCompletedJob", format!("Saw completed job: {name}, condition: {end}"));
            plan.status_changed = true;
        }
        let completed = job.status.as_ref().and_then(|status| status.completion_time.clone());
        if end == "Complete" && completed > plan.status.last_successful_time {
            plan.status.last_successful_time = completed;
            plan.status_changed = true;
        }
    }
    for gone in &observed.missing {
        let name = plan.status.active.iter().flatten().find(|known| known.uid.as_deref() == Some(gone));
        let name = name.and_then(|known| known.name.clone()).unwrap_or_default();
        if forget(&mut plan.status, gone) {
            plan.record(false, "MissingJob", format!("Active job went missing: {name}"));
            plan.status_changed = true;
        }
    }
}

/// Schedule with the time zone of the field, if it is set. A zone in the schedule itself has precedence.
fn schedule_text(spec: &CronJobSpec, plan: &mut CronJobPlan) -> String {
    if spec.schedule.contains("TZ") {
        let message = format!(
            "CRON_TZ or TZ used in schedule {:?} is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
            spec.schedule
        );
        plan.record(true, "UnsupportedSchedule", message);
        return spec.schedule.clone();
    }
    match &spec.time_zone {
        Some(name) => format!("TZ={name} {}", spec.schedule),
        None => spec.schedule.clone(),
    }
}

fn start(observed: &ObservedCronJob, plan: &mut CronJobPlan) {
    let cron_job = observed.cron_job.as_ref();
    let spec = &cron_job.spec;
    let now = observed.now;
    let named_zone = spec.time_zone.as_deref();
    if let Some(name) = named_zone.filter(|name| schedule::zone(name).is_none()) {
        let message = format!("invalid timeZone: {name:?}: unknown time zone {name}");
        return plan.record(true, "UnknownTimeZone", message);
    }
    if spec.suspend == Some(true) {
        return;
    }
    let text = schedule_text(spec, plan);
    let schedule = match Schedule::parse(&text) {
        Ok(schedule) => schedule,
        Err(error) => {
            let message = format!("unparseable schedule: {:?} : {error}", spec.schedule);
            return plan.record(true, "UnparseableSchedule", message);
        }
    };
    let since = |cron_job: &CronJob, status: &CronJobStatus| {
        let created = cron_job.metadata.creation_timestamp.as_ref();
        status.last_schedule_time.as_ref().or(created).map_or(now, |time| time.0)
    };
    let mut earliest = since(cron_job, &plan.status);
    if let Some(deadline) = spec.starting_deadline_seconds {
        let oldest = now.saturating_sub(SignedDuration::from_secs(deadline)).unwrap_or(earliest);
        earliest = earliest.max(oldest);
    }
    let (due, missed) = match most_recent(&schedule, earliest, now, &observed.local) {
        Ok(found) => found,
        Err(error) => {
            let message = format!("invalid schedule: {} : {error}", spec.schedule);
            return plan.record(true, "InvalidSchedule", message);
        }
    };
    plan.requeue_after = next_requeue(&schedule, since(cron_job, &plan.status), now, &observed.local);
    let Some(due) = due else { return };
    if missed > 100 {
        let message =
            "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
                .to_owned();
        plan.record(true, "TooManyMissedTimes", message);
    }
    let too_late = spec.starting_deadline_seconds.is_some_and(|deadline| {
        due.saturating_add(SignedDuration::from_secs(deadline)).is_ok_and(|end| end < now)
    });
    if too_late {
        let when = due.strftime("%a, %d %b %Y %H:%M:%S +0000");
        return plan.record(true, "MissSchedule", format!("Missed scheduled time to start a job: {when}"));
    }
    let job = make_job(cron_job, due, named_zone);
    let listed = plan.status.active.iter().flatten().any(|known| known.name == job.metadata.name);
    if listed || plan.status.last_schedule_time.as_ref().is_some_and(|last| last.0 == due) {
        return;
    }
    let running = plan.status.active.clone().unwrap_or_default();
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !running.is_empty() => {
            let message =
                "Not starting job because prior execution is running and concurrency policy is Forbid";
            return plan.record(false, "JobAlreadyActive", message.to_owned());
        }
        Some("Replace") => plan.replace = running,
        _ => {}
    }
    // Once the job has started, the next requeue time counts from it.
    plan.requeue_after = next_requeue(&schedule, due, now, &observed.local);
    plan.start = Some((job, due));
}

/// Schedule without times, such as the 31st of February. The text is that of Kubernetes, which compares zero times.
#[derive(Debug, thiserror::Error)]
#[error("time difference between two schedules is less than 1 second")]
struct NeverDue;

/// Last scheduled time between `earliest` and `now`, and the approximate number of such times.
fn most_recent(
    schedule: &Schedule,
    earliest: Timestamp,
    now: Timestamp,
    local: &TimeZone,
) -> Result<(Option<Timestamp>, i64), NeverDue> {
    let first = schedule.next(earliest, local).ok_or(NeverDue)?;
    if first > now {
        return Ok((None, 0));
    }
    let second = schedule.next(first, local).ok_or(NeverDue)?;
    if second > now {
        return Ok((Some(first), 0));
    }
    let period = second.duration_since(first).as_secs().max(1);
    let missed = now.duration_since(first).as_secs() / period + 1;
    // Regular schedules are near their end immediately; others are searched from a point surely before it.
    let jump =
        first.saturating_add(SignedDuration::from_secs((missed - 2).saturating_mul(period))).unwrap_or(first);
    let mut latest = None;
    let mut time = jump;
    while let Some(next) = schedule.next(time, local).filter(|next| *next <= now) {
        latest = Some(next);
        time = next;
    }
    Ok((latest, missed))
}

fn next_requeue(
    schedule: &Schedule,
    since: Timestamp,
    now: Timestamp,
    local: &TimeZone,
) -> Option<SignedDuration> {
    let from = match most_recent(schedule, since, now, local) {
        Ok((Some(recent), _)) => recent,
        Ok((None, 0)) => since,
        Ok((None, _)) | Err(NeverDue) => now,
    };
    let wait = schedule.next(from, local)?.duration_since(now).saturating_add(LATER);
    Some(wait.max(LATER))
}

fn make_job(cron_job: &CronJob, due: Timestamp, zone: Option<&str>) -> Job {
    let meta = &cron_job.metadata;
    let template = cron_job.spec.job_template.clone();
    let given = template.metadata.unwrap_or_default();
    let mut annotations = given.annotations.unwrap_or_default();
    // Without a time zone of its own Kubernetes writes UTC, whatever the machine's zone.
    let zone = zone.and_then(schedule::zone).unwrap_or(TimeZone::UTC);
    let zoned = due.to_zoned(zone.clone());
    let written = if zoned.offset().is_zero() && zone == TimeZone::UTC {
        zoned.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    } else {
        zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    };
    annotations.insert(SCHEDULED_AT.to_owned(), written);
    let name = meta.name.clone().unwrap_or_default();
    Job {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{}", due.as_second().div_euclid(60))),
            namespace: meta.namespace.clone(),
            labels: given.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![OwnerReference {
                api_version: "batch/v1".to_owned(),
                kind: "CronJob".to_owned(),
                name,
                uid: meta.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}

fn prune(observed: &ObservedCronJob, plan: &mut CronJobPlan) {
    let spec = &observed.cron_job.spec;
    for (end, limit) in
        [("Complete", spec.successful_jobs_history_limit), ("Failed", spec.failed_jobs_history_limit)]
    {
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else { continue };
        let mut jobs: Vec<_> = observed.jobs.iter().filter(|job| ending(job) == Some(end)).collect();
        let surplus = jobs.len().saturating_sub(limit);
        let key = |job: &Job| {
            let started = job.status.as_ref().and_then(|status| status.start_time.clone());
            (started.is_none(), started, job.metadata.name.clone())
        };
        jobs.sort_by_cached_key(|job| key(job));
        plan.prune.extend(jobs.into_iter().take(surplus).cloned());
    }
}

/// Records the job that was started.
pub fn record_start(status: &mut CronJobStatus, job: &Job, due: Timestamp) {
    status.active.get_or_insert_default().push(ObjectReference {
        api_version: Some("batch/v1".to_owned()),
        kind: Some("Job".to_owned()),
        name: job.metadata.name.clone(),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        resource_version: job.metadata.resource_version.clone(),
        ..ObjectReference::default()
    });
    status.last_schedule_time = Some(Time(due));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{meta, time};
    use objects::batch::v1::{JobCondition, JobStatus};

    const NOW: &str = "2026-01-01T10:30:20Z";

    fn cron_job(schedule: &str) -> CronJob {
        let mut metadata = meta("c");
        metadata.creation_timestamp = Some(Time("2026-01-01T09:30:00Z".parse().expect("a time")));
        let spec = CronJobSpec {
            schedule: schedule.into(),
            concurrency_policy: Some("Allow".into()),
            successful_jobs_history_limit: Some(1),
            failed_jobs_history_limit: Some(0),
            ..CronJobSpec::default()
        };
        CronJob { metadata, spec, status: None }
    }

    fn observe(cron_job: CronJob, jobs: Vec<Job>) -> ObservedCronJob {
        ObservedCronJob {
            cron_job: Arc::new(cron_job),
            jobs: jobs.into_iter().map(Arc::new).collect(),
            missing: HashSet::new(),
            local: TimeZone::UTC,
            now: NOW.parse().expect("a time"),
        }
    }

    fn job(name: &str, end: Option<&str>, second: i64) -> Job {
        let conditions = end.map(|end| {
            vec![JobCondition { type_: end.into(), status: "True".into(), ..JobCondition::default() }]
        });
        let completion_time = (end == Some("Complete")).then(|| time(second + 5));
        Job {
            metadata: meta(name),
            status: Some(JobStatus {
                conditions,
                start_time: Some(time(second)),
                completion_time,
                ..Default::default()
            }),
            ..Job::default()
        }
    }

    fn reasons(plan: &CronJobPlan) -> Vec<&str> {
        plan.notices.iter().map(|notice| notice.reason).collect()
    }

    #[test]
    fn latest_missed_time_starts_one_job() {
        let plan = plan(&observe(cron_job("*/10 * * * *"), vec![]));
        let (job, due) = plan.start.expect("a job");
        assert_eq!(due.to_string(), "2026-01-01T10:30:00Z");
        assert_eq!(job.metadata.name.as_deref(), Some(format!("c-{}", due.as_second() / 60).as_str()));
        assert_eq!(job.metadata.annotations.expect("annotations")[SCHEDULED_AT], "2026-01-01T10:30:00Z");
        assert_eq!(plan.requeue_after, Some(SignedDuration::from_millis(9 * 60_000 + 40_100)));
    }

    #[test]
    fn nothing_starts_early_twice_or_when_suspended() {
        let plan_of = |cron_job| plan(&observe(cron_job, vec![]));
        assert!(plan_of(cron_job("0 12 * * *")).start.is_none());
        let mut done = cron_job("*/10 * * * *");
        done.status = Some(CronJobStatus {
            last_schedule_time: Some(Time("2026-01-01T10:30:00Z".parse().expect("a time"))),
            ..Default::default()
        });
        let plan = plan_of(done);
        assert!(plan.start.is_none());
        assert_eq!(plan.requeue_after, Some(SignedDuration::from_millis(9 * 60_000 + 40_100)));
        let mut suspended = cron_job("*/10 * * * *");
        suspended.spec.suspend = Some(true);
        let plan = plan_of(suspended);
        assert!(plan.start.is_none() && plan.requeue_after.is_none());
    }

    #[test]
    fn missed_deadline_and_invalid_schedule_record_events() {
        let mut late = cron_job("0 10 * * *");
        late.spec.starting_deadline_seconds = Some(60);
        // The deadline moves the earliest time past the missed one, as in Kubernetes.
        assert!(plan(&observe(late, vec![])).start.is_none());
        assert_eq!(reasons(&plan(&observe(cron_job("x"), vec![]))), ["UnparseableSchedule"]);
        let mut nowhere = cron_job("* * * * *");
        nowhere.spec.time_zone = Some("Nowhere/Land".into());
        assert_eq!(reasons(&plan(&observe(nowhere, vec![]))), ["UnknownTimeZone"]);
        let mut old = cron_job("* * * * *");
        old.metadata.creation_timestamp = Some(Time("2025-12-01T00:00:00Z".parse().expect("a time")));
        let plan = plan(&observe(old, vec![]));
        assert_eq!(reasons(&plan), ["TooManyMissedTimes"]);
        assert_eq!(plan.start.expect("a job").1.to_string(), "2026-01-01T10:30:00Z");
    }

    #[test]
    fn concurrency_policy_decides_overlapping_jobs() {
        for (policy, started, replaced) in [("Allow", true, 0), ("Forbid", false, 0), ("Replace", true, 1)] {
            let mut busy = cron_job("*/10 * * * *");
            busy.spec.concurrency_policy = Some(policy.into());
            record_start(
                busy.status.get_or_insert_default(),
                &job("old", None, 0),
                "2026-01-01T10:00:00Z".parse().expect("a time"),
            );
            let plan = plan(&observe(busy, vec![job("old", None, 0)]));
            assert_eq!((plan.start.is_some(), plan.replace.len()), (started, replaced), "{policy}");
        }
    }

    #[test]
    fn schedule_without_times_is_invalid() {
        let plan = plan(&observe(cron_job("59 23 31 2 *"), vec![]));
        assert_eq!(reasons(&plan), ["InvalidSchedule"]);
        assert!(plan.start.is_none() && plan.requeue_after.is_none());
    }

    #[test]
    fn finished_jobs_leave_active_list_and_history_is_limited() {
        let mut cron = cron_job("0 12 * * *");
        let status = cron.status.get_or_insert_default();
        for name in ["a", "b", "lost"] {
            record_start(status, &job(name, None, 0), "2026-01-01T10:00:00Z".parse().expect("a time"));
        }
        let jobs =
            vec![job("a", Some("Complete"), 20), job("b", Some("Complete"), 10), job("f", Some("Failed"), 5)];
        let mut observed = observe(cron, jobs);
        observed.missing = HashSet::from(["uid-lost".to_owned()]);
        let plan = plan(&observed);
        assert_eq!(reasons(&plan), ["SawCompletedJob", "SawCompletedJob", "MissingJob"]);
        assert_eq!(plan.status.active, None);
        assert_eq!(plan.status.last_successful_time, Some(time(25)));
        let pruned: Vec<_> = plan.prune.iter().filter_map(|job| job.metadata.name.as_deref()).collect();
        assert_eq!(pruned, ["b", "f"]);
    }

    #[test]
    fn time_zone_decides_schedule_and_annotation() {
        let mut tokyo = cron_job("0 19 * * *");
        tokyo.spec.time_zone = Some("Asia/Tokyo".into());
        let (job, due) = plan(&observe(tokyo, vec![])).start.expect("a job");
        assert_eq!(due.to_string(), "2026-01-01T10:00:00Z");
        assert_eq!(job.metadata.annotations.expect("annotations")[SCHEDULED_AT], "2026-01-01T19:00:00+09:00");
    }
}
