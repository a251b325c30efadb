//! managedFields of creates, updates and patches.

use super::compare::{Comparison, compare};
use super::in_place;
use super::managed::{self, Identity, Managed};
use super::new_object::fields_of_new;
use super::reset::{Reset, clears_managers};
use super::set::FieldSet;
use super::strip::STRIPPED;
use super::types::Type;
use crate::meta;
use crate::names::{FIELD_MANAGER_MAX, is_printable};
use crate::schema::SchemaRef;
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// The versions of a kind, for managers with another version than the request.
pub trait Converter {
    /// The object in another `apiVersion`; `None` if that version is not served.
    fn convert(&self, object: &Value, api_version: &str) -> Option<Value>;
    /// The type in that version; `None` deduces it.
    fn schema(&self, api_version: &str) -> Option<SchemaRef<'_>>;
}

/// Attributes of a write, including its subresource.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The type of the objects; `None` deduces it from the values (custom resources without a schema).
    pub schema: Option<SchemaRef<'a>>,
    /// The version of the request: `v1`, `apps/v1`.
    pub api_version: &'a str,
    pub kind: &'a str,
    /// Empty for the main resource.
    pub subresource: &'a str,
    pub reset: &'a Reset,
    /// The field manager's name; empty is `unknown`.
    pub manager: &'a str,
    /// The current time as RFC 3339 in UTC with seconds.
    pub now: &'a str,
    /// For managers with another version of the kind. Entries of versions that are not served are dropped. `None`:
    /// fields have the same paths in every version.
    pub converter: Option<&'a dyn Converter>,
}

static NOTHING: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));

impl<'a> Context<'a> {
    pub(super) fn ty(&self) -> Type<'a> {
        self.schema.map_or(Type::Deduced, Type::Known)
    }
}

/// Manager of a write: the field manager of the request, or else the start of its user agent.
pub fn manager_name(field_manager: &str, user_agent: &str) -> String {
    if !field_manager.is_empty() {
        return field_manager.to_owned();
    }
    let mut name = String::new();
    for c in user_agent.split('/').next().unwrap_or("").chars().filter(|c| is_printable(*c)) {
        if name.len() + c.len_utf8() > FIELD_MANAGER_MAX {
            break;
        }
        name.push(c);
    }
    name
}

/// Writes `metadata.managedFields` of a new object that is created (`live` is `None`), updated or patched.
///
/// If only fields without owners changed, the entries stay unmodified. If a list has items without keys, fields
/// cannot be named, and all managers are dropped, as in Kubernetes.
pub fn update(live: Option<&Value>, new: &mut Value, context: &Context<'_>) {
    let requested = match new.get_mut("metadata") {
        Some(Value::Object(metadata)) => metadata.remove("managedFields"),
        _ => None,
    };
    let stored = live.and_then(managed::entries);
    // Entries of the request count if they are valid, else the stored ones.
    let mut submitted = None;
    let mut entries = None;
    let main = context.subresource.is_empty();
    match requested {
        Some(requested) if main && clears_managers(&requested) => submitted = Some(Vec::new()),
        Some(Value::Array(requested)) if Some(&requested) == stored => entries = Some(requested),
        Some(Value::Array(requested)) if main => {
            submitted = managed::decode(requested).ok().filter(|managers| !managers.is_empty());
        }
        _ => {}
    }
    let is_live = live.is_some_and(|l| !meta::uid(l).is_empty());
    let empty = submitted.as_ref().map_or(stored.is_none_or(Vec::is_empty), Vec::is_empty);
    if empty && is_live {
        // This object is not tracked: a request has cleared its managers.
        managed::store(new, Vec::new());
        return;
    }
    let identity = Identity::new(context.manager, false, context.api_version, context.subresource);
    if live.is_none() && submitted.is_none() && entries.is_none() {
        // A new object without managers.
        let fields = fields_of_new(context.ty(), new, context.reset).unwrap_or_default();
        let entry = |fields| identity.entry(context.api_version, Value::Object(fields), Some(context.now));
        managed::store(
            new,
            Some(fields).filter(|fields| !fields.is_empty()).map(entry).into_iter().collect(),
        );
        return;
    }
    let comparison = compare(context.ty(), live.unwrap_or(&NOTHING), new, true);
    let comparison = filtered(comparison, context.reset);
    if comparison.broken {
        managed::store(new, Vec::new());
        return;
    }
    let mut managers = match submitted {
        Some(managers) => managers,
        None => {
            let mut entries = entries.unwrap_or_else(|| stored.cloned().unwrap_or_default());
            if one_version(&entries, context) {
                if comparison.is_empty() {
                    managed::store(new, entries);
                    return;
                }
                if in_place::has_capacity(&entries, &identity) {
                    let Comparison { added, modified, removed, .. } = comparison;
                    in_place::record(&mut entries, modified.merged(added), removed, &identity, context.now);
                    managed::store(new, entries);
                    return;
                }
            }
            managed::decode(entries).unwrap_or_default()
        }
    };
    let versions = Versions::new(live.unwrap_or(&NOTHING), new, comparison, context);
    record_update(&mut managers, versions, identity, context);
    managed::store(new, managed::encode(managers));
}

/// Reports whether every stored entry has the version of the request.
fn one_version(entries: &[Value], context: &Context<'_>) -> bool {
    let same = |entry: &Value| entry.get("apiVersion").and_then(Value::as_str) == Some(context.api_version);
    context.converter.is_none() || entries.iter().all(same)
}

pub(super) fn filtered(comparison: Comparison, reset: &Reset) -> Comparison {
    Comparison {
        added: reset.filter(comparison.added),
        modified: reset.filter(comparison.modified),
        removed: reset.filter(comparison.removed),
        broken: comparison.broken,
    }
}

/// Changes in every version that a manager uses.
pub(super) struct Versions<'v, 'a> {
    old: &'v Value,
    new: &'v Value,
    context: &'v Context<'a>,
    /// By `apiVersion`, the request's own first; `None` for versions that are not served.
    known: Vec<(String, Option<Comparison>)>,
}

impl<'v, 'a> Versions<'v, 'a> {
    pub fn new(old: &'v Value, new: &'v Value, comparison: Comparison, context: &'v Context<'a>) -> Self {
        Self { old, new, context, known: vec![(context.api_version.to_owned(), Some(comparison))] }
    }

    /// Changes in the version of the request.
    pub fn own(&self) -> &Comparison {
        static EMPTY: LazyLock<Comparison> = LazyLock::new(Comparison::default);
        self.known[0].1.as_ref().unwrap_or(&EMPTY)
    }

    pub fn of(&mut self, api_version: &str) -> Option<&Comparison> {
        let Some(converter) = self.context.converter else {
            return self.known[0].1.as_ref();
        };
        let at = match self.known.iter().position(|(v, _)| v == api_version) {
            Some(at) => at,
            None => {
                let old = converter.convert(self.old, api_version);
                let comparison = old.zip(converter.convert(self.new, api_version)).map(|(old, new)| {
                    let ty = converter.schema(api_version).map_or(Type::Deduced, Type::Known);
                    filtered(compare(ty, &old, &new, true), self.context.reset)
                });
                self.known.push((api_version.to_owned(), comparison));
                self.known.len() - 1
            }
        };
        self.known[at].1.as_ref()
    }
}

/// Moves changed fields from the other managers to the one that changed them.
pub(super) fn record_update(
    managers: &mut Vec<Managed>,
    mut versions: Versions<'_, '_>,
    identity: Identity,
    context: &Context<'_>,
) {
    take_from(managers, &mut versions);
    let own = versions.own();
    let gained = own.modified.union(&own.added).difference(&STRIPPED);
    if !gained.is_empty() {
        match managers.iter_mut().find(|m| m.identity == identity) {
            Some(manager) => {
                manager.set = manager.set.union(&gained);
                manager.time = Some(context.now.to_owned());
                manager.stored = None;
            }
            None => managers.push(Managed {
                identity,
                api_version: context.api_version.to_owned(),
                time: Some(context.now.to_owned()),
                set: gained,
                stored: None,
            }),
        }
    }
    managed::cap(managers);
}

/// Removes changed and removed fields from the managers; drops managers without fields.
pub(super) fn take_from(managers: &mut Vec<Managed>, versions: &mut Versions<'_, '_>) {
    managers.retain_mut(|manager| {
        let Some(comparison) = versions.of(&manager.api_version) else {
            return false;
        };
        if !comparison.is_empty() {
            let left = manager
                .set
                .difference(&comparison.modified)
                .difference(&comparison.added)
                .difference(&comparison.removed);
            manager.set_fields(left);
        }
        !manager.set.is_empty()
    });
}

/// Before the write: if old and new differ only in the times of managedFields, restores the old times, so that the
/// write is a no-op and the resourceVersion stays.
pub fn restore_times(new: &mut Value, old: &Value) {
    let (Some(new_entries), Some(old_entries)) = (managed::entries(new), managed::entries(old)) else {
        return;
    };
    let same_but_time = |a: &Value, b: &Value| match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let rest = |m: &Map<String, Value>| m.iter().filter(|(k, _)| *k != "time").count();
            rest(a) == rest(b) && a.iter().all(|(k, v)| k == "time" || b.get(k) == Some(v))
        }
        _ => false,
    };
    let equal = new_entries.len() == old_entries.len()
        && new_entries != old_entries
        && new_entries.iter().zip(old_entries).all(|(a, b)| same_but_time(a, b))
        && equal_but_managed_fields(new, old);
    if equal {
        let entries = old_entries.clone();
        managed::store(new, entries);
    }
}

fn equal_but_managed_fields(a: &Value, b: &Value) -> bool {
    let (Value::Object(a), Value::Object(b)) = (a, b) else {
        return false;
    };
    let metadata = |m: &Map<String, Value>| m.get("metadata").and_then(Value::as_object).cloned();
    let without = |m: Option<Map<String, Value>>| {
        m.map(|mut m| {
            m.remove("managedFields");
            m
        })
    };
    a.len() == b.len()
        && a.iter().all(|(k, v)| k == "metadata" || b.get(k) == Some(v))
        && without(metadata(a)) == without(metadata(b))
}

/// The set of one field, for callers that build their own entries.
pub(super) fn field_set(path: &[&str]) -> FieldSet {
    FieldSet::of_fields(&[path])
}
