//! `metadata.managedFields`: reading, writing, order.

use super::set::FieldSet;
use crate::field::show_str;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Identity of a manager: entries with the same identity are merged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Identity {
    pub manager: String,
    pub applies: bool,
    /// Empty for appliers: they are one manager in all versions.
    pub api_version: String,
    pub subresource: String,
}

/// One manager with its fields.
#[derive(Clone, Debug)]
pub(super) struct Managed {
    pub identity: Identity,
    pub api_version: String,
    /// RFC 3339; `None` if the entry has none.
    pub time: Option<String>,
    pub set: FieldSet,
    /// The entry as stored, while unmodified.
    pub stored: Option<Value>,
}

impl Identity {
    pub fn new(manager: &str, applies: bool, api_version: &str, subresource: &str) -> Self {
        Self {
            manager: if manager.is_empty() { "unknown" } else { manager }.to_owned(),
            applies,
            api_version: if applies { String::new() } else { api_version.to_owned() },
            subresource: subresource.to_owned(),
        }
    }

    /// The stored form of an entry of this manager; `fields` are in their `FieldsV1` form.
    pub fn entry(&self, api_version: &str, fields: Value, time: Option<&str>) -> Value {
        let mut entry = Map::new();
        entry.insert("apiVersion".to_owned(), json!(api_version));
        entry.insert("fieldsType".to_owned(), json!("FieldsV1"));
        entry.insert("fieldsV1".to_owned(), fields);
        if !self.manager.is_empty() {
            entry.insert("manager".to_owned(), json!(self.manager));
        }
        entry.insert("operation".to_owned(), json!(if self.applies { "Apply" } else { "Update" }));
        if !self.subresource.is_empty() {
            entry.insert("subresource".to_owned(), json!(self.subresource));
        }
        if let Some(time) = time {
            entry.insert("time".to_owned(), json!(time));
        }
        Value::Object(entry)
    }

    /// Name of a manager in conflict messages.
    pub fn show(&self) -> String {
        let mut text = show_str(&self.manager);
        if !self.subresource.is_empty() {
            text.push_str(" with subresource ");
            text.push_str(&show_str(&self.subresource));
        }
        if !self.applies {
            text.push_str(" using ");
            text.push_str(&self.api_version);
        }
        text
    }
}

impl Managed {
    /// The stored form of the entry.
    fn into_value(self) -> Value {
        if let Some(stored) = self.stored {
            return stored;
        }
        self.identity.entry(&self.api_version, self.set.to_fields_v1(), self.time.as_deref())
    }

    pub fn set_fields(&mut self, set: FieldSet) {
        if set != self.set {
            self.set = set;
            self.stored = None;
        }
    }
}

/// Decodes entries; the error text is the API's.
pub(super) fn decode(entries: Vec<Value>) -> Result<Vec<Managed>, String> {
    let mut out: Vec<Managed> = Vec::with_capacity(entries.len());
    let mut positions: HashMap<Identity, usize> = HashMap::new();
    for (i, entry) in entries.into_iter().enumerate() {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or("");
        let applies = match text("operation") {
            "Apply" => true,
            "Update" => false,
            _ => return Err("operation must be `Apply` or `Update`".to_owned()),
        };
        let api_version = text("apiVersion");
        if api_version.is_empty() {
            return Err("apiVersion must not be empty".to_owned());
        }
        match text("fieldsType") {
            "FieldsV1" => {}
            "" => return Err(format!("missing fieldsType in managed fields entry {i}")),
            other => {
                return Err(format!("invalid fieldsType {} in managed fields entry {i}", show_str(other)));
            }
        }
        let set = match entry.get("fieldsV1") {
            None => FieldSet::default(),
            Some(fields) => FieldSet::from_fields_v1(fields).map_err(|e| {
                format!("error decoding versioned set from entry {i}: error decoding set: {e}")
            })?,
        };
        let managed = Managed {
            identity: Identity {
                manager: text("manager").to_owned(),
                applies,
                api_version: if applies { String::new() } else { api_version.to_owned() },
                subresource: text("subresource").to_owned(),
            },
            api_version: api_version.to_owned(),
            time: entry.get("time").and_then(Value::as_str).map(str::to_owned),
            set,
            stored: Some(entry),
        };
        match positions.entry(managed.identity.clone()) {
            Entry::Occupied(index) => out[*index.get()] = managed,
            Entry::Vacant(index) => {
                index.insert(out.len());
                out.push(managed);
            }
        }
    }
    Ok(out)
}

/// The entries in stored order.
pub(super) fn encode(mut managers: Vec<Managed>) -> Vec<Value> {
    managers.sort_by(|a, b| {
        let applies = b.identity.applies.cmp(&a.identity.applies);
        applies
            .then_with(|| a.time.as_deref().unwrap_or("").cmp(b.time.as_deref().unwrap_or("")))
            .then_with(|| a.identity.manager.cmp(&b.identity.manager))
            .then_with(|| a.api_version.cmp(&b.api_version))
            .then_with(|| a.identity.subresource.cmp(&b.identity.subresource))
    });
    managers.into_iter().map(Managed::into_value).collect()
}

/// The `managedFields` of an object, if any.
pub(super) fn entries(object: &Value) -> Option<&Vec<Value>> {
    object.get("metadata").and_then(|m| m.get("managedFields")).and_then(Value::as_array)
}

/// Sets the entries of an object; none removes the field.
pub(super) fn store(object: &mut Value, entries: Vec<Value>) {
    let metadata = crate::meta::metadata_mut(object);
    if entries.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".to_owned(), Value::Array(entries));
    }
}

/// Limit of updating managers; more are merged, oldest first.
pub(super) const MAX_UPDATERS: usize = 10;
const MERGED_MANAGER: &str = "ancient-changes";

/// Merges the oldest updating managers of a version into one.
pub(super) fn cap(managers: &mut Vec<Managed>) {
    let mut updaters: Vec<usize> = (0..managers.len()).filter(|at| !managers[*at].identity.applies).collect();
    let Some(mut surplus) = updaters.len().checked_sub(MAX_UPDATERS).filter(|surplus| *surplus > 0) else {
        return;
    };
    updaters.sort_by(|a, b| {
        let key = |at: usize| (managers[at].time.as_deref().unwrap_or(""), &managers[at].identity);
        key(*a).cmp(&key(*b))
    });
    // By version, the manager that stays, and those that are merged into it.
    let mut folds: HashMap<String, (usize, Vec<usize>)> = HashMap::new();
    for at in updaters {
        if surplus == 0 {
            break;
        }
        match folds.entry(managers[at].api_version.clone()) {
            Entry::Vacant(index) => {
                index.insert((at, Vec::new()));
            }
            Entry::Occupied(mut index) => {
                index.get_mut().1.push(at);
                surplus -= 1;
            }
        }
    }
    let mut is_folded = vec![false; managers.len()];
    for (version, (first, folded)) in folds {
        let Some(last) = folded.last().copied() else { continue };
        let bucket = Identity::new(MERGED_MANAGER, false, &version, "");
        let known = managers.iter().position(|m| m.identity == bucket);
        // Others are merged into an existing manager with this name, unless it is merged itself.
        let target = known.filter(|at| !folded.contains(at)).unwrap_or(first);
        let sets = folded.iter().map(|at| std::mem::take(&mut managers[*at].set)).collect();
        let time = managers[last].time.take();
        folded.iter().for_each(|at| is_folded[*at] = true);
        let target = &mut managers[target];
        target.set = std::mem::take(&mut target.set).merged(FieldSet::union_all(sets));
        target.time = time;
        target.identity = bucket;
        target.stored = None;
    }
    let mut is_folded = is_folded.into_iter();
    managers.retain(|_| !is_folded.next().unwrap_or(false));
}
