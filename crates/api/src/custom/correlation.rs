//! Old values of the parts of a value, and ratcheting: a part that equals its old value does not fail an update.

use super::node::Node;
use machinery::Value;
use std::collections::HashMap;

/// A value with the old value that it replaces.
#[derive(Clone, Copy)]
pub struct Correlated<'v> {
    pub node: &'v Node,
    pub new: &'v Value,
    pub old: &'v Value,
}

/// Items of an old list by their keys. Empty unless the list is of type map.
pub struct OldItems<'v> {
    by_key: HashMap<String, &'v Value>,
}

impl<'v> OldItems<'v> {
    pub fn of(node: &Node, old: Option<&'v Value>) -> Self {
        let mut by_key = HashMap::new();
        if let Some(Value::Array(items)) = old.filter(|_| node.is_map_list()) {
            for item in items {
                if let Some(key) = key_of(node, item) {
                    by_key.entry(key).or_insert(item);
                }
            }
        }
        Self { by_key }
    }

    /// The old item with the keys of a new one.
    pub fn get(&self, node: &Node, item: &Value) -> Option<&'v Value> {
        if self.by_key.is_empty() {
            return None;
        }
        self.by_key.get(&key_of(node, item)?).copied()
    }
}

/// Text that is equal for items with equal keys. `None`: a key is absent or no scalar.
fn key_of(list: &Node, item: &Value) -> Option<String> {
    let Value::Object(fields) = item else { return None };
    let mut key = String::new();
    for name in list.map_keys() {
        match fields.get(name.as_ref())? {
            Value::String(text) => key.push_str(text),
            scalar @ (Value::Bool(_) | Value::Number(_)) => {
                key.push('\u{1}');
                key.push_str(&scalar.to_string());
            }
            _ => return None,
        }
        key.push('\0');
    }
    Some(key)
}

impl<'v> Correlated<'v> {
    /// A field with its old value. `None` if there is none, or the schema does not describe it.
    pub fn field(self, name: &str) -> Option<Self> {
        let (Value::Object(new), Value::Object(old)) = (self.new, self.old) else { return None };
        let (new, old) = (new.get(name)?, old.get(name)?);
        self.node.member(name).map(|node| Self { node, new, old })
    }

    /// An item with its old value.
    pub fn item(self, items: &OldItems<'v>, new: &'v Value) -> Option<Self> {
        let old = items.get(self.node, new)?;
        self.node.items.as_ref().map(|node| Self { node, new, old })
    }

    /// The items of the old list.
    pub fn old_items(self) -> OldItems<'v> {
        OldItems::of(self.node, Some(self.old))
    }

    /// True if the value is unchanged. Fields that the schema does not describe count as changed; items of lists of
    /// type map are compared by key.
    pub fn is_unchanged(self) -> bool {
        match (self.new, self.old) {
            (Value::Array(new), Value::Array(old)) => {
                if new.len() != old.len() {
                    return false;
                }
                if !(self.node.is_map_list() && self.node.items.is_some()) {
                    return new == old;
                }
                let items = self.old_items();
                new.iter().all(|new| self.item(&items, new).is_some_and(Self::is_unchanged))
            }
            (Value::Object(new), Value::Object(old)) => {
                let same = |name: &String| self.field(name).is_some_and(Self::is_unchanged);
                new.len() == old.len() && new.keys().all(same)
            }
            (new, old) => new == old,
        }
    }
}

/// Position of rule evaluation: the value with its old value, or the nearest ancestor that has one.
#[derive(Clone, Copy, Default)]
pub struct Ratchet<'v> {
    pub current: Option<Correlated<'v>>,
    pub above: Option<Correlated<'v>>,
}

impl<'v> Ratchet<'v> {
    pub fn root(node: &'v Node, new: &'v Value, old: Option<&'v Value>) -> Self {
        Self { current: old.map(|old| Correlated { node, new, old }), above: None }
    }

    pub fn field(self, name: &str) -> Self {
        match self.current {
            None => self,
            // Both are of the requested version here, regardless of the version in the request.
            Some(_) if self.above.is_none() && is_type_field(name) => Self::default(),
            Some(current) => Self { current: current.field(name), above: Some(current) },
        }
    }

    pub fn item(self, items: &OldItems<'v>, new: &'v Value) -> Self {
        match self.current {
            None => self,
            Some(current) => Self { current: current.item(items, new), above: Some(current) },
        }
    }

    /// True if failures here are those of an unchanged value.
    pub fn tolerates(self) -> bool {
        self.current.or(self.above).is_some_and(Correlated::is_unchanged)
    }
}

/// Fields that are never ratcheted at the root.
pub fn is_type_field(name: &str) -> bool {
    matches!(name, "kind" | "apiVersion")
}
