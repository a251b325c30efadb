//! Sampling decisions: those of the parent, or a ratio of the traces without one.

use super::context::SpanContext;

/// A sampling rate of all traces, per million.
pub const MAX_SAMPLING_RATE: u32 = 1_000_000;

/// OpenTelemetry's `ParentBased(TraceIDRatioBased)` sampler, as Kubernetes configures it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// Trace IDs whose last 63 bits are below this number are sampled.
    bound: u64,
}

impl Sampler {
    /// Samples this many of a million traces without a parent.
    #[must_use]
    pub fn per_million(rate: u32) -> Self {
        let rate = u128::from(rate.min(MAX_SAMPLING_RATE));
        let bound = (rate << 63) / u128::from(MAX_SAMPLING_RATE);
        Self { bound: u64::try_from(bound).unwrap_or(u64::MAX) }
    }

    #[must_use]
    pub fn is_sampled(self, trace_id: &[u8; 16], parent: Option<&SpanContext>) -> bool {
        match parent {
            Some(parent) => parent.sampled,
            None => {
                let [.., a, b, c, d, e, f, g, h] = *trace_id;
                u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1 < self.bound
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(low: u64) -> [u8; 16] {
        let mut id = [0xab; 16];
        id[8..].copy_from_slice(&low.to_be_bytes());
        id
    }

    #[test]
    fn ratio_decides_without_parent() {
        for (rate, low, want) in [
            (0, 0, false),
            (1, 0, true),
            (MAX_SAMPLING_RATE, u64::MAX, true),
            (u32::MAX, u64::MAX, true),
            (500_000, u64::MAX / 2 - 1, true),
            (500_000, u64::MAX / 2 + 1, false),
            (999_999, u64::MAX, false),
        ] {
            assert_eq!(Sampler::per_million(rate).is_sampled(&id(low), None), want, "{rate} {low}");
        }
        let sampler = Sampler::per_million(250_000);
        let random = |at: u64| id(at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let sampled = (0..10_000).filter(|at| sampler.is_sampled(&random(*at), None)).count();
        assert!((2_300..2_700).contains(&sampled), "{sampled}");
    }

    #[test]
    fn parent_outranks_ratio() {
        let text = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let mut parent = SpanContext::parse(text).expect("valid");
        assert!(Sampler::per_million(0).is_sampled(&id(u64::MAX), Some(&parent)));
        parent.sampled = false;
        assert!(!Sampler::per_million(MAX_SAMPLING_RATE).is_sampled(&id(0), Some(&parent)));
    }
}
