//! LimitRange.

use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::Value;

pub static KIND: Kind = Kind {
    default,
    create_on_update: true,
    ..Kind::new("", "v1", "LimitRange", "limitranges", Scope::Namespaced)
};

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
    }
}

/// Copies the resources of one list that another does not name.
fn fill(item: &mut Value, from: &str, to: &str) {
    let Some(source) = item.entries(from).filter(|source| !source.is_empty()).cloned() else {
        return;
    };
    let target = item.child_mut(to);
    for (resource, quantity) in source {
        target.default_to(&resource, quantity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn container_limits_have_defaults() {
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
