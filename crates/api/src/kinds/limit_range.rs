//! LimitRange.

use crate::validation::resource_names::{
    container_resource_name, overcommit_allowed, quantities, quantity_of, resource_name, round_up_to_milli,
};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;
use machinery::quantity::Quantity;
use machinery::{Value, meta};

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    validate,
    validate_update: |new, _| validate(new),
    create_on_update: true,
    metadata_on_update: &[MetadataCheck::New],
    ..Kind::new("", "v1", "LimitRange", "limitranges", Scope::Namespaced)
};

/// A limit range without a name gets a generated one.
fn prepare_create(range: &mut Value) {
    if meta::name(range).is_empty() {
        range.child_mut("metadata").set("name", uuid::Uuid::new_v4().to_string());
    }
}

fn default(range: &mut Value) {
    let Some(spec) = range.field_mut("spec") else {
        return;
    };
    for item in spec.items_mut("limits") {
        if item.text("type") == "Container" {
            // In this order: a default limit becomes a default request before a minimum does.
            fill(item, "max", "default");
            fill(item, "default", "defaultRequest");
            fill(item, "min", "defaultRequest");
        }
        for list in LISTS {
            round_up_to_milli(item, list);
        }
    }
}

/// Copies the resources of one list that another lacks.
fn fill(item: &mut Value, from: &str, to: &str) {
    let Some(source) = item.entries(from).filter(|source| !source.is_empty()).cloned() else {
        return;
    };
    let target = item.child_mut(to);
    for (resource, quantity) in source {
        target.default_to(&resource, quantity);
    }
}

/// Resource lists of a limit.
const LISTS: &[&str] = &["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];

fn validate(range: &Value) -> ErrorList {
    let spec_path = Path::new("spec");
    let limits_path = spec_path.child("limits");
    let limits = range.field("spec").items("limits");
    let mut errors = Vec::new();
    for (i, limit) in limits.iter().enumerate() {
        let path = limits_path.index(i);
        let kind = limit.text("type");
        errors.extend(limit_type(&path.child("type"), kind));
        if limits[..i].iter().any(|other| other.text("type") == kind) {
            errors.push(FieldError::duplicate(&path.child("type"), &kind.into()));
        }
        errors.extend(resource_lists(limit, &path));
        let mut names: Vec<&str> = LISTS
            .iter()
            .filter(|list| kind != "Pod" || !list.starts_with("default"))
            .flat_map(|list| limit.entries(list).into_iter().flatten())
            .map(|(name, _)| name.as_str())
            .collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            errors.extend(amounts(limit, kind, name, &path));
        }
    }
    errors
}

fn limit_type(path: &Path<'_>, kind: &str) -> ErrorList {
    let messages = names::qualified_name(kind);
    let messages = if messages.is_empty()
        && !kind.contains('/')
        && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim")
    {
        vec!["must be a standard limit type or fully qualified".to_owned()]
    } else {
        messages
    };
    messages.into_iter().map(|message| FieldError::invalid_named(path, kind, message)).collect()
}

/// Validates the resource names of a limit by its type.
fn resource_lists(limit: &Value, path: &Path<'_>) -> ErrorList {
    let kind = limit.text("type");
    let mut errors = Vec::new();
    for list in LISTS {
        let list_path = path.child(list);
        if kind == "Pod" && list.starts_with("default") {
            if limit.entries(list).is_some_and(|list| !list.is_empty()) {
                let detail = "may not be specified when `type` is 'Pod'";
                errors.push(FieldError::forbidden(&list_path, detail));
            }
            continue;
        }
        if *list == "maxLimitRequestRatio"
            && kind == "PersistentVolumeClaim"
            && ["min", "max"].iter().all(|bound| !limit.field(bound).has("storage"))
        {
            let detail = "either minimum or maximum storage value is required, but neither was provided";
            errors.push(FieldError::required(&path.child("limits"), detail));
        }
        for (name, _) in quantities(limit, list) {
            let path = list_path.key(name);
            errors.extend(match kind {
                "Pod" | "Container" => container_resource_name(&path, name),
                _ => resource_name(&path, name),
            });
        }
    }
    errors
}

/// Validates the bounds and defaults of one resource against each other.
fn amounts(limit: &Value, kind: &str, name: &str, path: &Path<'_>) -> ErrorList {
    let of = |list: &str| {
        if kind == "Pod" && list.starts_with("default") { None } else { quantity_of(limit, list, name) }
    };
    let (min, max, default) = (of("min"), of("max"), of("default"));
    let (request, ratio) = (of("defaultRequest"), of("maxLimitRequestRatio"));
    let mut errors = Vec::new();
    let mut reject = |list: &str, shown: &Quantity, detail: String| {
        let path = path.child(list);
        errors.push(FieldError::invalid_str(&path.key(name), &shown.to_string(), detail));
    };
    // Reported list, shown amount, and the two compared amounts.
    let orders = [
        ("min", &min, (&min, "min value"), (&max, "max value")),
        ("defaultRequest", &request, (&min, "min value"), (&request, "default request value")),
        ("defaultRequest", &request, (&request, "default request value"), (&max, "max value")),
        ("defaultRequest", &request, (&request, "default request value"), (&default, "default limit value")),
        ("default", &min, (&min, "min value"), (&default, "default value")),
        ("default", &max, (&default, "default value"), (&max, "max value")),
    ];
    for (list, shown, (low, low_text), (high, high_text)) in orders {
        if let (Some(low), Some(high), Some(shown)) = (low, high, shown)
            && low > high
        {
            reject(list, shown, format!("{low_text} {low} is greater than {high_text} {high}"));
        }
    }
    if let Some(ratio) = &ratio {
        if *ratio < Quantity::new(1) {
            reject("maxLimitRequestRatio", ratio, format!("ratio {ratio} is less than 1"));
        }
        if let (Some(min), Some(max)) = (&min, &max) {
            let bound = max.as_f64() / min.as_f64();
            if ratio.as_f64() > bound {
                let detail = format!("ratio {ratio} is greater than max/min = {bound:.6}");
                reject("maxLimitRequestRatio", ratio, detail);
            }
        }
    }
    if let (Some(default), Some(request)) = (&default, &request)
        && !overcommit_allowed(name)
        && default != request
    {
        let detail =
            format!("default value {default} must equal to defaultRequest value {request} in {name}");
        reject("defaultRequest", request, detail);
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn container_limit_gets_defaults() {
        let mut range = json!({"spec": {"limits": [
            {"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1", "memory": "1Gi"}},
            {"type": "Pod", "max": {"cpu": "2"}},
        ]}});
        default(&mut range);
        assert_eq!(
            range["spec"]["limits"],
            json!([
                {
                    "type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1", "memory": "1Gi"},
                    "default": {"cpu": "2"}, "defaultRequest": {"cpu": "2", "memory": "1Gi"},
                },
                {"type": "Pod", "max": {"cpu": "2"}},
            ])
        );
    }
}
