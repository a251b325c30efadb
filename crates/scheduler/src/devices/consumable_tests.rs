//! Allocation of partitionable devices and of consumable capacity.

use serde_json::{Value, json};

use super::Inventory;
use super::fixture::{
    DRIVER, allocate, allocated, claim, devices, exactly, inventory, local, local_pool, merge, slice,
};

type Outcome = Result<Option<Vec<Vec<String>>>, String>;

fn found(claims: &[&[&str]]) -> Outcome {
    Ok(Some(claims.iter().map(|devices| devices.iter().map(|text| (*text).to_owned()).collect()).collect()))
}

fn one(fields: Value) -> Value {
    claim("c", json!([exactly("r", fields)]))
}

fn check(rows: Vec<(&str, Inventory, Vec<Value>, Outcome)>) {
    for (name, inventory, claims, expected) in rows {
        assert_eq!(allocate(&inventory, &claims), expected, "{name}");
    }
}

/// Device that consumes this much of counter `memory` of the set `set`.
fn partition(name: &str, memory: &str) -> Value {
    json!({"name": name, "consumesCounters": [{"counterSet": "set", "counters": {"memory": {"value": memory}}}]})
}

/// A pool of two slices: partitions, and a counter set.
fn partitioned(devices: Value, memory: &str) -> Vec<Value> {
    let pool =
        json!({"pool": {"name": "pool", "generation": 1, "resourceSliceCount": 2}, "nodeName": "node"});
    let mut counters = slice("counters", Value::Null, pool.clone());
    counters["spec"]["sharedCounters"] = json!([{"name": "set", "counters": {"memory": {"value": memory}}}]);
    vec![slice("devices", devices, pool), counters]
}

#[test]
fn partitions_share_counters() {
    let three = || json!([partition("a", "4Gi"), partition("b", "4Gi"), partition("c", "8Gi")]);
    let counted = |count: i64| one(json!({"count": count}));
    let all = one(json!({"allocationMode": "All"}));
    let unknown_set = json!([{"name": "a", "consumesCounters": [{"counterSet": "x", "counters": {}}]}]);
    let unknown_counter = json!([{"name": "a", "consumesCounters": [{"counterSet": "set",
        "counters": {"x": {"value": "1"}}}]}]);
    let invalid = || Err("invalid resource pools were encountered".to_owned());
    let in_use = |devices: &[&str]| [allocated("x", devices, json!({}))];
    check(vec![
        ("one", inventory([], partitioned(three(), "8Gi"), []), vec![counted(1)], found(&[&["r=pool/a"]])),
        (
            "two fit",
            inventory([], partitioned(three(), "8Gi"), []),
            vec![counted(2)],
            found(&[&["r=pool/a", "r=pool/b"]]),
        ),
        ("three do not", inventory([], partitioned(three(), "8Gi"), []), vec![counted(3)], Ok(None)),
        ("all do not", inventory([], partitioned(three(), "8Gi"), []), vec![all], Ok(None)),
        (
            "another choice fits",
            inventory(
                [],
                partitioned(
                    json!([partition("a", "8Gi"), partition("b", "4Gi"), partition("c", "4Gi")]),
                    "8Gi",
                ),
                [],
            ),
            vec![counted(2)],
            found(&[&["r=pool/b", "r=pool/c"]]),
        ),
        (
            "counters of allocated devices",
            inventory([], partitioned(three(), "8Gi"), in_use(&["b"])),
            vec![counted(1)],
            found(&[&["r=pool/a"]]),
        ),
        (
            "no counters left",
            inventory([], partitioned(three(), "8Gi"), in_use(&["c"])),
            vec![counted(1)],
            Ok(None),
        ),
        (
            "too much allocated",
            inventory([], partitioned(three(), "4Gi"), in_use(&["a", "b"])),
            vec![counted(1)],
            Ok(None),
        ),
        ("unknown set", inventory([], partitioned(unknown_set, "8Gi"), []), vec![counted(1)], invalid()),
        (
            "unknown counter",
            inventory([], partitioned(unknown_counter, "8Gi"), []),
            vec![counted(1)],
            invalid(),
        ),
    ]);
}

#[test]
fn partitions_of_other_nodes_consume_counters() {
    let fields = |node: &str| json!({"pool": {"name": "pool", "generation": 1, "resourceSliceCount": 3}, "nodeName": node});
    let mut counters = slice("counters", Value::Null, fields("other"));
    counters["spec"]["sharedCounters"] = json!([{"name": "set", "counters": {"memory": {"value": "8Gi"}}}]);
    let slices = || {
        let here = slice("here", json!([partition("a", "4Gi")]), fields("node"));
        [here, slice("there", json!([partition("b", "8Gi")]), fields("other")), counters.clone()]
    };
    check(vec![
        ("free", inventory([], slices(), []), vec![one(json!({}))], found(&[&["r=pool/a"]])),
        (
            "consumed elsewhere",
            inventory([], slices(), [allocated("x", &["b"], json!({}))]),
            vec![one(json!({}))],
            Ok(None),
        ),
    ]);
}

#[test]
fn rejected_partition_returns_its_counters() {
    let tainted = |mut device: Value| {
        device["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
        device
    };
    let numa = |mut device: Value, numa: i64| {
        device["attributes"] = json!({"numa": {"int": numa}});
        device
    };
    let a_tainted = json!([tainted(partition("a", "8Gi")), partition("b", "8Gi")]);
    let constrained = json!([
        numa(partition("a", "4Gi"), 1),
        numa(partition("b", "4Gi"), 2),
        numa(partition("c", "4Gi"), 1)
    ]);
    let mut pair = claim("c", json!([exactly("r", json!({})), exactly("s", json!({}))]));
    pair["spec"]["devices"]["constraints"] = json!([{"matchAttribute": format!("{DRIVER}/numa")}]);
    check(vec![
        (
            "taint",
            inventory([], partitioned(a_tainted, "8Gi"), []),
            vec![one(json!({}))],
            found(&[&["r=pool/b"]]),
        ),
        (
            "constraint",
            inventory([], partitioned(constrained, "8Gi"), []),
            vec![pair],
            found(&[&["r=pool/a", "s=pool/c"]]),
        ),
    ]);
}

/// Device that allows multiple allocations, with 10 of `size`.
fn shared(name: &str, policy: Value) -> Value {
    let mut device =
        json!({"name": name, "allowMultipleAllocations": true, "capacity": {"size": {"value": "10"}}});
    if policy != Value::Null {
        device["capacity"]["size"]["requestPolicy"] = policy;
    }
    device
}

fn wants(size: &str) -> Value {
    one(json!({"capacity": {"requests": {"size": size}}}))
}

fn consumes(size: &str) -> Value {
    json!({"shareID": "b4a06a09-4e56-4e5b-8f33-0d9ab2b4b9d1", "consumedCapacity": {"size": size}})
}

/// Slice with the shared device `a`, whose capacity has this policy.
fn one_shared(policy: Value) -> Value {
    local("s", json!([shared("a", policy)]))
}

fn two_shared() -> Value {
    local("s", json!([shared("a", Value::Null), shared("b", Value::Null)]))
}

#[test]
fn request_consumes_capacity_by_policy() {
    let steps = || json!({"default": "2", "validRange": {"min": "2", "max": "8", "step": "2"}});
    let dedicated = local("s", json!([{"name": "a", "capacity": {"size": {"value": "10"}}}]));
    check(vec![
        (
            "part",
            inventory([], [one_shared(Value::Null)], []),
            vec![wants("4")],
            found(&[&["r=pool/a shared size:4"]]),
        ),
        (
            "everything",
            inventory([], [one_shared(Value::Null)], []),
            vec![one(json!({}))],
            found(&[&["r=pool/a shared size:10"]]),
        ),
        (
            "default",
            inventory([], [one_shared(steps())], []),
            vec![one(json!({}))],
            found(&[&["r=pool/a shared size:2"]]),
        ),
        (
            "rounded up",
            inventory([], [one_shared(steps())], []),
            vec![wants("3")],
            found(&[&["r=pool/a shared size:4"]]),
        ),
        ("above the range", inventory([], [one_shared(steps())], []), vec![wants("9")], Ok(None)),
        (
            "unknown capacity",
            inventory([], [one_shared(Value::Null)], []),
            vec![one(json!({"capacity": {"requests": {"x": "1"}}}))],
            Ok(None),
        ),
        ("dedicated", inventory([], [dedicated.clone()], []), vec![wants("4")], found(&[&["r=pool/a"]])),
        ("dedicated too small", inventory([], [dedicated], []), vec![wants("11")], Ok(None)),
    ]);
}

#[test]
fn requests_share_capacity_of_device() {
    let two_requests = |size: &str| {
        let fields = json!({"capacity": {"requests": {"size": size}}});
        claim("c", json!([exactly("r", fields.clone()), exactly("s", fields)]))
    };
    let in_use = |size: &str| [allocated("x", &["a"], consumes(size))];
    let without = json!([{"name": "a", "allowMultipleAllocations": true}]);
    let all = |size: &str| one(json!({"allocationMode": "All", "capacity": {"requests": {"size": size}}}));
    check(vec![
        (
            "two requests",
            inventory([], [one_shared(Value::Null)], []),
            vec![two_requests("5")],
            found(&[&["r=pool/a shared size:5", "s=pool/a shared size:5"]]),
        ),
        ("too much for two", inventory([], [one_shared(Value::Null)], []), vec![two_requests("6")], Ok(None)),
        (
            "next device",
            inventory([], [two_shared()], []),
            vec![two_requests("6")],
            found(&[&["r=pool/a shared size:6", "s=pool/b shared size:6"]]),
        ),
        (
            "rest",
            inventory([], [one_shared(Value::Null)], in_use("6")),
            vec![wants("4")],
            found(&[&["r=pool/a shared size:4"]]),
        ),
        (
            "more than the rest",
            inventory([], [one_shared(Value::Null)], in_use("6")),
            vec![wants("5")],
            Ok(None),
        ),
        (
            "without capacity",
            inventory([], [local("s", without)], []),
            vec![claim("c", json!([exactly("r", json!({})), exactly("s", json!({}))]))],
            found(&[&["r=pool/a shared", "s=pool/a shared"]]),
        ),
        (
            "all that suffice",
            inventory([], [two_shared()], in_use("6")),
            vec![all("5")],
            found(&[&["r=pool/b shared size:5"]]),
        ),
        (
            "formerly dedicated",
            inventory([], [one_shared(Value::Null)], [allocated("x", &["a"], json!({}))]),
            vec![wants("1")],
            Ok(None),
        ),
    ]);
}

#[test]
fn shares_of_partition_consume_its_counters_once() {
    let both = |name: &str| {
        let mut device = shared(name, Value::Null);
        merge(&mut device, &partition(name, "8Gi"));
        device
    };
    let two_requests = || {
        let fields = json!({"capacity": {"requests": {"size": "5"}}});
        claim("c", json!([exactly("r", fields.clone()), exactly("s", fields)]))
    };
    check(vec![
        (
            "two shares",
            inventory([], partitioned(json!([both("a"), both("b")]), "8Gi"), []),
            vec![two_requests()],
            found(&[&["r=pool/a shared size:5", "s=pool/a shared size:5"]]),
        ),
        (
            "beside an allocated share",
            inventory(
                [],
                partitioned(json!([both("a"), both("b")]), "8Gi"),
                [allocated("x", &["a"], consumes("5"))],
            ),
            vec![wants("5")],
            found(&[&["r=pool/a shared size:5"]]),
        ),
        (
            "counters of an allocated share",
            inventory(
                [],
                partitioned(json!([both("a"), both("b")]), "8Gi"),
                [allocated("x", &["a"], consumes("10"))],
            ),
            vec![wants("5")],
            Ok(None),
        ),
    ]);
}

#[test]
fn selector_excludes_shared_devices() {
    let exclusive = json!([{"cel": {"expression": "!device.allowMultipleAllocations"}}]);
    let slices = [local_pool("p", json!([shared("a", Value::Null)])), local_pool("q", devices(&["b"]))];
    let inventory = inventory([], slices, []);
    assert_eq!(allocate(&inventory, &[one(json!({"selectors": exclusive}))]), found(&[&["r=q/b"]]));
}
