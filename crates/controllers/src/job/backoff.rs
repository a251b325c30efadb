//! How long a job waits before it replaces failed pods: 10 s doubled per failure since the last success, at most 10 min.

use std::collections::HashMap;

use base::clock::time_left;
use jiff::{SignedDuration, Timestamp};
use objects::core::v1::{ContainerStatus, Pod};

use crate::pod_facts;

const FIRST: SignedDuration = SignedDuration::from_secs(10);
const LONGEST: SignedDuration = SignedDuration::from_secs(600);

/// Failures of a job since its last success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    pub failures: u32,
    pub last_failure: Option<Timestamp>,
}

impl Backoff {
    /// The record after these pods were found finished.
    #[must_use]
    pub fn after(self, succeeded: &[&Pod], failed: &[&Pod]) -> Self {
        let mut failures: Vec<_> = failed.iter().map(|pod| finished_at(pod)).collect();
        failures.sort_unstable();
        let Some(success) = succeeded.iter().map(|pod| finished_at(pod)).max() else {
            return match failures.last() {
                None => self,
                Some(&last) => Self {
                    failures: self.failures.saturating_add(failures.len() as u32),
                    last_failure: Some(last),
                },
            };
        };
        let later = failures.iter().filter(|&&time| time > success).count() as u32;
        Self { failures: later, last_failure: failures.last().copied().filter(|_| later > 0) }
    }

    /// How long is left to wait; zero when pods may be created.
    #[must_use]
    pub fn remaining(self, now: Timestamp) -> SignedDuration {
        let (1.., Some(last)) = (self.failures, self.last_failure) else { return SignedDuration::ZERO };
        let doublings = (self.failures - 1).min(16);
        let wait = FIRST.saturating_mul(1_i32 << doublings).min(LONGEST);
        time_left(wait, last, now).max(SignedDuration::ZERO)
    }
}

/// When the pod finished: its last container's end, else when it ceased to be ready, else when it was asked to go.
#[must_use]
pub fn finished_at(pod: &Pod) -> Timestamp {
    let deleted = || {
        let deletion = pod.metadata.deletion_timestamp.as_ref()?.0;
        let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
        deletion.checked_sub(grace).ok()
    };
    let unready = || {
        let condition = pod_facts::condition(pod, "Ready").filter(|condition| condition.status == "False")?;
        Some(condition.last_transition_time.as_ref()?.0)
    };
    containers_end(pod)
        .or_else(unready)
        .or_else(deleted)
        .or_else(|| pod.metadata.creation_timestamp.as_ref().map(|time| time.0))
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

fn containers_end(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let end = |status: &ContainerStatus| {
        status.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0)
    };
    let sidecar = |name: &str| {
        let inits = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        inits.into_iter().any(|init| init.name == name && init.restart_policy.as_deref() == Some("Always"))
    };
    let main = status.container_statuses.iter().flatten();
    let sidecars = status.init_container_statuses.iter().flatten().filter(|status| sidecar(&status.name));
    let mut latest = None;
    for container in main.chain(sidecars) {
        latest = latest.max(Some(end(container)?));
    }
    latest
}

/// The records of all jobs, by key; they live as long as the process, as in Kubernetes.
#[derive(Debug, Default)]
pub struct Backoffs(parking_lot::Mutex<HashMap<String, Backoff>>);

impl Backoffs {
    pub fn get(&self, key: &str) -> Backoff {
        self.0.lock().get(key).copied().unwrap_or_default()
    }

    pub fn set(&self, key: &str, record: Backoff) {
        self.0.lock().insert(key.to_owned(), record);
    }

    pub fn forget(&self, key: &str) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{at, pod, time};

    fn deleted(second: i64) -> Pod {
        let mut pod = pod("p", "Failed");
        pod.metadata.deletion_timestamp = Some(time(second + 30));
        pod.metadata.deletion_grace_period_seconds = Some(30);
        pod
    }

    #[test]
    fn waits_double_and_end_with_a_success() {
        let none = Backoff::default();
        assert_eq!(none.remaining(at(0)), SignedDuration::ZERO);
        let (a, b) = (deleted(100), deleted(120));
        let two = none.after(&[], &[&b, &a]);
        assert_eq!(two, Backoff { failures: 2, last_failure: Some(at(120)) });
        assert_eq!(two.remaining(at(125)), SignedDuration::from_secs(15));
        assert_eq!(two.remaining(at(150)), SignedDuration::ZERO);
        assert_eq!(two.after(&[], &[]), two);
        let many = Backoff { failures: 40, last_failure: Some(at(0)) };
        assert_eq!(many.remaining(at(0)), LONGEST);
        let success = deleted(110);
        assert_eq!(many.after(&[&success], &[&a, &b]), Backoff { failures: 1, last_failure: Some(at(120)) });
        assert_eq!(many.after(&[&b], &[&a]), none);
    }
}
