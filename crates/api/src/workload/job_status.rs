//! Status subresource of jobs. Most rules apply only if the update changes the fields they concern, so that statuses
//! of older controllers can still be written.

use super::indexes;
use super::job_spec::invalid_without_value;
use super::status::validate_counters;
use crate::pod_spec::layout;
use crate::value::{Fields, is_zero};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};

/// A job's status and the state of its conditions.
struct Job<'a> {
    spec: &'a Value,
    status: &'a Value,
}

impl<'a> Job<'a> {
    fn of(job: &'a Value) -> Self {
        Self { spec: job.field("spec"), status: job.field("status") }
    }

    fn is(&self, condition: &str, status: &str) -> bool {
        let conditions = self.status.items("conditions");
        conditions.iter().any(|c| c.text("type") == condition && c.text("status") == status)
    }

    fn complete(&self) -> bool {
        self.is("Complete", "True")
    }

    fn failed(&self) -> bool {
        self.is("Failed", "True")
    }

    fn finished(&self) -> bool {
        self.complete() || self.failed()
    }

    fn indexed(&self) -> bool {
        self.spec.text("completionMode") == "Indexed"
    }
}

pub fn validate(new: &Value, old: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let (job, before) = (Job::of(new), Job::of(old));
    let path = Path::new("status");
    let counters = ["active", "succeeded", "failed", "ready", "terminating"];
    validate_counters(job.status, &counters, &path, &mut errors);
    validate_uncounted(job.status, &path.child("uncountedTerminatedPods"), &mut errors);
    validate_conditions_and_times(&job, &before, &path, &mut errors);
    validate_finished(&job, &before, &path, &mut errors);
    validate_indexes(&job, &before, &path, &mut errors);
    validate_counts(&job, &before, &path, &mut errors);
    validate_success(&job, &path.child("conditions"), &mut errors);
    validate_transitions(&job, &before, &path, &mut errors);
    errors
}

fn validate_uncounted(status: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let mut seen: Vec<&str> = Vec::new();
    for list in ["succeeded", "failed"] {
        let path = path.child(list);
        for (index, uid) in
            crate::value::texts(status.field("uncountedTerminatedPods").items(list)).enumerate()
        {
            let item = path.index(index);
            if uid.is_empty() {
                errors.push(FieldError::invalid_str(&item, uid, "must not be empty"));
            } else if seen.contains(&uid) {
                errors.push(FieldError::duplicate(&item, &Value::from(uid)));
            } else {
                seen.push(uid);
            }
        }
    }
}

fn changed(job: &Job<'_>, before: &Job<'_>, name: &str) -> bool {
    job.status.field(name) != before.status.field(name)
}

fn validate_conditions_and_times(job: &Job<'_>, before: &Job<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let conditions = path.child("conditions");
    let complete_changed = job.complete() != before.complete();
    let failed_changed = job.failed() != before.failed();
    let target = |job: &Job<'_>| job.is("FailureTarget", "True");
    let met = |job: &Job<'_>| job.is("SuccessCriteriaMet", "True");
    let mut reject = |detail: &str| errors.push(invalid_without_value(&conditions, detail));
    if (complete_changed || failed_changed) && job.complete() && job.failed() {
        reject("cannot set Complete=True and Failed=true conditions");
    }
    if (complete_changed || target(job) != target(before)) && job.complete() && target(job) {
        reject("cannot set Complete=True and FailureTarget=true conditions");
    }
    let (start, completion) = (job.status.field("startTime"), job.status.field("completionTime"));
    let completion_path = path.child("completionTime");
    let completion_changed = changed(job, before, "completionTime");
    if complete_changed || completion_changed {
        if !completion.is_null() && !job.complete() {
            let detail = "cannot set completionTime when there is no Complete=True condition";
            errors.push(FieldError::invalid(&completion_path, completion, detail));
        }
        if completion.is_null() && job.complete() {
            let detail = "completionTime is required for Complete jobs";
            errors.push(FieldError::required(&completion_path, detail));
        }
    }
    // Both are in UTC with seconds, so comparing texts compares times.
    if let (Some(start), Some(end)) = (start.as_str(), completion.as_str())
        && (changed(job, before, "startTime") || completion_changed)
        && end < start
    {
        let detail = "must be equal to or after `startTime`";
        errors.push(FieldError::invalid(&completion_path, completion, detail));
    }
    let mut reject = |detail: &str| errors.push(invalid_without_value(&conditions, detail));
    if (failed_changed || changed(job, before, "failedIndexes")) && job.failed() && !target(job) {
        reject("cannot set Failed=True condition without the FailureTarget=true condition");
    }
    if (complete_changed || met(job) != met(before)) && job.complete() && !met(job) {
        reject("cannot set Complete=True condition without the SuccessCriteriaMet=true condition");
    }
}

fn validate_finished(job: &Job<'_>, before: &Job<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    if !job.finished() {
        return;
    }
    let finished_changed = job.finished() != before.finished();
    let active = job.status.int("active");
    if (finished_changed || changed(job, before, "active")) && active > 0 {
        let detail = "active>0 is invalid for finished job";
        errors.push(FieldError::invalid(&path.child("active"), &Value::from(active), detail));
    }
    let nothing_to_do = job.spec.flag("suspend") && job.spec.opt_int("completions") == Some(0);
    let start_matters = (finished_changed || changed(job, before, "startTime")) && !nothing_to_do;
    if start_matters && !job.status.has("startTime") {
        let detail = "startTime is required for finished job";
        errors.push(FieldError::required(&path.child("startTime"), detail));
    }
    let uncounted = job.status.field("uncountedTerminatedPods");
    let some = !is_zero(uncounted.field("failed")) || !is_zero(uncounted.field("succeeded"));
    if (finished_changed || changed(job, before, "uncountedTerminatedPods")) && some {
        let shown = layout::internal_json("UncountedTerminatedPods", uncounted);
        let path = path.child("uncountedTerminatedPods");
        errors.push(FieldError::invalid_shown(&path, shown, "must be empty for finished job"));
    }
}

fn validate_indexes(job: &Job<'_>, before: &Job<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let (completed, failed) = (job.status.text("completedIndexes"), job.status.opt_text("failedIndexes"));
    let completed_changed = changed(job, before, "completedIndexes");
    let failed_changed = changed(job, before, "failedIndexes");
    let completions = job.spec.opt_int("completions");
    let (completed_path, failed_path) = (path.child("completedIndexes"), path.child("failedIndexes"));
    if let Some(completions) = completions {
        if let Some(problem) = indexes::count(completed, completions).err().filter(|_| completed_changed) {
            let detail = format!("error parsing completedIndexes: {problem}");
            errors.push(FieldError::invalid_str(&completed_path, completed, detail));
        }
        if let Some(list) = failed.filter(|_| failed_changed && job.spec.has("backoffLimitPerIndex"))
            && let Err(problem) = indexes::count(list, completions)
        {
            let detail = format!("error parsing failedIndexes: {problem}");
            errors.push(FieldError::invalid_str(&failed_path, list, detail));
        }
    }
    if completed_changed && !completed.is_empty() && !job.indexed() {
        let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
        errors.push(FieldError::invalid_str(&completed_path, completed, detail));
    }
    let Some(list) = failed else { return };
    if failed_changed && !job.spec.has("backoffLimitPerIndex") {
        let detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
        errors.push(FieldError::invalid_str(&failed_path, list, detail));
    }
    if let Some(completions) = completions.filter(|_| failed_changed || completed_changed)
        && let Some(index) = indexes::overlap(completed, list, completions)
    {
        let detail = format!("failedIndexes and completedIndexes overlap at index: {index}");
        errors.push(FieldError::invalid_str(&failed_path, list, detail));
    }
}

fn validate_counts(job: &Job<'_>, before: &Job<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let finished_changed = job.finished() != before.finished();
    let terminating = job.status.int("terminating");
    if (finished_changed || changed(job, before, "terminating")) && terminating > 0 && job.finished() {
        let detail = "terminating>0 is invalid for finished job";
        errors.push(FieldError::invalid(&path.child("terminating"), &Value::from(terminating), detail));
    }
    let ready = job.status.int("ready");
    let ready_matters = changed(job, before, "ready") || changed(job, before, "active");
    if ready_matters && job.status.has("ready") && ready > job.status.int("active") {
        let detail = "cannot set more ready pods than active";
        errors.push(FieldError::invalid(&path.child("ready"), &Value::from(ready), detail));
    }
}

fn validate_success(job: &Job<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let met = job.is("SuccessCriteriaMet", "True");
    let mut reject = |detail: &str| errors.push(invalid_without_value(path, detail));
    if met && job.failed() {
        reject("cannot set SuccessCriteriaMet=True and Failed=true conditions");
    }
    if met && job.is("FailureTarget", "True") {
        reject("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions");
    }
    if job.spec.has("successPolicy") && !met && job.complete() {
        reject("cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True");
    }
}

fn validate_transitions(job: &Job<'_>, before: &Job<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let conditions = path.child("conditions");
    for condition in ["Failed", "Complete", "FailureTarget"] {
        if before.is(condition, "True") && !job.is(condition, "True") {
            let detail = format!("cannot disable the terminal {condition}=True condition");
            errors.push(invalid_without_value(&conditions, &detail));
        }
    }
    let may_shrink = job.indexed() && job.spec.field("completions") == job.spec.field("parallelism");
    for name in ["failed", "succeeded"] {
        let count = job.status.int(name);
        if count < before.status.int(name) && !(name == "succeeded" && may_shrink) {
            let detail = format!("cannot decrease the {name} counter");
            errors.push(FieldError::invalid(&path.child(name), &Value::from(count), detail));
        }
    }
    let (new_end, old_end) = (job.status.field("completionTime"), before.status.field("completionTime"));
    if !new_end.is_null() && !old_end.is_null() && new_end != old_end {
        errors.push(FieldError::invalid(&path.child("completionTime"), new_end, "field is immutable"));
    }
    let resuming = before.is("Suspended", "True") && job.is("Suspended", "False");
    let start_moved = changed(job, before, "startTime") && before.status.has("startTime");
    if start_moved && !resuming && !job.spec.flag("suspend") {
        let detail = "field is immutable for unsuspended job once set";
        errors.push(FieldError::invalid(&path.child("startTime"), job.status.field("startTime"), detail));
    }
    let met = |job: &Job<'_>| job.is("SuccessCriteriaMet", "True");
    if met(before) && !met(job) {
        let detail = "cannot disable the SuccessCriteriaMet=True condition";
        errors.push(invalid_without_value(&conditions, detail));
    }
    if before.complete() && !met(before) && met(job) {
        let detail = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        errors.push(invalid_without_value(&conditions, detail));
    }
}
