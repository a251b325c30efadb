//! Divides seats among priority levels: each gets the same proportion of its target, within its bounds.

/// Target and bounds of one priority level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    pub target: f64,
    pub lower: f64,
    pub upper: f64,
}

/// Smallest target, to avoid division by zero.
const MIN_TARGET: f64 = 0.001;
const EPSILON: f64 = 1e-7;

impl Claim {
    fn target(&self) -> f64 {
        self.target.max(MIN_TARGET)
    }

    fn at(&self, proportion: f64) -> f64 {
        (proportion * self.target()).clamp(self.lower, self.upper)
    }
}

/// Seats of each claim out of `total`, and the proportion of those claims that are not at a bound. `None` if the
/// bounds cannot be met.
pub fn allocate(total: usize, claims: &[Claim]) -> Option<(Vec<f64>, f64)> {
    let total = total as f64;
    let sound =
        |claim: &Claim| 0.0 <= claim.lower && claim.lower <= claim.upper && claim.lower <= claim.target;
    let sum = |of: fn(&Claim) -> f64| claims.iter().map(of).sum::<f64>();
    if !claims.iter().all(sound) || sum(|c| c.lower) - total > EPSILON || total - sum(|c| c.upper) > EPSILON {
        return None;
    }
    if total == 0.0 {
        return Some((vec![0.0; claims.len()], 0.0));
    }
    // The sum of all shares is piecewise linear in the proportion, with a breakpoint where a claim reaches a bound.
    let mut bends: Vec<f64> = claims
        .iter()
        .flat_map(|claim| [claim.lower, claim.upper].map(|bound| bound / claim.target()))
        .collect();
    bends.sort_by(f64::total_cmp);
    let shares_at = |proportion: f64| claims.iter().map(|claim| claim.at(proportion)).sum::<f64>();
    let mut from = bends.first().copied().unwrap_or(0.0);
    let mut proportion = bends.last().copied().unwrap_or(0.0);
    for to in bends {
        let (low, high) = (shares_at(from), shares_at(to));
        if high >= total {
            let rise = high - low;
            proportion = if rise <= EPSILON {
                from
            } else {
                from + (to - from) * ((total - low) / rise).clamp(0.0, 1.0)
            };
            break;
        }
        from = to;
    }
    Some((claims.iter().map(|claim| claim.at(proportion)).collect(), proportion))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(lower: f64, target: f64, upper: f64) -> Claim {
        Claim { target, lower, upper }
    }

    #[test]
    fn allocation_is_proportional_within_bounds() {
        type Case = (usize, Vec<Claim>, Option<Vec<f64>>);
        let cases: [Case; 6] = [
            (100, vec![claim(0.0, 10.0, 100.0), claim(0.0, 30.0, 100.0)], Some(vec![25.0, 75.0])),
            (100, vec![claim(0.0, 10.0, 15.0), claim(0.0, 30.0, 100.0)], Some(vec![15.0, 85.0])),
            (10, vec![claim(8.0, 10.0, 15.0), claim(0.0, 30.0, 100.0)], Some(vec![8.0, 2.0])),
            (10, vec![claim(8.0, 10.0, 15.0), claim(3.0, 30.0, 100.0)], None),
            (200, vec![claim(8.0, 10.0, 15.0), claim(3.0, 30.0, 100.0)], None),
            (10, vec![claim(0.0, 0.0, 10.0), claim(0.0, 0.0, 10.0)], Some(vec![5.0, 5.0])),
        ];
        for (total, claims, want) in cases {
            let got = allocate(total, &claims).map(|(shares, _)| shares);
            match (got, want) {
                (None, None) => {}
                (Some(got), Some(want)) => {
                    assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?} {want:?}");
                }
                (got, want) => panic!("{got:?} instead of {want:?}"),
            }
        }
    }

    proptest! {
        #[test]
        fn allocation_sums_to_total_within_bounds(
            parts in proptest::collection::vec((0.0..50.0_f64, 0.0..50.0_f64, 0.0..100.0_f64), 1..10),
            place in 0.0..1.0_f64,
        ) {
            let claims: Vec<Claim> =
                parts.iter().map(|(low, more, above)| claim(*low, low + more, low + above)).collect();
            let lower: f64 = claims.iter().map(|c| c.lower).sum();
            let upper: f64 = claims.iter().map(|c| c.upper).sum();
            let total: f64 = (lower + (upper - lower) * place).round();
            prop_assume!(total >= lower && total <= upper);
            let (shares, proportion) = allocate(total as usize, &claims).expect("possible");
            prop_assert!((shares.iter().sum::<f64>() - total).abs() < 1e-3);
            for (share, claim) in shares.iter().zip(&claims) {
                prop_assert!(*share >= claim.lower - 1e-9 && *share <= claim.upper + 1e-9);
                prop_assert!((share - claim.at(proportion)).abs() < 1e-6);
            }
        }
    }
}
