//! Right-sizing: the 95th percentile of usage against requests.

use serde::Serialize;

/// Advice about the request of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Advice {
    /// The request fits.
    Keep,
    /// Usage needs less than half of the request.
    Lower,
    /// Usage is above the request.
    Raise,
    /// There is no request.
    Set,
}

/// Fewer points than this are no basis for advice.
pub const FEWEST_POINTS: u64 = 20;
/// Percent of the 95th percentile that a request should be.
const HEADROOM: u64 = 115;

/// Advice for a request, and the request to choose; sizes are rounded up to a multiple of `step`.
pub fn advise(p95: u64, request: u64, step: u64) -> (Advice, u64) {
    let step = step.max(1);
    let wanted = u128::from(p95).saturating_mul(u128::from(HEADROOM)).div_ceil(100);
    let steps = wanted.div_ceil(u128::from(step)).max(1);
    let wanted = u64::try_from(steps.saturating_mul(u128::from(step))).unwrap_or(u64::MAX);
    let advice = if request == 0 {
        Advice::Set
    } else if p95 > request {
        Advice::Raise
    } else if wanted < request / 2 {
        Advice::Lower
    } else {
        return (Advice::Keep, request);
    };
    (advice, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_far_from_usage_are_advised_against() {
        assert_eq!(advise(100, 0, 5), (Advice::Set, 115));
        assert_eq!(advise(101, 1000, 5), (Advice::Lower, 120));
        assert_eq!(advise(300, 250, 5), (Advice::Raise, 345));
        assert_eq!(advise(200, 250, 5), (Advice::Keep, 250));
        assert_eq!(advise(0, 100, 5), (Advice::Lower, 5));
        assert_eq!(advise(u64::MAX, 1, 1), (Advice::Raise, u64::MAX));
    }
}
