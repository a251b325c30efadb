//! Definitions and their objects, through the whole request chain.

use super::CustomResources;
use super::conversion::{ConversionMetrics, ConversionSettings};
use crate::test_server::{ADMIN, TestServer};
use api::value::Fields;
use base::tasks::TaskGroup;
use http::Method;
use http_body_util::BodyExt;
use machinery::Value;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(super) const WIDGETS: &str = "/apis/example.com/v1/namespaces/n/widgets";
pub(super) const JSON: &str = "application/json";
pub(super) const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
pub(super) const WAIT_LIMIT: Duration = Duration::from_secs(30);

pub(super) struct Cluster {
    pub(super) server: TestServer,
    pub(super) tasks: TaskGroup,
    custom: Arc<CustomResources>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

impl Cluster {
    pub(super) async fn start() -> Self {
        let cluster = Self::on(TestServer::start());
        cluster.server.create("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
        cluster
    }

    pub(super) fn on(server: TestServer) -> Self {
        Self::with_settings(server, super::conversion::TIMEOUT, Duration::ZERO)
    }

    /// With another time limit for conversion webhooks and another delay before `Established`.
    pub(super) fn with_settings(server: TestServer, timeout: Duration, delay: Duration) -> Self {
        let tasks = TaskGroup::new();
        let registry = &server.chain.rest.registry;
        let metrics = ConversionMetrics::new(&server.chain.metrics).expect("metrics");
        let settings = ConversionSettings { timeout, metrics };
        let custom = CustomResources::with_settings(registry, settings, delay).expect("definitions");
        let custom = Arc::new(custom);
        custom.spawn(&tasks);
        Self { server, tasks, custom }
    }

    pub(super) async fn ask(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.server.ask(ADMIN, method, path, JSON, body).await
    }

    pub(super) async fn get(&self, path: &str) -> (u16, Value) {
        self.ask(Method::GET, path, &Value::Null).await
    }

    pub(super) async fn patch(&self, path: &str, media: &str, patch: &Value) -> (u16, Value) {
        self.server.ask(ADMIN, Method::PATCH, path, media, patch.to_string()).await
    }

    /// Waits until the object at a path satisfies a condition.
    pub(super) async fn until(&self, path: &str, holds: impl Fn(u16, &Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let (code, found) = self.get(path).await;
            if holds(code, &found) {
                return found;
            }
            assert!(start.elapsed() < WAIT_LIMIT, "{path}: {code} {found}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(super) async fn define(&self, definition: &Value) {
        self.server.create(DEFINITIONS, definition).await;
        let name = definition["metadata"]["name"].as_str().expect("a name");
        self.until(&format!("{DEFINITIONS}/{name}"), |_, found| condition(found, "Established") == "True")
            .await;
        let group = definition["spec"]["group"].as_str().expect("a group");
        self.until(&format!("/apis/{group}"), |code, _| code == 200).await;
    }
}

pub(super) fn condition<'a>(definition: &'a Value, kind: &str) -> &'a str {
    let conditions = definition["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == kind);
    found.and_then(|condition| condition["status"].as_str()).unwrap_or("")
}

/// Reason of a condition.
pub(super) fn reason<'a>(definition: &'a Value, kind: &str) -> &'a str {
    crate::registry::conditions::find(definition, kind).map_or("", |condition| condition.text("reason"))
}

pub(super) fn definition() -> Value {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "integer", "maximum": 9},
            "color": {"type": "string", "default": "red"},
            "replicas": {"type": "integer"},
            "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {
                    "name": {"type": "string"}, "count": {"type": "integer"}}}},
        }},
        "status": {"type": "object", "properties": {
            "ready": {"type": "boolean"}, "replicas": {"type": "integer"}, "selector": {"type": "string"}}},
    }});
    // Kubernetes merges identical schemas into one, which may have no selectable fields.
    let mut beta = schema.clone();
    beta["description"] = json!("An earlier widget.");
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
                    "selectableFields": [{"jsonPath": ".spec.color"}],
                    "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]},
                {"name": "v1beta1", "served": true, "storage": false, "schema": {"openAPIV3Schema": beta}},
            ],
        },
    })
}

pub(super) fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resources_are_pruned_defaulted_validated_and_versioned() {
    let cluster = Cluster::start().await;
    cluster.define(&definition()).await;
    let (code, made) =
        cluster.ask(Method::POST, WIDGETS, &widget("a", json!({"size": 3, "unknown": true}))).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["spec"], json!({"size": 3, "color": "red"}));
    assert_eq!(made["metadata"]["generation"], 1);
    let strict = format!("{WIDGETS}?fieldValidation=Strict");
    let (code, refused) =
        cluster.ask(Method::POST, &strict, &widget("b", json!({"size": 1, "unknown": 1}))).await;
    assert_eq!(code, 400, "{refused}");
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("unknown field \"spec.unknown\"")));
    for (spec, want) in [
        (json!({"size": "x"}), "spec.size"),
        (json!({"size": 10}), "spec.size"),
        (json!({}), "spec.size"),
        (json!({"size": 1, "parts": [{"name": "p"}, {"name": "p"}]}), "spec.parts[1]"),
    ] {
        let (code, refused) = cluster.ask(Method::POST, WIDGETS, &widget("b", spec.clone())).await;
        assert_eq!(
            (code, &refused["details"]["causes"][0]["field"]),
            (422, &json!(want)),
            "{spec}: {refused}"
        );
    }
    let unknown = widget("warned", json!({"size": 1, "unknown": 1})).to_string();
    let request = http::Request::post(format!("{WIDGETS}?fieldValidation=Warn&dryRun=All"))
        .header("authorization", format!("Bearer {ADMIN}"))
        .header("content-type", JSON);
    let reply = cluster.server.send(request.body(unknown.into_bytes().into()).expect("a request")).await;
    let warning =
        reply.headers().get("warning").and_then(|warning| warning.to_str().ok()).unwrap_or_default();
    assert_eq!((reply.status().as_u16(), warning), (201, "299 - \"unknown field \\\"spec.unknown\\\"\""));
    let (code, _) =
        cluster.ask(Method::POST, WIDGETS, &widget("b", json!({"size": 5, "color": "blue"}))).await;
    assert_eq!(code, 201);

    let list = cluster.get(WIDGETS).await.1;
    assert_eq!(list["kind"], "WidgetList");
    assert_eq!(list["items"][0]["kind"], "Widget", "items of custom resources carry their kind");
    let selected = cluster.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dblue")).await.1;
    assert_eq!(selected["items"].as_array().map(Vec::len), Some(1), "{selected}");
    assert_eq!(cluster.get(&format!("{WIDGETS}?fieldSelector=spec.size%3D5")).await.0, 400);

    let beta = "/apis/example.com/v1beta1/namespaces/n/widgets/a";
    let shown = cluster.get(beta).await.1;
    assert_eq!((&shown["apiVersion"], &shown["spec"]["size"]), (&json!("example.com/v1beta1"), &json!(3)));
    let (code, changed) = cluster.patch(beta, MERGE, &json!({"spec": {"size": 4}})).await;
    assert_eq!((code, &changed["apiVersion"]), (200, &json!("example.com/v1beta1")), "{changed}");
    let shown = cluster.get(&format!("{WIDGETS}/a")).await.1;
    assert_eq!((&shown["spec"]["size"], &shown["metadata"]["generation"]), (&json!(4), &json!(2)));
    let strategic = "application/strategic-merge-patch+json";
    assert_eq!(cluster.patch(beta, strategic, &json!({})).await.0, 415);
    let (code, conflict) =
        cluster.ask(Method::PUT, &format!("{WIDGETS}/a"), &widget("a", json!({"size": 1}))).await;
    assert_eq!(code, 422, "an update needs a resource version: {conflict}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resources_are_not_encoded_as_protobuf() {
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let cluster = Cluster::start().await;
    cluster.define(&definition()).await;
    let send = async |method: Method, path: &str, accept: &str, body: Value| {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("authorization", format!("Bearer {ADMIN}"));
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = request.header("content-type", JSON).header("accept", accept);
        let reply = cluster.server.send(request.body(body.into_bytes().into()).expect("a request")).await;
        let media = reply.headers()["content-type"].to_str().expect("text").to_owned();
        (reply.status().as_u16(), media)
    };
    let both = format!("{PROTOBUF},{JSON}");
    let (got, json) = (PROTOBUF.to_owned(), JSON.to_owned());
    let a = widget("a", json!({"size": 1, "replicas": 1}));
    assert_eq!(send(Method::POST, WIDGETS, PROTOBUF, a.clone()).await, (406, got.clone()));
    assert_eq!(cluster.get(&format!("{WIDGETS}/a")).await.0, 404, "a rejected request stored its object");
    assert_eq!(send(Method::POST, WIDGETS, &both, a).await, (201, json.clone()));
    for path in ["/a", "/a/status", "/a/scale", "", "?watch=true&timeoutSeconds=1"] {
        let path = format!("{WIDGETS}{path}");
        assert_eq!(send(Method::GET, &path, &both, Value::Null).await, (200, json.clone()), "{path}");
        assert_eq!(send(Method::GET, &path, PROTOBUF, Value::Null).await, (406, got.clone()), "{path}");
    }
    let metadata = format!("{PROTOBUF};as=PartialObjectMetadata;v=v1;g=meta.k8s.io");
    let path = format!("{WIDGETS}/a");
    assert_eq!(send(Method::GET, &path, &metadata, Value::Null).await, (200, got.clone()));
    let missing = format!("{WIDGETS}/missing");
    assert_eq!(send(Method::GET, &missing, &both, Value::Null).await, (404, got), "errors have a form");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_outside_of_the_scope_of_a_custom_resource_are_unknown() {
    let cluster = Cluster::start().await;
    cluster.define(&definition()).await;
    let mut planets = definition();
    planets["metadata"]["name"] = json!("planets.example.org");
    planets["spec"]["group"] = json!("example.org");
    planets["spec"]["scope"] = json!("Cluster");
    planets["spec"]["names"] = json!({"plural": "planets", "kind": "Planet"});
    cluster.define(&planets).await;
    let unscoped = "/apis/example.com/v1/widgets";
    let scoped = "/apis/example.org/v1/namespaces/n/planets";
    for (method, path) in [
        (Method::POST, unscoped.to_owned()),
        (Method::DELETE, unscoped.to_owned()),
        (Method::GET, format!("{unscoped}/a")),
        (Method::PUT, format!("{unscoped}/a")),
        (Method::GET, scoped.to_owned()),
        (Method::GET, format!("{scoped}/a")),
        (Method::POST, scoped.to_owned()),
    ] {
        let request = http::Request::builder().method(method.clone()).uri(&path);
        let request = request.header("authorization", format!("Bearer {ADMIN}"));
        let reply = cluster.server.send(request.body(Vec::new().into()).expect("a request")).await;
        let code = reply.status().as_u16();
        let body = reply.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!((code, &*body), (404, &b"404 page not found\n"[..]), "{method} {path}");
    }
    assert_eq!(cluster.get(unscoped).await.0, 200);
    assert_eq!(cluster.get("/apis/example.org/v1/planets").await.0, 200);
    let (code, answer) = cluster.get(&format!("{WIDGETS}/b/unknown")).await;
    assert_eq!((code, &answer["message"]), (404, &json!("widgets.example.com \"b\" not found")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_subresources_and_apply_use_the_schema() {
    let cluster = Cluster::start().await;
    cluster.define(&definition()).await;
    let object = format!("{WIDGETS}/a");
    let apply = |spec: Value| widget("a", spec);
    let one = json!({"size": 1, "replicas": 2, "parts": [{"name": "x", "count": 1}]});
    let (code, made) = cluster.patch(&format!("{object}?fieldManager=one"), APPLY, &apply(one)).await;
    assert_eq!(code, 201, "{made}");
    let two = json!({"parts": [{"name": "y", "count": 2}]});
    let (code, made) = cluster.patch(&format!("{object}?fieldManager=two"), APPLY, &apply(two)).await;
    assert_eq!((code, made["spec"]["parts"].as_array().map(Vec::len)), (200, Some(2)), "{made}");
    let other = json!({"parts": [{"name": "x", "count": 9}]});
    let (code, conflict) = cluster.patch(&format!("{object}?fieldManager=two"), APPLY, &apply(other)).await;
    assert_eq!(
        (code, &conflict["details"]["causes"][0]["field"]),
        (409, &json!(".spec.parts[name=\"x\"].count"))
    );

    let status = json!({"status": {"ready": true, "replicas": 2, "selector": "a=b"}, "spec": {"size": 7}});
    let (code, changed) = cluster.patch(&format!("{object}/status"), MERGE, &status).await;
    assert_eq!((code, &changed["status"]["ready"], &changed["spec"]["size"]), (200, &json!(true), &json!(1)));
    assert_eq!(changed["metadata"]["generation"], 2, "status does not count");
    let (_, ignored) = cluster.patch(&object, MERGE, &json!({"status": {"ready": false}})).await;
    assert_eq!(ignored["status"]["ready"], true);

    let scale = cluster.get(&format!("{object}/scale")).await.1;
    assert_eq!(
        (&scale["kind"], &scale["spec"]["replicas"], &scale["status"]),
        (&json!("Scale"), &json!(2), &json!({"replicas": 2, "selector": "a=b"}))
    );
    let (code, scaled) =
        cluster.patch(&format!("{object}/scale"), MERGE, &json!({"spec": {"replicas": 5}})).await;
    assert_eq!((code, &scaled["spec"]["replicas"]), (200, &json!(5)), "{scaled}");
    assert_eq!(cluster.get(&object).await.1["spec"]["replicas"], 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_definition_deletes_its_objects_and_releases_its_names() {
    let cluster = Cluster::start().await;
    cluster.define(&definition()).await;
    let mut held = widget("held", json!({"size": 1}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    for object in [widget("a", json!({"size": 1})), held] {
        assert_eq!(cluster.ask(Method::POST, WIDGETS, &object).await.0, 201);
    }
    let mut rival = definition();
    rival["metadata"]["name"] = json!("gadgets.example.com");
    rival["spec"]["names"] = json!({"plural": "gadgets", "kind": "Widget"});
    cluster.server.create(DEFINITIONS, &rival).await;
    let path = format!("{DEFINITIONS}/gadgets.example.com");
    cluster.until(&path, |_, found| condition(found, "NamesAccepted") == "False").await;

    let own = format!("{DEFINITIONS}/widgets.example.com");
    let (code, deleted) = cluster.ask(Method::DELETE, &own, &Value::Null).await;
    assert_eq!((code, condition(&deleted, "Terminating")), (200, "True"), "{deleted}");
    let only = |code: u16, list: &Value| code == 200 && list["items"].as_array().map(Vec::len) == Some(1);
    cluster.until(WIDGETS, only).await;
    let late = widget("late", json!({"size": 1}));
    for query in ["", "&dryRun=All"] {
        let (code, answer) = cluster.ask(Method::POST, &format!("{WIDGETS}?x=y{query}"), &late).await;
        let message = "widgets.example.com \"late\" is forbidden: create not allowed while custom resource definition is terminating";
        assert_eq!((code, &answer["message"]), (403, &json!(message)), "{answer}");
        let path = format!("{WIDGETS}/late?fieldManager=m{query}");
        let (code, answer) = cluster.patch(&path, APPLY, &late).await;
        assert_eq!((code, &answer["message"]), (403, &json!(message)), "{answer}");
    }
    let (code, answer) = cluster
        .patch(&format!("{WIDGETS}/held?fieldManager=m"), APPLY, &widget("held", json!({"size": 2})))
        .await;
    assert_eq!(code, 409, "existing objects are applied to: {answer}");
    let resources = cluster.get("/apis/example.com/v1").await.1;
    let verbs = json!(["delete", "deletecollection", "get", "list", "watch"]);
    assert_eq!(resources["resources"][0]["verbs"], verbs);

    // Objects that remain for longer are reported.
    let now = cluster.get(&own).await.1;
    let mut aged = now["status"]["conditions"].clone();
    for condition in aged.as_array_mut().expect("conditions") {
        condition["lastTransitionTime"] = json!("2026-01-01T00:00:00Z");
    }
    let aged = json!({"status": {"conditions": aged}});
    assert_eq!(cluster.patch(&format!("{own}/status"), MERGE, &aged).await.0, 200);
    cluster.until(&own, |_, found| reason(found, "Terminating") == "InstanceDeletionCheck").await;
    let (code, _) =
        cluster.patch(&format!("{WIDGETS}/held"), MERGE, &json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(code, 200);
    cluster.until(&own, |code, _| code == 404).await;
    cluster.until(WIDGETS, |code, _| code == 404).await;
    // The waiting definition gets the names.
    cluster.until(&path, |_, found| condition(found, "Established") == "True").await;
    cluster.until("/apis/example.com/v1/gadgets", |code, _| code == 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_definition_applies_to_stored_objects() {
    let cluster = Cluster::start().await;
    cluster.define(&definition()).await;
    assert_eq!(cluster.ask(Method::POST, WIDGETS, &widget("a", json!({"size": 1}))).await.0, 201);
    let own = format!("{DEFINITIONS}/widgets.example.com");
    let mut changed = cluster.get(&own).await.1;
    for (at, stored) in [(0, false), (1, true)] {
        changed["spec"]["versions"][at]["storage"] = json!(stored);
        let properties = &mut changed["spec"]["versions"][at]["schema"]["openAPIV3Schema"]["properties"];
        properties["spec"]["properties"]["shape"] = json!({"type": "string", "default": "round"});
    }
    let (code, answer) = cluster.ask(Method::PUT, &own, &changed).await;
    assert_eq!(code, 200, "{answer}");
    assert_eq!(answer["status"]["storedVersions"], json!(["v1", "v1beta1"]));
    let object = format!("{WIDGETS}/a");
    let found = cluster.until(&object, |_, found| found["spec"]["shape"] == "round").await;
    assert_eq!(found["apiVersion"], "example.com/v1");
    // A write that changes nothing stores the object in the new version.
    let before = found["metadata"]["resourceVersion"].clone();
    let (code, rewritten) = cluster.ask(Method::PUT, &object, &found).await;
    assert_eq!(code, 200, "{rewritten}");
    assert_ne!(rewritten["metadata"]["resourceVersion"], before);
    let (_, again) = cluster.ask(Method::PUT, &object, &rewritten).await;
    assert_eq!(again["metadata"]["resourceVersion"], rewritten["metadata"]["resourceVersion"]);
    let document = cluster.get("/openapi/v3/apis/example.com/v1").await.1;
    let schemas = &document["components"]["schemas"];
    assert_eq!(
        schemas["com.example.v1.Widget"]["properties"]["spec"]["properties"]["shape"]["default"],
        "round"
    );
    assert!(
        document["paths"].get("/apis/example.com/v1/namespaces/{namespace}/widgets/{name}/scale").is_some()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_one_store_serve_the_same_definitions() {
    let first = Cluster::start().await;
    let second = Cluster::on(first.server.beside());
    first.define(&definition()).await;
    second.until(WIDGETS, |code, _| code == 200).await;
    assert_eq!(second.ask(Method::POST, WIDGETS, &widget("a", json!({"size": 1}))).await.0, 201);
    assert_eq!(first.get(&format!("{WIDGETS}/a")).await.1["spec"]["color"], "red");
    let own = format!("{DEFINITIONS}/widgets.example.com");
    let (code, _) = second.ask(Method::DELETE, &own, &Value::Null).await;
    assert_eq!(code, 200);
    for server in [&first, &second] {
        server.until(&own, |code, _| code == 404).await;
        server.until(WIDGETS, |code, _| code == 404).await;
    }
    // Created again immediately, with other objects.
    second.define(&definition()).await;
    first
        .until(WIDGETS, |code, list| code == 200 && list["items"].as_array().is_some_and(Vec::is_empty))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definition_deleted_under_concurrent_writes_leaves_no_objects() {
    const WRITERS: usize = 500;
    const WRITES: usize = 3;
    let cluster = Arc::new(Cluster::start().await);
    cluster.define(&definition()).await;
    let writer = |number: usize| {
        let cluster = Arc::clone(&cluster);
        tokio::spawn(async move {
            for turn in 0..WRITES {
                let name = format!("w{number}-{turn}");
                let object = widget(&name, json!({"size": 1}));
                let (code, answer) = match number % 2 {
                    0 => cluster.ask(Method::POST, WIDGETS, &object).await,
                    _ => {
                        let path = format!("{WIDGETS}/{name}?fieldManager=m");
                        cluster.patch(&path, APPLY, &object).await
                    }
                };
                assert!(matches!(code, 201 | 403 | 404), "{code} {answer}");
            }
        })
    };
    let writers: Vec<_> = (0..WRITERS).map(writer).collect();
    let own = format!("{DEFINITIONS}/widgets.example.com");
    for turn in 0..5 {
        let names = json!({"spec": {"names": {"shortNames": [format!("w{turn}")]}}});
        let (code, answer) = cluster.patch(&own, MERGE, &names).await;
        assert_eq!(code, 200, "{answer}");
    }
    assert_eq!(cluster.ask(Method::DELETE, &own, &Value::Null).await.0, 200);
    for writer in writers {
        writer.await.expect("no other answer");
    }
    cluster.until(&own, |code, _| code == 404).await;
    cluster.define(&definition()).await;
    let list = cluster.until(WIDGETS, |code, _| code == 200).await;
    assert_eq!(list["items"], json!([]), "nothing is left behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_definitions_retain_groups_of_api_services() {
    let cluster = Cluster::start().await;
    let catalogues = &cluster.server.chain.rest.registry.catalogues;
    let discovery = crate::discovery::GroupVersion {
        group: "extension.example.com".into(),
        version: "v1".into(),
        group_priority: 1000,
        version_priority: 15,
        stale: false,
        resources: Vec::new(),
    };
    let addition = crate::registry::catalogue::Addition {
        served: Vec::new(),
        discovery: Arc::new(discovery),
        types: None,
        backend: None,
        v2: None,
    };
    catalogues.change(|additions| {
        additions.insert("apiservices/v1.extension.example.com".to_owned(), addition);
    });
    cluster.define(&definition()).await;
    assert!(catalogues.load().discovery.has_group("extension.example.com"));
    let own = format!("{DEFINITIONS}/widgets.example.com");
    assert_eq!(cluster.ask(Method::DELETE, &own, &Value::Null).await.0, 200);
    cluster.until("/apis/example.com", |code, _| code == 404).await;
    assert!(catalogues.load().discovery.has_group("extension.example.com"));
}

/// Schemas of definitions without objects are neither decoded nor compiled, to save memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schema_is_compiled_when_an_object_is_first_used() {
    let cluster = Cluster::start().await;
    cluster.define(&definition()).await;
    let is_complete = || {
        let follower = cluster.custom.follower.try_lock().expect("an idle follower");
        follower.served["widgets.example.com"].is_compiled()
    };
    let (code, document) = cluster.get("/openapi/v3/apis/example.com/v1").await;
    assert_eq!(code, 200);
    for name in ["meta.v1.ObjectMeta", "meta.v1.ListMeta", "meta.v1.DeleteOptions", "meta.v1.Status"] {
        let schema = &document["components"]["schemas"][format!("io.k8s.apimachinery.pkg.apis.{name}")];
        assert!(schema["description"].as_str().is_some_and(|text| !text.is_empty()), "{name}: {schema}");
    }
    let scale =
        &document["components"]["schemas"]["io.k8s.api.autoscaling.v1.ScaleSpec"]["properties"]["replicas"];
    assert!(scale["description"].as_str().is_some_and(|text| !text.is_empty()), "{scale}");
    assert_eq!(cluster.get(WIDGETS).await.0, 200);
    assert!(!is_complete(), "discovery, OpenAPI and empty lists need no compiled schema");
    assert_eq!(cluster.ask(Method::POST, WIDGETS, &widget("a", json!({"size": 10}))).await.0, 422);
    assert!(is_complete());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_load_while_watched() {
    let first = Cluster::start().await;
    first.define(&definition()).await;
    // A starting server already watches definitions, and waits for the present ones before it is ready.
    let second = Cluster::on(first.server.beside());
    tokio::time::timeout(WAIT_LIMIT, second.custom.load()).await.expect("loaded in time").expect("loaded");
    assert_eq!(second.get(WIDGETS).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_of_a_definition_is_written_without_other_fields() {
    let cluster = Cluster::start().await;
    cluster.define(&definition()).await;
    let found = cluster.get(&format!("{DEFINITIONS}/widgets.example.com")).await.1;
    assert_eq!(found["metadata"].get("finalizers"), None);
    let managers = found["metadata"]["managedFields"].as_array().expect("managers");
    let status =
        managers.iter().find(|manager| manager["subresource"] == "status").expect("that of the status");
    let owned: Vec<&String> = status["fieldsV1"].as_object().expect("fields").keys().collect();
    assert_eq!(owned, ["f:status"]);
}
