//! Deprecated AppArmor annotations: copies their profiles to fields.

use crate::pod_spec::CONTAINER_LISTS;
use crate::pod_spec::annotations::APP_ARMOR_PREFIX;
use crate::pod_spec::security_context::validate_app_armor;
use crate::value::Fields;
use machinery::field::Path;
use machinery::{Map, Value};
use serde_json::json;

/// Copies the profiles in a new pod's annotations to the fields of its containers.
pub fn sync(pod: &mut Value) {
    let annotated: Map<String, Value> = pod
        .at("metadata.annotations")
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.starts_with(APP_ARMOR_PREFIX))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if annotated.is_empty() || pod.at("spec.os").text("name") == "windows" {
        return;
    }
    let of_pod = pod.at("spec.securityContext").field("appArmorProfile").clone();
    for list in CONTAINER_LISTS {
        for container in pod.child_mut("spec").items_mut(list) {
            let key = format!("{APP_ARMOR_PREFIX}{}", container.text("name"));
            let annotation = annotated.get(&key).and_then(Value::as_str);
            if container.field("securityContext").has("appArmorProfile") {
                continue;
            }
            if let Some(profile) = annotation.and_then(profile_of).filter(|profile| *profile != of_pod) {
                container.child_mut("securityContext").set("appArmorProfile", profile);
            }
        }
    }
}

/// Field value of an annotation, if valid.
pub fn profile_of(annotation: &str) -> Option<Value> {
    let profile = match annotation {
        "unconfined" => json!({"type": "Unconfined"}),
        "runtime/default" => json!({"type": "RuntimeDefault"}),
        _ => json!({"type": "Localhost", "localhostProfile": annotation.strip_prefix("localhost/")?}),
    };
    let mut errors = Vec::new();
    validate_app_armor(&profile, &Path::ROOT, &mut errors);
    errors.is_empty().then_some(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_copied_to_fields() {
        let key = format!("{APP_ARMOR_PREFIX}c");
        let mut pod = json!({
            "metadata": {"annotations": {&key: "localhost/p"}},
            "spec": {"containers": [{"name": "c"}, {"name": "d"}]},
        });
        sync(&mut pod);
        let profile = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "p"}});
        assert_eq!(
            pod["spec"]["containers"],
            json!([{"name": "c", "securityContext": profile}, {"name": "d"}])
        );
        assert_eq!(profile_of("localhost/"), None);
        assert_eq!(profile_of("x"), None);
    }
}
