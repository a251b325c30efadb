//! Table of the test binaries that are excluded from the fast suite, or need exclusive use of the machine.
//!
//! Binaries without a row are part of the fast suite and run concurrently. Rows are in starting order, slowest first,
//! so that no long binary runs last.

use anyhow::{Result, ensure};

use super::build::Binary;

/// Suites that a binary belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Suite {
    /// `--fast` and full: requires neither root nor other programs.
    Fast,
    /// Full only: root, real containers, network namespaces, or simply slow.
    Full,
}

/// Use of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Machine {
    /// Runs concurrently with other binaries.
    Shared,
    /// Runs alone, after all shared ones.
    Exclusive,
}

use Machine::{Exclusive, Shared};
use Suite::{Fast, Full};

const BINARIES: &[(&str, Suite, Machine)] = &[
    ("ferry/services", Full, Shared),
    ("ferry/up", Full, Shared),
    ("container/runtime", Full, Shared),
    ("ferry/node", Full, Shared),
    ("store/store", Full, Shared),
    ("proxy/traffic", Full, Shared),
    ("controllers/loops", Fast, Shared),
    ("cluster/server", Full, Shared),
    ("cluster/hostile", Full, Shared),
    ("controllers/workloads", Fast, Shared),
    ("policy/traffic", Full, Shared),
    ("apiserver", Fast, Shared),
    ("ferry/process", Full, Shared),
    ("cluster/robustness", Fast, Shared),
    ("simulate/fleet", Fast, Shared),
    ("cluster/stores", Full, Shared),
    ("ferry/rootless", Full, Shared),
    ("ferry/swap", Full, Shared),
    ("cloud/announce", Full, Shared),
];

fn row(label: &str) -> (usize, Suite, Machine) {
    let rows = BINARIES.iter().enumerate();
    let mut rows = rows.filter(|(_, row)| row.0 == label).map(|(rank, row)| (rank, row.1, row.2));
    rows.next().unwrap_or((BINARIES.len(), Fast, Shared))
}

pub fn is_fast(label: &str) -> bool {
    row(label).1 == Fast
}

pub fn is_exclusive(label: &str) -> bool {
    row(label).2 == Exclusive
}

/// Position in the starting order.
pub fn rank(label: &str) -> usize {
    row(label).0
}

/// Fails when a row names no binary of a full build.
pub fn check(built: &[Binary]) -> Result<()> {
    let stale: Vec<_> = BINARIES
        .iter()
        .map(|row| row.0)
        .filter(|label| !built.iter().any(|binary| binary.label == *label))
        .collect();
    ensure!(
        stale.is_empty(),
        "rows of crates/xtask/src/test/suite.rs without a binary: {}",
        stale.join(", ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_without_row_are_fast_and_shared_and_last() {
        assert!(is_fast("machinery") && !is_exclusive("machinery"));
        assert!(rank("machinery") > rank("cloud/announce"));
    }

    #[test]
    fn binaries_with_real_containers_are_not_fast() {
        for label in ["ferry/up", "ferry/node", "ferry/services", "container/runtime"] {
            assert!(!is_fast(label), "{label}");
        }
    }

    #[test]
    fn rows_are_unique() {
        let mut labels: Vec<_> = BINARIES.iter().map(|row| row.0).collect();
        labels.sort_unstable();
        assert!(labels.windows(2).all(|pair| pair[0] != pair[1]), "{labels:?}");
    }
}
