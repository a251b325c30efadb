//! Allocation of devices: requests, pools, administrative access.

mod alternatives;
mod constraints;
mod results;

use std::time::Instant;

use serde_json::{Value, json};

use super::fixture::{
    DRIVER, allocate, allocated, allocation_results, claim, claim_named, class, devices, driver_selector,
    exactly, inventory, local, local_pool, merge, slice,
};
use super::{AllocationError, Allocator, Inventory, SelectorCache, Target};
use crate::state::Labels;

type Outcome = Result<Option<Vec<Vec<String>>>, String>;

fn found(claims: &[&[&str]]) -> Outcome {
    Ok(Some(claims.iter().map(|devices| devices.iter().map(|text| (*text).to_owned()).collect()).collect()))
}

fn error(text: &str) -> Outcome {
    Err(text.to_owned())
}

/// Claim `c` with one request `r`.
fn one(fields: Value) -> Value {
    claim("c", json!([exactly("r", fields)]))
}

fn count(count: i64) -> Value {
    one(json!({"count": count}))
}

fn with(mut claim: Value, field: &str, value: Value) -> Value {
    claim["spec"]["devices"][field] = value;
    claim
}

fn selector(text: &str) -> Value {
    json!([{"cel": {"expression": text}}])
}

/// Device with attributes given as JSON values.
fn device(name: &str, attributes: Value) -> Value {
    json!({"name": name, "attributes": attributes})
}

fn check(rows: Vec<(&str, Inventory, Vec<Value>, Outcome)>) {
    for (name, inventory, claims, expected) in rows {
        assert_eq!(allocate(&inventory, &claims), expected, "{name}");
    }
}

#[test]
fn devices_are_allocated_in_order_of_names() {
    let two = || local("s", devices(&["a", "b"]));
    let split = |name: &str, names: &[&str]| {
        let pool = json!({"name": "pool", "generation": 1, "resourceSliceCount": 2});
        slice(name, devices(names), json!({"nodeName": "node", "pool": pool}))
    };
    let other = slice("s", devices(&["a"]), json!({"nodeName": "other"}));
    let network = |fields: Value| slice("s", devices(&["a"]), fields);
    let west = json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "region", "operator": "In", "values": ["west"]}]}]}});
    let east = json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "region", "operator": "In", "values": ["east"]}]}]}});
    check(vec![
        ("one", inventory([], [two()], []), vec![count(1)], found(&[&["r=pool/a"]])),
        ("two", inventory([], [two()], []), vec![count(2)], found(&[&["r=pool/a", "r=pool/b"]])),
        ("too many", inventory([], [two()], []), vec![count(3)], Ok(None)),
        ("no slices", inventory([], [], []), vec![count(1)], Ok(None)),
        ("no claims", inventory([], [], []), vec![], found(&[])),
        ("other node", inventory([], [other], []), vec![count(1)], Ok(None)),
        (
            "all nodes",
            inventory([], [network(json!({"allNodes": true}))], []),
            vec![count(1)],
            found(&[&["r=pool/a"]]),
        ),
        ("node selector", inventory([], [network(west)], []), vec![count(1)], found(&[&["r=pool/a"]])),
        ("other region", inventory([], [network(east)], []), vec![count(1)], Ok(None)),
        ("no nodes", inventory([], [network(json!({}))], []), vec![count(1)], Ok(None)),
        (
            "two slices",
            inventory([], [split("t", &["c"]), split("s", &["b"])], []),
            vec![count(2)],
            found(&[&["r=pool/b", "r=pool/c"]]),
        ),
        (
            "pools by name",
            inventory([], [local_pool("q", devices(&["a"])), local_pool("p", devices(&["b"]))], []),
            vec![count(2)],
            found(&[&["r=p/b", "r=q/a"]]),
        ),
        (
            "in use",
            inventory([], [two()], [allocated("x", &["a"], json!({}))]),
            vec![count(1)],
            found(&[&["r=pool/b"]]),
        ),
        (
            "two claims",
            inventory([], [two()], []),
            vec![count(1), claim("d", json!([exactly("r", json!({}))]))],
            found(&[&["r=pool/a"], &["r=pool/b"]]),
        ),
    ]);
}

#[test]
fn earlier_choices_are_changed_if_later_requests_need_them() {
    let sizes = || {
        json!([
            {"name": "large", "capacity": {"memory": {"value": "4Gi"}}},
            {"name": "small", "capacity": {"memory": {"value": "2Gi"}}},
        ])
    };
    let large = selector(&format!("device.capacity['{DRIVER}'].memory.compareTo(quantity('4Gi')) >= 0"));
    let any_and_large =
        json!([exactly("any", json!({})), exactly("large", json!({"selectors": large.clone()}))]);
    check(vec![
        (
            "requests",
            inventory([], [local("s", sizes())], []),
            vec![claim("c", any_and_large)],
            found(&[&["any=pool/small", "large=pool/large"]]),
        ),
        (
            "claims",
            inventory([], [local("s", sizes())], []),
            vec![count(1), claim("d", json!([exactly("large", json!({"selectors": large}))]))],
            found(&[&["r=pool/small"], &["large=pool/large"]]),
        ),
    ]);
}

#[test]
fn pool_is_used_only_if_complete_current_and_valid() {
    let part = |name: &str, names: &[&str], generation: i64, count: i64| {
        let pool = json!({"name": "pool", "generation": generation, "resourceSliceCount": count});
        slice(name, devices(names), json!({"nodeName": "node", "pool": pool}))
    };
    let elsewhere = |name: &str, generation: i64, count: i64| {
        let pool = json!({"name": "pool", "generation": generation, "resourceSliceCount": count});
        slice(name, devices(&["z"]), json!({"nodeName": "other", "pool": pool}))
    };
    let all = || one(json!({"allocationMode": "All"}));
    let updating = format!(
        "claim default/c, request r: asks for all devices, but resource pool {DRIVER}/pool is currently"
    );
    let good = || local_pool("q", devices(&["q"]));
    check(vec![
        (
            "obsolete",
            inventory([], [part("s", &["old"], 1, 1), part("t", &["new"], 2, 1)], []),
            vec![count(1)],
            found(&[&["r=pool/new"]]),
        ),
        ("incomplete", inventory([], [part("s", &["a"], 1, 2)], []), vec![count(1)], Ok(None)),
        (
            "incomplete beside another",
            inventory([], [part("s", &["a"], 1, 2), good()], []),
            vec![count(1)],
            found(&[&["r=q/q"]]),
        ),
        (
            "all of an incomplete pool",
            inventory([], [part("s", &["a"], 1, 2)], []),
            vec![all()],
            error(&format!("{updating} being updated")),
        ),
        (
            "complete with slices of other nodes",
            inventory([], [part("s", &["a"], 1, 2), elsewhere("t", 1, 2)], []),
            vec![all()],
            found(&[&["r=pool/a"]]),
        ),
        (
            "replaced on another node",
            inventory([], [part("s", &["a"], 1, 2), elsewhere("t", 2, 2)], []),
            vec![count(1)],
            Ok(None),
        ),
        (
            "duplicate device",
            inventory([], [part("s", &["a"], 1, 2), part("t", &["a"], 1, 2)], []),
            vec![count(1)],
            error("invalid resource pools were encountered"),
        ),
        (
            "invalid beside another",
            inventory([], [part("s", &["a"], 1, 2), part("t", &["a"], 1, 2), good()], []),
            vec![count(1)],
            found(&[&["r=q/q"]]),
        ),
        (
            "all of an invalid pool",
            inventory([], [part("s", &["a"], 1, 2), part("t", &["a"], 1, 2)], []),
            vec![all()],
            error(&format!("{updating} invalid")),
        ),
    ]);
}

#[test]
fn all_devices_are_allocated_or_none() {
    let all = || one(json!({"allocationMode": "All"}));
    let two = || local("s", devices(&["a", "b"]));
    let and_one = json!([exactly("r", json!({"allocationMode": "All"})), exactly("s", json!({}))]);
    let other = json!({"deviceClassName": "other"});
    let all_and_other = json!([exactly("s", other), exactly("r", json!({"allocationMode": "All"}))]);
    let class_of_other = json!({"metadata": {"name": "other"}, "spec": {"selectors": [
        {"cel": {"expression": "device.driver == 'other.example.com'"}}]}});
    let mut slice_of_other = local_pool("q", devices(&["q"]));
    slice_of_other["spec"]["driver"] = json!("other.example.com");
    let per_device = json!([
        {"name": "a", "nodeName": "node"}, {"name": "b", "nodeName": "other"}, {"name": "c", "allNodes": true},
    ]);
    check(vec![
        ("all", inventory([], [two()], []), vec![all()], found(&[&["r=pool/a", "r=pool/b"]])),
        ("none there", inventory([], [local("s", json!([]))], []), vec![all()], Ok(None)),
        ("some in use", inventory([], [two()], [allocated("x", &["b"], json!({}))]), vec![all()], Ok(None)),
        ("all and one more", inventory([], [two()], []), vec![claim("c", and_one)], Ok(None)),
        (
            "other class first",
            inventory([class_of_other], [two(), slice_of_other], []),
            vec![claim("c", all_and_other)],
            found(&[&["s=other.example.com/q/q", "r=pool/a", "r=pool/b"]]),
        ),
        (
            "nodes by device",
            inventory([], [slice("s", per_device, json!({"perDeviceNodeSelection": true}))], []),
            vec![all()],
            found(&[&["r=pool/a", "r=pool/c"]]),
        ),
    ]);
}

#[test]
fn admin_access_shares_devices() {
    let admin = |fields: Value| {
        let mut own = json!({"adminAccess": true});
        merge(&mut own, &fields);
        one(own)
    };
    let two = || local("s", devices(&["a", "b"]));
    let in_use = || allocated("x", &["a", "b"], json!({}));
    let twice =
        json!([exactly("r", json!({"adminAccess": true})), exactly("s", json!({"adminAccess": true}))]);
    let normal = claim("d", json!([exactly("r", json!({}))]));
    check(vec![
        ("in use", inventory([], [two()], [in_use()]), vec![admin(json!({}))], found(&[&["r=pool/a admin"]])),
        (
            "all",
            inventory([], [two()], [in_use()]),
            vec![admin(json!({"allocationMode": "All"}))],
            found(&[&["r=pool/a admin", "r=pool/b admin"]]),
        ),
        (
            "not twice in a claim",
            inventory([], [two()], []),
            vec![claim("c", twice)],
            found(&[&["r=pool/a admin", "s=pool/b admin"]]),
        ),
        (
            "two claims",
            inventory([], [two()], []),
            vec![admin(json!({})), claim("d", json!([exactly("r", json!({"adminAccess": true}))]))],
            found(&[&["r=pool/a admin"], &["r=pool/a admin"]]),
        ),
        (
            "beside another claim",
            inventory([], [two()], []),
            vec![normal, admin(json!({}))],
            found(&[&["r=pool/a"], &["r=pool/a admin"]]),
        ),
        (
            "admin allocation leaves the device free",
            inventory([], [two()], [allocated("x", &["a"], json!({"adminAccess": true}))]),
            vec![count(1)],
            found(&[&["r=pool/a"]]),
        ),
    ]);
}
