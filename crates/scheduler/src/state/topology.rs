//! Topology domains: label values become small integers, so that counting per domain is counting in a vector.

use std::collections::HashMap;
use std::sync::Arc;

use super::labels::Labels;

/// Domain of a node that lacks the label.
pub const NO_DOMAIN: u32 = u32::MAX;

/// Domains of one label.
#[derive(Clone, Debug, Default)]
pub struct TopologyKey {
    of_slot: Vec<u32>,
    numbers: HashMap<Box<str>, u32>,
}

impl TopologyKey {
    #[must_use]
    pub fn domain(&self, slot: usize) -> u32 {
        self.of_slot.get(slot).copied().unwrap_or(NO_DOMAIN)
    }

    /// One more than the largest domain in use.
    #[must_use]
    pub fn domains(&self) -> usize {
        self.numbers.len()
    }

    fn set(&mut self, slot: usize, value: Option<&str>) {
        if self.of_slot.len() <= slot {
            self.of_slot.resize(slot + 1, NO_DOMAIN);
        }
        let next = u32::try_from(self.numbers.len()).unwrap_or(NO_DOMAIN);
        self.of_slot[slot] = match value {
            None => NO_DOMAIN,
            Some(value) => match self.numbers.get(value) {
                Some(number) => *number,
                None => {
                    self.numbers.insert(value.into(), next);
                    next
                }
            },
        };
    }
}

/// Indexes of all queried labels.
#[derive(Debug, Default)]
pub struct Topology {
    keys: HashMap<Box<str>, Arc<TopologyKey>>,
}

impl Topology {
    /// Keys are few in any real cluster; beyond this limit, all are dropped and rebuilt on demand.
    const MOST: usize = 256;

    /// Domains of `key`, built from `nodes` if it is new.
    pub fn key<'a>(
        &mut self,
        key: &str,
        nodes: impl Iterator<Item = (usize, &'a Labels)>,
    ) -> Arc<TopologyKey> {
        if let Some(known) = self.keys.get(key) {
            return Arc::clone(known);
        }
        if self.keys.len() >= Self::MOST {
            self.keys.clear();
        }
        let mut index = TopologyKey::default();
        for (slot, labels) in nodes {
            index.set(slot, labels.get(key));
        }
        let index = Arc::new(index);
        self.keys.insert(key.into(), Arc::clone(&index));
        index
    }

    /// Stores a node's labels; `None` for a removed node.
    pub fn set(&mut self, slot: usize, labels: Option<&Labels>) {
        self.keys.retain(|key, index| {
            // Values of removed nodes would accumulate; the next query rebuilds the index.
            if index.numbers.len() > 2 * index.of_slot.len() + 64 {
                return false;
            }
            let value = labels.and_then(|labels| labels.get(key));
            let index = Arc::make_mut(index);
            index.set(slot, value);
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_same_label_value_share_domain() {
        let labels = [
            Labels::from([("zone", "a")]),
            Labels::from([("zone", "b")]),
            Labels::from([("zone", "a")]),
            Labels::default(),
        ];
        let mut topology = Topology::default();
        let key = topology.key("zone", labels.iter().enumerate());
        assert_eq!(key.domain(0), key.domain(2));
        assert_ne!(key.domain(0), key.domain(1));
        assert_eq!((key.domain(3), key.domain(9)), (NO_DOMAIN, NO_DOMAIN));
        drop(key);
        topology.set(3, Some(&labels[1]));
        topology.set(0, None);
        let key = topology.key("zone", std::iter::empty());
        assert_eq!(key.domain(3), key.domain(1));
        assert_eq!(key.domain(0), NO_DOMAIN);
        assert_eq!(key.domains(), 2);
    }
}
