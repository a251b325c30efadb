//! Rolling updates: scales the new replica set up and the old ones down, within maxSurge and maxUnavailable.

use super::plan::Work;
use super::replica_sets::{available, is_rolling, max_surge, max_unavailable, replicas, wanted};

/// Currently allowed size of the new replica set.
pub fn size_of_new(work: &Work<'_>) -> i32 {
    let wanted = wanted(work.original);
    if !is_rolling(work.original) {
        return wanted;
    }
    let now = work.new.map_or(0, |new| replicas(&work.sets[new]));
    let room = wanted.saturating_add(max_surge(work.original)) - work.total();
    if room <= 0 { now } else { now + room.min(wanted - now).max(0) }
}

/// Scales the new replica set towards its size; returns true if that changed anything.
pub fn grow_new(work: &mut Work<'_>) -> bool {
    let Some(new) = work.new else { return false };
    let (now, wanted) = (replicas(&work.sets[new]), wanted(work.original));
    let next = if now > wanted { wanted } else { size_of_new(work) };
    if next == now {
        return false;
    }
    work.resize(new, next);
    true
}

/// Scales the old replica sets down as far as allowed; returns true if that changed anything.
pub fn shrink_old(work: &mut Work<'_>) -> bool {
    let old: Vec<usize> = work.old().filter(|at| replicas(&work.sets[*at]) > 0).collect();
    let Some(new) = work.new.filter(|_| !old.is_empty()) else { return false };
    let least = wanted(work.original) - max_unavailable(work.original);
    let new_unavailable = replicas(&work.sets[new]) - available(&work.sets[new]);
    let mut spare = work.total() - least - new_unavailable;
    if spare <= 0 {
        return false;
    }
    let mut shrunk = false;
    // Scales down unavailable pods first, from the oldest replica set on.
    for at in &old {
        let broken = replicas(&work.sets[*at]) - available(&work.sets[*at]);
        let less = broken.min(spare);
        if less > 0 {
            work.resize(*at, replicas(&work.sets[*at]) - less);
            spare -= less;
            shrunk = true;
        }
    }
    let working: i32 = old.iter().chain([&new]).map(|at| available(&work.sets[*at])).sum();
    let mut spare = working - least;
    for at in old {
        let less = replicas(&work.sets[at]).min(spare);
        if less > 0 {
            work.resize(at, replicas(&work.sets[at]) - less);
            spare -= less;
            shrunk = true;
        }
    }
    shrunk
}
