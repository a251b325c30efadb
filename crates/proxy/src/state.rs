//! The entries of all services, and the differences that changed services cause. The cost of a change depends on that
//! service alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::model::ServiceName;
use crate::plan::{Entry, EntryKey, Pick};

/// Entries to remove and to add; chains to create first and to delete last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub removed: Vec<Entry>,
    pub added: Vec<Entry>,
    pub new_picks: BTreeSet<Pick>,
    pub old_picks: BTreeSet<Pick>,
}

impl Difference {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }

    /// Combines this difference with a later one.
    pub fn merge(&mut self, later: Self) {
        // An entry added and removed again cancels out, and so does one removed and added again.
        let mut added: BTreeMap<EntryKey, Entry> =
            self.added.drain(..).map(|entry| (entry.key(), entry)).collect();
        for entry in later.removed {
            if added.remove(&entry.key()).is_none() {
                self.removed.push(entry);
            }
        }
        added.extend(later.added.into_iter().map(|entry| (entry.key(), entry)));
        self.added = added.into_values().collect();
        for pick in later.old_picks {
            if !self.new_picks.remove(&pick) {
                self.old_picks.insert(pick);
            }
        }
        for pick in later.new_picks {
            if !self.old_picks.remove(&pick) {
                self.new_picks.insert(pick);
            }
        }
    }
}

/// All desired rules.
#[derive(Clone, Debug, Default)]
pub struct State {
    services: HashMap<ServiceName, Vec<Entry>>,
    /// Claims of an entry by key; the first in order of names wins.
    claims: HashMap<EntryKey, BTreeMap<ServiceName, Entry>>,
    /// Number of active entries per chain.
    picks: BTreeMap<Pick, usize>,
}

impl State {
    /// Replaces the entries of a service; an empty list removes the service.
    pub fn set(&mut self, name: &ServiceName, entries: Vec<Entry>) -> Difference {
        let old = self.services.remove(name).unwrap_or_default();
        let mut touched: BTreeMap<EntryKey, Option<Entry>> = BTreeMap::new();
        let same = old == entries;
        if !same {
            for entry in &old {
                let key = entry.key();
                self.remember(&mut touched, &key);
                if let Some(wanted) = self.claims.get_mut(&key) {
                    wanted.remove(name);
                    if wanted.is_empty() {
                        self.claims.remove(&key);
                    }
                }
            }
            for entry in &entries {
                let key = entry.key();
                self.remember(&mut touched, &key);
                self.claims.entry(key).or_default().insert(name.clone(), entry.clone());
            }
        }
        if !entries.is_empty() {
            self.services.insert(name.clone(), entries);
        }
        self.difference(touched)
    }

    /// Entry of a key before the change.
    fn remember(&self, touched: &mut BTreeMap<EntryKey, Option<Entry>>, key: &EntryKey) {
        if !touched.contains_key(key) {
            touched.insert(key.clone(), self.in_force(key).cloned());
        }
    }

    fn in_force(&self, key: &EntryKey) -> Option<&Entry> {
        self.claims.get(key).and_then(|wanted| wanted.values().next())
    }

    fn difference(&mut self, touched: BTreeMap<EntryKey, Option<Entry>>) -> Difference {
        let mut out = Difference::default();
        let mut before: BTreeSet<Pick> = BTreeSet::new();
        for (key, old) in touched {
            let new = self.in_force(&key).cloned();
            if old == new {
                continue;
            }
            if let Some(Entry::Service { pick, .. }) = &old {
                before.insert(*pick);
                if let Some(uses) = self.picks.get_mut(pick) {
                    *uses -= 1;
                }
            }
            if let Some(Entry::Service { pick, .. }) = &new {
                let uses = self.picks.entry(*pick).or_insert_with(|| {
                    out.new_picks.insert(*pick);
                    0
                });
                *uses += 1;
            }
            out.removed.extend(old);
            out.added.extend(new);
        }
        for pick in before {
            if self.picks.get(&pick) == Some(&0) {
                self.picks.remove(&pick);
                // Created and removed within this change: no difference.
                if !out.new_picks.remove(&pick) {
                    out.old_picks.insert(pick);
                }
            }
        }
        out
    }

    /// The whole state as a difference from empty.
    #[must_use]
    pub fn whole(&self) -> Difference {
        let added = self.claims.values().filter_map(|wanted| wanted.values().next()).cloned().collect();
        Difference { added, new_picks: self.picks.keys().copied().collect(), ..Difference::default() }
    }

    #[must_use]
    pub fn services(&self) -> usize {
        self.services.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Protocol;
    use crate::plan::{Frontend, Source};

    fn name(name: &str) -> ServiceName {
        ServiceName { namespace: "default".into(), name: name.into() }
    }

    fn service(last: u8, count: u32) -> Entry {
        let front = Frontend { address: [10, 96, 0, last].into(), protocol: Protocol::Tcp, port: 80 };
        let pick = Pick { source: Source::Inside, node_port: false, count, affinity_seconds: None };
        Entry::Service { front, pick }
    }

    #[test]
    fn chains_exist_while_an_entry_uses_them() {
        let mut state = State::default();
        let made = state.set(&name("a"), vec![service(1, 2)]);
        assert_eq!((made.added.len(), made.new_picks.len(), made.old_picks.len()), (1, 1, 0));
        let shared = state.set(&name("b"), vec![service(2, 2)]);
        assert_eq!((shared.added.len(), shared.new_picks.len()), (1, 0));
        assert!(state.set(&name("b"), vec![service(2, 2)]).is_empty());
        let moved = state.set(&name("b"), vec![service(2, 3)]);
        assert_eq!(
            (moved.removed.len(), moved.added.len(), moved.new_picks.len(), moved.old_picks.len()),
            (1, 1, 1, 0)
        );
        let gone = state.set(&name("a"), vec![]);
        assert_eq!((gone.removed.len(), gone.added.len(), gone.old_picks.len()), (1, 0, 1));
        assert_eq!(state.whole().added.len(), 1);
        assert_eq!(state.services(), 1);
    }

    #[test]
    fn sum_of_differences_equals_the_state() {
        let mut state = State::default();
        let mut total = state.set(&name("a"), vec![service(1, 2)]);
        total.merge(state.set(&name("a"), vec![service(1, 3)]));
        total.merge(state.set(&name("b"), vec![service(2, 2)]));
        total.merge(state.set(&name("b"), vec![]));
        assert_eq!((total.removed.len(), &total.added[..]), (0, &[service(1, 3)][..]));
        assert_eq!((total.new_picks.len(), total.old_picks.len()), (1, 0));
        let mut total = state.set(&name("a"), vec![]);
        total.merge(state.set(&name("a"), vec![service(1, 3)]));
        assert_eq!((total.new_picks.len(), total.old_picks.len()), (0, 0));
    }

    #[test]
    fn conflicting_claims_have_a_stable_winner() {
        let mut state = State::default();
        state.set(&name("b"), vec![service(1, 2)]);
        let first = state.set(&name("a"), vec![service(1, 3)]);
        assert_eq!((first.removed, first.added), (vec![service(1, 2)], vec![service(1, 3)]));
        assert!(state.set(&name("b"), vec![service(1, 4)]).is_empty());
        let freed = state.set(&name("a"), vec![]);
        assert_eq!((freed.removed, freed.added), (vec![service(1, 3)], vec![service(1, 4)]));
    }
}
