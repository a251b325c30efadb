//! Arbitrary input to every decoder: a value or an error, never a panic, a hang or a stack overflow; and encoded
//! objects decode to themselves.

use machinery::codec::{cbor, json, protobuf, typed, yaml};
use machinery::schema::SchemaRef;
use proptest::prelude::*;
use serde_json::Value;

fn schema(index: usize) -> SchemaRef<'static> {
    let kinds = [
        ("", "v1", "Pod"),
        ("", "v1", "Secret"),
        ("apps", "v1", "Deployment"),
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
        ("", "v1", "Event"),
        ("batch", "v1", "CronJob"),
    ];
    let (group, version, kind) = kinds[index % kinds.len()];
    api::schema::schema().kind(group, version, kind).expect("a known kind")
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9f64..1e9).prop_map(|float| if float.fract() == 0.0 {
            Value::from(0)
        } else {
            Value::from(float)
        }),
        "\\PC{0,12}".prop_map(Value::from),
        "(name|1Gi|2020-01-01T00:00:00Z|aGk=|yes|0755|~|- x|a: b|\n x|x \n|#|'|5m)".prop_map(Value::from),
    ];
    let key =
        "(metadata|spec|status|name|labels|containers|data|template|items|env|value|[a-z]{1,3}|\\PC{0,3})";
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// 400 cases, or the number in `PROPTEST_CASES`.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(400);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn arbitrary_bytes_return_value_or_error(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0usize..6) {
        let _ = json::decode(&bytes);
        let _ = json::decode_typed(&bytes, schema(kind));
        let _ = yaml::decode(&bytes);
        let _ = cbor::decode(&bytes);
        let _ = protobuf::unwrap(&bytes);
        let _ = protobuf::decode_object(&bytes, schema(kind));
    }

    #[test]
    fn document_like_texts_return_value_or_error(text in "[\\[\\]{}:,\"'a-c0-9 \\n\\-&*!|>#%@\\\\.]{0,80}", kind in 0usize..6) {
        let _ = json::decode_typed(text.as_bytes(), schema(kind));
        let _ = yaml::decode(text.as_bytes());
    }

    #[test]
    fn truncated_and_corrupted_messages_return_value_or_error(seed in any_value(), cut in 0usize..400, flip in 0usize..400, kind in 0usize..6) {
        let mut object = serde_json::json!({ "metadata": {"name": "x", "labels": {"a": "b"}}, "spec": seed });
        if typed::normalize(&mut object, schema(kind)).is_ok() {
            let mut bytes = protobuf::encode_object(&object, schema(kind));
            let index = flip % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(index) {
                *byte ^= 1 << (cut % 8);
            }
            let _ = protobuf::decode_object(&bytes, schema(kind));
            bytes.truncate(cut);
            let _ = protobuf::decode_object(&bytes, schema(kind));
        }
    }

    #[test]
    fn values_round_trip_through_json_yaml_and_cbor(value in any_value()) {
        prop_assert_eq!(json::decode(&json::encode(&value)).map(|d| d.value), Ok(value.clone()));
        prop_assert_eq!(cbor::decode(&cbor::encode(&value, None)), Ok(value.clone()));
        let text = yaml::encode(&value);
        let read = yaml::decode(&text);
        prop_assert_eq!(read.map(|d| d.value), Ok(value), "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn normalized_values_are_unchanged(value in any_value(), kind in 0usize..6) {
        let schema = schema(kind);
        let mut once = value.clone();
        if typed::normalize(&mut once, schema).is_ok() {
            let mut twice = once.clone();
            let report = typed::normalize(&mut twice, schema).unwrap();
            prop_assert_eq!(&twice, &once);
            prop_assert!(report.strict.is_empty());
            let from_json = json::decode_typed(&json::encode(&value), schema).unwrap();
            prop_assert_eq!(&from_json.value, &once);
        }
    }

    #[test]
    fn typed_objects_round_trip_through_protobuf(value in any_value(), kind in 0usize..6) {
        let schema = schema(kind);
        let mut object = value;
        if typed::normalize(&mut object, schema).is_ok() {
            let bytes = protobuf::encode_object(&object, schema);
            let decoded = protobuf::decode_object(&bytes, schema).unwrap();
            prop_assert_eq!(protobuf::encode_object(&decoded, schema), bytes);
        }
    }
}

/// Bodies whose values take far more memory than their bytes: each is rejected before that memory is allocated.
#[test]
fn small_values_beyond_memory_budget_are_rejected() {
    const BYTES: usize = 2 << 20;
    let json_list = |item: &str| format!("[{}{item}]", format!("{item},").repeat(BYTES / (item.len() + 1)));
    let pods_of = |item: &str| format!(r#"{{"spec":{{"containers":{}}}}}"#, json_list(item));
    let pod = schema(0);
    for item in [r#"{"a":1}"#, r#"{"a":{}}"#] {
        assert!(json::decode(json_list(item).as_bytes()).is_err(), "JSON list of {item}");
    }
    for item in ["{}", "null", r#"{"name":"a"}"#] {
        assert!(json::decode_typed(pods_of(item).as_bytes(), pod).is_err(), "typed JSON list of {item}");
    }
    for item in ["{a: 1}", "{a: }"] {
        assert!(yaml::decode(json_list(item).as_bytes()).is_err(), "YAML list of {item}");
    }
    // An indefinite list of maps with one entry.
    let mut maps = vec![0x9f];
    maps.extend([0xa1, 0x41, b'a', 0x00].repeat(BYTES / 4));
    maps.push(0xff);
    assert!(cbor::decode(&maps).is_err(), "CBOR list of maps");
    // Values of another encoding are completed with zero values afterwards.
    let mut value: Value = serde_json::from_str(&pods_of("{}")).expect("JSON");
    assert!(typed::normalize(&mut value, pod).is_err(), "list of empty structs");
    let mut value: Value = serde_json::from_str(&pods_of("null")).expect("JSON");
    assert!(typed::normalize(&mut value, pod).is_err(), "list of absent structs");
    // spec (2) of empty containers (2).
    let spec = [0x12, 0x00].repeat(BYTES / 2);
    let mut message = vec![0x12];
    let mut length = spec.len();
    while length >= 0x80 {
        message.push((length & 0x7f | 0x80) as u8);
        length >>= 7;
    }
    message.push(length as u8);
    message.extend(spec);
    assert!(protobuf::decode_object(&message, pod).is_err(), "protobuf list of empty messages");
}

/// Large bodies of realistic shapes stay within the budget in every encoding.
#[test]
fn large_ordinary_bodies_stay_within_memory_budget() {
    let properties = (0..40_000).map(|i| (format!("p{i:05}"), serde_json::json!({"type": "string"})));
    let openapi = serde_json::json!({"properties": Value::Object(properties.collect())});
    let definition = serde_json::json!({
        "spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": openapi}}]},
    });
    let env: Vec<Value> =
        (0..20_000).map(|i| serde_json::json!({"name": format!("V{i}"), "value": "x"})).collect();
    let pod = serde_json::json!({"spec": {"containers": [{"name": "c", "image": "i", "env": env}]}});
    for (value, kind) in [(definition, 3), (pod, 0)] {
        let text = value.to_string();
        assert!(json::decode(text.as_bytes()).is_ok());
        assert!(json::decode_typed(text.as_bytes(), schema(kind)).is_ok());
        assert!(yaml::decode(text.as_bytes()).is_ok());
        assert!(yaml::decode(yaml::encode(&value).as_ref()).is_ok());
        assert!(cbor::decode(&cbor::encode(&value, None)).is_ok());
        let mut typed = value.clone();
        assert!(typed::normalize(&mut typed, schema(kind)).is_ok());
        let message = protobuf::encode_object(&typed, schema(kind));
        assert!(protobuf::decode_object(&message, schema(kind)).is_ok());
    }
}
