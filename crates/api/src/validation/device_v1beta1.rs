//! Form of `resource.k8s.io/v1beta1`: a request has the fields of `exactly` itself, a device has its fields in
//! `basic`.

use crate::kind::renamed;
use crate::value::{Fields, is_zero};
use machinery::Value;
use serde_json::{Map, json};

const V1: &str = "resource.k8s.io/v1";
const V1BETA1: &str = "resource.k8s.io/v1beta1";

/// Fields of a request that are in `exactly` in `v1`.
const EXACTLY: [&str; 7] =
    ["deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"];

pub fn claim_to_v1(claim: Value) -> Value {
    let mut claim = renamed(claim, V1);
    claim.at_mut("spec.devices").into_iter().for_each(requests_to_v1);
    claim
}

pub fn claim_from_v1(claim: Value) -> Value {
    let mut claim = renamed(claim, V1BETA1);
    claim.at_mut("spec.devices").into_iter().for_each(requests_from_v1);
    claim
}

pub fn template_to_v1(template: Value) -> Value {
    let mut template = renamed(template, V1);
    template.at_mut("spec.spec.devices").into_iter().for_each(requests_to_v1);
    template
}

pub fn template_from_v1(template: Value) -> Value {
    let mut template = renamed(template, V1BETA1);
    template.at_mut("spec.spec.devices").into_iter().for_each(requests_from_v1);
    template
}

pub fn slice_to_v1(slice: Value) -> Value {
    let mut slice = renamed(slice, V1);
    let Some(spec) = slice.field_mut("spec") else { return slice };
    for field in ["nodeName", "allNodes"] {
        if is_zero(spec.field(field)) {
            spec.unset(field);
        }
    }
    for device in spec.items_mut("devices") {
        if let Some(Value::Object(basic)) = device.unset("basic") {
            basic.into_iter().for_each(|(name, value)| device.set(&name, value));
        }
    }
    slice
}

pub fn slice_from_v1(slice: Value) -> Value {
    let mut slice = renamed(slice, V1BETA1);
    for device in slice.at_mut("spec").into_iter().flat_map(|spec| spec.items_mut("devices")) {
        let Value::Object(fields) = device.take() else { continue };
        let (own, basic): (Map<_, _>, Map<_, _>) = fields.into_iter().partition(|(name, _)| name == "name");
        *device = Value::Object(own);
        device.set("basic", Value::Object(basic));
    }
    slice
}

fn requests_to_v1(devices: &mut Value) {
    for request in devices.items_mut("requests") {
        let mut exactly = json!({});
        for field in EXACTLY {
            if let Some(value) = request.unset(field).filter(|value| !is_zero(value) || value.is_array()) {
                exactly.set(field, value);
            }
        }
        if exactly.as_object().is_some_and(|fields| !fields.is_empty()) {
            exactly.default_to("deviceClassName", "");
            request.set("exactly", exactly);
        }
    }
}

fn requests_from_v1(devices: &mut Value) {
    for request in devices.items_mut("requests") {
        if let Some(Value::Object(exactly)) = request.unset("exactly") {
            exactly.into_iter().for_each(|(name, value)| request.set(&name, value));
        }
        request.default_to("deviceClassName", "");
    }
}

pub fn default_claim(claim: &mut Value) {
    claim.at_mut("spec.devices").into_iter().for_each(default_requests);
}

pub fn default_template(template: &mut Value) {
    template.at_mut("spec.spec.devices").into_iter().for_each(default_requests);
}

/// Sets the times of taints.
pub fn default_slice(slice: &mut Value) {
    for device in slice.at_mut("spec").into_iter().flat_map(|spec| spec.items_mut("devices")) {
        for taint in device.field_mut("basic").into_iter().flat_map(|basic| basic.items_mut("taints")) {
            super::device::default_taint(taint);
        }
    }
}

fn default_requests(devices: &mut Value) {
    for request in devices.items_mut("requests") {
        // A request without a class has alternatives, which have their own defaults.
        if !request.text("deviceClassName").is_empty() {
            super::device::default_request(request);
        }
        request.items_mut("firstAvailable").iter_mut().for_each(super::device::default_request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_request_converts_to_exactly_and_back() {
        let beta = json!({
            "apiVersion": V1BETA1, "kind": "ResourceClaim",
            "spec": {"devices": {"requests": [
                {"name": "a", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2},
                {"name": "b", "deviceClassName": "", "firstAvailable": [{"name": "c", "deviceClassName": "x"}]},
            ]}},
        });
        let stable = claim_to_v1(beta.clone());
        assert_eq!(
            stable["spec"]["devices"]["requests"],
            json!([
                {"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}},
                {"name": "b", "firstAvailable": [{"name": "c", "deviceClassName": "x"}]},
            ])
        );
        assert_eq!(stable["apiVersion"], V1);
        assert_eq!(claim_from_v1(stable), beta);
    }

    #[test]
    fn slice_devices_convert_to_flat_and_back() {
        let beta = json!({
            "apiVersion": V1BETA1,
            "spec": {"nodeName": "n", "devices": [{"name": "d", "basic": {"attributes": {"a": {"int": 1}}}}]},
        });
        let stable = slice_to_v1(beta.clone());
        assert_eq!(stable["spec"]["devices"], json!([{"name": "d", "attributes": {"a": {"int": 1}}}]));
        assert_eq!(slice_from_v1(stable), beta);
    }

    #[test]
    fn defaults_skip_request_without_class() {
        let mut claim = json!({"spec": {"devices": {"requests": [
            {"name": "a", "deviceClassName": "x"},
            {"name": "b", "firstAvailable": [{"name": "c"}]},
        ]}}});
        default_claim(&mut claim);
        let requests = &claim["spec"]["devices"]["requests"];
        assert_eq!(
            (&requests[0]["count"], &requests[0]["allocationMode"]),
            (&json!(1), &json!("ExactCount"))
        );
        assert!(requests[1].get("count").is_none());
        assert_eq!(requests[1]["firstAvailable"][0]["count"], 1);
    }
}
