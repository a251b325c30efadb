//! Selection of CPUs for exclusive use: packed on as few NUMA nodes, sockets, caches and cores as possible.

use std::collections::BTreeSet;

use super::CpuError;
use super::cpu_set::CpuSet;
use super::topology::{CpuTopology, Level};

/// CPUs that are taken step by step.
pub struct Accumulator<'a> {
    topology: &'a CpuTopology,
    pub free: CpuSet,
    pub needed: usize,
    pub taken: CpuSet,
}

fn one(id: usize) -> BTreeSet<usize> {
    BTreeSet::from([id])
}

impl<'a> Accumulator<'a> {
    /// Fails if there are too few CPUs.
    pub fn new(topology: &'a CpuTopology, free: &CpuSet, needed: usize) -> Result<Self, CpuError> {
        if needed > free.len() {
            return Err(CpuError::TooFew { requested: needed, available: free.len() });
        }
        Ok(Self { topology, free: free.clone(), needed, taken: CpuSet::default() })
    }

    pub fn is_satisfied(&self) -> bool {
        self.needed == 0
    }

    pub fn take(&mut self, cpus: &CpuSet) {
        self.taken = self.taken.union(cpus);
        self.free = self.free.difference(cpus);
        self.needed = self.needed.saturating_sub(cpus.len());
    }

    pub fn free_at(&self, level: Level, id: usize) -> CpuSet {
        self.topology.cpus_at(level, &one(id)).intersection(&self.free)
    }

    /// Positions of a level with free CPUs among `within`, those with the fewest first.
    fn sorted(&self, level: Level, within: &CpuSet) -> Vec<usize> {
        let mut ids: Vec<usize> = self.topology.ids(level, within).into_iter().collect();
        ids.sort_by_key(|id| (self.free_at(level, *id).len(), *id));
        ids
    }

    /// The larger of NUMA node and socket, and the smaller one.
    fn levels(&self) -> (Level, Level) {
        if self.topology.count(Level::Socket) >= self.topology.count(Level::NumaNode) {
            (Level::NumaNode, Level::Socket)
        } else {
            (Level::Socket, Level::NumaNode)
        }
    }

    /// Positions of a level in the order of their use.
    pub fn order(&self, level: Level) -> Vec<usize> {
        let (outer, inner) = self.levels();
        let below = |parents: Vec<usize>, parent: Level, level: Level| -> Vec<usize> {
            parents.into_iter().flat_map(|id| self.sorted(level, &self.free_at(parent, id))).collect()
        };
        match level {
            level if level == outer => self.sorted(outer, &self.free),
            level if level == inner => below(self.order(outer), outer, inner),
            Level::Cache => below(self.order(Level::NumaNode), Level::NumaNode, Level::Cache),
            _ => below(self.order(inner), inner, Level::Core),
        }
    }

    /// Takes whole positions of a level, of which all CPUs are free.
    fn take_full(&mut self, level: Level) {
        let whole = |id: &usize| self.topology.cpus_at(level, &one(*id));
        let free: Vec<CpuSet> =
            self.order(level).iter().map(whole).filter(|all| all.is_subset(&self.free)).collect();
        for all in free {
            // An inner position may be listed below several outer ones.
            if self.needed >= all.len() && all.is_subset(&self.free) {
                self.take(&all);
            }
        }
    }

    /// Takes the CPUs from as few caches as possible.
    fn take_caches(&mut self) {
        for cache in self.order(Level::Cache) {
            if self.needed >= self.topology.cpus_per(Level::Cache) {
                self.take_full(Level::Cache);
            }
            if self.is_satisfied() {
                return;
            }
            self.take_part_of_cache(cache);
            if self.is_satisfied() {
                return;
            }
        }
    }

    /// Takes the rest from one cache, if it has enough.
    fn take_part_of_cache(&mut self, cache: usize) {
        let per_core = self.topology.cpus_per(Level::Core).max(1);
        let free = self.free_at(Level::Cache, cache);
        let cores = self.topology.ids(Level::Core, &free);
        let cores: BTreeSet<usize> = cores.into_iter().take(self.needed.div_ceil(per_core)).collect();
        let mut cpus = self.topology.cpus_at(Level::Core, &cores).intersection(&self.free);
        if !self.needed.is_multiple_of(2) && per_core > 1 && cpus.len() > self.needed {
            let count = cpus.len().saturating_sub(1);
            cpus = cpus.iter().take(count).collect();
        }
        if cpus.len() == self.needed {
            self.take(&cpus);
        }
    }

    fn take_rest(&mut self) {
        for core in self.order(Level::Core) {
            let cpus: CpuSet = self.free_at(Level::Core, core).iter().take(self.needed).collect();
            self.take(&cpus);
            if self.is_satisfied() {
                return;
            }
        }
    }
}

/// Takes CPUs packed.
pub fn packed(
    topology: &CpuTopology,
    free: &CpuSet,
    needed: usize,
    prefer_caches: bool,
) -> Result<CpuSet, CpuError> {
    let mut accumulator = Accumulator::new(topology, free, needed)?;
    let (outer, inner) = accumulator.levels();
    for level in [outer, inner] {
        accumulator.take_full(level);
    }
    if prefer_caches && !accumulator.is_satisfied() {
        accumulator.take_caches();
    }
    accumulator.take_full(Level::Core);
    accumulator.take_rest();
    Ok(accumulator.taken)
}
