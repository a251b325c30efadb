//! Hostile requests, by the mechanism they abuse.

use super::Hostile;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use std::fmt::Write;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/hostile";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const CBOR: &str = "application/cbor";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// Body size limit.
const MOST: usize = 3 << 20;

/// Objects that hostile requests use.
pub fn prepared() -> Vec<(&'static str, Value)> {
    let map = |name: &str, data: Value| json!({"metadata": {"name": name}, "data": data});
    let container = json!({"name": "c", "image": "i"});
    let many: serde_json::Map<String, Value> = (0..9_000).map(|n| (format!("k{n}"), json!(""))).collect();
    vec![
        (MAPS, map("ordinary", json!({}))),
        (MAPS, map("managed", Value::Object(many))),
        (MAPS, map("patched", json!({"a": "x".repeat(200_000)}))),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            json!({"metadata": {"name": "hostile"}, "spec": {
                "replicas": 0, "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}},
            }}),
        ),
        (POLICIES, policy("costly", &costly(), "limitranges")),
        (
            BINDINGS,
            json!({"metadata": {"name": "costly"}, "spec": {"policyName": "costly", "validationActions": ["Deny"]}}),
        ),
    ]
}

/// A policy with one expression for one resource.
fn policy(name: &str, expression: &str, resource: &str) -> Value {
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": [resource]});
    json!({"metadata": {"name": name}, "spec": {
        "matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": expression}],
    }})
}

/// Nested loops that exceed any cost limit.
fn costly() -> String {
    let list = format!("[{}]", vec!["1"; 100].join(","));
    format!("{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, a + b + c + d > 0))))")
}

fn post(name: &'static str, path: &str, media: &'static str, body: impl Into<Bytes>) -> Hostile {
    let (path, headers) = (path.to_owned(), vec![("content-type", media)]);
    Hostile { name, method: Method::POST, path, headers, body: body.into() }
}

fn patch(name: &'static str, path: &str, media: &'static str, body: impl Into<Bytes>) -> Hostile {
    Hostile { method: Method::PATCH, ..post(name, path, media, body) }
}

fn get(name: &'static str, path: String) -> Hostile {
    Hostile { name, method: Method::GET, path, headers: Vec::new(), body: Bytes::new() }
}

/// A ConfigMap with `metadata` and `data` as JSON.
fn map(metadata: &str, data: &str) -> String {
    format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{metadata},"data":{data}}}"#)
}

/// Repeats a piece up to the body size limit, with a margin for the surrounding text.
fn filled(mut piece: impl FnMut(usize, &mut String)) -> String {
    let mut text = String::with_capacity(MOST);
    for index in 0.. {
        piece(index, &mut text);
        if text.len() > MOST - 4096 {
            break;
        }
    }
    text.pop();
    text
}

/// Writing into a text cannot fail.
fn add(text: &mut String, piece: std::fmt::Arguments<'_>) {
    text.write_fmt(piece).expect("written");
}

pub fn all() -> Vec<Hostile> {
    let mut all = Vec::new();
    all.extend(encodings());
    all.extend(values());
    all.extend(patches());
    all.extend(managers());
    all.extend(expressions());
    all.extend(selectors());
    all
}

/// Bodies that expand, nest, or declare wrong lengths.
fn encodings() -> Vec<Hostile> {
    let long = "x".repeat(1 << 20);
    let laughs = (1..20).fold("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned(), |mut text, level| {
        let before = format!("*a{},", level - 1).repeat(10);
        add(&mut text, format_args!("a{level}: &a{level} [{before}]\n"));
        text
    });
    let maps = "{\"a\":1},".repeat(MOST / 8 - 100);
    let entry: &[u8] = &[0x12, 0];
    let envelope = |raw: &[u8]| {
        let mut body = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12".to_vec();
        let mut length = raw.len();
        while length >= 0x80 {
            body.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        body.push(length as u8);
        body.extend_from_slice(raw);
        body
    };
    let gzipped = {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        for _ in 0..256 {
            encoder.write_all(&[b' '; 1 << 20]).expect("compressed");
        }
        encoder.finish().expect("compressed")
    };
    let mut gzip = post("gzip", MAPS, JSON, gzipped);
    gzip.headers.push(("content-encoding", "gzip"));
    vec![
        post("aliases to text", MAPS, YAML, format!("{{a: &a \"{long}\", b: [{}]}}", "*a, ".repeat(950))),
        post(
            "aliases of a review",
            REVIEWS,
            YAML,
            format!("d: &d {{k: \"{long}\"}}\n{}", "e: *d\n".repeat(1000)),
        ),
        post("aliases to aliases", MAPS, YAML, laughs.clone()),
        patch("aliases applied", &format!("{MAPS}/a?fieldManager=t"), APPLY, laughs),
        post("depth of JSON", MAPS, JSON, "[".repeat(MOST - 100)),
        post("depth of objects", MAPS, JSON, "{\"a\":".repeat(MOST / 5 - 100)),
        post("depth of YAML", MAPS, YAML, "[".repeat(1 << 20)),
        post("depth of indented YAML", MAPS, YAML, "- ".repeat(1 << 20)),
        post("depth of CBOR", MAPS, CBOR, vec![0x81; MOST - 100]),
        post("small maps", MAPS, JSON, format!(r#"{{"x":[{maps}1]}}"#)),
        post("small maps in YAML", MAPS, YAML, format!("x: [{}1]", "{a: 1}, ".repeat(MOST / 8 - 100))),
        post(
            "small maps in CBOR",
            MAPS,
            CBOR,
            [&[0x9f][..], &[0xa1, 0x61, 0x61, 1].repeat(700_000)].concat(),
        ),
        post("tags of CBOR", MAPS, CBOR, vec![0xc1; MOST - 100]),
        post("length of a CBOR list", MAPS, CBOR, vec![0x9b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        post("length of CBOR text", MAPS, CBOR, vec![0x7b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        post("chunks of CBOR text", MAPS, CBOR, [&[0x7f][..], &[0x60; 2 << 20]].concat()),
        post("entries of protobuf", MAPS, PROTOBUF, envelope(&entry.repeat(700_000))),
        post("length of protobuf", MAPS, PROTOBUF, envelope(&[0x12, 0xff, 0xff, 0xff, 0xff, 0x7f])),
        post("depth of protobuf", MAPS, PROTOBUF, envelope(&[0x0a; 1 << 20])),
        gzip,
    ]
}

/// Too many, too long, or mostly invalid values.
fn values() -> Vec<Hostile> {
    let keys = filled(|index, text| add(text, format_args!("\"k{index}\":\"\",")));
    let unknown = filled(|index, text| add(text, format_args!("\"u{index}\":1,")));
    let twice = filled(|_, text| text.push_str("\"a\":\"\","));
    let wrong = filled(|_, text| text.push_str("\"-\","));
    let labels = filled(|index, text| add(text, format_args!("\"-{index}\":\"-\",")));
    let owners = filled(|_, text| text.push_str("{},"));
    let containers = filled(|_, text| text.push_str("{},"));
    let ports =
        filled(|index, text| add(text, format_args!("{{\"containerPort\":{}}},", 1 + index % 65_000)));
    let review = filled(|index, text| add(text, format_args!("\"e{index}\":[\"\"],")));
    let pod =
        |containers: &str| format!(r#"{{"metadata":{{"name":"p"}},"spec":{{"containers":[{containers}]}}}}"#);
    let pods = "/api/v1/namespaces/default/pods";
    let secret = |data: String| format!(r#"{{"metadata":{{"name":"s"}},"data":{{"a":"{data}"}}}}"#);
    let quantity = |text: String| {
        let resources = format!(r#"{{"name":"c","image":"i","resources":{{"limits":{{"cpu":"{text}"}}}}}}"#);
        pod(&resources)
    };
    vec![
        post("keys", MAPS, JSON, map(r#"{"name":"keys"}"#, &format!("{{{keys}}}"))),
        post("unknown fields", MAPS, JSON, format!(r#"{{"metadata":{{"name":"u"}},{unknown}}}"#)),
        post(
            "unknown fields, strictly",
            &format!("{MAPS}?fieldValidation=Strict"),
            JSON,
            format!("{{{unknown}}}"),
        ),
        post("duplicate fields", MAPS, JSON, map(r#"{"name":"d"}"#, &format!("{{{twice}}}"))),
        post("wrong finalizers", MAPS, JSON, map(&format!(r#"{{"name":"f","finalizers":[{wrong}]}}"#), "{}")),
        post("wrong labels", MAPS, JSON, map(&format!(r#"{{"name":"l","labels":{{{labels}}}}}"#), "{}")),
        post(
            "owner references",
            MAPS,
            JSON,
            map(&format!(r#"{{"name":"o","ownerReferences":[{owners}]}}"#), "{}"),
        ),
        post("empty containers", pods, JSON, pod(&containers)),
        post("ports", pods, JSON, pod(&format!(r#"{{"name":"c","image":"i","ports":[{ports}]}}"#))),
        post(
            "a long number",
            MAPS,
            JSON,
            map(&format!(r#"{{"generation":{}}}"#, "9".repeat(MOST - 4096)), "{}"),
        ),
        post("long exponents", MAPS, JSON, format!("[{}1]", "1e999999999,".repeat(200_000))),
        post("base64", "/api/v1/namespaces/default/secrets", JSON, secret("A".repeat(MOST - 4096))),
        post("wrong base64", "/api/v1/namespaces/default/secrets", JSON, secret("=".repeat(MOST - 4096))),
        post("a long quantity", pods, JSON, quantity("1".repeat(MOST - 4096))),
        post("a quantity's exponent", pods, JSON, quantity("1e2147483647".to_owned())),
        post(
            "a large review",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            JSON,
            format!(
                r#"{{"spec":{{"user":"u","nonResourceAttributes":{{"path":"/"}},"extra":{{{review}}}}}}}"#
            ),
        ),
        post("a large token", "/apis/authentication.k8s.io/v1/tokenreviews", JSON, {
            let token = format!("{}.{}.x", "e30".repeat(300_000), "e30".repeat(300_000));
            format!(r#"{{"spec":{{"token":"{token}"}}}}"#)
        }),
    ]
}

/// Patches that multiply existing content.
fn patches() -> Vec<Hostile> {
    let patched = format!("{MAPS}/patched");
    let copies: Vec<Value> = (0..9_999)
        .map(|index| json!({"op": "copy", "from": "/data", "path": format!("/metadata/annotations{index}")}))
        .collect();
    let inserts: Vec<Value> = std::iter::once(
        json!({"op": "add", "path": "/metadata/finalizers", "value": vec!["a.b/c"; 200_000]}),
    )
    .chain((0..9_000).map(|_| json!({"op": "add", "path": "/metadata/finalizers/0", "value": "a.b/c"})))
    .collect();
    let small: Vec<Value> =
        std::iter::once(json!({"op": "add", "path": "/x", "value": vec![json!({"a": 1}); 50_000]}))
            .chain((0..100).map(|index| json!({"op": "copy", "from": "/x", "path": format!("/y{index}")})))
            .collect();
    let environment = filled(|index, text| add(text, format_args!("{{\"name\":\"e{index}\"}},")));
    let deleted =
        filled(|index, text| add(text, format_args!("{{\"$patch\":\"delete\",\"name\":\"e{index}\"}},")));
    let order = filled(|index, text| add(text, format_args!("{{\"name\":\"e{index}\"}},")));
    let in_container = |fields: &str| {
        format!(r#"{{"spec":{{"template":{{"spec":{{"containers":[{{"name":"c",{fields}}}]}}}}}}}}"#)
    };
    let finalizers = filled(|index, text| add(text, format_args!("\"a{index}\",")));
    let text = |operations: Vec<Value>| Value::Array(operations).to_string();
    vec![
        patch("copies", &patched, JSON_PATCH, text(copies)),
        patch("copies of small maps", &patched, JSON_PATCH, text(small)),
        patch("insertions", &patched, JSON_PATCH, text(inserts)),
        patch("operations", &patched, JSON_PATCH, format!("[{}{{}}]", "{},".repeat(900_000))),
        patch("merged keys", &patched, MERGE, {
            let keys = filled(|index, text| add(text, format_args!("\"k{index}\":\"\",")));
            format!(r#"{{"data":{{{keys}}}}}"#)
        }),
        patch("merged list", DEPLOYMENT, STRATEGIC, in_container(&format!(r#""env":[{environment}]"#))),
        patch("deleted items", DEPLOYMENT, STRATEGIC, in_container(&format!(r#""env":[{deleted}]"#))),
        patch(
            "ordered items",
            DEPLOYMENT,
            STRATEGIC,
            in_container(&format!(r#""$setElementOrder/env":[{order}]"#)),
        ),
        patch(
            "merged scalars",
            &patched,
            STRATEGIC,
            format!(r#"{{"metadata":{{"finalizers":[{finalizers}]}}}}"#),
        ),
        patch(
            "deleted scalars",
            &patched,
            STRATEGIC,
            format!(r#"{{"metadata":{{"$deleteFromPrimitiveList/finalizers":[{finalizers}]}}}}"#),
        ),
    ]
}

/// Server-side apply with many managers, items and fields.
fn managers() -> Vec<Hostile> {
    let managed = format!("{MAPS}/managed");
    let entries = |operation: &str, count: usize| {
        let mut text = String::new();
        for index in 0..count {
            add(
                &mut text,
                format_args!(
                    r#"{{"manager":"m{index}","operation":"{operation}","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{{"f:data":{{"f:k{}":{{}}}}}}}},"#,
                    index % 9_000
                ),
            );
        }
        text.pop();
        format!(r#"{{"metadata":{{"managedFields":[{text}]}}}}"#)
    };
    let many = filled(|index, text| add(text, format_args!("k{}: v\n  ", index % 9_000)));
    let applied = |data: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: managed}}\ndata:\n  {data}\n")
    };
    let few: String = (0..9_000).map(|index| format!("k{index}: x\n  ")).collect();
    let items = filled(|index, text| add(text, format_args!("{{\"name\":\"e{index}\"}},")));
    let finalizers = filled(|index, text| add(text, format_args!("\"a{index}\",")));
    let numbers = filled(|_, text| text.push_str("1,"));
    let indices = filled(|index, text| add(text, format_args!("\"i:{index}\":{{}},")));
    let apply = |manager: &str, force: bool| format!("{managed}?fieldManager={manager}&force={force}");
    vec![
        patch("10,000 managers that apply", &managed, MERGE, entries("Apply", 10_000)),
        patch("10,000 managers that update", &managed, MERGE, entries("Update", 10_000)),
        patch("30,000 managers", &managed, MERGE, entries("Apply", 25_000)),
        patch("conflicts with all managers", &apply("other", false), APPLY, applied(&few)),
        patch("fields of all managers", &apply("other", true), APPLY, applied(&few)),
        patch(
            "the same again",
            &apply("other", true),
            APPLY,
            applied(&few[..few.find("k500:").unwrap_or(0)]),
        ),
        patch("duplicate keys applied", &apply("other", true), APPLY, applied(&many)),
        patch(
            "fields by index",
            &managed,
            MERGE,
            format!(
                r#"{{"metadata":{{"managedFields":[{{"manager":"m","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{{"f:data":{{{indices}}}}}}}]}}}}"#
            ),
        ),
        patch(
            "applied items",
            &format!("{DEPLOYMENT}?fieldManager=t&force=true"),
            APPLY,
            format!(
                r#"{{"apiVersion":"apps/v1","kind":"Deployment","metadata":{{"name":"hostile"}},"spec":{{"template":{{"spec":{{"containers":[{{"name":"c","env":[{items}]}}]}}}}}}}}"#
            ),
        ),
        patch("applied scalars", &apply("t", true), APPLY, {
            format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"managed","finalizers":[{finalizers}]}}}}"#
            )
        }),
        patch("applied numbers", &apply("t", true), APPLY, {
            format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"managed","finalizers":[{numbers}]}}}}"#
            )
        }),
    ]
}

/// Expressions and patterns that are slow to compile or to evaluate.
fn expressions() -> Vec<Hostile> {
    let policies = |name: &'static str, expression: String| {
        post(name, POLICIES, JSON, policy("p", &expression, "limitranges").to_string())
    };
    let schema = |schema: Value| {
        json!({"metadata": {"name": "as.x.io"}, "spec": {
            "group": "x.io", "scope": "Namespaced", "names": {"plural": "as", "kind": "A"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        }})
        .to_string()
    };
    let rules: Vec<Value> =
        (0..200).map(|index| json!({"rule": format!("self.all(x, self.all(y, x + y > {index}))")})).collect();
    let doubling = (0..40).fold("'xxxxxxxx'".to_owned(), |text, level| {
        if text.len() < 40_000 { format!("cel.bind(v{level}, {text}, v{level} + v{level})") } else { text }
    });
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": []}}).to_string();
    let ranges = "/api/v1/namespaces/default/limitranges";
    let patterned =
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "(a{1000}){1000}"}}});
    vec![
        policies("a deep expression", format!("{}true{}", "(".repeat(40_000), ")".repeat(40_000))),
        policies("open brackets", "[".repeat(99_000)),
        policies("negations", format!("{}true", "!".repeat(99_000))),
        policies("a long sum", format!("1{} > 0", "+1".repeat(45_000))),
        policies("a long chain", format!("object{} == 1", ".a".repeat(45_000))),
        policies("undeclared names", format!("[{}] == []", vec!["nosuch"; 14_000].join(","))),
        policies("nested loops", costly()),
        policies("nested conditions", format!("{}true", "true ? false : ".repeat(6_000))),
        policies("doubled text", format!("{doubling} == ''")),
        policies("a large pattern", "'x'.matches('((a{100}){100}){100}')".to_owned()),
        policies("a long pattern", format!("'x'.matches('{}')", "(a|b)*".repeat(16_000))),
        post("a costly policy", ranges, JSON, range.clone()),
        post("a costly policy again", ranges, JSON, range),
        post("a pattern of a schema", DEFINITIONS, JSON, schema(patterned)),
        post("rules of a schema", DEFINITIONS, JSON, {
            let list =
                json!({"type": "array", "items": {"type": "integer"}, "x-kubernetes-validations": rules});
            schema(json!({"type": "object", "properties": {"a": list}}))
        }),
        post("a wide schema", DEFINITIONS, JSON, {
            let of = |index: usize| {
                (format!("p{index}"), json!({"type": "object", "properties": {"x": {"type": "string"}}}))
            };
            let properties: serde_json::Map<String, Value> = (0..20_000).map(of).collect();
            schema(json!({"type": "object", "properties": properties}))
        }),
    ]
}

/// Selectors with many requirements and values. No URI is longer than 64 KiB.
fn selectors() -> Vec<Hostile> {
    let list = |query: String| format!("{MAPS}?{query}");
    let requirements: Vec<String> = (0..6_000).map(|index| format!("k{index}!=v")).collect();
    let values: Vec<String> = (0..8_000).map(|index| format!("v{index}")).collect();
    let wrong = vec!["-"; 30_000];
    let fields = vec!["metadata.name!=a"; 3_500];
    vec![
        get("requirements", list(format!("labelSelector={}", requirements.join(",")))),
        get("requirements within limits", list(format!("labelSelector={}", requirements[..900].join(",")))),
        get("values", list(format!("labelSelector=k+notin+({})", values.join(",")))),
        get("wrong values", list(format!("labelSelector=k+in+({})", wrong.join(",")))),
        get("parentheses", list(format!("labelSelector={}", "(".repeat(60_000)))),
        get("field terms", list(format!("fieldSelector={}", fields.join(",")))),
        get("a continue token", list(format!("continue={}", "A".repeat(60_000)))),
        get(
            "a watch",
            format!("{MAPS}?watch=true&timeoutSeconds=1&labelSelector={}", requirements.join(",")),
        ),
    ]
}
