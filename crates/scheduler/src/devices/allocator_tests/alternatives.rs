//! Prioritized lists of alternatives.

use super::*;

fn alternative(name: &str, fields: Value) -> Value {
    let mut own =
        json!({"name": name, "deviceClassName": "class", "allocationMode": "ExactCount", "count": 1});
    merge(&mut own, &fields);
    if own["allocationMode"] == "All" {
        own["count"] = Value::Null;
    }
    own
}

fn list(name: &str, alternatives: Value) -> Value {
    json!({"name": name, "firstAvailable": alternatives})
}

fn model(name: &str, model: &str) -> Value {
    device(name, json!({"model": {"string": model}}))
}

/// Request `r` for a large device, or else a small one.
fn large_or_small() -> Value {
    let of_model = |model: &str| selector(&format!("device.attributes['{DRIVER}'].model == '{model}'"));
    let large = alternative("large", json!({"selectors": of_model("large")}));
    let small = alternative("small", json!({"selectors": of_model("small")}));
    list("r", json!([large, small]))
}

#[test]
fn first_available_alternative_is_chosen() {
    let both = || local("s", json!([model("a", "small"), model("b", "large")]));
    let smalls = || local("s", json!([model("a", "small"), model("c", "small")]));
    let one_list = || claim("c", json!([large_or_small()]));
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
            "constraint of an alternative",
            inventory([], [both()], []),
            vec![with(
                claim("c", json!([large_or_small(), exactly("s", json!({}))])),
                "constraints",
                same_model,
            )],
            found(&[&["r/small=pool/a", "s=pool/b"]]),
        ),
    ]);
}

#[test]
fn alternatives_are_changed_for_later_requests() {
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
    check(vec![
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
    ]);
}
