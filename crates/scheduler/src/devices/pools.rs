//! Pools of devices that a node can access.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use objects::resource::v1::Counter;

use super::PoolId;
use super::allocator::Target;
use super::slices::{IndexedSlice, PoolSlices, Slices};

/// Counters of a pool by counter set and name.
pub type CounterSets<'a> = BTreeMap<&'a str, &'a BTreeMap<String, Counter>>;

/// State of a pool.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolState {
    Usable,
    /// Some slices of its generation are missing: the driver is updating it.
    Incomplete,
    /// Its slices contradict each other.
    Invalid,
}

#[derive(Debug)]
pub struct Pool<'a> {
    pub id: &'a PoolId,
    pub state: PoolState,
    /// Slices with devices that the node may access, by name.
    pub slices: Vec<&'a IndexedSlice>,
    /// Slices with devices of other nodes, which consume counters of the pool.
    pub others: Vec<&'a IndexedSlice>,
    pub counters: CounterSets<'a>,
}

impl<'a> Pool<'a> {
    fn unusable(id: &'a PoolId, state: PoolState) -> Self {
        Self { id, state, slices: Vec::new(), others: Vec::new(), counters: BTreeMap::new() }
    }

    fn binds_late(&self) -> bool {
        let mut devices = self.slices.iter().flat_map(|slice| slice.devices());
        devices.any(|device| device.binding_conditions.is_some())
    }
}

/// Pools that a node can access, by name; those with binding conditions last.
pub fn gather<'a>(slices: &'a Slices, node: &Target<'_>) -> Vec<Pool<'a>> {
    let found = slices.pools_of(node.name).filter_map(|(id, all)| pool(id, all, node));
    let (late, mut pools): (Vec<_>, Vec<_>) = found.partition(Pool::binds_late);
    pools.extend(late);
    pools
}

/// A pool as seen from a node; `None` if it has nothing for it, or only an outdated generation.
fn pool<'a>(id: &'a PoolId, all: &'a PoolSlices, node: &Target<'_>) -> Option<Pool<'a>> {
    let mut relevant: Vec<&IndexedSlice> =
        all.values().map(Arc::as_ref).filter(|slice| slice.concerns(node)).collect();
    let generation = relevant.iter().map(|slice| slice.generation()).max()?;
    relevant.retain(|slice| slice.generation() == generation);
    let wanted = relevant.first()?.slice.spec.pool.resource_slice_count;
    let is_complete = |count: usize| i64::try_from(count).is_ok_and(|count| count == wanted);
    let mut others = Vec::new();
    if !is_complete(relevant.len()) {
        if all.values().any(|slice| slice.generation() > generation) {
            // The driver replaces the generation, and the next one has nothing for this node so far.
            return None;
        }
        let same = all.values().map(Arc::as_ref).filter(|slice| slice.generation() == generation);
        let (own, rest): (Vec<&IndexedSlice>, Vec<&IndexedSlice>) =
            same.partition(|slice| slice.concerns(node));
        if !is_complete(own.len() + rest.len()) {
            return Some(Pool::unusable(id, PoolState::Incomplete));
        }
        others = rest;
    }
    let (with_counters, slices): (Vec<_>, Vec<_>) =
        relevant.iter().copied().partition(|slice| slice.has_counters());
    let counters = counter_sets(&with_counters).filter(|counters| {
        has_unique_names(&slices)
            && consume_known_counters(counters, &relevant)
            && consume_known_counters(counters, &others)
    });
    Some(match counters {
        Some(counters) => Pool { id, state: PoolState::Usable, slices, others, counters },
        None => Pool::unusable(id, PoolState::Invalid),
    })
}

/// The counter sets, unless two have the same name.
fn counter_sets<'a>(slices: &[&'a IndexedSlice]) -> Option<CounterSets<'a>> {
    let mut sets = BTreeMap::new();
    for set in slices.iter().flat_map(|slice| slice.slice.spec.shared_counters.iter().flatten()) {
        if sets.insert(set.name.as_str(), &set.counters).is_some() {
            return None;
        }
    }
    Some(sets)
}

fn has_unique_names(slices: &[&IndexedSlice]) -> bool {
    let mut names = HashSet::new();
    slices.iter().flat_map(|slice| slice.devices()).all(|device| names.insert(device.name.as_str()))
}

fn consume_known_counters(sets: &CounterSets<'_>, slices: &[&IndexedSlice]) -> bool {
    let devices = slices.iter().flat_map(|slice| slice.devices());
    let mut consumed = devices.flat_map(|device| device.consumes_counters.iter().flatten());
    consumed.all(|consumption| {
        let set = sets.get(consumption.counter_set.as_str());
        set.is_some_and(|set| consumption.counters.keys().all(|name| set.contains_key(name)))
    })
}
