//! Requests and their alternatives in one form.

use std::collections::BTreeMap;

use objects::Quantity;
use objects::resource::v1::{
    DeviceRequest, DeviceSelector, DeviceTaint, DeviceToleration, ExactDeviceRequest, ResourceClaim,
};

/// A request, or one alternative of a prioritized list.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    pub name: &'a str,
    /// Name of the request of an alternative.
    pub parent: Option<&'a str>,
    pub class: &'a str,
    pub mode: &'a str,
    pub count: i64,
    pub has_admin_access: bool,
    pub selectors: &'a [DeviceSelector],
    pub tolerations: &'a [DeviceToleration],
    pub capacity: Option<&'a BTreeMap<String, Quantity>>,
}

impl<'a> RequestView<'a> {
    fn exact(name: &'a str, request: &'a ExactDeviceRequest) -> Self {
        Self {
            name,
            parent: None,
            class: &request.device_class_name,
            mode: request.allocation_mode.as_deref().unwrap_or("ExactCount"),
            count: request.count.unwrap_or(1),
            has_admin_access: request.admin_access == Some(true),
            selectors: request.selectors.as_deref().unwrap_or_default(),
            tolerations: request.tolerations.as_deref().unwrap_or_default(),
            capacity: request.capacity.as_ref().and_then(|capacity| capacity.requests.as_ref()),
        }
    }

    /// The alternatives of a request: one if it is exact, none if its type is unknown.
    pub fn of(request: &'a DeviceRequest) -> Vec<Self> {
        if let Some(exactly) = &request.exactly {
            return vec![Self::exact(&request.name, exactly)];
        }
        let alternatives = request.first_available.iter().flatten();
        let alternatives = alternatives.map(|one| Self {
            name: &one.name,
            parent: Some(&request.name),
            class: &one.device_class_name,
            mode: one.allocation_mode.as_deref().unwrap_or("ExactCount"),
            count: one.count.unwrap_or(1),
            has_admin_access: false,
            selectors: one.selectors.as_deref().unwrap_or_default(),
            tolerations: one.tolerations.as_deref().unwrap_or_default(),
            capacity: one.capacity.as_ref().and_then(|capacity| capacity.requests.as_ref()),
        });
        alternatives.collect()
    }

    /// Name in results: that of an alternative follows the name of its request.
    pub fn full_name(&self) -> String {
        match self.parent {
            Some(parent) => format!("{parent}/{}", self.name),
            None => self.name.to_owned(),
        }
    }

    /// Reports whether a list of request names, in a constraint or a configuration, includes this request.
    pub fn is_listed(&self, names: &[String]) -> bool {
        let is = |name: &String| match self.parent {
            None => name == self.name,
            Some(parent) => {
                name == parent
                    || name.split_once('/').is_some_and(|(of, own)| of == parent && own == self.name)
            }
        };
        names.iter().any(is)
    }

    pub fn tolerates(&self, taint: &DeviceTaint) -> bool {
        self.tolerations.iter().any(|toleration| tolerates(toleration, taint))
    }

    /// Taints of other effects do not keep a device from being allocated.
    pub fn tolerates_all(&self, taints: &[DeviceTaint]) -> bool {
        let prevents = |taint: &&DeviceTaint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        taints.iter().filter(prevents).all(|taint| self.tolerates(taint))
    }
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let applies =
        |own: &Option<String>, other: &str| own.as_deref().is_none_or(|own| own.is_empty() || own == other);
    if !applies(&toleration.effect, &taint.effect) || !applies(&toleration.key, &taint.key) {
        return false;
    }
    match toleration.operator.as_deref() {
        None | Some("" | "Equal") => {
            toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        Some("Exists") => true,
        Some(_) => false,
    }
}

/// Requests of a claim.
pub fn requests(claim: &ResourceClaim) -> &[DeviceRequest] {
    claim.spec.devices.as_ref().and_then(|devices| devices.requests.as_deref()).unwrap_or_default()
}

/// Reason why no node can satisfy the requests of a claim: a device class that does not exist.
pub fn validate_requests(claim: &ResourceClaim, exists: impl Fn(&str) -> bool) -> Result<(), String> {
    for request in requests(claim) {
        let alternatives = RequestView::of(request);
        if alternatives.is_empty() {
            return Err(format!(
                "resource claim {}, request {}: unknown request type",
                key(claim),
                request.name
            ));
        }
        for alternative in alternatives {
            if !exists(alternative.class) {
                let (name, class) = (alternative.full_name(), alternative.class);
                return Err(format!("request {name}: device class {class} does not exist"));
            }
        }
    }
    Ok(())
}

/// `namespace/name` of a claim.
pub fn key(claim: &ResourceClaim) -> String {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", claim.metadata.name.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn toleration_matches_taint_by_key_value_and_effect() {
        let taint: DeviceTaint =
            serde_json::from_value(json!({"key": "k", "value": "v", "effect": "NoSchedule"})).unwrap();
        for (toleration, expected) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"key": "other", "operator": "Exists"}), false),
            (json!({"key": "k", "operator": "Equal", "value": "v"}), true),
            (json!({"key": "k", "value": "v"}), true),
            (json!({"key": "k", "operator": "Equal", "value": "w"}), false),
            (json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}), true),
            (json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "k", "operator": "Like", "value": "v"}), false),
        ] {
            let parsed: DeviceToleration = serde_json::from_value(toleration.clone()).unwrap();
            assert_eq!(tolerates(&parsed, &taint), expected, "{toleration}");
        }
    }
}
