//! Bodies in every encoding.

use super::{kind_of, outcome, steps};
use crate::engine::Target;
use machinery::Value;
use machinery::codec::{cbor, json, protobuf, stored_json, typed, yaml};

const OBJECT: &[u8] = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"a":"b"},"creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"resources":{"limits":{"cpu":"1","memory":"1Gi"}}}],"terminationGracePeriodSeconds":30}}"#;
const SECRET: &[u8] = br#"{"data":{"a":"YWJj"},"stringData":{"b":"c"},"immutable":true,"type":"Opaque"}"#;
const TYPED: &[u8] = b"\x01{\"metadata\":{\"name\":\"a\"},\"spec\":{\"containers\":[{\"name\":\"c\",\"env\":[{\"name\":\"e\",\"valueFrom\":{\"fieldRef\":{\"fieldPath\":\"x\"}}}]}],\"volumes\":[{\"name\":\"v\",\"emptyDir\":{\"sizeLimit\":\"1Mi\"}}]}}";
const DICTIONARY: &[&[u8]] = &[
    b"null",
    b"true",
    b"\"metadata\":",
    b"\"spec\":{",
    b"\"containers\":[{",
    b"\"name\":\"",
    b"\"data\":{",
    b"\\u0000",
    b"\\ud800",
    b"\"1Gi\"",
    b"\"2026-01-01T00:00:00Z\"",
    b"{}",
    b"[]",
    b",",
    b":",
];

/// Number of values in an object.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

/// Memory limit as a multiple of the input, including errors and the copies made by the checks here.
const FACTOR: usize = 400;
const FLOOR: usize = 4 << 20;

pub static JSON: Target = Target {
    name: "json",
    corpus: &[OBJECT, SECRET, b"[1,-2.5e3,\"\\u00e4\",null,true]", b"{\"a\":{\"b\":{}},\"a\":1}"],
    dictionary: DICTIONARY,
    run: |input| {
        let read = json::decode(input);
        if let Ok(decoded) = &read {
            let text = json::encode(&decoded.value);
            let again = json::decode(&text).expect("what was written is read again");
            assert_eq!(again.value, decoded.value, "written as {}", String::from_utf8_lossy(&text));
        }
        outcome(&read, read.as_ref().map_or(0, |decoded| steps(count(&decoded.value))))
    },
    floor: FLOOR,
    factor: FACTOR,
};

pub static TYPED_JSON: Target = Target {
    name: "typed-json",
    corpus: &[
        TYPED,
        OBJECT,
        b"\x03{\"spec\":{\"replicas\":1,\"template\":{}}}",
        b"\x02{\"data\":{\"a\":\"YWJj\"}}",
    ],
    dictionary: DICTIONARY,
    run: |input| {
        let Some((schema, text)) = kind_of(input) else { return 0 };
        let read = json::decode_typed(text, schema);
        if let Ok(decoded) = &read {
            let mut again = decoded.value.clone();
            typed::normalize(&mut again, schema).expect("what was normalised is of its type");
            assert_eq!(again, decoded.value, "normalised twice");
            let message = protobuf::encode_object(&decoded.value, schema);
            protobuf::decode_object(&message, schema).expect("what was written is read again");
        }
        outcome(&read, read.as_ref().map_or(0, |decoded| steps(count(&decoded.value))))
    },
    floor: 64 << 20,
    factor: FACTOR,
};

pub static STORED_JSON: Target = Target {
    name: "stored-json",
    corpus: &[OBJECT, SECRET],
    dictionary: DICTIONARY,
    run: |input| {
        let read = stored_json::decode(input).ok_or("not stored by Ferry");
        let _ = stored_json::decode_without(input, &["managedFields", "data"]);
        outcome(&read, read.as_ref().map_or(0, |value| steps(count(value))))
    },
    floor: FLOOR,
    factor: FACTOR,
};

pub static YAML: Target = Target {
    name: "yaml",
    corpus: &[
        b"a: &x [1, 2]\nb: *x\nc:\n  - d: |\n      text\n  - >-\n    folded\n",
        b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  k: \"v\\n\"\n",
        b"<<: {a: 1}\n? k\n: v\n--- \nother\n",
        b"- 0x1f\n- .inf\n- ~\n- !!str 1\n- 2026-01-01\n",
    ],
    dictionary: &[
        b"&a ",
        b"*a",
        b"- ",
        b": ",
        b"|\n",
        b">-\n",
        b"<<: ",
        b"!!binary ",
        b"---\n",
        b"? ",
        b"# ",
        b"\t",
        b"%YAML 1.1\n",
        b"{",
        b"}",
    ],
    run: |input| {
        let read = yaml::decode(input);
        // A string at the root may be folded before text that looks like a document marker; objects are never strings.
        if let Ok(decoded) = &read
            && decoded.value.is_object()
        {
            let text = yaml::encode(&decoded.value);
            let again = yaml::decode(&text).expect("what was written is read again");
            assert_eq!(again.value, decoded.value, "written as {}", String::from_utf8_lossy(&text));
        }
        outcome(&read, read.as_ref().map_or(0, |decoded| steps(count(&decoded.value))))
    },
    floor: 16 << 20,
    factor: FACTOR,
};

pub static CBOR: Target = Target {
    name: "cbor",
    corpus: &[
        b"\xd9\xd9\xf7\xa2\x61a\x83\x01\x02\x03\x61b\xf5",
        b"\xbf\x61x\x9f\x18\x2a\xff\xff",
        b"\xa1\x44data\x7f\x61a\x61b\xff",
        b"\x82\xfb\x3f\xf0\x00\x00\x00\x00\x00\x00\xd6\x43abc",
    ],
    dictionary: &[
        b"\xd9\xd9\xf7",
        b"\x9f",
        b"\xbf",
        b"\xff",
        b"\x7f",
        b"\x5f",
        b"\xc0",
        b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"\xf6",
        b"\x61a",
    ],
    run: |input| {
        let read = cbor::decode(input);
        if let Ok(value) = &read {
            let bytes = cbor::encode(value, None);
            let again = cbor::decode(&bytes).expect("what was written is read again");
            assert_eq!(again, *value);
        }
        outcome(&read, read.as_ref().map_or(0, |value| steps(count(value))))
    },
    floor: FLOOR,
    factor: FACTOR,
};

pub static PROTOBUF: Target = Target {
    name: "protobuf",
    corpus: &[
        b"\x00k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x0f\x0a\x03\x0a\x01a\x12\x08\x0a\x01k\x12\x03abc\x1a\0\"\0",
        b"\x01\x0a\x03\x0a\x01a\x12\x0a\x12\x08\x0a\x01c\x12\x03img",
        b"\x02\x12\x07\x0a\x01k\x12\x02ab\x1a\x06Opaque",
    ],
    dictionary: &[b"\x0a\0", b"\x12\0", b"\x0a\x03", b"\xff\xff\xff\xff\x0f", b"\x0b", b"\x0c", b"\x08\x01", b"\x1a\x04"],
    run: |input| {
        let Some((schema, bytes)) = kind_of(input) else { return 0 };
        let raw = protobuf::unwrap(bytes).map_or(bytes, |envelope| envelope.raw);
        let read = protobuf::decode_object(raw, schema);
        if let Ok(value) = &read {
            let written = protobuf::encode_object(value, schema);
            protobuf::decode_object(&written, schema).expect("what was written is read again");
        }
        outcome(&read, read.as_ref().map_or(0, |value| steps(count(value))))
    },
    floor: 64 << 20,
    factor: FACTOR,
};
