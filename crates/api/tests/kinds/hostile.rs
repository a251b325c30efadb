//! Arbitrary input to every decoder: a value or an error, never a panic, a hang or a blown stack; and what
//! was encoded decodes to itself.

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

/// 400 cases, or as many as `PROPTEST_CASES` asks for.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(400);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn arbitrary_bytes_are_a_value_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0usize..6) {
        let _ = json::decode(&bytes);
        let _ = json::decode_typed(&bytes, schema(kind));
        let _ = yaml::decode(&bytes);
        let _ = cbor::decode(&bytes);
        let _ = protobuf::unwrap(&bytes);
        let _ = protobuf::decode_object(&bytes, schema(kind));
    }

    #[test]
    fn texts_that_look_like_documents(text in "[\\[\\]{}:,\"'a-c0-9 \\n\\-&*!|>#%@\\\\.]{0,80}", kind in 0usize..6) {
        let _ = json::decode_typed(text.as_bytes(), schema(kind));
        let _ = yaml::decode(text.as_bytes());
    }

    #[test]
    fn cut_and_flipped_messages(seed in any_value(), cut in 0usize..400, flip in 0usize..400, kind in 0usize..6) {
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
    fn values_survive_json_yaml_and_cbor(value in any_value()) {
        prop_assert_eq!(json::decode(&json::encode(&value)).map(|d| d.value), Ok(value.clone()));
        prop_assert_eq!(cbor::decode(&cbor::encode(&value, None)), Ok(value.clone()));
        let text = yaml::encode(&value);
        let read = yaml::decode(&text);
        prop_assert_eq!(read.map(|d| d.value), Ok(value), "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn normal_values_stay_as_they_are(value in any_value(), kind in 0usize..6) {
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
    fn typed_objects_survive_protobuf(value in any_value(), kind in 0usize..6) {
        let schema = schema(kind);
        let mut object = value;
        if typed::normalize(&mut object, schema).is_ok() {
            let bytes = protobuf::encode_object(&object, schema);
            let decoded = protobuf::decode_object(&bytes, schema).unwrap();
            prop_assert_eq!(protobuf::encode_object(&decoded, schema), bytes);
        }
    }
}
