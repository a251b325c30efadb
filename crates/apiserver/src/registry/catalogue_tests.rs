//! Kinds added and removed while the server runs, through the whole request chain.

use super::catalogue::Addition;
use super::version::{Conversion, Convert, Served, Version};
use super::{Registry, Storage};
use crate::discovery::{ApiResource, GroupVersion};
use crate::openapi::{BuiltIn, Dialect, Part, Types};
use crate::request_info::Verbs;
use crate::serve::{RequestBody, ResponseBody};
use crate::test_server::{ADMIN, TestServer};
use api::docs::Docs;
use api::field_selectors::UnsupportedField;
use api::rules::{IndexedField, TableLayout};
use api::{ResourceNames, Rules, Scope};
use bytes::Buf;
use futures_util::future::BoxFuture;
use http::{Method, Request};
use http_body_util::BodyExt;
use machinery::Value;
use machinery::apply::Reset;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::schema::{Field, Node, Schema, Shape, TypeHandle};
use machinery::status::{Result, Status};
use serde_json::json;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const GROUP: &str = "example.com";
const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const JSON: &str = "application/json";
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Rules that require a size.
struct Widgets;

impl Rules for Widgets {
    fn metadata_errors(&self, _object: &Value) -> ErrorList {
        ErrorList::new()
    }

    fn metadata_update_errors(&self, _new: &Value, _old: &Value) -> ErrorList {
        ErrorList::new()
    }

    fn set_defaults(&self, object: &mut Value) {
        if object["color"].is_null() {
            object["color"] = json!("red");
        }
    }

    fn validate(&self, object: &Value) -> ErrorList {
        match object["size"].as_i64() {
            Some(size) if size > 9 => {
                vec![FieldError::invalid(&Path::new("size"), &object["size"], "too large")]
            }
            _ => ErrorList::new(),
        }
    }

    fn storage_path(&self) -> Cow<'_, str> {
        "example.com/widgets".into()
    }

    fn reset_fields(&self, _subresource: &str) -> Reset {
        Reset::Nothing
    }

    fn is_custom(&self) -> bool {
        true
    }

    fn table(&self) -> &dyn TableLayout {
        &api::tables::GENERIC
    }

    fn find_field(&self, label: &str) -> std::result::Result<(), UnsupportedField> {
        match label {
            "metadata.name" | "metadata.namespace" => Ok(()),
            other => Err(UnsupportedField::of_custom(other)),
        }
    }

    fn indexed_fields(&self) -> Vec<IndexedField> {
        Vec::new()
    }
}

/// Version 2 names the size `length`. Fails while `fails` is set.
#[derive(Default)]
struct Renaming {
    fails: AtomicBool,
    calls: AtomicUsize,
}

impl Convert for Renaming {
    fn convert<'a>(&'a self, objects: Vec<Value>, api_version: &'a str) -> BoxFuture<'a, Result<Vec<Value>>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.calls.fetch_add(1, Ordering::Relaxed);
            if self.fails.load(Ordering::Relaxed) {
                return Err(Status::internal("conversion failed"));
            }
            let names = if api_version.ends_with("v2") { ("size", "length") } else { ("length", "size") };
            let convert = |mut object: Value| {
                if let Some(map) = object.as_object_mut() {
                    if let Some(value) = map.remove(names.0) {
                        map.insert(names.1.to_owned(), value);
                    }
                    map.insert("apiVersion".to_owned(), api_version.into());
                }
                object
            };
            Ok(objects.into_iter().map(convert).collect())
        })
    }
}

fn schema() -> Arc<Schema> {
    let built_in = api::schema::schema();
    let meta = built_in.named("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").expect("metadata").id;
    let mut schema = built_in.clone();
    let integer = schema.push(Node::of(Shape::Int64));
    let text = schema.push(Node::of(Shape::String));
    let mut widget = Node::of(Shape::Object);
    for (name, node) in [
        ("apiVersion", text),
        ("kind", text),
        ("metadata", meta),
        ("color", text),
        ("size", integer),
        ("length", integer),
    ] {
        widget.fields.push(Field::new(name, node));
    }
    let id = schema.push(widget);
    for version in ["v1", "v2"] {
        schema.kinds.insert((Arc::from(GROUP), Arc::from(version), Arc::from("Widget")), id);
    }
    schema.finish();
    Arc::new(schema)
}

/// Types of widgets over the built-in ones.
struct WidgetTypes(BuiltIn);

impl Types for WidgetTypes {
    fn name_of(&self, _: &str, version: &str, kind: &str) -> Option<Arc<str>> {
        Some(Arc::from(format!("com.example.{version}.{kind}")))
    }

    fn docs(&self) -> Arc<Docs> {
        self.0.docs()
    }

    fn mentioned(&self, name: &str) -> Vec<Arc<str>> {
        self.0.mentioned(name)
    }

    fn definition(
        &self,
        name: &str,
        dialect: Dialect,
        own: Option<(&str, &str)>,
        docs: &Docs,
    ) -> Option<Value> {
        match name.starts_with("com.example.") {
            true => Some(json!({"type": "object"})),
            false => self.0.definition(name, dialect, own, docs),
        }
    }
}

fn part(version: &str) -> Part {
    let resource = ApiResource {
        name: "widgets".into(),
        singular: "widget".into(),
        kind: "Widget".into(),
        namespaced: true,
        verbs: VERBS.map(Into::into).to_vec(),
        short_names: Vec::new(),
        categories: Vec::new(),
        storage_version_hash: "".into(),
        response: (GROUP.into(), version.to_owned().into()),
        subresources: Vec::new(),
    };
    let discovery = GroupVersion {
        group: GROUP.into(),
        version: version.to_owned().into(),
        group_priority: 1000,
        version_priority: 100,
        stale: false,
        resources: vec![resource],
    };
    let types = Arc::new(WidgetTypes(BuiltIn::new(api::schema::schema())));
    Part { discovery: Arc::new(discovery), types, custom: true }
}

/// Both versions of widgets, stored as version 1.
fn widgets(registry: &Registry, convert: &Arc<Renaming>) -> Vec<Addition> {
    let schema = schema();
    let names = |version: &str| {
        ResourceNames::new((GROUP, version.to_owned()), "Widget", "widgets", Scope::Namespaced)
    };
    let handle = |version| TypeHandle::of_kind(&schema, GROUP, version, "Widget").expect("a type");
    let rules: Arc<dyn Rules> = Arc::new(Widgets);
    let store = Arc::clone(&registry.store);
    let storage = Arc::new(Storage::new(names("v1"), Arc::clone(&rules), Some(handle("v1")), store));
    let version = |version| {
        let conversion = Some(Conversion::Batch(Arc::clone(convert) as Arc<dyn Convert>));
        let (rules, storage) = (Arc::clone(&rules), Arc::clone(&storage));
        Arc::new(Version::new(
            names(version),
            rules,
            handle(version),
            storage,
            conversion,
            Verbs::of(&VERBS),
            [],
        ))
    };
    let versions: Arc<[Arc<Version>]> = [version("v1"), version("v2")].into();
    let served = versions.iter().map(|version| {
        let served = Arc::new(Served::new(Arc::clone(version), Arc::clone(&versions)));
        let Part { discovery, types, .. } = part(version.kind.version());
        Addition { served: vec![served], discovery, types: Some(types), backend: None, v2: None }
    });
    served.collect()
}

/// Starts or stops serving widgets.
fn register(registry: &Registry, additions: Vec<Addition>) {
    registry.catalogues.change(|known| {
        let names: Vec<String> = known.names().cloned().collect();
        names.iter().for_each(|name| drop(known.remove(name)));
        for addition in additions {
            known.insert(addition.discovery.api_version(), addition);
        }
    });
}

fn widget(version: &str, name: &str, field: &str, size: i64) -> String {
    json!({
        "apiVersion": format!("{GROUP}/{version}"), "kind": "Widget", "metadata": {"name": name}, field: size,
    })
    .to_string()
}

/// An open watch.
struct Events {
    body: ResponseBody,
    received: Vec<u8>,
}

impl Events {
    /// The next event; `None` when the watch is over.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("one event"));
            }
            let frame =
                tokio::time::timeout(WAIT_LIMIT, self.body.frame()).await.expect("an event in time")?;
            let mut data = frame.expect("a frame").into_data().expect("data");
            while data.has_remaining() {
                let chunk = data.chunk();
                let length = chunk.len();
                self.received.extend_from_slice(chunk);
                data.advance(length);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kind_registered_at_runtime_is_served_watched_converted_and_removed() {
    let server = TestServer::start();
    let registry = Arc::clone(&server.chain.rest.registry);
    server.create("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
    let [v1, v2] = ["v1", "v2"].map(|version| format!("/apis/{GROUP}/{version}/namespaces/n/widgets"));
    let get = async |path: &str| server.ask(ADMIN, Method::GET, path, JSON, "").await;
    assert_eq!(get(&v1).await.0, 404, "not yet");
    assert_eq!(get("/apis/example.com").await.0, 404, "not yet in discovery");

    let convert = Arc::new(Renaming::default());
    register(&registry, widgets(&registry, &convert));
    let storage = Arc::clone(&registry.catalogue().served(GROUP, "v1", "widgets").expect("served").storage);
    assert_eq!(get("/apis/example.com").await.1["preferredVersion"]["version"], "v2");
    assert_eq!(get("/apis/example.com/v1").await.1["resources"][0]["name"], "widgets");
    assert_eq!(get("/openapi/v3/apis/example.com/v2").await.0, 200);

    let request = Request::get(format!("{v2}?watch=true"))
        .header("authorization", format!("Bearer {ADMIN}"))
        .body(RequestBody::default())
        .expect("a request");
    let mut events = Events { body: server.send(request).await.into_body(), received: Vec::new() };

    let (code, made) = server.ask(ADMIN, Method::POST, &v1, JSON, widget("v1", "a", "size", 3)).await;
    assert_eq!((code, &made["size"], &made["color"]), (201, &json!(3), &json!("red")), "{made}");
    let (code, refused) = server.ask(ADMIN, Method::POST, &v2, JSON, widget("v2", "b", "length", 10)).await;
    assert_eq!(code, 201, "the rule is about the field of version 1: {refused}");
    let (code, refused) = server.ask(ADMIN, Method::POST, &v1, JSON, widget("v1", "c", "size", 10)).await;
    assert_eq!((code, &refused["details"]["causes"][0]["field"]), (422, &json!("size")), "{refused}");

    for (name, length) in [("a", 3), ("b", 10)] {
        let event = events.next().await.expect("open");
        assert_eq!(event["type"], "ADDED", "{event}");
        assert_eq!(event["object"]["apiVersion"], "example.com/v2");
        assert_eq!(
            (&event["object"]["metadata"]["name"], &event["object"]["length"]),
            (&json!(name), &json!(length))
        );
    }

    // A list is one conversion, whatever its length.
    let before = convert.calls.load(Ordering::Relaxed);
    let list = get(&v2).await.1;
    assert_eq!(
        (list["items"][0]["length"].as_i64(), list["items"][1]["length"].as_i64()),
        (Some(3), Some(10))
    );
    assert_eq!(convert.calls.load(Ordering::Relaxed), before + 1);
    let list = get(&v1).await.1;
    assert_eq!(list["items"][1]["size"], 10, "stored bytes: {list}");
    assert_eq!(convert.calls.load(Ordering::Relaxed), before + 1);

    let patch = json!({"length": 4}).to_string();
    let path = format!("{v2}/a");
    let (code, patched) =
        server.ask(ADMIN, Method::PATCH, &path, "application/merge-patch+json", patch).await;
    assert_eq!((code, &patched["length"]), (200, &json!(4)), "{patched}");
    assert_eq!(get(&format!("{v1}/a")).await.1["size"], 4);
    assert_eq!(events.next().await.expect("open")["object"]["length"], 4);

    convert.fails.store(true, Ordering::Relaxed);
    assert_eq!(get(&path).await.0, 500);
    assert_eq!(get(&format!("{v1}/a")).await.0, 200, "needs no conversion");
    let (code, _) = server.ask(ADMIN, Method::PUT, &path, JSON, widget("v2", "a", "length", 5)).await;
    assert_eq!(code, 500);
    convert.fails.store(false, Ordering::Relaxed);
    assert_eq!(get(&format!("{v1}/a")).await.1["size"], 4, "the failed write left nothing");

    register(&registry, Vec::new());
    storage.cache.end_watches();
    assert!(events.next().await.is_none(), "the watch ends with its kind");
    assert_eq!(get(&v1).await.0, 404);
    assert_eq!(get("/apis/example.com").await.0, 404);
    assert_eq!(get("/openapi/v3/apis/example.com/v2").await.0, 404);

    // The objects still exist for a new kind of the same name.
    register(&registry, widgets(&registry, &convert));
    assert_eq!(get(&v1).await.1["items"].as_array().map(Vec::len), Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn catalogue_swap_under_load_is_atomic_for_requests() {
    const REQUESTS: usize = 10_000;
    const CLIENTS: usize = 4;
    let server = Arc::new(TestServer::start());
    let registry = Arc::clone(&server.chain.rest.registry);
    server.create("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
    let convert = Arc::new(Renaming::default());
    let additions = widgets(&registry, &convert);
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = {
        let (registry, stop) = (Arc::clone(&registry), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut swaps = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let present = if swaps.is_multiple_of(2) { additions.clone() } else { Vec::new() };
                register(&registry, present);
                swaps += 1;
            }
            swaps
        })
    };
    let client = |number: usize| {
        let (server, registry) = (Arc::clone(&server), Arc::clone(&registry));
        tokio::spawn(async move {
            let (mut served, mut missing) = (0, 0);
            let mut last = 0;
            for turn in 0..REQUESTS / CLIENTS {
                if (turn + number).is_multiple_of(4) {
                    let path = "/api/v1/namespaces/n";
                    assert_eq!(server.ask(ADMIN, Method::GET, path, JSON, "").await.0, 200);
                    continue;
                }
                // Group and resource are replaced together: one without the other would cause a Status response.
                let path = "/apis/example.com/v1/namespaces/n/widgets";
                let (code, body) = server.ask(ADMIN, Method::GET, path, JSON, "").await;
                match code {
                    200 => served += 1,
                    _ => {
                        assert_eq!((code, &body), (404, &Value::Null), "a group without its resource");
                        missing += 1;
                    }
                }
                let catalogue = registry.catalogue();
                let has = catalogue.served(GROUP, "v1", "widgets").is_some();
                assert_eq!(catalogue.discovery.has_group(GROUP), has, "{}", catalogue.generation);
                assert_eq!(catalogue.discovery.resource_list(GROUP, "v1").is_some(), has);
                let document = "apis/example.com/v1";
                assert_eq!(catalogue.openapi.has_document(document), has, "{}", catalogue.generation);
                assert!(catalogue.generation >= last, "catalogues go forward");
                last = catalogue.generation;
            }
            (served, missing)
        })
    };
    let start = Instant::now();
    let clients: Vec<_> = (0..CLIENTS).map(client).collect();
    let (mut served, mut missing) = (0, 0);
    for client in clients {
        let counted = client.await.expect("no half of a swap");
        served += counted.0;
        missing += counted.1;
    }
    let rate = REQUESTS as f64 / start.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let swaps = swapper.join().expect("swapped");
    // The rate depends on the machine; it is stated, not required.
    println!("{rate:.0} requests per second during {swaps} swaps: {served} served, {missing} missing");
    assert!(served > 0 && missing > 0 && swaps > 2, "{served} served, {missing} missing, {swaps} swaps");
}
