//! Names of resources (cpu, memory, …) and amounts of them, in nodes, quotas and limit ranges.

use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;
use machinery::quantity::Quantity;

const CONTAINER: &[&str] = &["cpu", "memory", "ephemeral-storage"];
const OBJECT_COUNTS: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];
const QUOTA_COMPUTE: &[&str] = &[
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_quota_huge_page(name: &str) -> bool {
    is_huge_page(name) || name.starts_with("requests.hugepages-")
}

/// True for standard resource names of quotas.
pub fn is_standard_for_quota(name: &str) -> bool {
    [CONTAINER, OBJECT_COUNTS, QUOTA_COMPUTE].iter().any(|names| names.contains(&name))
        || is_quota_huge_page(name)
}

fn is_standard(name: &str) -> bool {
    name == "storage" || is_standard_for_quota(name)
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Extended resource of a device plugin: `example.com/gpu`.
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// True if limits may exceed requests.
pub fn overcommit_allowed(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

fn is_integer(name: &str) -> bool {
    OBJECT_COUNTS.contains(&name) || is_extended(name)
}

/// A standard resource, or a qualified name.
pub fn resource_name(path: &Path<'_>, name: &str) -> ErrorList {
    let mut messages = names::qualified_name(name);
    if messages.is_empty() && !name.contains('/') && !is_standard(name) {
        messages.push("must be a standard resource type or fully qualified".to_owned());
    }
    messages.into_iter().map(|message| FieldError::invalid_named(path, name, message)).collect()
}

/// A resource that containers consume.
pub fn container_resource_name(path: &Path<'_>, name: &str) -> ErrorList {
    let mut errors = resource_name(path, name);
    if !name.contains('/') {
        if !CONTAINER.contains(&name) && !is_huge_page(name) {
            errors.push(FieldError::invalid_str(path, name, "must be a standard resource for containers"));
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.push(FieldError::invalid_str(path, name, "doesn't follow extended resource name standard"));
    }
    errors
}

/// A resource that quotas count.
pub fn quota_resource_name(path: &Path<'_>, name: &str) -> ErrorList {
    let mut errors = resource_name(path, name);
    if !name.contains('/') && !is_standard_for_quota(name) {
        errors.push(FieldError::invalid_str(path, name, "must be a standard resource for quota"));
    }
    errors
}

/// A non-negative amount, an integer for integer resources.
pub fn quantity_value(path: &Path<'_>, name: &str, value: &Quantity) -> ErrorList {
    let mut errors = Vec::new();
    if value.sign() < 0 {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid_str(path, &value.to_string(), detail));
    }
    if is_integer(name) && value.milli_value() % 1000 != 0 {
        errors.push(FieldError::invalid_str(path, &value.to_string(), "must be an integer"));
    }
    errors
}

/// The amounts of a resource list.
pub fn quantities<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a str, Quantity)> {
    object.entries(field).into_iter().flatten().map(|(name, value)| (name.as_str(), quantity(value)))
}

/// One amount of a resource list, if present.
pub fn quantity_of(object: &Value, field: &str, name: &str) -> Option<Quantity> {
    let value = object.field(field).field(name);
    (!value.is_null()).then(|| quantity(value))
}

/// A quantity in an object. The codec has rejected malformed ones before rules run; they count as zero.
pub fn quantity(value: &Value) -> Quantity {
    match value {
        Value::String(text) => Quantity::parse(text).unwrap_or_default(),
        other => Quantity::parse(&other.to_string()).unwrap_or_default(),
    }
}

/// Rounds amounts up to thousandths, as decoding in Kubernetes does. Part of defaulting.
pub fn round_up_to_milli(object: &mut Value, field: &str) {
    let Some(Value::Object(list)) = object.field_mut(field) else {
        return;
    };
    for value in list.values_mut() {
        // Only suffixes below milli and long fractions can be that fine.
        let fine = value.as_str().is_some_and(|text| text.ends_with(['n', 'u']) || text.contains('.'));
        if fine {
            let amount = quantity(value);
            let rounded = Quantity::from_milli(amount.milli_value()).with_format(amount.format());
            if rounded != amount {
                *value = rounded.to_string().into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn resource_names_are_classified() {
        let path = Path::new("x");
        let cases = [
            ("cpu", 0, 0, 0),
            ("pods", 0, 1, 0),
            ("storage", 0, 1, 1),
            ("requests.cpu", 0, 1, 0),
            ("hugepages-2Mi", 0, 0, 0),
            ("example.com/gpu", 0, 0, 0),
            ("foo", 1, 2, 2),
            ("count/jobs.batch", 0, 0, 0),
        ];
        for (name, plain, container, quota) in cases {
            let counts = (
                resource_name(&path, name).len(),
                container_resource_name(&path, name).len(),
                quota_resource_name(&path, name).len(),
            );
            assert_eq!(counts, (plain, container, quota), "{name}");
        }
    }

    #[test]
    fn amounts_are_rounded_up() {
        let mut object = json!({"hard": {"cpu": "100u", "memory": "1Gi", "x": "1.5"}});
        round_up_to_milli(&mut object, "hard");
        assert_eq!(object, json!({"hard": {"cpu": "1m", "memory": "1Gi", "x": "1.5"}}));
    }
}
