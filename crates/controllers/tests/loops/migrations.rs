//! Storage version migration. The API of migrations is off by default, as in Kubernetes, and is simulated in memory
//! here; the migrated objects are in a real server.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use client::{Body, Call, Client, Kubeconfig, ListOptions, Remote, Transport};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use objects::core::v1::ConfigMap;
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::eventually;
use tokio::sync::watch;

use crate::world::{PATIENCE, World};

const LOOP: &str = "storage-version-migrator-controller";
const PATH: &str = "/apis/storagemigration.k8s.io/v1beta1/storageversionmigrations";

/// Migrations in memory.
struct Migrations {
    objects: Mutex<BTreeMap<String, Value>>,
    revision: watch::Sender<u64>,
    /// Number of writes that still get a conflict.
    conflicts: Mutex<u32>,
}

fn revision_of(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|at| at.parse().ok()).unwrap_or_default()
}

fn event(kind: &str, object: &Value) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

fn reply(code: u16, text: String) -> Response<Body> {
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    Response::builder().status(code).header("content-type", "application/json").body(body).expect("an answer")
}

impl Migrations {
    fn new() -> Self {
        let revision = watch::Sender::new(1_000_000_000);
        Self { objects: Mutex::default(), revision, conflicts: Mutex::new(2) }
    }

    fn put(&self, mut object: Value) -> Value {
        let revision = *self.revision.borrow() + 1;
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.objects.lock().insert(name, object.clone());
        self.revision.send_replace(revision);
        object
    }

    fn create(&self, name: &str, resource: &str, created: &str) {
        self.put(json!({
            "apiVersion": "storagemigration.k8s.io/v1beta1", "kind": "StorageVersionMigration",
            "metadata": {"name": name, "uid": name, "creationTimestamp": created},
            "spec": {"resource": {"group": "", "resource": resource}},
        }));
    }

    /// True conditions of a migration, in order.
    fn true_conditions(&self, name: &str) -> Vec<String> {
        let objects = self.objects.lock();
        let conditions =
            objects.get(name).and_then(|object| object["status"]["conditions"].as_array().cloned());
        let shown = conditions.into_iter().flatten().map(|condition| {
            let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
            format!("{}={} {}", text("type"), text("status"), text("message")).trim().to_owned()
        });
        shown.collect()
    }

    async fn answer(&self, request: Request<Bytes>) -> Response<Body> {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let has = |pair: &str| query.split('&').any(|one| one == pair);
        if request.method() == Method::PUT {
            let mut given: Value = serde_json::from_slice(request.body()).unwrap_or_default();
            let known =
                self.objects.lock().get(given["metadata"]["name"].as_str().unwrap_or_default()).cloned();
            let is_late = {
                let mut left = self.conflicts.lock();
                let is_late = *left > 0;
                *left = left.saturating_sub(1);
                is_late
            };
            let same = known.is_some_and(|known| revision_of(&known) == revision_of(&given));
            if is_late || !same {
                let status =
                    json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409});
                return reply(409, status.to_string());
            }
            given["kind"] = "StorageVersionMigration".into();
            return reply(200, self.put(given).to_string());
        }
        if !has("watch=true") {
            let items: Vec<Value> = self.objects.lock().values().cloned().collect();
            let meta = json!({"resourceVersion": self.revision.borrow().to_string()});
            return reply(200, json!({"kind": "List", "metadata": meta, "items": items}).to_string());
        }
        if has("sendInitialEvents=true") {
            let now = self.revision.borrow().to_string();
            let mut text: String =
                self.objects.lock().values().map(|object| event("ADDED", object)).collect();
            let end = json!({"metadata": {
                "resourceVersion": now, "annotations": {"k8s.io/initial-events-end": "true"},
            }});
            text.push_str(&event("BOOKMARK", &end));
            return reply(200, text);
        }
        // Each watch ends with the first changes it has.
        let since =
            query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")?.parse::<u64>().ok());
        let since = since.unwrap_or_default();
        let mut revision = self.revision.subscribe();
        if revision.wait_for(|now| *now > since).await.is_err() {
            return reply(500, String::new());
        }
        let objects = self.objects.lock();
        let newer = objects.values().filter(|object| revision_of(object) > since);
        reply(200, newer.map(|object| event("MODIFIED", object)).collect())
    }
}

/// A server, with migrations.
struct Both {
    server: Remote,
    migrations: Arc<Migrations>,
}

impl Transport for Both {
    fn call(&self, request: Request<Bytes>) -> Call<'_> {
        if request.uri().path().starts_with(PATH) {
            return Box::pin(async { Ok(self.migrations.answer(request).await) });
        }
        self.server.call(request)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_rewrites_each_object_once() -> Result<()> {
    let mut world = World::outside().await?;
    let migrations = Arc::new(Migrations::new());
    let server = Remote::new(Kubeconfig::load(&world.server.kubeconfig)?)?;
    world.admin = Client::new(Arc::new(Both { server, migrations: migrations.clone() }), "admin");
    let map = |name: &str| -> Result<ConfigMap> {
        Ok(serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "v"}}))?)
    };
    for name in ["a", "b"] {
        world.admin.create("default", &map(name)?).await?;
    }
    migrations.create("second", "configmaps", "2026-01-02T00:00:00Z");
    migrations.create("first", "configmaps", "2026-01-01T00:00:00Z");
    migrations.create("unknown", "nosuch", "2026-01-01T00:00:00Z");
    migrations.create("fixed", "componentstatuses", "2026-01-01T00:00:00Z");
    // Killed once in the middle.
    world.start_loops(LOOP)?;
    let begun = async || migrations.true_conditions("first");
    eventually("the migration starts", PATIENCE, begun, |true_conditions| !true_conditions.is_empty()).await;
    world.kill_loops();
    world.start_loops(LOOP)?;
    let over = ["Running=False Migration completed", "Succeeded=True"];
    for name in ["first", "second"] {
        let true_conditions = async || migrations.true_conditions(name);
        eventually(name, PATIENCE, true_conditions, |true_conditions| *true_conditions == over).await;
    }
    let true_conditions =
        async || [migrations.true_conditions("unknown"), migrations.true_conditions("fixed")].concat();
    eventually("failed migrations report it", PATIENCE, true_conditions, |true_conditions| {
        let why = "resource \"/v1, Resource=componentstatuses\" does not support discovery operations: [update patch list]";
        *true_conditions
            == [
                "Running=False Migration completed".to_owned(),
                "Failed=True resource does not exist in discovery".to_owned(),
                "Running=False Migration completed".to_owned(),
                format!("Failed=True {why}"),
            ]
    })
    .await;
    let list = world.admin.list::<ConfigMap>("default", &ListOptions::default()).await?;
    let kept: Vec<_> =
        list.items.iter().map(|map| (map.metadata.name.as_deref(), map.data.is_some())).collect();
    assert_eq!(kept, [(Some("a"), true), (Some("b"), true)]);
    let at = |name: &str| {
        let objects = migrations.objects.lock();
        let at = objects.get(name).map(|object| object["status"]["resourceVersion"].clone());
        at.and_then(|at| at.as_str()?.parse::<u64>().ok())
    };
    assert!(at("first") <= at("second") && at("first").is_some(), "the older one came first");
    world.stop().await
}
