//! How long a pod waits after it failed: twice as long each time, up to a limit.

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
        if failures == 0 {
            return SignedDuration::ZERO;
        }
        let doubled = 1i32.checked_shl(failures - 1).and_then(|factor| self.first.checked_mul(factor));
        doubled.filter(|wait| *wait <= self.longest && !wait.is_negative()).unwrap_or(self.longest)
    }

    /// When the pod may be tried again.
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
    fn waits_double_up_to_a_limit() {
        let waits: Vec<i64> = [0, 1, 2, 3, 4, 5, 40, u32::MAX]
            .map(|failures| Backoff::default().after(failures).as_secs())
            .into();
        assert_eq!(waits, [0, 1, 2, 4, 8, 10, 10, 10]);
    }
}
