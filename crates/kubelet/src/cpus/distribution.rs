//! Selection of CPUs that are distributed evenly over as few NUMA nodes as possible, in groups of a given size (KEP-2902).

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use super::CpuError;
use super::assignment::{Accumulator, packed};
use super::cpu_set::CpuSet;
use super::topology::{CpuTopology, Level};

/// Maximum number of combinations of NUMA nodes that are tried; the CPUs are packed then.
const MAX_COMBINATIONS: usize = 100_000;

/// Free CPUs by NUMA node.
type Counts = BTreeMap<usize, usize>;

/// Standard deviation, rounded as in Kubernetes.
fn deviation(counts: &Counts) -> f64 {
    let rounded = |number: f64| (number * 1000.0).round() / 1000.0;
    let values = counts.values().map(|count| f64::from(u32::try_from(*count).unwrap_or(u32::MAX)));
    let number = f64::from(u32::try_from(counts.len()).unwrap_or(u32::MAX)).max(1.0);
    let mean = rounded(values.clone().sum::<f64>() / number);
    rounded((values.map(|value| (value - mean).powi(2)).sum::<f64>() / number).sqrt())
}

/// Calls `visit` with the subsets of a size in lexical order until it returns false.
fn combinations(of: &[usize], size: usize, visit: &mut dyn FnMut(&[usize]) -> bool) -> bool {
    fn next(
        of: &[usize],
        size: usize,
        chosen: &mut Vec<usize>,
        visit: &mut dyn FnMut(&[usize]) -> bool,
    ) -> bool {
        if size == 0 {
            return visit(chosen);
        }
        let last = of.len().saturating_sub(size);
        for (at, id) in of.iter().enumerate() {
            if at > last {
                break;
            }
            chosen.push(*id);
            let goes_on = next(&of[at.saturating_add(1)..], size.saturating_sub(1), chosen, visit);
            chosen.pop();
            if !goes_on {
                return false;
            }
        }
        true
    }
    size == 0 || size > of.len() || next(of, size, &mut Vec::new(), visit)
}

/// A combination of NUMA nodes: its balance, the nodes, and those that the remainder is taken from.
struct Candidate {
    balance: f64,
    nodes: Vec<usize>,
    remainder: Vec<usize>,
}

struct Request {
    needed: usize,
    group: usize,
    /// Combinations that may still be tried.
    budget: Cell<usize>,
}

impl Request {
    /// Counts a combination; false after the last one.
    fn spend(&self) -> bool {
        self.budget.replace(self.budget.get().saturating_sub(1)) > 0
    }

    /// CPUs that each of a number of nodes contributes.
    fn share(&self, nodes: usize) -> usize {
        self.needed / nodes / self.group * self.group
    }

    /// Rates a combination; `None` if it cannot be used.
    fn rate(&self, free: &Counts, nodes: &[usize]) -> Option<Candidate> {
        let of = |node: &usize| free.get(node).copied().unwrap_or(0);
        let groups: usize = nodes.iter().map(|node| of(node) / self.group).sum();
        let share = self.share(nodes.len());
        if groups * self.group < self.needed || nodes.iter().any(|node| of(node) < share) {
            return None;
        }
        let mut after = free.clone();
        for node in nodes {
            if let Some(count) = after.get_mut(node) {
                *count -= share;
            }
        }
        let remainder = self.needed - share * nodes.len();
        if remainder == 0 {
            return Some(Candidate {
                balance: deviation(&after),
                nodes: nodes.to_vec(),
                remainder: Vec::new(),
            });
        }
        let usable: Vec<usize> = nodes
            .iter()
            .copied()
            .filter(|node| after.get(node).is_some_and(|count| *count >= self.group))
            .collect();
        let mut best: Option<Candidate> = None;
        for size in (1..=usable.len()).rev() {
            combinations(&usable, size, &mut |subset| {
                if let Some(balance) = self.balance(&after, subset, remainder)
                    && best.as_ref().is_none_or(|best| balance < best.balance)
                {
                    best = Some(Candidate { balance, nodes: nodes.to_vec(), remainder: subset.to_vec() });
                }
                self.spend()
            });
        }
        best
    }

    /// Balance after the remainder was taken from a subset.
    fn balance(&self, after: &Counts, subset: &[usize], remainder: usize) -> Option<f64> {
        let (mut after, mut left) = (after.clone(), remainder);
        while left > 0 {
            let before = left;
            for node in subset {
                let Some(count) = after.get_mut(node).filter(|count| **count >= self.group) else { continue };
                if left > 0 {
                    *count -= self.group;
                    left = left.saturating_sub(self.group);
                }
            }
            if left == before {
                return None;
            }
        }
        Some(deviation(&after))
    }
}

/// Takes CPUs distributed.
pub fn distributed(
    topology: &CpuTopology,
    free: &CpuSet,
    needed: usize,
    group: usize,
) -> Result<CpuSet, CpuError> {
    let group = group.max(1);
    let mut accumulator = Accumulator::new(topology, free, needed)?;
    if needed == 0 || !needed.is_multiple_of(group) {
        return packed(topology, free, needed, false);
    }
    let mut order = accumulator.order(Level::NumaNode);
    let mut seen = BTreeSet::new();
    order.retain(|node| seen.insert(*node));
    let counts: Counts =
        order.iter().map(|node| (*node, accumulator.free_at(Level::NumaNode, *node).len())).collect();
    let request = Request { needed, group, budget: Cell::new(MAX_COMBINATIONS) };
    let groups_per_node =
        topology.cpus().len().div_ceil(group).div_ceil(topology.count(Level::NumaNode).max(1)).max(1);
    let first = (needed / group).div_ceil(groups_per_node);
    for size in first..=order.len().min(needed / group) {
        let mut best: Option<Candidate> = None;
        let completed = combinations(&order, size, &mut |nodes| {
            if let Some(candidate) = request.rate(&counts, nodes)
                && best.as_ref().is_none_or(|best| candidate.balance < best.balance)
            {
                best = Some(candidate);
            }
            request.spend() && best.as_ref().is_none_or(|best| best.balance > 0.0)
        });
        if let Some(best) = best {
            take(&mut accumulator, topology, &request, &best)?;
            return Ok(accumulator.taken);
        }
        if !completed {
            break;
        }
    }
    packed(topology, free, needed, false)
}

fn take(
    accumulator: &mut Accumulator<'_>,
    topology: &CpuTopology,
    request: &Request,
    chosen: &Candidate,
) -> Result<(), CpuError> {
    let share = request.share(chosen.nodes.len());
    for node in &chosen.nodes {
        let cpus = packed(topology, &accumulator.free_at(Level::NumaNode, *node), share, false)?;
        accumulator.take(&cpus);
    }
    while !accumulator.is_satisfied() {
        let before = accumulator.needed;
        for node in &chosen.remainder {
            let free = accumulator.free_at(Level::NumaNode, *node);
            if !accumulator.is_satisfied() && free.len() >= request.group {
                let cpus = packed(topology, &free, request.group, false)?;
                accumulator.take(&cpus);
            }
        }
        if accumulator.needed == before {
            return Err(CpuError::TooFew { requested: request.needed, available: accumulator.taken.len() });
        }
    }
    Ok(())
}
