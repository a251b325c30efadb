//! Order of the test binaries: shared ones concurrently, then exclusive ones, one at a time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::build::Binary;
use super::process::{self, BinaryOutcome};
use super::report;
use super::suite;

/// Interval of the line that names the running binaries.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// Progress that all workers share.
struct Progress {
    queue: VecDeque<Binary>,
    running: BTreeMap<String, Instant>,
    outcomes: Vec<BinaryOutcome>,
    total: usize,
}

/// Runs all binaries, at most `jobs` at a time.
pub fn run(binaries: Vec<Binary>, jobs: usize, limit: Duration, filter: Option<&str>) -> Vec<BinaryOutcome> {
    let total = binaries.len();
    let (exclusive, mut shared): (Vec<_>, Vec<_>) =
        binaries.into_iter().partition(|binary| suite::is_exclusive(&binary.label));
    shared.sort_by_key(|binary| suite::rank(&binary.label));
    let mut outcomes = Vec::new();
    for (batch, jobs) in [(shared, jobs), (exclusive, 1)] {
        let progress = Progress { queue: batch.into(), running: BTreeMap::new(), outcomes, total };
        outcomes = run_batch(progress, jobs, |binary| process::run(binary, limit, filter));
    }
    outcomes
}

fn run_batch(
    progress: Progress,
    jobs: usize,
    run: impl Fn(&Binary) -> BinaryOutcome + Sync,
) -> Vec<BinaryOutcome> {
    let progress = Mutex::new(progress);
    let ended = Condvar::new();
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| work(&progress, &ended, &run));
        }
        heartbeat(&progress, &ended);
    });
    progress.into_inner().unwrap_or_else(PoisonError::into_inner).outcomes
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes binaries from the queue until it is empty.
fn work(progress: &Mutex<Progress>, ended: &Condvar, run: &impl Fn(&Binary) -> BinaryOutcome) {
    loop {
        let binary = {
            let mut progress = lock(progress);
            let Some(binary) = progress.queue.pop_front() else { return };
            progress.running.insert(binary.label.clone(), Instant::now());
            binary
        };
        let outcome = run(&binary);
        let mut progress = lock(progress);
        progress.running.remove(&binary.label);
        println!("{}", report::progress(progress.outcomes.len() + 1, progress.total, &outcome));
        progress.outcomes.push(outcome);
        ended.notify_all();
    }
}

/// Prints the running binaries if none has ended for a while; returns when all have.
fn heartbeat(progress: &Mutex<Progress>, ended: &Condvar) {
    let mut state = lock(progress);
    while !(state.queue.is_empty() && state.running.is_empty()) {
        let (next, wait) = ended.wait_timeout(state, HEARTBEAT).unwrap_or_else(PoisonError::into_inner);
        state = next;
        if wait.timed_out() && !state.running.is_empty() {
            let running = state.running.iter();
            let labels: Vec<_> =
                running.map(|(label, begin)| format!("{label} ({} s)", begin.elapsed().as_secs())).collect();
            println!("running: {}", labels.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn batch_runs_every_binary_within_job_limit() {
        let binary = |n: usize| Binary {
            label: format!("binary-{n}"),
            package: String::new(),
            directory: PathBuf::new(),
            executable: PathBuf::new(),
        };
        let queue = (0..20).map(binary).collect();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let progress = Progress { queue, running: BTreeMap::new(), outcomes: Vec::new(), total: 20 };
        let outcomes = run_batch(progress, 3, |binary| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
            let label = binary.label.clone();
            BinaryOutcome { label, results: Vec::new(), time: Duration::ZERO, problem: None, skipped: None }
        });
        assert_eq!(outcomes.len(), 20);
        assert!((1..=3).contains(&most.into_inner()));
    }
}
