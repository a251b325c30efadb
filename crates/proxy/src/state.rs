//! The entries of all services, and what one service's change makes of them. The cost of a change depends on that
//! service alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::model::ServiceName;
use crate::plan::{Entry, Pick, Place};

/// Entries to take out and to put in, chains to make first and to remove last.
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

    /// This difference, and after it another one, as one.
    pub fn merge(&mut self, later: Self) {
        // What was put in first and taken out again never was; what was taken out and put back stays.
        let mut added: BTreeMap<Place, Entry> =
            self.added.drain(..).map(|entry| (entry.place(), entry)).collect();
        for entry in later.removed {
            if added.remove(&entry.place()).is_none() {
                self.removed.push(entry);
            }
        }
        added.extend(later.added.into_iter().map(|entry| (entry.place(), entry)));
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

/// Everything that should be in force.
#[derive(Clone, Debug, Default)]
pub struct State {
    services: HashMap<ServiceName, Vec<Entry>>,
    /// Who wants an entry at a place; the first in order of names has it.
    places: HashMap<Place, BTreeMap<ServiceName, Entry>>,
    /// How many entries in force lead to a chain.
    picks: BTreeMap<Pick, usize>,
}

impl State {
    /// Puts `entries` in place of those the service had; none removes it.
    pub fn set(&mut self, name: &ServiceName, entries: Vec<Entry>) -> Difference {
        let old = self.services.remove(name).unwrap_or_default();
        let mut touched: BTreeMap<Place, Option<Entry>> = BTreeMap::new();
        let same = old == entries;
        if !same {
            for entry in &old {
                let place = entry.place();
                self.remember(&mut touched, &place);
                if let Some(wanted) = self.places.get_mut(&place) {
                    wanted.remove(name);
                    if wanted.is_empty() {
                        self.places.remove(&place);
                    }
                }
            }
            for entry in &entries {
                let place = entry.place();
                self.remember(&mut touched, &place);
                self.places.entry(place).or_default().insert(name.clone(), entry.clone());
            }
        }
        if !entries.is_empty() {
            self.services.insert(name.clone(), entries);
        }
        self.difference(touched)
    }

    /// What was in force at a place before the change.
    fn remember(&self, touched: &mut BTreeMap<Place, Option<Entry>>, place: &Place) {
        if !touched.contains_key(place) {
            touched.insert(place.clone(), self.in_force(place).cloned());
        }
    }

    fn in_force(&self, place: &Place) -> Option<&Entry> {
        self.places.get(place).and_then(|wanted| wanted.values().next())
    }

    fn difference(&mut self, touched: BTreeMap<Place, Option<Entry>>) -> Difference {
        let mut out = Difference::default();
        let mut before: BTreeSet<Pick> = BTreeSet::new();
        for (place, old) in touched {
            let new = self.in_force(&place).cloned();
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
                // Made and left within this change: it never was.
                if !out.new_picks.remove(&pick) {
                    out.old_picks.insert(pick);
                }
            }
        }
        out
    }

    /// Everything, as if it were new.
    #[must_use]
    pub fn whole(&self) -> Difference {
        let added = self.places.values().filter_map(|wanted| wanted.values().next()).cloned().collect();
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
    use crate::plan::{Front, Source};

    fn name(name: &str) -> ServiceName {
        ServiceName { namespace: "default".into(), name: name.into() }
    }

    fn service(last: u8, count: u32) -> Entry {
        let front = Front { address: [10, 96, 0, last].into(), protocol: Protocol::Tcp, port: 80 };
        let pick = Pick { source: Source::Inside, node_port: false, count, affinity_seconds: None };
        Entry::Service { front, pick }
    }

    #[test]
    fn chains_come_with_the_first_and_go_with_the_last() {
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
    fn differences_add_up() {
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
    fn two_that_want_the_same_do_not_fight() {
        let mut state = State::default();
        state.set(&name("b"), vec![service(1, 2)]);
        let first = state.set(&name("a"), vec![service(1, 3)]);
        assert_eq!((first.removed, first.added), (vec![service(1, 2)], vec![service(1, 3)]));
        assert!(state.set(&name("b"), vec![service(1, 4)]).is_empty());
        let freed = state.set(&name("a"), vec![]);
        assert_eq!((freed.removed, freed.added), (vec![service(1, 3)], vec![service(1, 4)]));
    }
}
