//! CSIDriver.

use crate::validation::checks::one_of;
use crate::validation::values::{same, strings, unchanged};
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta};
use serde_json::json;
use std::collections::BTreeSet;

pub static KIND: Kind = Kind {
    default,
    prepare_create: |driver| drop_disabled(driver, &Value::Null),
    prepare_update,
    validate: |driver| validate_spec(driver.field("spec")),
    validate_update,
    warnings,
    unconditional_update: false,
    table: &crate::tables::storage::CSI_DRIVER,
    returns_deleted: true,
    ..Kind::new("storage.k8s.io", "v1", "CSIDriver", "csidrivers", Scope::Cluster)
};

const FS_GROUP_POLICIES: &[&str] = &["File", "None", "ReadWriteOnceWithFSType"];
const TOKEN_SECONDS_MIN: i64 = 10 * 60;
const TOKEN_SECONDS_MAX: i64 = 1 << 32;
const UPDATE_PERIOD_SECONDS_MIN: i64 = 10;

fn default(driver: &mut Value) {
    let spec = driver.child_mut("spec");
    spec.default_to("attachRequired", true);
    for field in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
        spec.default_to(field, false);
    }
    spec.default_to("fsGroupPolicy", "ReadWriteOnceWithFSType");
    if spec.items("volumeLifecycleModes").is_empty() {
        spec.set("volumeLifecycleModes", json!(["Persistent"]));
    }
}

/// New drivers have no generation; it starts with the first change.
fn prepare_update(new: &mut Value, old: &Value) {
    drop_disabled(new, old);
    if !same(new.field("spec"), old.field("spec")) {
        meta::metadata_mut(new).insert("generation".to_owned(), (meta::generation(old) + 1).into());
    }
}

/// Scaling by volume limits is disabled.
fn drop_disabled(new: &mut Value, old: &Value) {
    if !old.field("spec").has("preventPodSchedulingIfMissing") {
        new.child_mut("spec").unset("preventPodSchedulingIfMissing");
    }
}

fn validate_spec(spec: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let fields = [
        // Kubernetes misspells the field in its messages.
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
    ];
    for (field, shown) in fields {
        if !spec.has(field) {
            errors.push(FieldError::required(&path.child(shown), ""));
        }
    }
    if let Some(policy) = spec.opt_text("fsGroupPolicy") {
        errors.extend(one_of(&path.child("fsGroupPolicy"), policy, FS_GROUP_POLICIES));
    }
    errors.extend(token_requests(spec.items("tokenRequests"), &path.child("tokenRequests")));
    for mode in strings(spec.items("volumeLifecycleModes")) {
        errors.extend(one_of(&path.child("volumeLifecycleModes"), mode, &["Persistent", "Ephemeral"]));
    }
    if !spec.has("seLinuxMount") {
        errors.push(FieldError::required(&path.child("seLinuxMount"), ""));
    }
    let period = spec.opt_int("nodeAllocatableUpdatePeriodSeconds");
    if let Some(period) = period.filter(|period| *period < UPDATE_PERIOD_SECONDS_MIN) {
        let path = path.child("nodeAllocatableUpdatePeriodSeconds");
        let detail = "must be greater than or equal to 10 seconds";
        errors.push(FieldError::invalid(&path, &period.into(), detail));
    }
    if spec.has("serviceAccountTokenInSecrets") && spec.items("tokenRequests").is_empty() {
        let detail = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        let path = path.child("serviceAccountTokenInSecrets");
        errors.push(FieldError::invalid(&path, spec.field("serviceAccountTokenInSecrets"), detail));
    }
    errors
}

fn token_requests(requests: &[Value], path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let mut audiences = BTreeSet::new();
    for (index, request) in requests.iter().enumerate() {
        let path = path.index(index);
        let audience = request.text("audience");
        if !audiences.insert(audience) {
            errors.push(FieldError::duplicate(&path.child("audience"), &audience.into()));
            continue;
        }
        let detail = match request.opt_int("expirationSeconds") {
            Some(..TOKEN_SECONDS_MIN) => "may not specify a duration less than 10 minutes",
            Some(seconds) if seconds > TOKEN_SECONDS_MAX => {
                "may not specify a duration larger than 2^32 seconds"
            }
            _ => continue,
        };
        let path = path.child("expirationSeconds");
        errors.push(FieldError::invalid(&path, request.field("expirationSeconds"), detail));
    }
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let path = Path::new("spec");
    let (new, old) = (new.field("spec"), old.field("spec"));
    let mut errors = validate_spec(new);
    for (field, shown) in
        [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")]
    {
        errors.extend(unchanged(&path.child(shown), new.field(field), old.field(field)));
    }
    errors
}

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let spec = new.field("spec");
    let requested_before =
        old.is_some_and(|old| same(old.field("spec").field("tokenRequests"), spec.field("tokenRequests")));
    if requested_before || spec.items("tokenRequests").is_empty() || spec.has("serviceAccountTokenInSecrets")
    {
        return Vec::new();
    }
    vec![
        "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent \
         possible logging of tokens in volume attributes"
            .to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_change_increments_generation() {
        let driver = |attach: bool| json!({"metadata": {}, "spec": {"attachRequired": attach}});
        for (changed, generation) in [(false, Value::Null), (true, json!(1))] {
            let mut new = driver(changed);
            prepare_update(&mut new, &driver(false));
            assert_eq!(new["metadata"]["generation"], generation);
        }
    }

    #[test]
    fn minimal_driver_gets_defaults() {
        let mut driver = json!({});
        default(&mut driver);
        assert_eq!(
            driver,
            json!({"spec": {
                "attachRequired": true, "podInfoOnMount": false, "storageCapacity": false,
                "requiresRepublish": false, "seLinuxMount": false, "fsGroupPolicy": "ReadWriteOnceWithFSType",
                "volumeLifecycleModes": ["Persistent"],
            }})
        );
        assert!(validate_spec(&driver["spec"]).is_empty());
    }
}
