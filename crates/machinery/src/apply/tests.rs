use super::*;
use crate::schema::{Field, ListType, Node, NodeId, Presence, Schema, SchemaRef, Shape};
use crate::status::Status;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

static NO_RESET: Reset = Reset::Nothing;

/// A `v1` `Thing` with maps, a list by keys (port and protocol, TCP by default), a set and an atomic list.
static THINGS: LazyLock<(Schema, NodeId)> = LazyLock::new(|| {
    let mut schema = Schema::default();
    let string = schema.push(Node::of(Shape::String));
    let int = schema.push(Node::of(Shape::Int32));
    let strings = schema.push(Node { element: Some(string), ..Node::of(Shape::Map) });
    let set = schema.push(Node { element: Some(string), list_type: ListType::Set, ..Node::of(Shape::List) });
    let atomic = schema.push(Node { element: Some(string), ..Node::of(Shape::List) });
    let metadata = schema.push(Node {
        fields: vec![
            Field::new("annotations", strings),
            Field::new("finalizers", set),
            Field::new("generation", int),
            Field::new("labels", strings),
            Field::new("name", string),
            Field::new("resourceVersion", string),
            Field::new("uid", string),
        ],
        ..Node::of(Shape::Object)
    });
    let port = schema.push(Node {
        fields: vec![
            Field::new("name", string),
            Field::new("port", int),
            Field { default: Some(json!("TCP")), ..Field::new("protocol", string) },
        ],
        ..Node::of(Shape::Object)
    });
    let ports = schema.push(Node {
        element: Some(port),
        list_type: ListType::Map,
        map_keys: vec![Arc::from("port"), Arc::from("protocol")],
        ..Node::of(Shape::List)
    });
    let spec = schema.push(Node {
        fields: vec![
            Field::new("args", atomic),
            Field::new("ports", ports),
            Field::new("replicas", int),
            Field { atomic: true, ..Field::new("selector", strings) },
        ],
        ..Node::of(Shape::Object)
    });
    let status = schema.push(Node { fields: vec![Field::new("ready", int)], ..Node::of(Shape::Object) });
    let always = |name, node| Field { presence: Presence::Always, ..Field::new(name, node) };
    let root = schema.push(Node {
        fields: vec![
            Field::new("apiVersion", string),
            Field::new("data", strings),
            Field::new("kind", string),
            always("metadata", metadata),
            always("spec", spec),
            always("status", status),
        ],
        ..Node::of(Shape::Object)
    });
    (schema, root)
});

fn things() -> SchemaRef<'static> {
    THINGS.0.at(THINGS.1)
}

fn context(manager: &'static str) -> Context<'static> {
    Context {
        schema: Some(things()),
        api_version: "v1",
        kind: "Thing",
        subresource: "",
        reset: &NO_RESET,
        manager,
        now: "2026-01-01T00:00:00Z",
        converter: None,
    }
}

fn thing(mut rest: Value) -> Value {
    rest["apiVersion"] = json!("v1");
    rest["kind"] = json!("Thing");
    if rest.get("metadata").is_none() {
        rest["metadata"] = json!({});
    }
    rest["metadata"]["name"] = json!("x");
    rest
}

/// A stored object: it has a uid.
fn created(mut object: Value, manager: &'static str) -> Value {
    update(None, &mut object, &context(manager));
    object["metadata"]["uid"] = json!("u");
    object
}

#[test]
fn manager_name_defaults_to_user_agent_prefix() {
    for (field_manager, user_agent, want) in [
        ("explicit", "curl", "explicit"),
        ("", "kubectl/v1.36.0 (linux/amd64) kubernetes/abc", "kubectl"),
        ("", "a/b/c d", "a"),
        ("", "a\u{7}b", "ab"),
        ("", "", ""),
    ] {
        assert_eq!(manager_name(field_manager, user_agent), want);
    }
    assert_eq!(manager_name("", &"é".repeat(100)).len(), 128);
}

fn fields(object: &Value, manager: &str) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries.filter(|e| e["manager"] == manager).map(|e| e["fieldsV1"].clone()).next().unwrap_or(Value::Null)
}

#[test]
fn create_owns_set_fields() {
    let object = created(
        thing(
            json!({"data": {"a": "1"}, "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}, "args": ["x"]},
            "metadata": {"finalizers": ["x/y"]}, "status": {}}),
        ),
        "m",
    );
    assert_eq!(
        fields(&object, "m"),
        json!({"f:data": {".": {}, "f:a": {}}, "f:metadata": {"f:finalizers": {".": {}, "v:\"x/y\"": {}}},
            "f:spec": {"f:args": {}, "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}},
                "f:selector": {}}})
    );
    assert!(created(thing(json!({})), "m")["metadata"].get("managedFields").is_none());
}

#[test]
fn update_moves_ownership_of_changed_fields() {
    let live = created(thing(json!({"data": {"a": "1", "b": "2"}})), "one");
    let mut new = live.clone();
    new["data"] = json!({"a": "9", "c": "3"});
    update(Some(&live), &mut new, &context("two"));
    assert_eq!(fields(&new, "one"), json!({"f:data": {}}));
    assert_eq!(fields(&new, "two"), json!({"f:data": {"f:a": {}, "f:c": {}}}));
}

#[test]
fn update_without_change_retains_entries() {
    let live = created(thing(json!({"data": {"a": "1"}})), "one");
    let mut new = live.clone();
    new["metadata"]["resourceVersion"] = json!("2");
    new["metadata"]["generation"] = json!(2);
    let mut later = context("two");
    later.now = "2027-01-01T00:00:00Z";
    update(Some(&live), &mut new, &later);
    assert_eq!(new["metadata"]["managedFields"], live["metadata"]["managedFields"]);
    // Without entries in the request the stored ones are used.
    new["metadata"].as_object_mut().unwrap().remove("managedFields");
    update(Some(&live), &mut new, &later);
    assert_eq!(new["metadata"]["managedFields"], live["metadata"]["managedFields"]);
}

#[test]
fn empty_managed_fields_clear_managers() {
    let live = created(thing(json!({"data": {"a": "1"}})), "one");
    for reset in [json!([]), json!([{}])] {
        let mut new = live.clone();
        new["metadata"]["managedFields"] = reset;
        new["data"] = json!({"a": "2"});
        update(Some(&live), &mut new, &context("two"));
        assert!(new["metadata"].get("managedFields").is_none());
    }
    // Malformed entries of a request are ignored.
    let mut new = live.clone();
    new["metadata"]["managedFields"] = json!([{"manager": "x", "operation": "Bogus"}]);
    update(Some(&live), &mut new, &context("two"));
    assert_eq!(new["metadata"]["managedFields"], live["metadata"]["managedFields"]);
}

#[test]
fn updaters_beyond_limit_are_merged() {
    let mut live = created(thing(json!({"data": {"k0": "0"}})), "m0");
    for i in 1..=12 {
        let mut new = live.clone();
        new["data"][format!("k{i}")] = json!("x");
        let name: &'static str = Box::leak(format!("m{i}").into_boxed_str());
        let now: &'static str = Box::leak(format!("2026-01-01T00:00:{i:02}Z").into_boxed_str());
        update(Some(&live), &mut new, &Context { now, ..context(name) });
        live = new;
    }
    let entries = live["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries.len(), 10);
    assert_eq!(
        fields(&live, "ancient-changes"),
        json!({"f:data": {".": {}, "f:k0": {}, "f:k1": {}, "f:k2": {}, "f:k3": {}}})
    );
}

#[test]
fn no_op_write_restores_times() {
    let old = created(thing(json!({"data": {"a": "1"}})), "one");
    let mut new = old.clone();
    new["metadata"]["managedFields"][0]["time"] = json!("2030-01-01T00:00:00Z");
    let changed = {
        let mut changed = new.clone();
        changed["data"]["a"] = json!("2");
        changed
    };
    restore_times(&mut new, &old);
    assert_eq!(new, old);
    let mut again = changed.clone();
    restore_times(&mut again, &old);
    assert_eq!(again, changed);
}

fn applied(
    live: Option<&Value>,
    config: Value,
    manager: &'static str,
    force: bool,
) -> Result<Value, ApplyError> {
    let mut object = apply(live, &thing(config), force, &context(manager))?;
    object["metadata"]["uid"] = json!("u");
    Ok(object)
}

#[test]
fn apply_conflict_is_overridden_by_force() {
    let live = applied(None, json!({"data": {"a": "1", "b": "2"}}), "m1", false).unwrap();
    let status = Status::from(applied(Some(&live), json!({"data": {"a": "9"}}), "m2", false).unwrap_err());
    assert_eq!((status.code, status.reason), (409, "Conflict"));
    assert_eq!(status.message, "Apply failed with 1 conflict: conflict with \"m1\": .data.a");
    let two = applied(Some(&live), json!({"data": {"a": "9", "b": "8"}}), "m2", false).unwrap_err();
    assert_eq!(
        two.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"m1\":\n- .data.a\n- .data.b"
    );
    let forced = applied(Some(&live), json!({"data": {"a": "9"}}), "m2", true).unwrap();
    assert_eq!(forced["data"], json!({"a": "9", "b": "2"}));
    assert_eq!(fields(&forced, "m1"), json!({"f:data": {"f:b": {}}}));
    let updater = created(thing(json!({"spec": {"replicas": 1}})), "kubectl-create");
    let error = applied(Some(&updater), json!({"spec": {"replicas": 2}}), "m2", false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-create\" using v1: .spec.replicas"
    );
}

#[test]
fn apply_omitted_field_is_removed_unless_shared() {
    let live = applied(None, json!({"data": {"a": "1", "b": "2"}}), "m1", false).unwrap();
    let shared = applied(Some(&live), json!({"data": {"b": "2"}}), "m2", false).unwrap();
    let left = applied(Some(&shared), json!({}), "m1", false).unwrap();
    assert_eq!(left["data"], json!({"b": "2"}));
    assert_eq!(fields(&left, "m1"), Value::Null);
    let none = applied(Some(&left), json!({}), "m2", false).unwrap();
    assert!(none.get("data").is_none());
}

#[test]
fn apply_merges_keyed_lists_and_sets() {
    let live = applied(None, json!({"spec": {"ports": [{"port": 80, "name": "web"}]}}), "m1", false).unwrap();
    let both =
        applied(Some(&live), json!({"spec": {"ports": [{"port": 53, "protocol": "UDP"}]}}), "m2", false)
            .unwrap();
    assert_eq!(both["spec"]["ports"], json!([{"port": 80, "name": "web"}, {"port": 53, "protocol": "UDP"}]));
    // The default completes the key: this is the same port.
    let error = applied(
        Some(&both),
        json!({"spec": {"ports": [{"port": 80, "protocol": "TCP", "name": "other"}]}}),
        "m2",
        false,
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "Apply failed with 1 conflict: conflict with \"m1\": .spec.ports[port=80,protocol=\"TCP\"].name"
    );
    let gone = applied(Some(&both), json!({"spec": {"ports": []}}), "m1", false).unwrap();
    assert_eq!(gone["spec"]["ports"], json!([{"port": 53, "protocol": "UDP"}]));
    let set = applied(None, json!({"metadata": {"finalizers": ["a", "b"]}}), "m1", false).unwrap();
    let set = applied(Some(&set), json!({"metadata": {"finalizers": ["c", "b"]}}), "m2", false).unwrap();
    assert_eq!(set["metadata"]["finalizers"], json!(["a", "c", "b"]));
    let set = applied(Some(&set), json!({"metadata": {"finalizers": ["a"]}}), "m1", false).unwrap();
    assert_eq!(set["metadata"]["finalizers"], json!(["a", "c", "b"]));
}

#[test]
fn apply_invalid_configurations_are_rejected() {
    let refused = |config: Value| apply(None, &config, false, &context("m")).unwrap_err();
    assert_eq!(
        refused(json!({"apiVersion": "v2", "kind": "Thing"})),
        ApplyError::BadRequest("invalid object type: /v2, Kind=Thing".to_owned())
    );
    assert_eq!(
        refused(thing(json!({"metadata": {"managedFields": []}}))),
        ApplyError::BadRequest("metadata.managedFields must be nil".to_owned())
    );
    let cases = [
        (json!({"spec": {"nope": 1}}), ".spec.nope: field not declared in schema"),
        (json!({"spec": {"replicas": "1"}}), ".spec.replicas: expected numeric (int or float), got string"),
        (
            json!({"spec": {"ports": [{"port": 1}, {"port": 1}]}}),
            ".spec.ports: duplicate entries for key [port=1,protocol=\"TCP\"]",
        ),
        (json!({"data": []}), ".data: expected map, got &{[]}"),
    ];
    for (config, problem) in cases {
        let want = format!("failed to create typed patch object (/x; /v1, Kind=Thing): {problem}");
        assert_eq!(refused(thing(config)), ApplyError::Internal(want));
    }
}

#[test]
fn client_side_apply_migrates() {
    let last = json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x"}, "data": {"a": "1"}})
        .to_string();
    let live = created(
        thing(json!({"metadata": {"annotations": {LAST_APPLIED: last}}, "data": {"a": "1"}})),
        "kubectl-client-side-apply",
    );
    let config = thing(json!({"data": {"a": "2"}}));
    let object = apply(Some(&live), &config, false, &context("kubectl")).unwrap();
    assert_eq!(object["data"], json!({"a": "2"}));
    assert_eq!(
        object["metadata"]["annotations"][LAST_APPLIED],
        json!(
            "{\"apiVersion\":\"v1\",\"data\":{\"a\":\"2\"},\"kind\":\"Thing\",\"metadata\":{\"name\":\"x\"}}\n"
        )
    );
    assert!(apply(Some(&live), &config, false, &context("other")).is_err());
}

#[test]
fn subresources_reset_fields() {
    let main = Reset::of_fields(&[&["status"]]);
    let context = Context { reset: &main, ..context("m") };
    let mut object = thing(json!({"spec": {"replicas": 1}, "status": {"ready": 1}}));
    update(None, &mut object, &context);
    assert_eq!(fields(&object, "m"), json!({"f:spec": {"f:replicas": {}}}));
}

#[test]
fn scale_entries_map_to_scaled_object() {
    let parent = created(thing(json!({"spec": {"replicas": 1, "args": ["a"]}})), "m");
    let mut scale = json!({"metadata": {}});
    scale["metadata"]["managedFields"] = Value::Array(scale::to_scale(&parent, &["spec", "replicas"]));
    assert_eq!(fields(&scale, "m"), json!({"f:spec": {"f:replicas": {}}}));
    scale["metadata"]["managedFields"][0]["manager"] = json!("scaler");
    scale["metadata"]["managedFields"][0]["subresource"] = json!("scale");
    let entries = scale::to_parent(&parent, &scale, "v1", &["spec", "replicas"]);
    let after = json!({"metadata": {"managedFields": entries}});
    assert_eq!(fields(&after, "m"), json!({"f:spec": {"f:args": {}}}));
    assert_eq!(fields(&after, "scaler"), json!({"f:spec": {"f:replicas": {}}}));
}

#[test]
fn object_without_schema_has_deduced_types() {
    let context = Context { schema: None, ..context("m") };
    let mut object = thing(json!({"spec": {"list": [{"a": 1}], "map": {"b": {"c": 1}}}}));
    update(None, &mut object, &context);
    assert_eq!(
        fields(&object, "m"),
        json!({"f:spec": {".": {}, "f:list": {}, "f:map": {".": {}, "f:b": {".": {}, "f:c": {}}}}})
    );
}

#[test]
fn items_without_keys_clear_managers() {
    let mut object = thing(json!({"spec": {"replicas": 1, "ports": [5]}}));
    update(None, &mut object, &context("m"));
    assert_eq!(object["metadata"].get("managedFields"), None);
    let live = created(thing(json!({"spec": {"replicas": 1}})), "m");
    let mut object = live.clone();
    object["spec"]["ports"] = json!([{"name": "n"}, 5]);
    update(Some(&live), &mut object, &context("m"));
    assert_eq!(object["metadata"].get("managedFields"), None);
}

fn config() -> impl Strategy<Value = Value> {
    let data = prop::collection::btree_map("[a-d]", "[0-2]", 0..4);
    let ports = prop::collection::btree_map(1..4u8, "[x-z]", 0..3);
    let finalizers = prop::collection::btree_set("[a-d]", 0..4);
    (data, ports, finalizers).prop_map(|(data, ports, finalizers)| {
        let ports: Vec<Value> = ports.into_iter().map(|(p, n)| json!({"port": p, "name": n})).collect();
        json!({"data": data, "spec": {"ports": ports}, "metadata": {"finalizers": finalizers}})
    })
}

/// Objects of many shapes, valid or not: always-written fields with zero values, duplicate items, unknown fields.
fn anything() -> impl Strategy<Value = Value> {
    let spec = prop::sample::select(vec![
        json!(null),
        json!({}),
        json!({"replicas": 0}),
        json!({"replicas": 3, "selector": {"a": "b"}, "args": [], "unknown": {"x": [1], "y": {}}}),
        json!({"ports": [{"port": 80}, {"port": 80, "protocol": "TCP"}, {"port": 81, "name": "\"n"}, 5]}),
        json!("not a struct"),
    ]);
    let status = prop::sample::select(vec![json!(null), json!({}), json!({"ready": 0}), json!({"ready": 1})]);
    let metadata = prop::sample::select(vec![
        json!({}),
        json!({"labels": {}}),
        json!({"labels": {"a": "1", "b": ""}, "finalizers": ["x/y", "x/y", "z"], "uid": "u", "name": "n"}),
        json!({"finalizers": [], "generation": 3}),
    ]);
    (config(), metadata, spec, status, 0..16u8).prop_map(|(mut object, metadata, spec, status, which)| {
        let parts = [("metadata", metadata), ("spec", spec), ("status", status), ("extra", json!({"a": []}))];
        for (bit, (name, part)) in parts.into_iter().enumerate() {
            if which & (1 << bit) != 0 {
                object[name] = part;
            }
        }
        object
    })
}

proptest! {
    #[test]
    fn create_fields_equal_comparison_with_empty_object(object in anything(), typed in any::<bool>(), endpoint in 0..3u8) {
        let ty = if typed { super::types::Type::Known(things()) } else { super::types::Type::Deduced };
        let reset = match endpoint {
            0 => Reset::Nothing,
            1 => Reset::of_fields(&[&["status"]]),
            _ => Reset::Exclude(FieldSet::of_fields(&[&["spec"], &["metadata", "labels"], &["data", "a"]])),
        };
        let comparison = super::compare::compare(ty, &json!({}), &object, true);
        let comparison = super::manager::filtered(comparison, &reset);
        let changed = comparison.modified.union(&comparison.added).difference(&super::strip::STRIPPED);
        match super::new_object::fields_of_new(ty, &object, &reset) {
            None => prop_assert!(comparison.broken),
            // Reset fields are not compared.
            Some(_) if comparison.broken => prop_assert!(endpoint != 0),
            Some(fields) => prop_assert_eq!(Value::Object(fields), changed.to_fields_v1()),
        }
    }
}

proptest! {
    #[test]
    fn applying_twice_changes_nothing(first in config(), second in config()) {
        let live = applied(None, first, "m1", true).unwrap();
        let once = applied(Some(&live), second.clone(), "m2", true).unwrap();
        let twice = applied(Some(&once), second, "m2", true).unwrap();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn apply_result_contains_applied_values(first in config(), second in config()) {
        let live = applied(None, first, "m", true).unwrap();
        let object = applied(Some(&live), second.clone(), "m", true).unwrap();
        let data = |o: &Value| o.get("data").and_then(Value::as_object).cloned().unwrap_or_default();
        prop_assert_eq!(data(&object), data(&second));
    }

    #[test]
    fn disjoint_managers_commute(a in prop::collection::btree_map("[a-c]", "[0-9]", 1..3), b in prop::collection::btree_map("[x-z]", "[0-9]", 1..3)) {
        let run = |first: (&'static str, &Value), second: (&'static str, &Value)| {
            let live = applied(None, first.1.clone(), first.0, false).unwrap();
            applied(Some(&live), second.1.clone(), second.0, false).unwrap()
        };
        let (a, b) = (json!({"data": a}), json!({"data": b}));
        prop_assert_eq!(run(("m1", &a), ("m2", &b)), run(("m2", &b), ("m1", &a)));
    }
}
