//! Durations of the expressions of custom resources, for the metrics of a server.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Work with expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpressionWork {
    /// The rules of one node of a schema.
    Compilation,
    /// All rules of one object.
    Evaluation,
}

type Observer = fn(ExpressionWork, Duration);

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Calls `observer` after each compilation and evaluation of the process; further observers are ignored.
pub fn observe_expressions(observer: Observer) {
    let _ = OBSERVER.set(observer);
}

/// Runs `work` and reports its duration.
pub(super) fn timed<T>(work: ExpressionWork, run: impl FnOnce() -> T) -> T {
    let Some(observer) = OBSERVER.get() else { return run() };
    let begin = Instant::now();
    let outcome = run();
    observer(work, begin.elapsed());
    outcome
}
