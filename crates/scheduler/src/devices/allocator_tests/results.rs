//! Taints, errors, and the results of an allocation.

use super::*;

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
