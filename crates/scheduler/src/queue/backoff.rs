//! Backoff of failed pods: doubles with each failure, up to a limit.

use jiff::{SignedDuration, Timestamp};

use super::QueuedPod;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub first: SignedDuration,
    pub longest: SignedDuration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: SignedDuration::from_secs(1), longest: SignedDuration::from_secs(10) }
    }
}

impl Backoff {
    fn after(&self, failures: u32) -> SignedDuration {
        let delays = base::backoff::Backoff::new(self.first.unsigned_abs(), self.longest.unsigned_abs());
        SignedDuration::try_from(delays.after(failures)).unwrap_or(self.longest)
    }

    /// End of the pod's backoff.
    #[must_use]
    pub fn until(&self, pod: &QueuedPod) -> Timestamp {
        let failures = if pod.errors > 0 { pod.errors } else { pod.unschedulable };
        pod.since.saturating_add(self.after(failures)).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_limit() {
        let waits: Vec<i64> = [0, 1, 2, 3, 4, 5, 40, u32::MAX]
            .map(|failures| Backoff::default().after(failures).as_secs())
            .into();
        assert_eq!(waits, [0, 1, 2, 4, 8, 10, 10, 10]);
    }
}
