//! Compares every document with those of a stock Kubernetes API server.

use super::*;
use api::runtime_config::RuntimeConfig;
use std::collections::{BTreeMap, BTreeSet};

fn parsed(document: &Document) -> Value {
    serde_json::from_slice(&document.plain()).expect("our documents are JSON")
}

/// Reference documents by name: digests by part.
fn expected() -> BTreeMap<String, Value> {
    reference::OPENAPI.values().into_iter().collect()
}

fn assert_equal(name: &str, document: &Document, expected: &Value) {
    let got: Value = reference::parts(&parsed(document)).into_iter().collect();
    let (got, expected) = (got.as_object().expect("parts"), expected.as_object().expect("parts"));
    let parts: BTreeSet<_> = got.keys().chain(expected.keys()).collect();
    let differing: Vec<_> = parts.into_iter().filter(|part| got.get(*part) != expected.get(*part)).collect();
    assert!(differing.is_empty(), "{name} differs from the reference in {differing:#?}");
}

#[test]
fn v3_equals_the_reference() {
    let openapi = OpenApi::built_in(&RuntimeConfig::default());
    let mut expected = expected();
    let index = parsed(&openapi.v3_index());
    for name in index["paths"].as_object().expect("paths").keys() {
        let document = openapi.v3_group_version(name).expect("listed documents exist");
        let expected = expected.remove(&format!("v3/{name}"));
        assert_equal(name, &document, &expected.unwrap_or_else(|| panic!("{name} is not in the reference")));
    }
    assert_eq!(expected.into_keys().collect::<Vec<_>>(), ["v2"], "documents of the reference are missing");
}

#[test]
fn v2_equals_the_reference() {
    let document = OpenApi::built_in(&RuntimeConfig::default()).v2_json();
    assert_equal("v2", &document, &expected()["v2"]);
}

#[test]
fn protobuf_document_has_hash_of_json() {
    let openapi = OpenApi::built_in(&RuntimeConfig::default());
    let json = openapi.v3_group_version("version").expect("a document");
    let protobuf = openapi.v3_protobuf("version").expect("a document");
    assert_eq!(json.hash, protobuf.hash);
    assert_eq!(json.hash.len(), 128);
    assert!(protobuf.plain().windows(14).any(|window| window == b"getCodeVersion"));
    assert!(json.matches(&format!("\"{}\"", json.hash)) && !json.matches(&json.hash));
    assert!(openapi.v3_group_version("apis/nope/v1").is_none());
    assert!(openapi.v3_protobuf("nope").is_none());
    let url = OpenApi::server_relative_url("version", &json);
    assert_eq!(url, format!("/openapi/v3/version?hash={}", json.hash));
}

/// Types of one custom resource over the built-in ones.
struct Widgets(BuiltIn);

impl Types for Widgets {
    fn name_of(&self, _: &str, _: &str, kind: &str) -> Option<Arc<str>> {
        Some(Arc::from(format!("com.example.v1.{kind}")))
    }

    fn docs(&self) -> Arc<Docs> {
        self.0.docs()
    }

    fn mentioned(&self, name: &str) -> Vec<Arc<str>> {
        match name {
            "com.example.v1.WidgetList" => vec![Arc::from("com.example.v1.Widget")],
            "com.example.v1.Widget" => vec![Arc::from("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")],
            other => self.0.mentioned(other),
        }
    }

    fn definition(
        &self,
        name: &str,
        dialect: Dialect,
        own: Option<(&str, &str)>,
        docs: &Docs,
    ) -> Option<Value> {
        match name.strip_prefix("com.example.v1.") {
            Some(_) => Some(json!({"type": "object"})),
            None => self.0.definition(name, dialect, own, docs),
        }
    }
}

#[test]
fn custom_resource_has_openapi_document() {
    let resource = crate::discovery::ApiResource {
        name: "widgets".into(),
        singular: "widget".into(),
        kind: "Widget".into(),
        namespaced: true,
        verbs: ["create", "get", "list", "patch", "watch"].map(Into::into).to_vec(),
        short_names: Vec::new(),
        categories: Vec::new(),
        storage_version_hash: "".into(),
        response: ("example.com".into(), "v1".into()),
        subresources: Vec::new(),
    };
    let discovery = GroupVersion {
        group: "example.com".into(),
        version: "v1".into(),
        group_priority: 1000,
        version_priority: 100,
        stale: false,
        resources: vec![resource],
    };
    let types: Arc<dyn Types> = Arc::new(Widgets(BuiltIn::new(api::schema::schema())));
    let base: Arc<dyn Types> = Arc::new(BuiltIn::new(api::schema::schema()));
    let openapi = OpenApi::new(vec![Part { discovery: Arc::new(discovery), types, custom: true }], base);
    let document = parsed(&openapi.v3_group_version("apis/example.com/v1").expect("a document"));
    let list = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets"]["get"];
    assert_eq!(list["operationId"], "listExampleComV1NamespacedWidget");
    assert_eq!(list["tags"], json!(["exampleCom_v1"]));
    assert!(document["components"]["schemas"].get("com.example.v1.Widget").is_some());
    assert!(
        document["components"]["schemas"].get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").is_some()
    );
    assert!(
        document["paths"].as_object().is_some_and(|paths| paths.keys().all(|path| !path.contains("watch")))
    );
    let all = parsed(&openapi.v2_json());
    assert!(all["definitions"].get("com.example.v1.WidgetList").is_some());
    assert!(all["definitions"].get("io.k8s.apimachinery.pkg.apis.meta.v1.APIVersions").is_some());
}
