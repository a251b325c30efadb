//! The scale subresource: a small view of an object's replicas, readable and writable.

use super::patch::{View, check_name};
use super::update::uid_conflict;
use super::{Served, WriteContext, metadata};
use api::kind::Scale;
use machinery::apply::{self, Reset};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::schema::SchemaRef;
use machinery::status::{Result, Status};
use machinery::{Map, Value, meta, names};
use serde_json::json;

/// The `Scale` of an object.
pub fn of(scale: &Scale<'_>, object: &Value) -> Value {
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = meta::metadata(object).and_then(|m| m.get(field)) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    let number = |path: &str| get(object, path).and_then(Value::as_i64).unwrap_or(0);
    let mut spec = Map::new();
    let replicas = number(scale.spec_replicas);
    if replicas != 0 {
        spec.insert("replicas".to_owned(), replicas.into());
    }
    let mut status = Map::new();
    status.insert("replicas".to_owned(), number(scale.status_replicas).into());
    let selector = scale.selector.of(object);
    if !selector.is_empty() {
        status.insert("selector".to_owned(), selector.into());
    }
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status})
}

/// Desired scale of a request: the whole object, or the fields of an apply.
pub enum Wanted {
    Whole(Value),
    Applied { fields: Value, force: bool },
}

/// Writes the scale of an object, with the managers of its replicas; returns the new object. `make` turns the current
/// scale into the desired one.
pub fn write(
    served: &Served,
    scale: &Scale<'_>,
    schema: SchemaRef<'_>,
    object: &Value,
    context: &WriteContext<'_>,
    make: impl FnOnce(&Value) -> Result<Wanted>,
) -> Result<Value> {
    let replicas: Vec<&str> = scale.spec_replicas.trim_start_matches('.').split('.').collect();
    let mut present = of(scale, object);
    let managers = apply::scale::to_scale(object, &replicas);
    if !managers.is_empty() {
        meta::metadata_mut(&mut present).insert("managedFields".to_owned(), managers.into());
    }
    let strategy = apply::Context {
        schema: Some(schema),
        api_version: "autoscaling/v1",
        kind: "Scale",
        subresource: context.subresource,
        reset: &Reset::Nothing,
        manager: &context.manager,
        now: &metadata::now(),
        converter: None,
    };
    let wanted = match make(&present)? {
        Wanted::Whole(mut new) => {
            check_identity(&mut new, served, object, context)?;
            apply::update(Some(&present), &mut new, &strategy);
            new
        }
        Wanted::Applied { fields, force } => {
            let mut new = apply::apply(Some(&present), &fields, force, &strategy).map_err(Status::from)?;
            super::patch::restore(
                &mut new,
                View { schema, rules: None },
                &fields,
                "autoscaling/v1, Kind=Scale",
            )?;
            check_identity(&mut new, served, object, context)?;
            new
        }
    };
    let mut new = self::apply(served, scale, &wanted, object, context.dry_run)?;
    let managers = apply::scale::to_parent(object, &wanted, &served.api_version, &replicas);
    meta::metadata_mut(&mut new).insert("managedFields".to_owned(), managers.into());
    Ok(new)
}

/// Checks that the scale has the namespace and the name of its object.
fn check_identity(
    scale: &mut Value,
    served: &Served,
    object: &Value,
    context: &WriteContext<'_>,
) -> Result<()> {
    metadata::ensure_namespace(scale, served, context.namespace)?;
    check_name(scale, meta::name(object))
}

/// Validates a scale.
fn validate(scale: &Value, namespaced: bool) -> ErrorList {
    let path = Path::new("metadata");
    let mut errors = names::validate_object_meta(&scale["metadata"], namespaced, names::dns_subdomain, &path);
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    if replicas < 0 {
        let path = Path::new("spec");
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&path.child("replicas"), &replicas.into(), detail));
    }
    errors
}

/// The object with the replicas of a scale.
fn apply(served: &Served, scale: &Scale<'_>, wanted: &Value, object: &Value, dry_run: bool) -> Result<Value> {
    let errors = validate(wanted, served.namespaced());
    if !errors.is_empty() {
        return Err(Status::invalid("autoscaling", "Scale", meta::name(wanted), &errors));
    }
    let submitted = meta::uid(wanted);
    if !submitted.is_empty() && submitted != meta::uid(object) {
        return Err(uid_conflict(served, submitted, object, dry_run));
    }
    let mut new = object.clone();
    let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
    set(&mut new, scale.spec_replicas, replicas.into());
    let version = meta::resource_version(wanted).to_owned();
    let metadata = meta::metadata_mut(&mut new);
    if version.is_empty() {
        metadata.remove("resourceVersion");
    } else {
        metadata.insert("resourceVersion".to_owned(), version.into());
    }
    Ok(new)
}

fn get<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.trim_start_matches('.').split('.').try_fold(object, |value, part| value.get(part))
}

fn set(object: &mut Value, path: &str, value: Value) {
    let mut target = object;
    for part in path.trim_start_matches('.').split('.') {
        if !target.is_object() {
            *target = Value::Object(Map::new());
        }
        target = &mut target[part];
    }
    *target = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_metadata_and_replicas_are_validated() {
        let scale = |labels: Value, replicas: i64| {
            let metadata = json!({"name": "x", "namespace": "n", "labels": labels});
            json!({"metadata": metadata, "spec": {"replicas": replicas}})
        };
        for (scale, fields) in [
            (scale(json!({"a": "b"}), 3), &[][..]),
            (scale(json!({"a": "-"}), 3), &["metadata.labels"]),
            (scale(json!({}), -1), &["spec.replicas"]),
        ] {
            let errors = validate(&scale, true);
            assert_eq!(
                errors.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(),
                fields,
                "{scale}"
            );
        }
    }
}
