//! Reference-counted items, and those added and removed since the last call.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

/// Never reused.
pub type Id = u64;

#[derive(Clone, Debug)]
struct Held<K, V> {
    key: K,
    value: V,
    uses: usize,
}

/// Items with their numbers and keys.
pub type Entries<K, V> = Vec<(Id, K, V)>;

/// Items by key, reference-counted.
#[derive(Clone, Debug)]
pub struct Counted<K, V> {
    ids: HashMap<K, Id>,
    held: BTreeMap<Id, Held<K, V>>,
    next: Id,
    born: BTreeSet<Id>,
    dead: BTreeMap<Id, (K, V)>,
}

impl<K, V> Default for Counted<K, V> {
    fn default() -> Self {
        Self {
            ids: HashMap::new(),
            held: BTreeMap::new(),
            next: 1,
            born: BTreeSet::new(),
            dead: BTreeMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Counted<K, V> {
    /// Adds a reference to an existing item.
    pub fn reuse(&mut self, key: &K) -> Option<Id> {
        let id = *self.ids.get(key)?;
        self.held.get_mut(&id)?.uses += 1;
        Some(id)
    }

    /// Adds an item with its first reference.
    pub fn insert(&mut self, key: K, value: V) -> Id {
        let id = self.next;
        self.next += 1;
        self.ids.insert(key.clone(), id);
        self.held.insert(id, Held { key, value, uses: 1 });
        self.born.insert(id);
        id
    }

    /// Removes a reference; returns the item if it was the last one.
    pub fn release(&mut self, id: Id) -> Option<(K, V)> {
        let held = self.held.get_mut(&id)?;
        held.uses -= 1;
        if held.uses > 0 {
            return None;
        }
        let Held { key, value, .. } = self.held.remove(&id)?;
        self.ids.remove(&key);
        // Created and removed within one change: no difference.
        if !self.born.remove(&id) {
            self.dead.insert(id, (key.clone(), value.clone()));
        }
        Some((key, value))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub fn all(&self) -> impl Iterator<Item = (Id, &K, &V)> {
        self.held.iter().map(|(id, held)| (*id, &held.key, &held.value))
    }

    pub fn all_mut(&mut self) -> impl Iterator<Item = (Id, &K, &mut V)> {
        self.held.iter_mut().map(|(id, held)| (*id, &held.key, &mut held.value))
    }

    #[must_use]
    pub fn key(&self, id: Id) -> Option<&K> {
        self.held.get(&id).map(|held| &held.key)
    }

    pub fn get_mut(&mut self, id: Id) -> Option<&mut V> {
        self.held.get_mut(&id).map(|held| &mut held.value)
    }

    /// Items added and removed since the last call.
    pub fn changes(&mut self) -> (Entries<K, V>, Entries<K, V>) {
        let born = std::mem::take(&mut self.born);
        let came = born
            .into_iter()
            .filter_map(|id| self.held.get(&id).map(|held| (id, held.key.clone(), held.value.clone())))
            .collect();
        let dead = std::mem::take(&mut self.dead);
        (came, dead.into_iter().map(|(id, (key, value))| (id, key, value)).collect())
    }

    #[must_use]
    pub fn is_new(&self, id: Id) -> bool {
        self.born.contains(&id)
    }
}

/// Members of a set, each counted: two pods may share an address while one of them terminates.
#[derive(Clone, Debug)]
pub struct Members<T> {
    counts: BTreeMap<T, usize>,
    /// Changed members, and whether they were included before.
    before: BTreeMap<T, bool>,
}

impl<T> Default for Members<T> {
    fn default() -> Self {
        Self { counts: BTreeMap::new(), before: BTreeMap::new() }
    }
}

impl<T: Clone + Ord> Members<T> {
    pub fn add(&mut self, member: T) {
        let known = self.counts.contains_key(&member);
        self.before.entry(member.clone()).or_insert(known);
        *self.counts.entry(member).or_default() += 1;
    }

    pub fn remove(&mut self, member: &T) {
        let Some(count) = self.counts.get_mut(member) else { return };
        self.before.entry(member.clone()).or_insert(true);
        *count -= 1;
        if *count == 0 {
            self.counts.remove(member);
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.counts.keys()
    }

    /// Members removed and added since the last call.
    pub fn changes(&mut self) -> (Vec<T>, Vec<T>) {
        let (mut left, mut joined) = (Vec::new(), Vec::new());
        for (member, was) in std::mem::take(&mut self.before) {
            match (was, self.counts.contains_key(&member)) {
                (true, false) => left.push(member),
                (false, true) => joined.push(member),
                _ => {}
            }
        }
        (left, joined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_live_while_they_are_referenced() {
        let mut all: Counted<&str, u8> = Counted::default();
        assert_eq!(all.reuse(&"a"), None);
        let first = all.insert("a", 1);
        assert_eq!(all.reuse(&"a"), Some(first));
        assert!(all.is_new(first));
        assert_eq!(all.changes(), (vec![(first, "a", 1)], vec![]));
        assert_eq!(all.release(first), None);
        assert_eq!(all.release(first), Some(("a", 1)));
        let second = all.insert("b", 2);
        all.release(second);
        assert!(all.is_empty());
        assert_eq!(all.changes(), (vec![], vec![(first, "a", 1)]), "what came and went never was");
        assert_ne!(all.insert("a", 1), first);
    }

    #[test]
    fn members_are_removed_with_their_last_use() {
        let mut members = Members::default();
        members.add(1);
        members.add(1);
        members.add(2);
        assert_eq!(members.changes(), (vec![], vec![1, 2]));
        members.remove(&1);
        members.remove(&2);
        members.add(3);
        members.remove(&9);
        assert_eq!(members.changes(), (vec![2], vec![3]));
        members.remove(&3);
        members.add(3);
        assert_eq!(members.changes(), (vec![], vec![]));
        assert_eq!(members.all().copied().collect::<Vec<i32>>(), [1, 3]);
    }
}
