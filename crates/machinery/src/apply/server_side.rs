//! Apply patches: merge, conflicts, removal by omission, migration from client-side apply.

use super::LAST_APPLIED;
use super::compare::compare;
use super::managed::{self, Identity, Managed};
use super::manager::{Context, Versions, filtered, record_update, take_from};
use super::merge::merge;
use super::path::PathElement;
use super::set::FieldSet;
use super::strip::STRIPPED;
use super::types::Type;
use super::walk::{remove, to_field_set, validate, with_parents, without_nulls};
use crate::gvk::split_api_version;
use crate::meta;
use crate::names::ANNOTATIONS_MAX;
use crate::status::{Cause, Details, Status};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// A field that another manager owns, with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The manager in message form: `"kubectl" using v1`.
    pub manager: String,
    /// `.spec.replicas`.
    pub field: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    /// The applied object cannot be of this kind (400).
    #[error("{0}")]
    BadRequest(String),
    /// The applied object does not match the type (500 in Kubernetes).
    #[error("{0}")]
    Internal(String),
}

impl From<ApplyError> for Status {
    fn from(error: ApplyError) -> Self {
        let message = error.to_string();
        match error {
            ApplyError::Conflicts(conflicts) => {
                let causes = conflicts
                    .into_iter()
                    .map(|c| Cause {
                        reason: "FieldManagerConflict".to_owned(),
                        message: format!("conflict with {}", c.manager),
                        field: c.field,
                    })
                    .collect();
                Status::new(409, "Conflict", message).with_details(Details { causes, ..Details::default() })
            }
            ApplyError::BadRequest(_) => Status::bad_request(message),
            ApplyError::Internal(_) => Status::new(500, "", message),
        }
    }
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", one.manager, one.field);
    }
    let mut lines = Vec::new();
    let mut manager = None;
    for conflict in conflicts {
        if manager != Some(&conflict.manager) {
            manager = Some(&conflict.manager);
            lines.push(format!("conflicts with {}:", conflict.manager));
        }
        lines.push(format!("- {}", conflict.field));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Applies `applied` to `live` (`None`: the object is new) and returns the merged object with its managedFields.
///
/// The caller sets defaults on the result. If nothing changes, the result equals `live`.
pub fn apply(
    live: Option<&Value>,
    applied: &Value,
    force: bool,
    context: &Context<'_>,
) -> Result<Value, ApplyError> {
    check_type(applied, context)?;
    let mut managers = match live.and_then(managed::entries) {
        None => Vec::new(),
        Some(entries) => managed::decode(entries.clone())
            .map_err(|e| ApplyError::Internal(format!("failed to decode managed fields: {e}")))?,
    };
    let mut base = live.cloned().unwrap_or_else(|| Value::Object(Map::new()));
    if let Some(metadata) = base.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    let ty = context.ty();
    if managers.is_empty() && live.is_some() {
        let nothing = Value::Object(Map::new());
        let before = filtered(compare(ty, &nothing, &base, true), context.reset);
        let identity = Identity::new("before-first-apply", false, context.api_version, context.subresource);
        let versions = Versions::new(&nothing, &base, before, context);
        record_update(&mut managers, versions, identity, context);
    }
    if applied.get("metadata").and_then(|m| m.get("managedFields")).is_some_and(Value::is_array) {
        return Err(ApplyError::BadRequest("metadata.managedFields must be nil".to_owned()));
    }
    if let Some(problem) = validate(ty, applied) {
        let name = show_name(applied, context);
        return Err(ApplyError::Internal(format!("failed to create typed patch object ({name}): {problem}")));
    }
    if let Some(problem) = undeclared_elsewhere(&base, applied, &managers, context) {
        return Err(ApplyError::Internal(format!("failed to convert new object: {problem}")));
    }
    let kubectl = context.manager == "kubectl";
    let again = kubectl.then(|| managers.clone());
    let mut result = merge_and_record(&base, applied, managers, force, context);
    if let (Some(managers), Err(conflicts)) = (again, &result) {
        result = match allowed_conflicts(&base, context) {
            None => result,
            Some(allowed) => {
                let left: Vec<_> = conflicts.iter().filter(|(_, path)| !allowed.has(path)).cloned().collect();
                if left.is_empty() {
                    merge_and_record(&base, applied, managers, true, context)
                } else {
                    Err(left)
                }
            }
        };
    }
    let (mut object, managers) = result.map_err(|conflicts| {
        let conflicts = conflicts.into_iter().map(|(manager, path)| Conflict {
            manager,
            field: path.iter().map(ToString::to_string).collect(),
        });
        ApplyError::Conflicts(conflicts.collect())
    })?;
    if kubectl && meta::annotation(&object, LAST_APPLIED).is_some_and(|text| !text.is_empty()) {
        set_last_applied(&mut object, applied);
    }
    managed::store(&mut object, managed::encode(managers));
    Ok(object)
}

/// A field of the merged object that a version of another manager does not declare. As in Kubernetes, such an object cannot
/// be applied, since its managers cannot be compared.
fn undeclared_elsewhere(
    base: &Value,
    applied: &Value,
    managers: &[Managed],
    context: &Context<'_>,
) -> Option<String> {
    let converter = context.converter?;
    let is_other = |manager: &&Managed| manager.api_version != context.api_version;
    managers.iter().find(is_other)?;
    let merged = merge(context.ty(), Some(base), Some(applied))?;
    managers.iter().filter(is_other).find_map(|manager| {
        let schema = converter.schema(&manager.api_version)?;
        let converted = converter.convert(&merged, &manager.api_version)?;
        validate(Type::Known(schema), &converted).map(|problem| problem.to_string())
    })
}

fn show_type(api_version: &str, kind: &str) -> String {
    let (group, version) = split_api_version(api_version);
    format!("{group}/{version}, Kind={kind}")
}

fn show_name(object: &Value, context: &Context<'_>) -> String {
    let kind = show_type(context.api_version, context.kind);
    format!("{}/{}; {kind}", meta::namespace(object), meta::name(object))
}

fn check_type(applied: &Value, context: &Context<'_>) -> Result<(), ApplyError> {
    let text = |field: &str| applied.get(field).and_then(Value::as_str).unwrap_or("");
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version != context.api_version || kind != context.kind {
        let shown = show_type(api_version, kind);
        return Err(ApplyError::BadRequest(format!("invalid object type: {shown}")));
    }
    Ok(())
}

type Path = Vec<PathElement>;
type Merged = Result<(Value, Vec<Managed>), Vec<(String, Path)>>;

/// Merges, prunes fields that the manager no longer applies, and updates ownership.
fn merge_and_record(
    base: &Value,
    applied: &Value,
    mut managers: Vec<Managed>,
    force: bool,
    context: &Context<'_>,
) -> Merged {
    let ty = context.ty();
    let identity = Identity::new(context.manager, true, context.api_version, context.subresource);
    let mut merged = merge(ty, Some(base), Some(applied)).unwrap_or_else(|| Value::Object(Map::new()));
    let set = context.reset.filter(to_field_set(ty, applied));
    let last = managers.iter().position(|m| m.identity == identity).map(|at| managers.remove(at));
    let mut own = Managed {
        identity,
        api_version: context.api_version.to_owned(),
        time: last.as_ref().and_then(|m| m.time.clone()),
        set,
        stored: None,
    };
    if let Some(last) = last.as_ref().filter(|m| !m.set.is_empty()) {
        merged = prune(ty, &merged, &last.set, &managers, &own.set);
    }
    let comparison = filtered(compare(ty, base, &merged, false), context.reset);
    let mut versions = Versions::new(base, &merged, comparison, context);
    if !force {
        let conflicts = find_conflicts(&managers, &mut versions);
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
    }
    take_from(&mut managers, &mut versions);
    // A null changes nothing, but updates the time, as in Kubernetes.
    if merged != *base {
        own.time = Some(context.now.to_owned());
    }
    without_nulls(ty, &mut merged);
    let mut unchanged = base.clone();
    without_nulls(ty, &mut unchanged);
    if merged == unchanged {
        merged = base.clone();
    }
    let stored = last.and_then(|m| m.stored.map(|stored| (m.set, m.api_version, m.time, stored)));
    own.set = own.set.difference(&STRIPPED);
    if !own.set.is_empty() {
        if let Some((set, api_version, time, stored)) = stored
            && set == own.set
            && api_version == own.api_version
            && time == own.time
        {
            own.stored = Some(stored);
        }
        managers.push(own);
    }
    Ok((merged, managers))
}

/// Changed fields that other managers own, by manager.
fn find_conflicts(managers: &[Managed], versions: &mut Versions<'_, '_>) -> Vec<(String, Path)> {
    let mut conflicts = Vec::new();
    let mut managers: Vec<&Managed> = managers.iter().collect();
    managers.sort_by(|a, b| a.identity.cmp(&b.identity));
    let mut by_version: HashMap<&str, Option<FieldSet>> = HashMap::new();
    for manager in managers {
        let changed = by_version.entry(&manager.api_version).or_insert_with(|| {
            let comparison = versions.of(&manager.api_version)?;
            Some(comparison.modified.union(&comparison.added))
        });
        let Some(changed) = changed else {
            continue;
        };
        manager.set.intersection(changed).for_each(|path| {
            conflicts.push((manager.identity.show(), path.iter().map(|e| (*e).clone()).collect()));
        });
    }
    conflicts
}

/// Removes fields that the manager applied last time and omits now, unless another manager owns them.
fn prune(ty: Type<'_>, merged: &Value, last: &FieldSet, others: &[Managed], own: &FieldSet) -> Value {
    let last = with_parents(last, ty);
    let pruned = remove(ty, merged, &last);
    let merged_set = with_parents(&to_field_set(ty, merged), ty);
    let retained = with_parents(&to_field_set(ty, &pruned), ty);
    let owned = std::iter::once(own).chain(others.iter().map(|m| &m.set)).cloned().collect();
    let owned = FieldSet::union_all(owned);
    let owned = with_parents(&owned, ty);
    let pruned = remove(ty, merged, &merged_set.difference(&retained.union(&owned)));
    let retained = with_parents(&to_field_set(ty, &pruned), ty);
    remove(ty, merged, &merged_set.difference(&retained).intersection(&last))
}

/// Conflicts with fields of client-side apply are dropped, where these are unchanged since.
fn allowed_conflicts(base: &Value, context: &Context<'_>) -> Option<FieldSet> {
    let text = meta::annotation(base, LAST_APPLIED).filter(|text| !text.is_empty())?;
    let last: Value = serde_json::from_str(text).ok()?;
    if last.get("apiVersion").and_then(Value::as_str) != Some(context.api_version) {
        return None;
    }
    let ty = context.ty();
    if validate(ty, &last).is_some() {
        return None;
    }
    let changed = compare(ty, &last, base, false);
    let set = to_field_set(ty, &last);
    Some(set.difference(&changed.modified).difference(&changed.added).difference(&changed.removed))
}

/// Updates client-side apply's annotation, so that switching back works; dropped if it gets too large.
fn set_last_applied(object: &mut Value, applied: &Value) {
    let mut applied = applied.clone();
    if let Some(metadata) = applied.get_mut("metadata").and_then(Value::as_object_mut) {
        let left = metadata.get_mut("annotations").and_then(Value::as_object_mut).map(|annotations| {
            annotations.remove(LAST_APPLIED);
            annotations.len()
        });
        if left == Some(0) {
            metadata.remove("annotations");
        }
    }
    let text = format!("{applied}\n");
    let metadata = meta::metadata_mut(object);
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else {
        return;
    };
    annotations.insert(LAST_APPLIED.to_owned(), Value::from(text));
    let size: usize = annotations.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if size > ANNOTATIONS_MAX {
        annotations.remove(LAST_APPLIED);
    }
}
