use super::*;
use crate::schema::{Field, Node, NodeId, PatchStrategy, Presence, Proto, Schema};
use proptest::prelude::*;
use serde_json::json;
use std::sync::Arc;

fn field(name: &str, node: NodeId, patch: PatchStrategy, merge_key: Option<&str>) -> Field {
    Field {
        name: Arc::from(name),
        node,
        required: false,
        default: None,
        patch,
        merge_key: merge_key.map(Arc::from),
        atomic: false,
        granular: false,
        presence: Presence::OmitZero,
        proto: Proto::default(),
        pointer: false,
    }
}

/// `{items: merge by name, finalizers: merging set, args: atomic, labels: map, strategy: retainKeys, whole: replace}`.
fn schema() -> (Schema, NodeId) {
    let mut schema = Schema::default();
    let merge = PatchStrategy { merge: true, ..PatchStrategy::default() };
    let replace = PatchStrategy { replace: true, ..PatchStrategy::default() };
    let plain = PatchStrategy::default();
    let string = schema.push(Node::of(Shape::String));
    let strings = schema.push(Node { element: Some(string), ..Node::of(Shape::List) });
    let labels = schema.push(Node { element: Some(string), ..Node::of(Shape::Map) });
    let item = schema.push(Node {
        name: Arc::from("test.Item"),
        fields: vec![
            field("args", strings, plain, None),
            field("name", string, plain, None),
            field("value", string, plain, None),
        ],
        ..Node::of(Shape::Object)
    });
    let items = schema.push(Node { element: Some(item), ..Node::of(Shape::List) });
    let root = schema.push(Node {
        name: Arc::from("test.Root"),
        fields: vec![
            field("args", strings, plain, None),
            field("finalizers", strings, merge, None),
            field("items", items, merge, Some("name")),
            field("labels", labels, plain, None),
            field("strategy", item, PatchStrategy { retain_keys: true, ..plain }, None),
            field("whole", item, replace, None),
        ],
        ..Node::of(Shape::Object)
    });
    (schema, root)
}

fn patched(object: Value, patch: Value) -> Result<Value, PatchError> {
    let (schema, root) = schema();
    let mut object = object;
    apply(&mut object, &patch, schema.at(root)).map(|()| object)
}

#[test]
fn lists_merge_by_key() {
    let object = json!({"items": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]});
    for (patch, want) in [
        (
            json!([{"name": "b", "value": "9"}]),
            json!([{"name": "a", "value": "1"}, {"name": "b", "value": "9"}]),
        ),
        (
            json!([{"name": "c", "value": "3"}]),
            json!([{"name": "c", "value": "3"}, {"name": "a", "value": "1"}, {"name": "b", "value": "2"}]),
        ),
        (json!([{"$patch": "delete", "name": "a"}]), json!([{"name": "b", "value": "2"}])),
        (json!([{"$patch": "replace"}, {"name": "z"}]), json!([{"name": "z"}])),
        (json!([{"name": "a", "value": null}]), json!([{"name": "a"}, {"name": "b", "value": "2"}])),
    ] {
        let got = patched(object.clone(), json!({"items": patch.clone()})).unwrap();
        assert_eq!(got["items"], want, "{patch}");
    }
}

#[test]
fn sets_atomic_lists_and_maps_are_merged() {
    let object = json!({"finalizers": ["a", "b"], "args": ["1"], "labels": {"x": "1", "y": "2"}, "whole": {"name": "n", "value": "v"}});
    for (patch, field, want) in [
        (json!({"finalizers": ["c"]}), "finalizers", json!(["c", "a", "b"])),
        (json!({"finalizers": ["b"]}), "finalizers", json!(["a", "b"])),
        (json!({"$deleteFromPrimitiveList/finalizers": ["a"]}), "finalizers", json!(["b"])),
        (json!({"args": ["2", "3"]}), "args", json!(["2", "3"])),
        (json!({"labels": {"x": null, "z": "3"}}), "labels", json!({"y": "2", "z": "3"})),
        (json!({"labels": {"$patch": "replace", "z": "3"}}), "labels", json!({"z": "3"})),
        (json!({"labels": {"$patch": "delete"}}), "labels", json!({})),
        (json!({"whole": {"name": "m"}}), "whole", json!({"name": "m"})),
    ] {
        assert_eq!(patched(object.clone(), patch.clone()).unwrap()[field], want, "{patch}");
    }
}

/// Merging lists of the largest body's length takes linear, not quadratic time.
#[test]
fn long_lists_are_merged_in_linear_time() {
    let count = 100_000;
    let names = |from: usize| (from..from + count).map(|i| Value::from(format!("n{i}"))).collect::<Vec<_>>();
    let items = |from: usize| names(from).iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
    let deletes = |from: usize| {
        names(from).iter().map(|name| json!({"$patch": "delete", "name": name})).collect::<Vec<_>>()
    };
    let object = json!({"finalizers": names(0), "items": items(0)});
    let half = count / 2;
    let begin = std::time::Instant::now();
    for (patch, field, want) in [
        (json!({"finalizers": names(half)}), "finalizers", count + half),
        (json!({"$deleteFromPrimitiveList/finalizers": names(half)}), "finalizers", half),
        (json!({"items": items(half)}), "items", count + half),
        (json!({"items": deletes(half)}), "items", half),
        (json!({"$setElementOrder/items": items(0), "items": items(0)}), "items", count),
        (json!({"strategy": {"$retainKeys": names(0)}}), "items", count),
    ] {
        let got = patched(object.clone(), patch).unwrap();
        assert_eq!(got[field].as_array().map(Vec::len), Some(want), "{field}");
    }
    assert!(begin.elapsed() < std::time::Duration::from_secs(60), "{:?}", begin.elapsed());
}

/// A duplicate is replaced by the last item: compared with the quadratic algorithm on short lists.
#[test]
fn duplicates_are_removed_as_by_comparing_all_pairs() {
    fn by_pairs(mut items: Vec<Value>) -> Vec<Value> {
        let mut i = 0;
        while i < items.len() {
            let mut j = i + 1;
            while j < items.len() {
                if items[i] == items[j] {
                    items.swap_remove(j);
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
        items
    }
    // Every list of up to six items of three values.
    for length in 0..7u32 {
        for code in 0..3usize.pow(length) {
            let items: Vec<Value> = (0..length).map(|at| Value::from(code / 3usize.pow(at) % 3)).collect();
            assert_eq!(lists::without_duplicates(items.clone()), by_pairs(items.clone()), "{items:?}");
        }
    }
}

#[test]
fn element_order_and_retained_keys_are_applied() {
    let object = json!({"items": [{"name": "a"}, {"name": "b"}], "finalizers": ["a", "b", "c"], "strategy": {"name": "old", "value": "v"}});
    let got = patched(
        object.clone(),
        json!({"$setElementOrder/items": [{"name": "b"}, {"name": "a"}], "items": [{"name": "a", "value": "1"}]}),
    )
    .unwrap();
    assert_eq!(got["items"], json!([{"name": "b"}, {"name": "a", "value": "1"}]));
    let got = patched(object.clone(), json!({"$setElementOrder/finalizers": ["c", "a"]})).unwrap();
    assert_eq!(got["finalizers"], json!(["b", "c", "a"]));
    let got = patched(object.clone(), json!({"strategy": {"$retainKeys": ["name"], "name": "new"}})).unwrap();
    assert_eq!(got["strategy"], json!({"name": "new"}));
    let error = patched(object, json!({"strategy": {"$retainKeys": ["value"], "name": "new"}})).unwrap_err();
    assert_eq!(error, PatchError::BadRequest("invalid patch format of retainKeys".to_owned()));
}

#[test]
fn new_values_lose_nulls_and_directives() {
    let got = patched(
        json!({}),
        json!({"strategy": {"name": null, "value": "x"}, "items": [{"$patch": "delete", "name": "a"}, {"name": "b"}]}),
    );
    assert_eq!(got.unwrap(), json!({"strategy": {"value": "x"}, "items": [{"name": "b"}]}));
}

#[test]
fn error_texts_match_kubernetes() {
    let object = json!({"items": [{"name": "a"}], "odd": {"x": 1}, "labels": {"a": {}}});
    for (patch, want) in [
        (json!({"items": [{"value": "x"}]}), "map: map[value:x] does not contain declared merge key: name"),
        (json!({"odd": {"y": 1}}), "unable to find api field in struct Root for the json field \"odd\""),
        (json!({"items": ["x"]}), "list element types are not identical: [[map[name:a]] [x]]"),
        (json!({"$patch": "bogus"}), "unknown patch type: bogus in map: map[$patch:bogus]"),
        (json!({"items": [[]]}), "list element types are not identical: [[map[name:a]] [[]]]"),
        (
            json!({"$setElementOrder/items": [{"name": "b"}], "items": [{"name": "a"}]}),
            "The order in patch list:\n[map[name:a]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n",
        ),
    ] {
        assert_eq!(patched(object.clone(), patch.clone()).unwrap_err().to_string(), want, "{patch}");
    }
}

fn any_json() -> impl Strategy2 {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let key = prop_oneof![
            Just("items"),
            Just("finalizers"),
            Just("labels"),
            Just("name"),
            Just("$patch"),
            Just("$retainKeys"),
            Just("$setElementOrder/items"),
            Just("$deleteFromPrimitiveList/finalizers"),
            Just("strategy"),
            Just("$setElementOrder"),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..4).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
            )),
        ]
    })
}

use proptest::strategy::Strategy as Strategy2Base;
trait Strategy2: Strategy2Base<Value = Value> {}
impl<S: Strategy2Base<Value = Value>> Strategy2 for S {}

proptest! {
    #[test]
    fn strategic_patch_of_any_value_never_panics(object in any_json(), patch in any_json()) {
        let _ = patched(object, patch);
    }
}
