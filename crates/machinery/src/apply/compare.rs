//! Differences between two objects, as field sets.

use super::set::FieldSet;
use super::types::{Members, MergeType, Type, as_list, as_map, item_element, zero};
use serde_json::{Map, Value};
use std::cell::Cell;

/// The fields that were added, modified, removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    pub added: FieldSet,
    pub modified: FieldSet,
    pub removed: FieldSet,
    /// A list has items with equal keys, so changes cannot be attributed.
    pub broken: bool,
}

impl Comparison {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }
}

/// Change of one value itself, as opposed to its children.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueChange {
    None,
    Added,
    Modified,
    Removed,
}

/// Compares objects. `rhs_complete` means that the new object was decoded, so absent fields that are always written
/// stand for their zero value; this holds for the old object in any case.
pub(super) fn compare(ty: Type<'_>, lhs: &Value, rhs: &Value, rhs_complete: bool) -> Comparison {
    let mut out = Comparison::default();
    let walk = Walk { rhs_complete, broken: Cell::new(false) };
    walk.object(ty, lhs, rhs, &mut out);
    out.broken = walk.broken.get();
    out
}

/// Compares one value of two decoded objects: whether it changed itself, and the changes below it.
pub(super) fn compare_at(ty: Type<'_>, lhs: &Value, rhs: &Value, level: Level) -> (bool, Comparison) {
    let mut below = Comparison::default();
    let walk = Walk { rhs_complete: true, broken: Cell::new(false) };
    let change = walk.value(ty, Some(lhs), Some(rhs), level, &mut below);
    below.broken = walk.broken.get();
    (matches!(change, ValueChange::Added | ValueChange::Modified), below)
}

struct Walk {
    rhs_complete: bool,
    broken: Cell<bool>,
}

/// True for fields that have no owner and are excluded from managedFields.
pub(super) fn skipped(level: Level, name: &str) -> bool {
    match level {
        Level::Root => matches!(name, "apiVersion" | "kind"),
        Level::Metadata => super::strip::METADATA.contains(&name),
        Level::Inside => false,
    }
}

/// Relevant depth of a walk in an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Root,
    Metadata,
    Inside,
}

impl Level {
    pub fn below(self, name: &str) -> Self {
        if self == Self::Root && name == "metadata" { Self::Metadata } else { Self::Inside }
    }
}

impl Walk {
    fn object(&self, ty: Type<'_>, lhs: &Value, rhs: &Value, out: &mut Comparison) {
        if let MergeType::Map(members) = ty.kind(Some(rhs)) {
            self.maps(members, as_map(Some(lhs)), as_map(Some(rhs)), Level::Root, out);
        }
    }

    fn value(
        &self,
        ty: Type<'_>,
        lhs: Option<&Value>,
        rhs: Option<&Value>,
        level: Level,
        out: &mut Comparison,
    ) -> ValueChange {
        let (left_kind, right_kind) = (ty.kind(lhs), ty.kind(rhs));
        let mixed = lhs.is_some()
            && rhs.is_some()
            && matches!(left_kind, MergeType::Leaf) != matches!(right_kind, MergeType::Leaf);
        let kind = if rhs.is_some() { right_kind } else { left_kind };
        if mixed && matches!(kind, MergeType::Leaf) {
            // A map was replaced by a list or scalar of unknown type: its members were removed.
            if let MergeType::Map(members) = left_kind {
                self.maps(members, as_map(lhs), None, level, out);
            }
        }
        let leaf = match kind {
            MergeType::Leaf => true,
            MergeType::Map(members) => {
                let (left, right) = (as_map(lhs), as_map(rhs));
                let empty = left.is_none_or(Map::is_empty) && right.is_none_or(Map::is_empty);
                if !empty {
                    self.maps(members, left, right, level, out);
                }
                empty
            }
            MergeType::Set | MergeType::Keyed(_) => {
                let (left, right) = (as_list(lhs), as_list(rhs));
                let empty = left.is_none_or(Vec::is_empty) && right.is_none_or(Vec::is_empty);
                if !empty {
                    self.lists(kind, left, right, out);
                }
                empty
            }
        };
        match (lhs, rhs) {
            (None, _) => ValueChange::Added,
            (_, None) => ValueChange::Removed,
            (Some(left), Some(right)) if (leaf || mixed) && left != right => ValueChange::Modified,
            _ => ValueChange::None,
        }
    }

    fn maps(
        &self,
        members: Members<'_>,
        lhs: Option<&Map<String, Value>>,
        rhs: Option<&Map<String, Value>>,
        level: Level,
        out: &mut Comparison,
    ) {
        let mut left = lhs.into_iter().flatten().peekable();
        let mut right = rhs.into_iter().flatten().peekable();
        loop {
            let name = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some((a, _)), Some((b, _))) => std::cmp::min(*a, *b),
                (Some((a, _)), None) => *a,
                (None, Some((b, _))) => *b,
            };
            let mut old = left.next_if(|(k, _)| *k == name).map(|(_, v)| v);
            let mut new = right.next_if(|(k, _)| *k == name).map(|(_, v)| v);
            // Most of an object is unchanged.
            if skipped(level, name) || (old.is_some() && old == new) {
                continue;
            }
            let ty = match members {
                Members::Every(ty) => ty,
                Members::Struct(schema) => match schema.field_decl(name) {
                    None => Type::Deduced,
                    Some(field) => {
                        if old.is_none() && lhs.is_some() {
                            old = zero(schema, field);
                        }
                        if new.is_none() && rhs.is_some() && self.rhs_complete {
                            new = zero(schema, field);
                        }
                        Type::Known(schema.of_field(field))
                    }
                },
            };
            let mut inner = Comparison::default();
            let change = self.value(ty, old, new, level.below(name), &mut inner);
            let element = || super::path::PathElement::field(name);
            out.added.push(element, change == ValueChange::Added, inner.added);
            out.modified.push(element, change == ValueChange::Modified, inner.modified);
            out.removed.push(element, change == ValueChange::Removed, inner.removed);
        }
    }

    /// Items are matched by element; items with the same element (duplicates) are compared as a group.
    fn lists(
        &self,
        kind: MergeType<'_>,
        lhs: Option<&Vec<Value>>,
        rhs: Option<&Vec<Value>>,
        out: &mut Comparison,
    ) {
        if lhs == rhs {
            return;
        }
        let index = |list: Option<&'_ Vec<Value>>| {
            let mut items: Vec<(super::path::PathElement, usize)> = list
                .into_iter()
                .flatten()
                .enumerate()
                .filter_map(|(i, v)| match item_element(kind, v) {
                    Ok(element) => Some((element, i)),
                    Err(_) => {
                        self.broken.set(true);
                        None
                    }
                })
                .collect();
            items.sort();
            items
        };
        let item_type = match kind {
            MergeType::Keyed(list) => list.element().map_or(Type::Deduced, Type::Known),
            _ => Type::Deduced,
        };
        let mut left = index(lhs).into_iter().peekable();
        let mut right = index(rhs).into_iter().peekable();
        loop {
            let element = match (left.peek(), right.peek()) {
                (None, None) => break,
                (Some((a, _)), Some((b, _))) => std::cmp::min(a, b).clone(),
                (Some((a, _)), None) => a.clone(),
                (None, Some((b, _))) => b.clone(),
            };
            let mut olds = Vec::new();
            while let Some((_, i)) = left.next_if(|(e, _)| *e == element) {
                olds.extend(lhs.and_then(|l| l.get(i)));
            }
            let mut news = Vec::new();
            while let Some((_, i)) = right.next_if(|(e, _)| *e == element) {
                news.extend(rhs.and_then(|l| l.get(i)));
            }
            let mut inner = Comparison::default();
            let mut one = |old, new| self.value(item_type, old, new, Level::Inside, &mut inner);
            let (mut added, mut modified, mut removed) = (false, false, false);
            match (olds.len(), news.len()) {
                (0 | 1, 0 | 1) => {
                    let change = one(olds.first().copied(), news.first().copied());
                    added = change == ValueChange::Added;
                    modified = change == ValueChange::Modified;
                    removed = change == ValueChange::Removed;
                }
                (2.., 2..) => modified = olds != news,
                (2.., _) => {
                    if let Some(new) = news.first() {
                        added = one(None, Some(new)) == ValueChange::Added;
                    }
                    removed = true;
                }
                _ => {
                    if let Some(old) = olds.first() {
                        removed = one(Some(old), None) == ValueChange::Removed;
                    }
                    added = true;
                }
            }
            out.added.push(|| element.clone(), added, inner.added);
            out.modified.push(|| element.clone(), modified, inner.modified);
            out.removed.push(|| element.clone(), removed, inner.removed);
        }
    }
}
