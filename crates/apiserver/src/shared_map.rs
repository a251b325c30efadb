//! A map by name whose copies share unchanged parts, so that a catalogue with one changed group costs the same whether ten or
//! ten thousand others are served.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Names are spread over this many parts. A change copies one of them and the list of all.
const PARTS: usize = 64;

type Part<V> = BTreeMap<Arc<str>, V>;

/// Names are chosen by users: the hasher is seeded.
#[derive(Debug)]
pub struct SharedMap<V> {
    parts: Arc<[Arc<Part<V>>]>,
    hasher: RandomState,
}

impl<V> Clone for SharedMap<V> {
    fn clone(&self) -> Self {
        Self { parts: Arc::clone(&self.parts), hasher: self.hasher.clone() }
    }
}

impl<V> Default for SharedMap<V> {
    fn default() -> Self {
        let empty = Arc::new(Part::new());
        Self { parts: std::iter::repeat_n(empty, PARTS).collect(), hasher: RandomState::new() }
    }
}

impl<V> SharedMap<V> {
    pub fn get(&self, name: &str) -> Option<&V> {
        self.parts[self.part_of(name)].get(name)
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &V)> {
        self.parts.iter().flat_map(|part| part.iter())
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    fn part_of(&self, name: &str) -> usize {
        usize::try_from(self.hasher.hash_one(name) % PARTS as u64).unwrap_or_default()
    }
}

impl<V: Clone> SharedMap<V> {
    pub fn insert(&mut self, name: Arc<str>, value: V) {
        self.part_mut(&name).insert(name, value);
    }

    pub fn remove(&mut self, name: &str) {
        if self.get(name).is_some() {
            self.part_mut(name).remove(name);
        }
    }

    fn part_mut(&mut self, name: &str) -> &mut Part<V> {
        let at = self.part_of(name);
        Arc::make_mut(&mut Arc::make_mut(&mut self.parts)[at])
    }
}

impl<V: Clone> FromIterator<(Arc<str>, V)> for SharedMap<V> {
    fn from_iter<T: IntoIterator<Item = (Arc<str>, V)>>(entries: T) -> Self {
        let mut map = Self::default();
        entries.into_iter().for_each(|(name, value)| map.insert(name, value));
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn numbered(count: usize) -> SharedMap<usize> {
        (0..count).map(|number| (Arc::from(format!("g{number}")), number)).collect()
    }

    #[test]
    fn changes_of_a_copy_leave_the_original() {
        let before = numbered(1000);
        let mut after = before.clone();
        after.insert(Arc::from("g7"), 70);
        after.insert(Arc::from("new"), 1);
        after.remove("g8");
        after.remove("unknown");
        let found = |map: &SharedMap<usize>| ["g7", "new", "g8", "g9"].map(|name| map.get(name).copied());
        assert_eq!(found(&before), [Some(7), None, Some(8), Some(9)]);
        assert_eq!(found(&after), [Some(70), Some(1), None, Some(9)]);
        let values: BTreeSet<usize> = before.values().copied().collect();
        assert_eq!((before.iter().count(), values), (1000, (0..1000).collect()));
        assert_eq!(after.iter().count(), 1000);
    }

    #[test]
    fn change_copies_one_part_only() {
        let before = numbered(1000);
        let mut after = before.clone();
        after.insert(Arc::from("g7"), 70);
        let shared =
            before.parts.iter().zip(after.parts.iter()).filter(|(one, other)| Arc::ptr_eq(one, other));
        assert_eq!(shared.count(), PARTS - 1);
        let mut untouched = before.clone();
        untouched.remove("unknown");
        assert!(Arc::ptr_eq(&before.parts, &untouched.parts), "nothing was removed");
    }
}
