//! Runs each target briefly. `scripts/fuzz` runs them for longer.

use fuzz::targets::TARGETS;

/// Executions of each target; the debug build achieves several thousand per second.
const EXECUTIONS: u64 = 2000;

#[test]
fn targets_hold_on_mutated_inputs() {
    let failures: Vec<String> = TARGETS
        .iter()
        .filter_map(|target| target.fuzz(EXECUTIONS, 7).err())
        .map(|failure| failure.to_string())
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn targets_have_names_of_their_own() {
    let mut names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TARGETS.len());
}
