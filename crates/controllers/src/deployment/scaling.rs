//! Scaling of a deployment, also during a rollout: every replica set keeps its proportion.

use std::cmp::Reverse;

use super::plan::Work;
use super::replica_sets::{
    DESIRED, MAX, available, count_in, is_rolling, max_surge, note_size, replicas, set_replicas, wanted,
};

/// Distributes a new size over the replica sets.
pub fn scale(work: &mut Work<'_>) {
    let wanted = wanted(work.original);
    if let Some(only) = only_one(work) {
        if let Some(at) = only
            && replicas(&work.sets[at]) != wanted
        {
            work.resize(at, wanted);
        }
        return;
    }
    if work.new.is_some_and(|new| is_saturated(work, new)) {
        let old: Vec<usize> = work.old().filter(|at| replicas(&work.sets[*at]) > 0).collect();
        for at in old {
            work.resize(at, 0);
        }
        return;
    }
    if is_rolling(work.original) {
        scale_proportionally(work);
    }
}

/// The only replica set to scale, if at most one is in use: that one, or the newest. The inner value is missing if
/// there is none at all.
fn only_one(work: &Work<'_>) -> Option<Option<usize>> {
    let mut active = (0..work.sets.len()).filter(|at| replicas(&work.sets[*at]) > 0);
    match (active.next(), active.next()) {
        (None, _) => Some(work.new.or_else(|| work.old().last())),
        (Some(at), None) => Some(Some(at)),
        (Some(_), Some(_)) => None,
    }
}

fn is_saturated(work: &Work<'_>, at: usize) -> bool {
    let (set, wanted) = (&work.sets[at], wanted(work.original));
    replicas(set) == wanted && count_in(set, DESIRED) == Some(wanted) && available(set) == wanted
}

fn scale_proportionally(work: &mut Work<'_>) {
    let wanted = wanted(work.original);
    let allowed = if wanted > 0 { wanted.saturating_add(max_surge(work.original)) } else { 0 };
    let mut active: Vec<usize> = (0..work.sets.len()).filter(|at| replicas(&work.sets[*at]) > 0).collect();
    let to_add = allowed - active.iter().map(|at| replicas(&work.sets[*at])).sum::<i32>();
    // The largest first; of equals, the newer grows first and the older shrinks first. They are sorted oldest first.
    if to_add > 0 {
        active.sort_by_key(|at| (Reverse(replicas(&work.sets[*at])), Reverse(*at)));
    } else {
        active.sort_by_key(|at| (Reverse(replicas(&work.sets[*at])), *at));
    }
    let mut added = 0;
    let mut sizes = Vec::with_capacity(active.len());
    for at in &active {
        let share = share(work, *at, to_add, added);
        added += share;
        sizes.push(replicas(&work.sets[*at]) + share);
    }
    if let Some(first) = sizes.first_mut() {
        *first = (*first + to_add - added).max(0);
    }
    for (at, size) in active.into_iter().zip(sizes) {
        set_replicas(&mut work.sets[at], size);
        note_size(&mut work.sets[at], work.original);
    }
}

/// Share of this replica set in the replicas to add, or to remove if negative.
fn share(work: &Work<'_>, at: usize, to_add: i32, added: i32) -> i32 {
    if to_add == 0 || to_add == added {
        return 0;
    }
    let fraction = fraction(work, at);
    if to_add > 0 { fraction.min(to_add - added) } else { fraction.max(to_add - added) }
}

fn fraction(work: &Work<'_>, at: usize) -> i32 {
    let (set, wanted) = (&work.sets[at], wanted(work.original));
    if wanted == 0 {
        return -replicas(set);
    }
    let most = wanted.saturating_add(max_surge(work.original));
    let noted = count_in(set, MAX).filter(|count| *count > 0);
    let before = noted.or_else(|| work.original.status.as_ref().and_then(|status| status.replicas));
    let Some(before) = before.filter(|before| *before > 0) else { return 0 };
    let size = f64::from(replicas(set)) * f64::from(most) / f64::from(before);
    // In range: both factors are replica counts.
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and is bounded by the replica counts")]
    let rounded = size.round() as i32;
    rounded - replicas(set)
}
