//! Shared counters of partitionable devices: what is left of them for the devices of a search.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use machinery::quantity::Quantity;
use objects::resource::v1::Device;
use parking_lot::Mutex;

use super::pools::Pool;
use super::usage::Usage;
use super::{PoolId, quantity};

/// Amounts by counter set and counter.
type Amounts = BTreeMap<String, BTreeMap<String, Quantity>>;

/// Counters not consumed by allocated devices, by pool. Computed once for all nodes of an attempt.
#[derive(Debug, Default)]
pub struct Available(Mutex<HashMap<PoolId, Arc<Amounts>>>);

impl Available {
    fn of(&self, pool: &Pool<'_>, usage: &Usage) -> Arc<Amounts> {
        let mut known = self.0.lock();
        let amounts = known.entry(pool.id.clone()).or_insert_with(|| Arc::new(remaining(pool, usage)));
        Arc::clone(amounts)
    }
}

/// Counters without those of allocated devices. Negative if too much is allocated.
fn remaining(pool: &Pool<'_>, usage: &Usage) -> Amounts {
    let mut amounts: Amounts = BTreeMap::new();
    for (set, counters) in &pool.counters {
        let values = counters.iter().map(|(name, counter)| (name.clone(), quantity(&counter.value)));
        amounts.insert((*set).to_owned(), values.collect());
    }
    let Some(used) = usage.pool(pool.id) else { return amounts };
    let slices = pool.slices.iter().chain(&pool.others);
    for device in slices.flat_map(|slice| slice.devices()).filter(|device| used.contains_key(&*device.name)) {
        for (set, name, value) in consumption(device) {
            if let Some(left) = amounts.get_mut(set).and_then(|set| set.get_mut(name)) {
                *left -= value;
            }
        }
    }
    amounts
}

fn consumption(device: &Device) -> impl Iterator<Item = (&str, &str, Quantity)> {
    device.consumes_counters.iter().flatten().flat_map(|consumption| {
        let set = consumption.counter_set.as_str();
        consumption.counters.iter().map(move |(name, counter)| (set, name.as_str(), quantity(&counter.value)))
    })
}

/// Counters consumed by the devices chosen so far, by index of the pool.
#[derive(Debug, Default)]
pub struct Counters(HashMap<usize, Amounts>);

impl Counters {
    /// Consumes the counters of a device, if they are available.
    pub fn consume(
        &mut self,
        index: usize,
        pool: &Pool<'_>,
        device: &Device,
        available: &Available,
        usage: &Usage,
    ) -> bool {
        let available = available.of(pool, usage);
        let consumed = self.0.entry(index).or_default();
        for (set, name, value) in consumption(device) {
            *consumed.entry(set.to_owned()).or_default().entry(name.to_owned()).or_default() += value;
        }
        let zero = Quantity::default();
        let suffices = available.iter().all(|(set, counters)| {
            let consumed = consumed.get(set);
            counters.iter().all(|(name, left)| {
                *left >= *consumed.and_then(|consumed| consumed.get(name)).unwrap_or(&zero)
            })
        });
        if !suffices {
            self.release(index, device);
        }
        suffices
    }

    pub fn release(&mut self, index: usize, device: &Device) {
        let Some(consumed) = self.0.get_mut(&index) else { return };
        for (set, name, value) in consumption(device) {
            if let Some(consumed) = consumed.get_mut(set).and_then(|set| set.get_mut(name)) {
                *consumed -= value;
            }
        }
    }
}
