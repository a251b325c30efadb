//! Allocation of devices: requests, pools, constraints, prioritized lists, administrative access, taints.

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

#[test]
fn constraints_compare_attributes() {
    let numa = |name: &str, numa: i64| device(name, json!({"numa": {"int": numa}}));
    let three = || local("s", json!([numa("a", 1), numa("b", 2), numa("c", 2)]));
    let matching = json!([{"matchAttribute": format!("{DRIVER}/numa")}]);
    let distinct = json!([{"distinctAttribute": format!("{DRIVER}/numa")}]);
    let pair = |constraints: &Value| {
        let requests = json!([exactly("r", json!({})), exactly("s", json!({}))]);
        with(claim("c", requests), "constraints", constraints.clone())
    };
    let mixed = local("s", json!([numa("a", 1), device("b", json!({"numa": {"string": "1"}}))]));
    let unset = local("s", json!([numa("a", 1), {"name": "b"}]));
    let qualified =
        local("s", json!([numa("a", 1), device("b", json!({format!("{DRIVER}/numa"): {"int": 1}}))]));
    let only_first = json!([{"matchAttribute": format!("{DRIVER}/numa"), "requests": ["r"]}]);
    let versions = local(
        "s",
        json!([
            device("a", json!({"numa": {"version": "1.0.0"}})),
            device("b", json!({"numa": {"version": "1.0.0"}}))
        ]),
    );
    let bools = local(
        "s",
        json!([device("a", json!({"numa": {"bool": true}})), device("b", json!({"numa": {"bool": false}}))]),
    );
    let all = one(json!({"allocationMode": "All"}));
    let violated = format!(
        "claim default/c, request r: cannot add device {DRIVER}/pool/b because a claim constraint would not be satisfied"
    );
    check(vec![
        ("match", inventory([], [three()], []), vec![pair(&matching)], found(&[&["r=pool/b", "s=pool/c"]])),
        (
            "match within a request",
            inventory([], [three()], []),
            vec![with(count(2), "constraints", matching.clone())],
            found(&[&["r=pool/b", "r=pool/c"]]),
        ),
        (
            "match three",
            inventory([], [three()], []),
            vec![with(count(3), "constraints", matching.clone())],
            Ok(None),
        ),
        (
            "distinct",
            inventory([], [three()], []),
            vec![pair(&distinct)],
            found(&[&["r=pool/a", "s=pool/b"]]),
        ),
        (
            "distinct three",
            inventory([], [three()], []),
            vec![with(count(3), "constraints", distinct.clone())],
            Ok(None),
        ),
        ("other types", inventory([], [mixed], []), vec![pair(&matching)], Ok(None)),
        ("unset", inventory([], [unset], []), vec![pair(&matching)], Ok(None)),
        (
            "qualified name",
            inventory([], [qualified], []),
            vec![pair(&matching)],
            found(&[&["r=pool/a", "s=pool/b"]]),
        ),
        (
            "of one request",
            inventory([], [three()], []),
            vec![pair(&only_first)],
            found(&[&["r=pool/a", "s=pool/b"]]),
        ),
        (
            "versions",
            inventory([], [versions], []),
            vec![pair(&matching)],
            found(&[&["r=pool/a", "s=pool/b"]]),
        ),
        ("booleans", inventory([], [bools], []), vec![pair(&matching)], Ok(None)),
        (
            "all devices",
            inventory([], [three()], []),
            vec![with(all, "constraints", matching)],
            error(&violated),
        ),
        (
            "unknown",
            inventory([], [three()], []),
            vec![with(count(1), "constraints", json!([{}]))],
            error("claim default/c, constraint #0: empty constraint (unsupported constraint type?)"),
        ),
    ]);
}

#[test]
fn first_available_alternative_is_chosen() {
    let alternative = |name: &str, fields: Value| {
        let mut own =
            json!({"name": name, "deviceClassName": "class", "allocationMode": "ExactCount", "count": 1});
        merge(&mut own, &fields);
        if own["allocationMode"] == "All" {
            own["count"] = Value::Null;
        }
        own
    };
    let list = |name: &str, alternatives: Value| json!({"name": name, "firstAvailable": alternatives});
    let of_model = |model: &str| selector(&format!("device.attributes['{DRIVER}'].model == '{model}'"));
    let model = |name: &str, model: &str| device(name, json!({"model": {"string": model}}));
    let large_or_small = json!([
        alternative("large", json!({"selectors": of_model("large")})),
        alternative("small", json!({"selectors": of_model("small")})),
    ]);
    let both = || local("s", json!([model("a", "small"), model("b", "large")]));
    let smalls = || local("s", json!([model("a", "small"), model("c", "small")]));
    let one_list = || claim("c", json!([list("r", large_or_small.clone())]));
    let three_or_two =
        json!([alternative("three", json!({"count": 3})), alternative("two", json!({"count": 2}))]);
    let two_or_one = json!([alternative("two", json!({"count": 2})), alternative("one", json!({}))]);
    let many = json!([alternative("all", json!({"count": 128})), alternative("half", json!({"count": 64}))]);
    let names: Vec<String> = (0..256).map(|number| format!("d{number:03}")).collect();
    let many_devices: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    let halves: Vec<String> = (0..128)
        .map(|number| format!("{}=pool/{}", if number < 64 { "r/half" } else { "s/half" }, names[number]))
        .collect();
    let all_or_one =
        json!([alternative("all", json!({"allocationMode": "All"})), alternative("one", json!({}))]);
    let same_model = json!([{"matchAttribute": format!("{DRIVER}/model"), "requests": ["r/large", "s"]}]);
    check(vec![
        ("first", inventory([], [both()], []), vec![one_list()], found(&[&["r/large=pool/b"]])),
        ("second", inventory([], [smalls()], []), vec![one_list()], found(&[&["r/small=pool/a"]])),
        (
            "first in use",
            inventory([], [both()], [allocated("x", &["b"], json!({}))]),
            vec![one_list()],
            found(&[&["r/small=pool/a"]]),
        ),
        ("none", inventory([], [local("s", json!([model("a", "tiny")]))], []), vec![one_list()], Ok(None)),
        (
            "changed for a later request",
            inventory([], [local("s", devices(&["a", "b", "c"]))], []),
            vec![claim("c", json!([list("r", three_or_two), exactly("s", json!({}))]))],
            found(&[&["r/two=pool/a", "r/two=pool/b", "s=pool/c"]]),
        ),
        (
            "changed for a later claim",
            inventory([], [local("s", devices(&["a", "b"]))], []),
            vec![claim("c", json!([list("r", two_or_one)])), claim("d", json!([exactly("s", json!({}))]))],
            found(&[&["r/one=pool/a"], &["s=pool/b"]]),
        ),
        (
            "too many devices with the first",
            inventory([], [local("s", Value::Array(many_devices))], []),
            vec![claim("c", json!([list("r", many.clone()), list("s", many)]))],
            Ok(Some(vec![halves])),
        ),
        (
            "all devices first",
            inventory([], [local("s", devices(&["a", "b"]))], []),
            vec![claim("c", json!([list("r", all_or_one.clone())]))],
            found(&[&["r/all=pool/a", "r/all=pool/b"]]),
        ),
        (
            "all devices, of which some are needed",
            inventory([], [local("s", devices(&["a", "b"]))], []),
            vec![claim("c", json!([list("r", all_or_one), exactly("s", json!({}))]))],
            found(&[&["r/one=pool/a", "s=pool/b"]]),
        ),
        (
            "constraint of an alternative",
            inventory([], [both()], []),
            vec![with(
                claim("c", json!([list("r", large_or_small.clone()), exactly("s", json!({}))])),
                "constraints",
                same_model,
            )],
            found(&[&["r/small=pool/a", "s=pool/b"]]),
        ),
    ]);
}

#[test]
fn tainted_device_needs_toleration() {
    let tainted = |name: &str, effect: &str| json!({"name": name, "taints": [{"key": "k", "value": "v", "effect": effect}]});
    let pair = |effect: &str| local("s", json!([tainted("a", effect), {"name": "b"}]));
    let tolerant = || one(json!({"tolerations": [{"key": "k", "operator": "Exists"}]}));
    let two_taints = local(
        "s",
        json!([{"name": "a", "taints": [{"key": "k", "effect": "NoSchedule"}, {"key": "l", "effect": "NoExecute"}]}]),
    );
    check(vec![
        ("avoided", inventory([], [pair("NoSchedule")], []), vec![count(1)], found(&[&["r=pool/b"]])),
        ("no execute", inventory([], [pair("NoExecute")], []), vec![count(1)], found(&[&["r=pool/b"]])),
        ("no effect", inventory([], [pair("None")], []), vec![count(1)], found(&[&["r=pool/a"]])),
        ("tolerated", inventory([], [pair("NoSchedule")], []), vec![tolerant()], found(&[&["r=pool/a"]])),
        ("one of two", inventory([], [two_taints], []), vec![tolerant()], Ok(None)),
        (
            "all devices",
            inventory([], [pair("NoSchedule")], []),
            vec![one(json!({"allocationMode": "All"}))],
            Ok(None),
        ),
    ]);
}

#[test]
fn invalid_requests_are_reported() {
    let any = || local("s", devices(&["a"]));
    let attribute = |value: Value| local("s", json!([device("a", json!({"x": value}))]));
    let of = |text: &str| one(json!({"selectors": selector(text)}));
    let names: Vec<Value> = (0..129).map(|number| json!({"name": format!("d{number}")})).collect();
    let broken_class = json!({"metadata": {"name": "broken"}, "spec": {"selectors": selector("noSuchVar")}});
    let compile = |owner: &str| {
        format!(
            "{owner}: selector #0: CEL compile error: compilation failed: ERROR: <input>:1:1: undeclared reference to \
             'noSuchVar' (in container '')\n | noSuchVar\n | ^"
        )
    };
    check(vec![
        (
            "unknown class",
            inventory([], [any()], []),
            vec![one(json!({"deviceClassName": "x"}))],
            error(
                "claim default/c, request r: could not retrieve device class x: deviceclass.resource.k8s.io \"x\" not found",
            ),
        ),
        (
            "no class",
            inventory([], [any()], []),
            vec![one(json!({"deviceClassName": ""}))],
            error("claim default/c, request r: missing device class name (unsupported request type?)"),
        ),
        (
            "unknown mode",
            inventory([], [any()], []),
            vec![one(json!({"allocationMode": "future"}))],
            error("claim default/c, request r: unsupported count mode future"),
        ),
        (
            "unknown selector",
            inventory([], [any()], []),
            vec![one(json!({"selectors": [{}]}))],
            error(
                "claim default/c, request r, selector #0: CEL expression empty (unsupported selector type?)",
            ),
        ),
        (
            "selector of a claim",
            inventory([], [any()], []),
            vec![of("noSuchVar")],
            Err(compile("claim default/c")),
        ),
        (
            "selector of a class",
            inventory([broken_class], [any()], []),
            vec![one(json!({"deviceClassName": "broken"}))],
            Err(compile("class broken")),
        ),
        (
            "missing attribute",
            inventory([], [any()], []),
            vec![of(&format!("device.attributes['{DRIVER}'].x == 1"))],
            error("claim default/c: selector #0: CEL runtime error: no such key: x"),
        ),
        (
            "list attribute",
            inventory([], [attribute(json!({"ints": [1]}))], []),
            vec![count(1)],
            error("class class: selector #0: CEL runtime error: attribute x: unsupported attribute value"),
        ),
        (
            "too many devices",
            inventory([], [local("s", Value::Array(names.clone()))], []),
            vec![count(129)],
            error("claim default/c: number of requested devices 129 exceeds the claim limit of 128"),
        ),
        (
            "too many of all devices",
            inventory([], [local("s", Value::Array(names))], []),
            vec![one(json!({"allocationMode": "All"}))],
            error("claim default/c: number of requested devices 129 exceeds the claim limit of 128"),
        ),
    ]);
}

#[test]
fn result_has_configuration_of_classes_and_claim() {
    let config = |text: &str| json!({"opaque": {"driver": DRIVER, "parameters": {"text": text}}});
    let mut own = class("own");
    own["spec"]["config"] = json!([config("class")]);
    let mut list = json!([config("claim"), config("of r"), config("of s/b")]);
    list[1]["requests"] = json!(["r"]);
    list[2]["requests"] = json!(["s/b"]);
    let of_class = |name: &str| json!({"deviceClassName": name});
    let absent = json!({"name": "a", "deviceClassName": "own", "count": 9});
    let present = json!({"name": "b", "deviceClassName": "own", "count": 1});
    let requests = json!([exactly("r", of_class("own")), {"name": "s", "firstAvailable": [absent, present]}]);
    let inventory = inventory([own], [local("s", devices(&["a", "b"]))], []);
    let results = allocation_results(&inventory, &[with(claim("c", requests), "config", list)]);
    let results = results.expect("no error").expect("allocated");
    let config =
        results[0].devices.as_ref().and_then(|devices| devices.config.as_ref()).expect("configuration");
    let shown: Vec<_> = config
        .iter()
        .map(|config| {
            let text = config.opaque.as_ref().map(|opaque| opaque.parameters.0["text"].clone());
            (config.source.as_str(), config.requests.clone().unwrap_or_default(), text.unwrap_or_default())
        })
        .collect();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        shown,
        [
            ("FromClass", names(&["r", "s/b"]), json!("class")),
            ("FromClaim", names(&[]), json!("claim")),
            ("FromClaim", names(&["r"]), json!("of r")),
            ("FromClaim", names(&["s/b"]), json!("of s/b")),
        ]
    );
}

#[test]
fn result_is_limited_to_nodes_of_devices() {
    let region = |value: &str| json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "region", "operator": "In", "values": [value]}]}]});
    let this_node = json!({"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["node"]}]}]});
    let network = |pool: &str| {
        let pool = json!({"name": pool, "generation": 1, "resourceSliceCount": 1});
        slice(
            &format!("s-{}", pool["name"]),
            devices(&["a"]),
            json!({"pool": pool, "nodeSelector": region("west")}),
        )
    };
    let everywhere = slice("s", devices(&["a"]), json!({"allNodes": true}));
    let binding = slice("s", json!([{"name": "a", "bindsToNode": true}]), json!({"allNodes": true}));
    for (name, slices, count_of, expected) in [
        ("local", vec![local("s", devices(&["a"]))], 1, this_node.clone()),
        ("everywhere", vec![everywhere], 1, Value::Null),
        ("binds to node", vec![binding], 1, this_node),
        ("selected", vec![network("p"), network("q")], 2, region("west")),
    ] {
        let results = allocation_results(&inventory([], slices, []), &[count(count_of)]);
        let results = results.expect("no error").expect("allocated");
        let selector = serde_json::to_value(&results[0].node_selector).expect("JSON");
        assert_eq!(selector, expected, "{name}");
    }
}

#[test]
fn devices_with_binding_conditions_are_used_last() {
    let late = json!([{"name": "a", "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}]);
    let inventory = inventory([], [local_pool("p", late), local_pool("q", devices(&["q"]))], []);
    assert_eq!(allocate(&inventory, &[count(1)]), found(&[&["r=q/q"]]));
    let results = allocation_results(&inventory, &[count(2)]).expect("no error").expect("allocated");
    let devices = results[0].devices.as_ref().and_then(|devices| devices.results.as_ref()).expect("results");
    assert_eq!(devices[1].binding_conditions.as_deref(), Some(&["ready".to_owned()][..]));
    assert_eq!(devices[1].binding_failure_conditions.as_deref(), Some(&["broken".to_owned()][..]));
}

/// Requests that together cannot be satisfied, which only shows after all combinations were tried.
fn adversarial() -> (Inventory, Value) {
    let attributes = |number: usize| json!({"value": {"int": number}});
    let all: Vec<Value> = (0..128).map(|number| device(&format!("d{number}"), attributes(number))).collect();
    let constraint = json!([{"matchAttribute": format!("{DRIVER}/value"), "requests": ["r31", "r30"]}]);
    let requests: Vec<Value> = (0..32).map(|number| exactly(&format!("r{number}"), json!({}))).collect();
    let claim = with(claim("c", Value::Array(requests)), "constraints", constraint);
    (inventory([], [local("s", Value::Array(all))], []), claim)
}

#[test]
fn search_ends_at_deadline() {
    let (inventory, claim) = adversarial();
    let (claim, selectors, labels) = (claim_named(claim), SelectorCache::default(), Labels::default());
    let target = Target { name: "node", labels: &labels };
    let allocator = Allocator::new(&inventory, &selectors, Some(Instant::now()));
    assert_eq!(allocator.allocate(&target, &[&claim]), Err(AllocationError::Timeout));
}

#[test]
fn search_of_many_claims_does_not_exhaust_stack() {
    let names: Vec<Value> = (0..128)
        .map(|number| json!({"name": format!("d{number}"), "allowMultipleAllocations": true}))
        .collect();
    let inventory = inventory([], [local("s", Value::Array(names))], []);
    let claims: Vec<Value> = (0..300)
        .map(|number| claim(&format!("c{number}"), json!([exactly("r", json!({"count": 128}))])))
        .collect();
    let results = allocation_results(&inventory, &claims).expect("no error").expect("allocated");
    assert_eq!(results.len(), 300);
}

#[test]
fn slice_changes_are_followed() {
    let mut inventory = inventory([], [local("s", devices(&["a"]))], []);
    let parse = |value: Value| {
        serde_json::from_value::<objects::resource::v1::ResourceSlice>(value).expect("a slice")
    };
    let (old, new) = (parse(local("s", devices(&["a"]))), parse(local("s", devices(&["b"]))));
    inventory.set_slice(Some(&old), &std::sync::Arc::new(new.clone()));
    assert_eq!(allocate(&inventory, &[count(1)]), found(&[&["r=pool/b"]]));
    let selected = json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "region", "operator": "Exists"}]}]}});
    let network = parse(slice("s", devices(&["c"]), selected));
    inventory.set_slice(Some(&new), &std::sync::Arc::new(network.clone()));
    assert_eq!(allocate(&inventory, &[count(1)]), found(&[&["r=pool/c"]]));
    inventory.slices.remove(&network);
    assert_eq!(allocate(&inventory, &[count(1)]), Ok(None));
    assert!(driver_selector().is_object());
}
