//! Group versions served by a component of this process, through the whole request chain.

use super::{Aggregator, Extension, Routing};
use crate::discovery::{ApiResource, GroupVersion};
use crate::serve::{RequestBody, ResponseBody};
use crate::test_server::{ADMIN, ALICE, TestServer};
use base::tasks::TaskGroup;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Buf;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use machinery::Value;
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const JSON: &str = "application/json";
const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.metrics.example.com";
const PARTS: &str = "/apis/metrics.example.com/v1/namespaces/n/parts";
const EXTENSION: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.example.com";
const FLUNDERS: &str = "/apis/example.com/v1/flunders";
const LIMIT: Duration = Duration::from_secs(30);

/// A component with one resource, which records the users of its requests.
#[derive(Default)]
struct Parts {
    users: Mutex<Vec<String>>,
}

impl Extension for Parts {
    fn discovery(&self) -> GroupVersion {
        let texts = |list: &[&'static str]| list.iter().map(|text| (*text).into()).collect();
        GroupVersion {
            group: "metrics.example.com".into(),
            version: "v1".into(),
            group_priority: 300,
            version_priority: 30,
            stale: false,
            resources: vec![ApiResource {
                name: "parts".into(),
                singular: "part".into(),
                kind: "Part".into(),
                namespaced: true,
                verbs: texts(&["get", "list", "watch"]),
                short_names: Vec::new(),
                categories: Vec::new(),
                storage_version_hash: "".into(),
                response: ("metrics.example.com".into(), "v1".into()),
                subresources: Vec::new(),
            }],
        }
    }

    fn call(&self, request: Request<RequestBody>) -> BoxFuture<'_, Response<ResponseBody>> {
        let user = request.headers().get("x-remote-user").and_then(|user| user.to_str().ok());
        self.users.lock().push(user.unwrap_or_default().to_owned());
        assert!(!request.headers().contains_key("authorization"), "credentials reach the component");
        let part = json!({"apiVersion": "metrics.example.com/v1", "kind": "Part", "metadata": {"name": "a"}});
        let watches = request.uri().query().is_some_and(|query| query.contains("watch"));
        let answer = match request.uri().path() {
            PARTS if watches => format!("{}\n", json!({"type": "ADDED", "object": part})),
            PARTS => json!({"kind": "PartList", "items": [part]}).to_string(),
            "/openapi/v3/apis/metrics.example.com/v1" => json!({"openapi": "3.0.0"}).to_string(),
            _ => part.to_string(),
        };
        Box::pin(async move { Response::new(ResponseBody::Full(answer.into())) })
    }
}

struct Running {
    server: TestServer,
    tasks: TaskGroup,
    aggregator: Arc<Aggregator>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

impl Running {
    fn start() -> Self {
        Self::with_routing(Routing::Endpoints)
    }

    fn with_routing(routing: Routing) -> Self {
        Self::on(TestServer::start(), routing)
    }

    fn on(server: TestServer, routing: Routing) -> Self {
        let tasks = TaskGroup::new();
        let registry = Arc::clone(&server.chain.rest.registry);
        let aggregator = Arc::new(Aggregator::new(registry, routing));
        aggregator.spawn(&tasks);
        Self { server, tasks, aggregator }
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.server.ask(ADMIN, Method::GET, path, JSON, "").await
    }

    async fn until(&self, path: &str, holds: impl Fn(u16, &Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let (code, found) = self.get(path).await;
            if holds(code, &found) {
                return found;
            }
            assert!(start.elapsed() < LIMIT, "{path}: {code} {found}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn reason(api_service: &Value) -> &str {
    api_service["status"]["conditions"][0]["reason"].as_str().unwrap_or("")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn component_serves_its_group_version() {
    let running = Running::start();
    let parts = Arc::new(Parts::default());
    running.aggregator.register(Arc::clone(&parts) as Arc<dyn Extension>);
    let list = running.until("/apis/metrics.example.com/v1", |code, _| code == 200).await;
    assert_eq!(list["resources"][0]["name"], "parts");
    assert_eq!(running.get("/apis/metrics.example.com").await.1["preferredVersion"]["version"], "v1");
    assert_eq!(running.get(PARTS).await.1["items"][0]["metadata"]["name"], "a");
    assert_eq!(running.get(&format!("{PARTS}/a")).await.1["kind"], "Part");
    assert_eq!(running.get(&format!("{PARTS}?watch=true")).await.1["type"], "ADDED");
    assert_eq!(running.get("/openapi/v3/apis/metrics.example.com/v1").await.1["openapi"], "3.0.0");
    let index = running.get("/openapi/v3").await.1;
    assert!(index["paths"].get("apis/metrics.example.com/v1").is_some(), "{index}");

    let api_service = running.until(API_SERVICE, |_, found| reason(found) == "Local").await;
    assert_eq!(api_service["spec"]["groupPriorityMinimum"], 300);
    assert_eq!(api_service["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"], "true");

    let before = parts.users.lock().len();
    let (code, _) = running.server.ask(ALICE, Method::GET, PARTS, JSON, "").await;
    assert_eq!(code, 403);
    assert_eq!(parts.users.lock().len(), before, "a rejected request reached the component");
    running.server.grant(&[("list", "parts")]);
    let (code, _) = running.server.ask(ALICE, Method::GET, PARTS, JSON, "").await;
    assert_eq!(code, 200);
    assert_eq!(parts.users.lock().last().map(String::as_str), Some(ALICE));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_spec_of_managed_api_service_is_reset() {
    let running = Running::start();
    running.aggregator.register(Arc::new(Parts::default()) as Arc<dyn Extension>);
    running.until(API_SERVICE, |_, found| reason(found) == "Local").await;
    let patch = async |patch: Value| {
        let media = "application/merge-patch+json";
        let (code, answer) =
            running.server.ask(ADMIN, Method::PATCH, API_SERVICE, media, patch.to_string()).await;
        assert_eq!(code, 200, "{answer}");
    };
    patch(json!({"spec": {"groupPriorityMinimum": 5}})).await;
    running.until(API_SERVICE, |_, found| found["spec"]["groupPriorityMinimum"] == 300).await;
    // Without the label it belongs to the user.
    let label = "kube-aggregator.kubernetes.io/automanaged";
    patch(json!({"metadata": {"labels": {label: null}}, "spec": {"groupPriorityMinimum": 5}})).await;
    let other = json!({"metadata": {"name": "v1.parts.example.com"},
        "spec": {"group": "parts.example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
            "service": {"namespace": "n", "name": "s"}}});
    // A later change that has been processed.
    running.server.create("/apis/apiregistration.k8s.io/v1/apiservices", &other).await;
    let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1.parts.example.com";
    running.until(path, |_, found| reason(found) == "ServiceNotFound").await;
    assert_eq!(running.get(API_SERVICE).await.1["spec"]["groupPriorityMinimum"], 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_in_managed_api_service_of_component_is_kept() {
    let running = Running::start();
    running.aggregator.register(Arc::new(Parts::default()) as Arc<dyn Extension>);
    running.until(API_SERVICE, |_, found| reason(found) == "Local").await;
    let manifest =
        json!({"spec": {"insecureSkipTLSVerify": true, "service": {"namespace": "n", "name": "s"}}});
    let media = "application/merge-patch+json";
    let (code, answer) =
        running.server.ask(ADMIN, Method::PATCH, API_SERVICE, media, manifest.to_string()).await;
    assert_eq!(code, 200, "{answer}");
    running.until(API_SERVICE, |_, found| reason(found) == "ServiceNotFound").await;
    let (code, _) = running.server.ask(ADMIN, Method::DELETE, API_SERVICE, JSON, "").await;
    assert_eq!(code, 200);
    running.until(API_SERVICE, |_, found| reason(found) == "Local").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_service_with_service_overrides_component() {
    let running = Running::start();
    let foreign = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.metrics.example.com"},
        "spec": {"group": "metrics.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": true, "service": {"namespace": "n", "name": "elsewhere", "port": 443}},
    });
    running.server.create("/apis/apiregistration.k8s.io/v1/apiservices", &foreign).await;
    running.until(API_SERVICE, |_, found| reason(found) == "ServiceNotFound").await;
    let parts = Arc::new(Parts::default());
    running.aggregator.register(Arc::clone(&parts) as Arc<dyn Extension>);
    running.until(PARTS, |code, _| code == 503).await;
    assert!(parts.users.lock().is_empty(), "the component answered for the service of another owner");
    let (code, _) = running.server.ask(ADMIN, Method::DELETE, API_SERVICE, JSON, "").await;
    assert_eq!(code, 200);
    running.until(PARTS, |code, _| code == 200).await;
    running.until(API_SERVICE, |code, found| code == 200 && reason(found) == "Local").await;
}

/// An extension server with one resource and OpenAPI documents.
fn extension_server(path: &str, fails: bool) -> (u16, Value) {
    let flunder = json!({"apiVersion": "example.com/v1", "kind": "Flunder", "metadata": {"name": "a"}});
    match path {
        FLUNDERS if !fails => (200, json!({"stream": [{"type": "ADDED", "object": flunder}]})),
        _ if fails => (500, json!({})),
        "/apis/example.com/v1" => (
            200,
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "example.com/v1", "resources": [
                {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["get"]}]}),
        ),
        "/openapi/v2" => {
            let operation = |name: &str| {
                let schema = json!({"$ref": format!("#/definitions/{name}")});
                json!({"get": {"responses": {"200": {"description": "OK", "schema": schema}}}})
            };
            // A different definition of a type that this server also has.
            let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
            let flunder = json!({"type": "object", "properties": {"metadata": {"$ref": format!("#/definitions/{meta}")}}});
            (
                200,
                json!({"swagger": "2.0", "info": {"title": "x", "version": "1"},
                    "paths": {"/apis/example.com/v1/flunders": operation("Flunder"), "/api/": operation("Other")},
                    "definitions": {"Flunder": flunder, meta: {"type": "object"}, "Other": {}}}),
            )
        }
        _ => (404, json!({})),
    }
}

/// The part of an APIService's spec that names a server.
fn location(responder: &testbase::Responder) -> Value {
    json!({"caBundle": STANDARD.encode(&responder.certificate),
        "service": {"namespace": "default", "name": "responder", "port": responder.port().expect("a port")}})
}

/// Registers an extension server on this machine.
async fn publish(running: &Running, responder: &testbase::Responder) {
    let create = async |path: &str, object: &Value| running.server.create(path, object).await;
    create("/api/v1/namespaces", &json!({"metadata": {"name": "default"}})).await;
    let service = json!({"metadata": {"name": "responder"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    create("/api/v1/namespaces/default/services", &service).await;
    let mut spec = location(responder);
    for (field, value) in [("group", json!("example.com")), ("version", json!("v1"))] {
        spec[field] = value;
    }
    for (field, priority) in [("groupPriorityMinimum", 1500), ("versionPriority", 15)] {
        spec[field] = json!(priority);
    }
    let api_service = json!({"metadata": {"name": "v1.example.com"}, "spec": spec});
    create("/apis/apiregistration.k8s.io/v1/apiservices", &api_service).await;
}

/// The next bytes of a watch through the aggregator; `None` at its end.
async fn next_event(body: &mut ResponseBody) -> Option<Value> {
    let frame = tokio::time::timeout(LIMIT, body.frame()).await.expect("the watch hangs")?;
    let data = frame.ok()?.into_data().ok()?;
    Some(serde_json::from_slice(data.chunk()).expect("one event"))
}

/// Opens a watch, once the catalogue has the extension server.
async fn watch_flunders(running: &Running) -> ResponseBody {
    let start = Instant::now();
    loop {
        let request = Request::get(format!("{FLUNDERS}?watch=true"))
            .header("authorization", format!("Bearer {ADMIN}"))
            .body(RequestBody::default())
            .expect("a request");
        let reply = running.server.send(request).await;
        if reply.status() == 200 {
            return reply.into_body();
        }
        assert!(start.elapsed() < LIMIT, "{}", reply.status());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_extension_server_reuse_a_connection() {
    const FLUNDER: &str = "/apis/example.com/v1/namespaces/default/flunders/a";
    let responder = testbase::Responder::start(move |path, body| match path {
        FLUNDER => (200, json!({"kind": "Flunder", "apiVersion": "example.com/v1", "sent": body})),
        path => extension_server(path, false),
    });
    let responder = responder.await.expect("an extension server");
    let running = Running::with_routing(Routing::Service);
    publish(&running, &responder).await;
    running.until(FLUNDER, |code, _| code == 200).await;
    for number in 0..3 {
        let body = json!({"number": number}).to_string();
        let (code, answer) = running.server.ask(ADMIN, Method::PUT, FLUNDER, JSON, body).await;
        assert_eq!((code, &answer["sent"]["number"]), (200, &json!(number)));
    }
    assert_eq!(responder.connections_for(FLUNDER), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_while_extension_server_is_killed_during_watch_recovers() {
    let start = async || testbase::Responder::start(|path, _| extension_server(path, false)).await;
    let responder = start().await.expect("an extension server");
    let first = Running::with_routing(Routing::Service);
    publish(&first, &responder).await;
    first.until(EXTENSION, |_, found| reason(found) == "Passed").await;
    let mut watch = watch_flunders(&first).await;
    assert_eq!(next_event(&mut watch).await.expect("an event")["object"]["metadata"]["name"], "a");

    // The API server restarts while the extension server is gone.
    drop(responder);
    let second = Running::on(first.server.beside(), Routing::Service);
    assert_eq!(next_event(&mut watch).await, None, "the watch ends with its server");
    drop(first);
    second.until(EXTENSION, |_, found| reason(found) == "FailedDiscoveryCheck").await;
    second.until(FLUNDERS, |code, _| code == 503).await;
    let (code, _) = second.get("/api/v1/namespaces/default").await;
    assert_eq!(code, 200, "own groups are served");

    let responder = start().await.expect("an extension server");
    let patch = json!({"spec": location(&responder)}).to_string();
    let media = "application/merge-patch+json";
    assert_eq!(second.server.ask(ADMIN, Method::PATCH, EXTENSION, media, patch).await.0, 200);
    second.until(EXTENSION, |_, found| reason(found) == "Passed").await;
    let mut watch = watch_flunders(&second).await;
    assert_eq!(next_event(&mut watch).await.expect("an event")["type"], "ADDED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extension_server_openapi_v2_is_merged_while_available() {
    const SERVICE: &str = "/api/v1/namespaces/default/services/responder";
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fails);
    let responder =
        testbase::Responder::start(move |path, _| extension_server(path, failing.load(Ordering::Relaxed)));
    let responder = responder.await.expect("an extension server");
    let running = Running::with_routing(Routing::Service);
    publish(&running, &responder).await;

    let has = |document: &Value| document["paths"].get("/apis/example.com/v1/flunders").is_some();
    let merged = running.until("/openapi/v2", |_, document| has(document)).await;
    let definitions = &merged["definitions"];
    let reference = &definitions["Flunder"]["properties"]["metadata"]["$ref"];
    assert_eq!(reference, "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta_v2");
    assert_eq!(definitions["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta_v2"], json!({"type": "object"}));
    assert!(definitions["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"].is_object());
    assert!(definitions.get("Other").is_none(), "a type of paths outside of the group version");
    assert!(merged["paths"]["/api/"]["get"]["operationId"].is_string(), "paths of this server stay");
    assert!(merged["paths"].get("/api/v1/pods").is_some());

    fails.store(true, Ordering::Relaxed);
    // A change of the service triggers an immediate check.
    let patch = json!({"metadata": {"annotations": {"touched": "yes"}}}).to_string();
    let (code, _) =
        running.server.ask(ADMIN, Method::PATCH, SERVICE, "application/merge-patch+json", patch).await;
    assert_eq!(code, 200);
    running.until(EXTENSION, |_, found| reason(found) == "FailedDiscoveryCheck").await;
    running.until("/openapi/v2", |_, document| !has(document)).await;

    // Its resources are still listed, as stale ones.
    let request = Request::get("/apis")
        .header("authorization", format!("Bearer {ADMIN}"))
        .header("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
        .body(RequestBody::default())
        .expect("a request");
    let body = running.server.send(request).await.into_body().collect().await.expect("a body").to_bytes();
    let groups: Value = serde_json::from_slice(&body).expect("JSON");
    let mut items = groups["items"].as_array().expect("groups").iter();
    let group = items.find(|group| group["metadata"]["name"] == "example.com").expect("the group");
    let version = &group["versions"][0];
    assert_eq!(
        (&version["freshness"], &version["resources"][0]["resource"]),
        (&json!("Stale"), &json!("flunders"))
    );
}
