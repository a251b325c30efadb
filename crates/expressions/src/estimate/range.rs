//! Ranges of sizes and costs with saturating arithmetic.

/// Minimum and maximum, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub min: u64,
    pub max: u64,
}

impl Range {
    pub const ZERO: Self = Self::exactly(0);
    pub const ONE: Self = Self::exactly(1);
    /// Unknown size.
    pub const ANY: Self = Self::up_to(u64::MAX);

    pub const fn exactly(value: u64) -> Self {
        Self { min: value, max: value }
    }

    pub const fn up_to(max: u64) -> Self {
        Self { min: 0, max }
    }

    /// Initial value of a union.
    pub const fn none() -> Self {
        Self { min: u64::MAX, max: 0 }
    }

    pub fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// Multiplies by a factor, rounding up.
    pub fn scaled(self, factor: f64) -> Self {
        Self { min: scale(self.min, factor), max: scale(self.max, factor) }
    }

    /// Smallest range that contains both.
    pub fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "costs are estimates; the cast back saturates"
)]
fn scale(value: u64, factor: f64) -> u64 {
    (value as f64 * factor).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Range::ANY.plus(Range::ONE), Range { min: 1, max: u64::MAX });
        assert_eq!(Range::ANY.times(Range::exactly(2)).max, u64::MAX);
        assert_eq!(Range::exactly(11).scaled(0.1), Range::exactly(2));
        assert_eq!(Range::ANY.scaled(0.1).scaled(100.0).max, u64::MAX);
        assert_eq!(Range::none().union(Range::exactly(3)), Range::exactly(3));
    }
}
