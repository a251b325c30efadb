//! Backoff before a job replaces failed pods: 10 s doubled per failure since the last success, at most 10 min.

use std::collections::HashMap;
use std::time::Duration;

use base::clock::time_left;
use jiff::{SignedDuration, Timestamp};
use objects::core::v1::{ContainerStatus, Pod};

use crate::shared::pod_facts;

const DELAYS: base::backoff::Backoff =
    base::backoff::Backoff::new(Duration::from_secs(10), Duration::from_secs(600));

/// Failures of a job since its last success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    pub failures: u32,
    pub last_failure: Option<Timestamp>,
}

impl Backoff {
    /// Record updated with these finished pods.
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

    /// Remaining backoff; zero if pods may be created.
    #[must_use]
    pub fn remaining(self, now: Timestamp) -> SignedDuration {
        let (1.., Some(last)) = (self.failures, self.last_failure) else { return SignedDuration::ZERO };
        let wait = SignedDuration::try_from(DELAYS.after(self.failures)).unwrap_or(SignedDuration::MAX);
        time_left(wait, last, now).max(SignedDuration::ZERO)
    }
}

/// Finish time of the pod: its last container's end, else the end of its readiness, else its deletion time.
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

/// Records of all jobs, by key; kept in memory only, as in Kubernetes.
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
    use crate::shared::fixture::{at, pod, time};

    fn deleted(second: i64) -> Pod {
        let mut pod = pod("p", "Failed");
        pod.metadata.deletion_timestamp = Some(time(second + 30));
        pod.metadata.deletion_grace_period_seconds = Some(30);
        pod
    }

    #[test]
    fn backoff_doubles_and_resets_on_success() {
        let none = Backoff::default();
        assert_eq!(none.remaining(at(0)), SignedDuration::ZERO);
        let (a, b) = (deleted(100), deleted(120));
        let two = none.after(&[], &[&b, &a]);
        assert_eq!(two, Backoff { failures: 2, last_failure: Some(at(120)) });
        assert_eq!(two.remaining(at(125)), SignedDuration::from_secs(15));
        assert_eq!(two.remaining(at(150)), SignedDuration::ZERO);
        assert_eq!(two.after(&[], &[]), two);
        let many = Backoff { failures: 40, last_failure: Some(at(0)) };
        assert_eq!(many.remaining(at(0)), SignedDuration::from_secs(600));
        let success = deleted(110);
        assert_eq!(many.after(&[&success], &[&a, &b]), Backoff { failures: 1, last_failure: Some(at(120)) });
        assert_eq!(many.after(&[&b], &[&a]), none);
    }
}
