//! Patches of every type, server-side apply, and schemas of custom resources. Inputs are JSON.

use super::{KINDS, outcome, steps};
use crate::engine::Target;
use api::custom::definition::{self, Demands};
use api::custom::schema::Schema;
use machinery::apply::{self, Context, Reset};
use machinery::codec::{json, typed};
use machinery::field::Path;
use machinery::{Value, patch};
use std::sync::LazyLock;

static POD: LazyLock<Value> = LazyLock::new(|| {
    let mut pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "labels": {"a": "b"}, "finalizers": ["x/y"]},
        "spec": {
            "containers": [
                {"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
                {"name": "d", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}]},
            ],
            "tolerations": [{"key": "k"}], "nodeSelector": {"x": "y"},
        },
    });
    typed::normalize(&mut pod, KINDS[1]).expect("a pod");
    pod
});

const DICTIONARY: &[&[u8]] = &[
    b"{\"op\":\"copy\",\"from\":\"/spec\",\"path\":\"/x\"},",
    b"{\"op\":\"add\",\"path\":\"/spec/containers/-\",\"value\":{}},",
    b"{\"op\":\"move\",\"from\":\"/spec/containers/0\",\"path\":\"/spec/containers/1\"},",
    b"{\"op\":\"test\",\"path\":\"\",\"value\":null},",
    b"{\"op\":\"remove\",\"path\":\"/metadata/labels\"},",
    b"\"$patch\":\"delete\",",
    b"\"$patch\":\"replace\",",
    b"\"$retainKeys\":[\"name\"],",
    b"\"$setElementOrder/containers\":[{\"name\":\"d\"},{\"name\":\"c\"}],",
    b"\"$deleteFromPrimitiveList/finalizers\":[\"x/y\"],",
    b"\"name\":\"c\",",
    b"null",
    b"~1",
    b"~0",
    b"\"env\":[{\"name\":\"A\"}],",
];

/// Memory limit: several copies of the object, and errors that contain it.
const FLOOR: usize = 48 << 20;
const FACTOR: usize = 600;

/// Applies the input as a patch to a pod.
fn patched<E: std::fmt::Display>(
    input: &[u8],
    apply: impl FnOnce(&mut Value, &Value) -> Result<(), E>,
) -> u64 {
    let Ok(read) = json::decode(input) else { return 0 };
    let mut object = POD.clone();
    let applied = apply(&mut object, &read.value);
    if applied.is_ok() {
        let _ = typed::normalize(&mut object, KINDS[1]);
    }
    outcome(&applied, steps(object.to_string().len()))
}

pub static JSON_PATCH: Target = Target {
    name: "json-patch",
    corpus: &[
        br#"[{"op":"add","path":"/metadata/labels/c","value":"d"},{"op":"test","path":"/kind","value":"Pod"}]"#,
        br#"[{"op":"copy","from":"/spec/containers/0","path":"/spec/containers/-"},{"op":"remove","path":"/spec/containers/1"}]"#,
        br#"[{"op":"replace","path":"","value":{}},{"op":"move","from":"/a","path":"/b"}]"#,
    ],
    dictionary: DICTIONARY,
    run: |input| patched(input, |object, patch| {
        let _ = patch::json_patch::validate(patch);
        patch::json_patch::apply(object, patch)
    }),
    floor: FLOOR,
    factor: FACTOR,
};

pub static MERGE_PATCH: Target = Target {
    name: "merge-patch",
    corpus: &[br#"{"metadata":{"labels":{"a":null,"c":"d"}},"spec":{"containers":[{"name":"x"}]}}"#],
    dictionary: DICTIONARY,
    run: |input| patched(input, patch::merge::apply),
    floor: FLOOR,
    factor: FACTOR,
};

pub static STRATEGIC_PATCH: Target = Target {
    name: "strategic-patch",
    corpus: &[
        br#"{"spec":{"$setElementOrder/containers":[{"name":"d"},{"name":"c"}],"containers":[{"name":"c","env":[{"name":"A","$patch":"delete"}]}]}}"#,
        br#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["x/y"],"finalizers":["z/z"],"labels":{"$patch":"replace"}}}"#,
        br#"{"spec":{"$retainKeys":["containers"],"tolerations":[{"key":"q"}]}}"#,
    ],
    dictionary: DICTIONARY,
    run: |input| patched(input, |object, patch| patch::strategic::apply(object, patch, KINDS[1])),
    floor: FLOOR,
    factor: FACTOR,
};

fn context<'a>(reset: &'a Reset, manager: &'a str) -> Context<'a> {
    Context {
        schema: Some(KINDS[1]),
        api_version: "v1",
        kind: "Pod",
        subresource: "",
        reset,
        manager,
        now: "2026-01-01T00:00:00Z",
        converter: None,
    }
}

pub static APPLY: Target = Target {
    name: "apply",
    corpus: &[
        br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"a":"c"}},"spec":{"containers":[{"name":"c","env":[{"name":"B","value":"3"}]}]}}"#,
        br#"{"apiVersion":"v1","kind":"Pod","metadata":{"finalizers":["q/r"]},"spec":{"nodeSelector":{}}}"#,
    ],
    dictionary: DICTIONARY,
    run: |input| {
        let Ok(read) = json::decode(input) else { return 0 };
        let reset = Reset::of_fields(&[&["status"]]);
        let first = apply::apply(Some(&POD), &read.value, true, &context(&reset, "one"));
        if let Ok(applied) = &first {
            let again = apply::apply(Some(applied), &read.value, false, &context(&reset, "one"));
            again.expect("the same again has no conflicts");
            let _ = apply::apply(Some(applied), &POD, false, &context(&reset, "kubectl"));
        }
        outcome(&first, first.as_ref().map_or(0, |object| steps(object.to_string().len())))
    },
    floor: FLOOR,
    factor: FACTOR,
};

pub static MANAGED_FIELDS: Target = Target {
    name: "managed-fields",
    corpus: &[
        br#"[{"manager":"m","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:a":{}}}}}]"#,
        br#"[{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","time":"2026-01-01T00:00:00Z","fieldsV1":{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{"f:env":{"k:{\"name\":\"A\"}":{".":{}}}}}}}}]"#,
        br#"[{"fieldsV1":{"f:metadata":{"f:finalizers":{"v:\"x/y\"":{}}},"i:0":{}}}]"#,
    ],
    dictionary: &[b"\"f:spec\":{", b"\"k:{\\\"name\\\":\\\"c\\\"}\":{", b"\"v:1\":{}", b"\"i:9\":{}", b"\".\":{}", b"\"operation\":\"Apply\",", b"\"operation\":\"Update\",", b"\"fieldsType\":\"FieldsV1\","],
    run: |input| {
        let Ok(read) = json::decode(input) else { return 0 };
        let reset = Reset::of_fields(&[&["status"]]);
        let mut live = POD.clone();
        live["metadata"]["managedFields"] = read.value;
        let mut new = POD.clone();
        new["metadata"]["labels"]["a"] = "changed".into();
        apply::update(Some(&live), &mut new, &context(&reset, "two"));
        let applied = apply::apply(Some(&live), &POD, true, &context(&reset, "one"));
        outcome(&applied, steps(new.to_string().len()))
    },
    floor: FLOOR,
    factor: FACTOR,
};

pub static SCHEMA: Target = Target {
    name: "schema",
    corpus: &[
        br#"{"type":"object","properties":{"a":{"type":"string","pattern":"^a+$","maxLength":5,"default":"a"},"b":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","required":["k"],"properties":{"k":{"type":"integer"}}}}}}"#,
        br#"{"type":"object","x-kubernetes-validations":[{"rule":"self.a > 1","message":"m"}],"properties":{"a":{"type":"integer"},"c":{"x-kubernetes-int-or-string":true},"d":{"type":"object","additionalProperties":{"type":"string"}}}}"#,
        br#"{"type":"object","allOf":[{"properties":{"a":{"minimum":1}}}],"x-kubernetes-preserve-unknown-fields":true,"nullable":true}"#,
    ],
    dictionary: &[b"\"type\":\"object\",", b"\"properties\":{\"a\":", b"\"items\":{", b"\"x-kubernetes-embedded-resource\":true,", b"\"oneOf\":[", b"\"not\":{", b"\"enum\":[1],", b"\"format\":\"date-time\",", b"\"default\":{}", b"\"additionalProperties\":", b"\"rule\":\"self.all(x, x)\""],
    run: |input| {
        let Ok(read) = json::decode(input) else { return 0 };
        let demands = Demands::fulfilled(&serde_json::json!({"versions": []}));
        let errors = definition::check(Schema(&read.value), true, demands, &Path::new("schema"));
        let first = errors.into_iter().next();
        outcome(&first.map_or(Ok(()), Err), 0)
    },
    floor: FLOOR,
    factor: 4000,
};
