//! Members of objects by name.
//!
//! A map finds a key by comparisons, each of them a call. Most names differ in their first byte, which is compared
//! inline.

use serde_json::{Map, Value};
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

/// A key, owned by a map or borrowed for a lookup; ordered like its text.
trait Name {
    fn text(&self) -> &str;
}

impl Name for String {
    fn text(&self) -> &str {
        self
    }
}

impl Name for &str {
    fn text(&self) -> &str {
        self
    }
}

impl<'a> Borrow<dyn Name + 'a> for String {
    fn borrow(&self) -> &(dyn Name + 'a) {
        self
    }
}

impl Ord for dyn Name + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        let (one, other) = (self.text().as_bytes(), other.text().as_bytes());
        match (one.first(), other.first()) {
            (Some(a), Some(b)) if a != b => a.cmp(b),
            _ => one.cmp(other),
        }
    }
}

impl PartialOrd for dyn Name + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn Name + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for dyn Name + '_ {}

impl Hash for dyn Name + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text().hash(state);
    }
}

/// The member with this name.
pub fn get<'m>(map: &'m Map<String, Value>, name: &str) -> Option<&'m Value> {
    map.get(&name as &dyn Name)
}

/// The member of an object with this name; other values have no members.
pub fn of<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    get(value.as_object()?, name)
}

/// The member with this name, mutable.
pub fn get_mut<'m>(map: &'m mut Map<String, Value>, name: &str) -> Option<&'m mut Value> {
    map.get_mut(&name as &dyn Name)
}

/// Removes a member.
pub fn remove(map: &mut Map<String, Value>, name: &str) -> Option<Value> {
    map.remove(&name as &dyn Name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn member_lookup_finds_only_present_names(
            names in prop::collection::vec("[ab\u{e4}]{0,3}", 0..30),
            other in "[abc\u{e4}]{0,3}",
        ) {
            let mut map: Map<String, Value> = names.iter().map(|name| (name.clone(), Value::from(name.as_str()))).collect();
            for name in names.iter().chain([&other]) {
                let found = get(&map, name).cloned();
                prop_assert_eq!(found.as_ref(), map.get(name));
                prop_assert_eq!(get_mut(&mut map, name).cloned(), found.clone());
                let mut less = map.clone();
                prop_assert_eq!(remove(&mut less, name), found);
                prop_assert!(!less.contains_key(name));
            }
        }
    }
}
