//! Runs each target briefly. `scripts/fuzz` runs them for longer.

use fuzz::targets::TARGETS;
use testbase::Scenarios;

/// Executions of each target; the debug build achieves several thousand per second.
const EXECUTIONS: u64 = 2000;

#[test]
fn targets_hold_on_mutated_inputs() {
    let mut scenarios = Scenarios::default();
    for target in TARGETS {
        scenarios.check(target.name, || {
            target.fuzz(EXECUTIONS, 7).map(|_| ()).map_err(|failure| failure.to_string())
        });
    }
    scenarios.finish();
}

#[test]
fn targets_have_names_of_their_own() {
    let mut names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TARGETS.len());
}
