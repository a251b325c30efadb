//! Objects for tests of allocation.

use std::sync::Arc;

use objects::resource::v1::{
    AllocationResult, DeviceClass, DeviceRequestAllocationResult, ResourceClaim, ResourceSlice,
};
use serde_json::{Value, json};

use super::{Allocator, Inventory, SelectorCache, Target};
use crate::state::Labels;

pub const DRIVER: &str = "driver.example.com";

pub fn claim_named(value: Value) -> ResourceClaim {
    let mut value = value;
    if value["status"].is_null() {
        value["status"] = json!({});
    }
    if value["spec"].is_null() {
        value["spec"] = json!({});
    }
    serde_json::from_value(value).expect("a claim")
}

pub fn class_named(value: Value) -> DeviceClass {
    serde_json::from_value(value).expect("a class")
}

/// Class that selects the devices of [`DRIVER`].
pub fn class(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"selectors": [driver_selector()]}})
}

pub fn driver_selector() -> Value {
    json!({"cel": {"expression": format!("device.driver == '{DRIVER}'")}})
}

pub fn claim(name: &str, requests: Value) -> Value {
    let metadata =
        json!({"namespace": "default", "name": name, "uid": format!("{name}-uid"), "resourceVersion": "1"});
    json!({"metadata": metadata, "spec": {"devices": {"requests": requests}}})
}

pub fn exactly(name: &str, fields: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "class", "allocationMode": "ExactCount", "count": 1});
    merge(&mut exactly, &fields);
    if exactly["allocationMode"] == "All" {
        exactly["count"] = Value::Null;
    }
    json!({"name": name, "exactly": exactly})
}

pub fn merge(into: &mut Value, fields: &Value) {
    for (key, value) in fields.as_object().into_iter().flatten() {
        into[key] = value.clone();
    }
}

/// A slice of the pool `pool` with these devices; `fields` changes its spec.
pub fn slice(name: &str, devices: Value, fields: Value) -> Value {
    let mut spec = json!({
        "driver": DRIVER,
        "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    });
    merge(&mut spec, &fields);
    json!({"metadata": {"name": name}, "spec": spec})
}

/// Inventory with the class `class`, and these objects.
pub fn inventory(
    classes: impl IntoIterator<Item = Value>,
    slices: impl IntoIterator<Item = Value>,
    claims: impl IntoIterator<Item = Value>,
) -> Inventory {
    let mut inventory = Inventory::default();
    for class in std::iter::once(class("class")).chain(classes) {
        inventory.set_class(&Arc::new(class_named(class)));
    }
    for slice in slices {
        let slice: ResourceSlice = serde_json::from_value(slice).expect("a slice");
        inventory.set_slice(None, &Arc::new(slice));
    }
    for claim in claims {
        inventory.set_claim(&Arc::new(claim_named(claim)));
    }
    inventory
}

/// Allocates on the node `node` in region `west`, and shows the devices of each claim as `request=pool/device`.
pub fn allocate(inventory: &Inventory, claims: &[Value]) -> Result<Option<Vec<Vec<String>>>, String> {
    let results = allocation_results(inventory, claims)?;
    let device = |result: &DeviceRequestAllocationResult| {
        let driver = if result.driver == DRIVER { "" } else { &*format!("{}/", result.driver) };
        let admin = if result.admin_access == Some(true) { " admin" } else { "" };
        let consumed = result.consumed_capacity.iter().flatten();
        let consumed: String = consumed.map(|(name, amount)| format!(" {name}:{}", amount.0)).collect();
        let share = if result.share_id.is_some() { " shared" } else { "" };
        format!("{}={driver}{}/{}{admin}{share}{consumed}", result.request, result.pool, result.device)
    };
    Ok(results.map(|results| {
        let devices = results.iter().map(|result| result.devices.as_ref());
        devices
            .map(|devices| {
                devices.into_iter().flat_map(|all| all.results.iter().flatten()).map(device).collect()
            })
            .collect()
    }))
}

pub fn allocation_results(
    inventory: &Inventory,
    claims: &[Value],
) -> Result<Option<Vec<AllocationResult>>, String> {
    let claims: Vec<ResourceClaim> = claims.iter().cloned().map(claim_named).collect();
    let claims: Vec<&ResourceClaim> = claims.iter().collect();
    let selectors = SelectorCache::default();
    let labels = Labels::from([("region", "west")]);
    let allocator = Allocator::new(inventory, &selectors, None);
    allocator.allocate(&Target { name: "node", labels: &labels }, &claims).map_err(|error| error.to_string())
}

/// An allocated claim that uses these devices of the pool `pool`; `fields` changes the results.
pub fn allocated(name: &str, devices: &[&str], fields: Value) -> Value {
    let result = |device: &&str| {
        let mut result = json!({"request": "r", "driver": DRIVER, "pool": "pool", "device": device});
        merge(&mut result, &fields);
        result
    };
    let mut claim = claim(name, json!([exactly("r", json!({}))]));
    let results: Vec<Value> = devices.iter().map(result).collect();
    claim["status"] = json!({"allocation": {"devices": {"results": results}}});
    claim
}

/// Devices with these names.
pub fn devices(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}

/// A slice of the node `node`.
pub fn local(name: &str, devices: Value) -> Value {
    slice(name, devices, json!({"nodeName": "node"}))
}

/// A slice of the node `node` in a pool of its own.
pub fn local_pool(pool: &str, devices: Value) -> Value {
    let pool_fields = json!({"name": pool, "generation": 1, "resourceSliceCount": 1});
    slice(&format!("slice-{pool}"), devices, json!({"nodeName": "node", "pool": pool_fields}))
}
