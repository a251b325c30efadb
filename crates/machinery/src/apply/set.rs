//! Sets of field paths, and their form in managedFields (`FieldsV1`).

use super::path::{PathElement, PathElementError};
use serde_json::{Map, Value};
use std::cmp::Ordering;

/// A set of paths as a tree. Entries are sorted, none is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    pub(super) entries: Vec<Entry>,
}

/// One element: a flag that the path ending here is in the set, and the paths below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub element: PathElement,
    pub member: bool,
    pub children: FieldSet,
}

impl Entry {
    fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }
}

impl FieldSet {
    /// A set of plain field paths: `[["metadata", "labels"], ["spec"]]`.
    ///
    /// ```
    /// use machinery::apply::FieldSet;
    ///
    /// let all = FieldSet::of_fields(&[&["metadata", "labels"], &["spec"]]);
    /// let left = all.difference(&FieldSet::of_fields(&[&["spec"]]));
    /// assert_eq!(left.to_fields_v1(), serde_json::json!({"f:metadata": {"f:labels": {}}}));
    /// ```
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            let elements: Vec<PathElement> = path.iter().map(|name| PathElement::field(name)).collect();
            set.insert(&elements);
        }
        set
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        let at = match self.entries.binary_search_by(|e| e.element.cmp(first)) {
            Ok(at) => at,
            Err(at) => {
                let entry = Entry { element: first.clone(), member: false, children: FieldSet::default() };
                self.entries.insert(at, entry);
                at
            }
        };
        if rest.is_empty() {
            self.entries[at].member = true;
        } else {
            self.entries[at].children.insert(rest);
        }
    }

    /// Adds an entry that sorts after all others, unless it is empty.
    pub(super) fn push(&mut self, element: impl FnOnce() -> PathElement, member: bool, children: FieldSet) {
        if member || !children.is_empty() {
            self.entries.push(Entry { element: element(), member, children });
        }
    }

    pub(super) fn entry(&self, element: &PathElement) -> Option<&Entry> {
        self.entries.binary_search_by(|e| e.element.cmp(element)).ok().map(|at| &self.entries[at])
    }

    /// The entry of a field, without allocating an element for the search.
    pub(super) fn field_entry(&self, name: &str) -> Option<&Entry> {
        self.entries
            .binary_search_by(|e| match &e.element {
                PathElement::Field(field) => field.as_ref().cmp(name),
                _ => Ordering::Greater,
            })
            .ok()
            .map(|at| &self.entries[at])
    }

    pub fn has(&self, path: &[PathElement]) -> bool {
        match path.split_first() {
            None => false,
            Some((first, rest)) => match self.entry(first) {
                None => false,
                Some(entry) if rest.is_empty() => entry.member,
                Some(entry) => entry.children.has(rest),
            },
        }
    }

    /// Combines two sets element by element.
    fn zip(&self, other: &Self, combine: &impl Fn(Option<&Entry>, Option<&Entry>) -> Option<Entry>) -> Self {
        let mut entries = Vec::with_capacity(self.entries.len().max(other.entries.len()));
        let (mut i, mut j) = (0, 0);
        loop {
            let (a, b) = (self.entries.get(i), other.entries.get(j));
            let order = match (a, b) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.element.cmp(&b.element),
            };
            let entry = match order {
                Ordering::Less => combine(a, None),
                Ordering::Greater => combine(None, b),
                Ordering::Equal => combine(a, b),
            };
            entries.extend(entry.filter(|e| !e.is_empty()));
            i += usize::from(order.is_le());
            j += usize::from(order.is_ge());
        }
        Self { entries }
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.zip(other, &|a, b| match (a, b) {
            (Some(a), Some(b)) => Some(Entry {
                element: a.element.clone(),
                member: a.member || b.member,
                children: a.children.union(&b.children),
            }),
            (one, other) => one.or(other).cloned(),
        })
    }

    /// The union of two owned sets.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        if other.is_empty() {
            return self;
        }
        if self.is_empty() {
            return other;
        }
        let mut entries = Vec::with_capacity(self.entries.len().max(other.entries.len()));
        let mut others = other.entries.into_iter().peekable();
        for mut entry in self.entries {
            while let Some(before) = others.next_if(|other| other.element < entry.element) {
                entries.push(before);
            }
            if let Some(same) = others.next_if(|other| other.element == entry.element) {
                entry.member |= same.member;
                entry.children = entry.children.merged(same.children);
            }
            entries.push(entry);
        }
        entries.extend(others);
        Self { entries }
    }

    /// The union of many sets, in pairs: each path is visited log2(n) times.
    #[must_use]
    pub fn union_all(mut sets: Vec<Self>) -> Self {
        while sets.len() > 1 {
            let mut pairs = sets.into_iter();
            let mut merged = Vec::new();
            while let Some(one) = pairs.next() {
                merged.push(match pairs.next() {
                    Some(other) => one.merged(other),
                    None => one,
                });
            }
            sets = merged;
        }
        sets.pop().unwrap_or_default()
    }

    /// Entries of this set, each filtered with its counterpart. The other set may be much larger: entries between
    /// counterparts are skipped by bisection.
    fn select(&self, other: &Self, decide: &impl Fn(&Entry, Option<&Entry>) -> Option<Entry>) -> Self {
        let mut rest = other.entries.as_slice();
        let selected = self.entries.iter().filter_map(|entry| {
            if rest.first().is_some_and(|first| first.element < entry.element) {
                rest = &rest[rest.partition_point(|other| other.element < entry.element)..];
            }
            let same = rest.first().filter(|first| first.element == entry.element);
            decide(entry, same).filter(|entry| !entry.is_empty())
        });
        Self { entries: selected.collect() }
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (small, large) =
            if self.entries.len() <= other.entries.len() { (self, other) } else { (other, self) };
        small.select(large, &|a, b| {
            let b = b?;
            Some(Entry {
                element: a.element.clone(),
                member: a.member && b.member,
                children: a.children.intersection(&b.children),
            })
        })
    }

    /// Paths of this set that are not in the other; paths below one of the other set stay.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.select(other, &|a, b| {
            let Some(b) = b else {
                return Some(a.clone());
            };
            Some(Entry {
                element: a.element.clone(),
                member: a.member && !b.member,
                children: a.children.difference(&b.children),
            })
        })
    }

    /// Like [`Self::difference`], but a path of the other set also removes everything below it.
    #[must_use]
    pub fn recursive_difference(&self, other: &Self) -> Self {
        self.select(other, &|a, b| match b {
            None => Some(a.clone()),
            Some(b) if b.member => None,
            Some(b) => Some(Entry {
                element: a.element.clone(),
                member: a.member,
                children: a.children.recursive_difference(&b.children),
            }),
        })
    }

    /// The same for an owned set.
    #[must_use]
    pub fn without(mut self, other: &Self) -> Self {
        if !self.entries.is_empty() && !other.entries.is_empty() {
            self.entries.retain_mut(|entry| match other.entry(&entry.element) {
                None => true,
                Some(gone) if gone.member => false,
                Some(gone) => {
                    entry.children = std::mem::take(&mut entry.children).without(&gone.children);
                    !entry.is_empty()
                }
            });
        }
        self
    }

    /// Only paths with nothing below them.
    #[must_use]
    pub fn leaves(&self) -> Self {
        let entries = self.entries.iter().map(|e| Entry {
            element: e.element.clone(),
            member: e.member && e.children.is_empty(),
            children: e.children.leaves(),
        });
        Self { entries: entries.filter(|e| !e.is_empty()).collect() }
    }

    /// Reports whether the two have a path in common.
    pub fn intersects(&self, other: &Self) -> bool {
        !self.intersection(other).is_empty()
    }

    /// Every path: at each level first those that end there, then those that continue.
    pub fn for_each(&self, mut f: impl FnMut(&[&PathElement])) {
        let mut prefix = Vec::new();
        self.walk(&mut prefix, &mut f);
    }

    fn walk<'a>(&'a self, prefix: &mut Vec<&'a PathElement>, f: &mut impl FnMut(&[&PathElement])) {
        for entry in self.entries.iter().filter(|e| e.member) {
            prefix.push(&entry.element);
            f(prefix);
            prefix.pop();
        }
        for entry in &self.entries {
            prefix.push(&entry.element);
            entry.children.walk(prefix, f);
            prefix.pop();
        }
    }

    /// The `fieldsV1` of a managedFields entry.
    pub fn to_fields_v1(&self) -> Value {
        self.to_map(false)
    }

    fn to_map(&self, with_self: bool) -> Value {
        let mut map = Map::new();
        if with_self {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for entry in &self.entries {
            let with_self = entry.member && !entry.children.is_empty();
            map.insert(entry.element.to_key(), entry.children.to_map(with_self));
        }
        Value::Object(map)
    }

    /// Parses `fieldsV1`; elements of unknown types are skipped.
    pub fn from_fields_v1(fields: &Value) -> Result<Self, PathElementError> {
        read(fields).map(|(set, _)| set)
    }
}

/// The set below a node; the flag is true if the node itself is in the set.
fn read(fields: &Value) -> Result<(FieldSet, bool), PathElementError> {
    let map = match fields {
        Value::Object(map) => map,
        Value::Null => return Ok((FieldSet::default(), true)),
        other => return Err(PathElementError(format!("expected a map, got {other}"))),
    };
    let mut set = FieldSet { entries: Vec::with_capacity(map.len()) };
    let mut is_member = false;
    for (key, value) in map {
        if key == "." {
            is_member = true;
            continue;
        }
        let Some(element) = PathElement::parse(key)? else {
            continue;
        };
        let (children, member) = read(value)?;
        set.entries.push(Entry { element, member, children });
    }
    // Stored maps are sorted by text, which is nearly the order of elements.
    if !set.entries.is_sorted_by(|a, b| a.element < b.element) {
        set.entries.sort_by(|a, b| a.element.cmp(&b.element));
        // Of several texts for one element the last wins.
        set.entries.dedup_by(|later, earlier| {
            let same = later.element == earlier.element;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
    }
    let is_member = is_member || set.is_empty();
    Ok((set, is_member))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn set(value: Value) -> FieldSet {
        FieldSet::from_fields_v1(&value).unwrap()
    }

    #[test]
    fn fields_v1_round_trips() {
        let fields = json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}},
            "f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}},
            "f:finalizers": {"v:\"a/b\"": {}}, "f:x": {"i:0": {}}}});
        assert_eq!(set(fields.clone()).to_fields_v1(), fields);
        assert_eq!(set(json!({"x:y": {}, "f:a": {}})).to_fields_v1(), json!({"f:a": {}}));
        assert!(FieldSet::from_fields_v1(&json!({"f": {}})).is_err());
        assert!(FieldSet::from_fields_v1(&json!({"k:{": {}})).is_err());
    }

    #[test]
    fn paths_are_listed_members_first() {
        let mut paths = Vec::new();
        set(json!({"f:a": {"f:b": {}}, "f:c": {}, "f:d": {"k:{\"n\":\"x\"}": {"f:e": {}}}})).for_each(|p| {
            paths.push(p.iter().map(ToString::to_string).collect::<String>());
        });
        assert_eq!(paths, [".c", ".a.b", ".d[n=\"x\"].e"]);
    }

    #[test]
    fn recursive_difference_removes_children() {
        let all = set(json!({"f:spec": {"f:a": {}}, "f:status": {"f:b": {}}}));
        let status = FieldSet::of_fields(&[&["status"]]);
        assert_eq!(all.recursive_difference(&status).to_fields_v1(), json!({"f:spec": {"f:a": {}}}));
        assert_eq!(all.difference(&status), all);
    }

    fn any_set() -> impl Strategy<Value = FieldSet> {
        let element = prop_oneof![
            "[ab]".prop_map(|n| PathElement::field(&n)),
            (0..2i64).prop_map(|v| PathElement::Value(Value::from(v))),
            "[ab]".prop_map(|n| PathElement::Key(vec![(std::sync::Arc::from("n"), Value::from(n))])),
        ];
        prop::collection::vec(prop::collection::vec(element, 1..4), 0..8).prop_map(|paths| {
            let mut set = FieldSet::default();
            for path in paths {
                set.insert(&path);
            }
            set
        })
    }

    proptest! {
        #[test]
        fn set_operations_satisfy_identities(a in any_set(), b in any_set()) {
            prop_assert_eq!(a.union(&b), b.union(&a));
            prop_assert_eq!(a.intersection(&b), b.intersection(&a));
            prop_assert_eq!(a.union(&a), a.clone());
            prop_assert!(a.difference(&a).is_empty());
            prop_assert!(a.difference(&b).intersection(&b).is_empty());
            prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
            prop_assert_eq!(a.clone().merged(b.clone()), a.union(&b));
            prop_assert_eq!(FieldSet::union_all(vec![a.clone(), b.clone(), a.clone()]), a.union(&b));
            prop_assert_eq!(a.clone().without(&b), a.recursive_difference(&b));
            prop_assert_eq!(FieldSet::from_fields_v1(&a.to_fields_v1()), Ok(a.clone()));
        }

        #[test]
        fn parser_never_panics(key in "\\PC{0,12}", tail in "[fkvi]:\\PC{0,10}") {
            let _ = FieldSet::from_fields_v1(&json!({key: {tail: {}}}));
        }
    }
}
