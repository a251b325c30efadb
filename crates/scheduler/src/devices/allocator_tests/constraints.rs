//! Constraints between the devices of a claim.

use super::*;

fn numa(name: &str, numa: i64) -> Value {
    device(name, json!({"numa": {"int": numa}}))
}

fn three() -> Value {
    local("s", json!([numa("a", 1), numa("b", 2), numa("c", 2)]))
}

fn matching() -> Value {
    json!([{"matchAttribute": format!("{DRIVER}/numa")}])
}

fn pair(constraints: &Value) -> Value {
    let requests = json!([exactly("r", json!({})), exactly("s", json!({}))]);
    with(claim("c", requests), "constraints", constraints.clone())
}

#[test]
fn constraints_apply_to_their_requests() {
    let distinct = json!([{"distinctAttribute": format!("{DRIVER}/numa")}]);
    let only_first = json!([{"matchAttribute": format!("{DRIVER}/numa"), "requests": ["r"]}]);
    let all = one(json!({"allocationMode": "All"}));
    let violated = format!(
        "claim default/c, request r: cannot add device {DRIVER}/pool/b because a claim constraint would not be satisfied"
    );
    check(vec![
        ("match", inventory([], [three()], []), vec![pair(&matching())], found(&[&["r=pool/b", "s=pool/c"]])),
        (
            "match within a request",
            inventory([], [three()], []),
            vec![with(count(2), "constraints", matching())],
            found(&[&["r=pool/b", "r=pool/c"]]),
        ),
        (
            "match three",
            inventory([], [three()], []),
            vec![with(count(3), "constraints", matching())],
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
        (
            "of one request",
            inventory([], [three()], []),
            vec![pair(&only_first)],
            found(&[&["r=pool/a", "s=pool/b"]]),
        ),
        (
            "all devices",
            inventory([], [three()], []),
            vec![with(all, "constraints", matching())],
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
fn constraints_compare_attributes() {
    let mixed = local("s", json!([numa("a", 1), device("b", json!({"numa": {"string": "1"}}))]));
    let unset = local("s", json!([numa("a", 1), {"name": "b"}]));
    let qualified =
        local("s", json!([numa("a", 1), device("b", json!({format!("{DRIVER}/numa"): {"int": 1}}))]));
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
    check(vec![
        ("other types", inventory([], [mixed], []), vec![pair(&matching())], Ok(None)),
        ("unset", inventory([], [unset], []), vec![pair(&matching())], Ok(None)),
        (
            "qualified name",
            inventory([], [qualified], []),
            vec![pair(&matching())],
            found(&[&["r=pool/a", "s=pool/b"]]),
        ),
        (
            "versions",
            inventory([], [versions], []),
            vec![pair(&matching())],
            found(&[&["r=pool/a", "s=pool/b"]]),
        ),
        ("booleans", inventory([], [bools], []), vec![pair(&matching())], Ok(None)),
    ]);
}
