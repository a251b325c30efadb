//! One suite of API scenarios on every store: clients cannot observe a difference.

mod etcd;
mod reads;
mod watches;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use store::{Embedded, EmbeddedOptions, Store};
use testkit::{Client, Reply, Scenarios, Server};

const LIMIT: Duration = Duration::from_secs(20);

/// Environment of a scenario: a server on its store, and its own namespace.
struct Ctx<'a> {
    admin: &'a Client,
    store: &'a dyn Store,
    namespace: &'static str,
}

type Scenario = for<'a> fn(&'a Ctx<'a>) -> BoxFuture<'a, Result<()>>;

/// All scenarios with their namespaces.
const SCENARIOS: &[(&str, Scenario)] = &[
    ("one-object-s-life", |ctx| Box::pin(writes::object_lifecycle(ctx))),
    ("patches", |ctx| Box::pin(writes::patches(ctx))),
    ("apply", |ctx| Box::pin(writes::apply(ctx))),
    ("delete-collection", |ctx| Box::pin(writes::delete_collection(ctx))),
    ("counter", |ctx| Box::pin(writes::concurrent_updates_lose_nothing(ctx))),
    ("pages", |ctx| Box::pin(reads::pages_are_of_one_revision(ctx))),
    ("expired-pages", |ctx| Box::pin(reads::pages_after_compaction(ctx))),
    ("versions", |ctx| Box::pin(reads::resource_versions(ctx))),
    ("watch", |ctx| Box::pin(watches::changes_in_order(ctx))),
    ("selective-watch", |ctx| Box::pin(watches::object_leaving_selector_is_deleted(ctx))),
    ("initial-events", |ctx| Box::pin(watches::initial_events(ctx))),
    ("old-watch", |ctx| Box::pin(watches::watch_from_compacted_revision_expires(ctx))),
];

impl Ctx<'_> {
    fn path(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/configmaps{rest}", self.namespace)
    }

    async fn get(&self, rest: &str) -> Result<Reply> {
        self.admin.get(&self.path(rest)).await
    }

    /// Creates a config map, which must succeed.
    async fn create(&self, name: &str, value: &str) -> Result<Value> {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"value": value}}, "data": {"value": value}});
        let reply = self.admin.post(&self.path(""), &object).await?;
        ensure!(reply.status == 201, "{}", reply.body);
        Ok(reply.body)
    }

    /// Updates a ConfigMap, regardless of its version.
    async fn set(&self, name: &str, value: &str) -> Result<Value> {
        let patch = json!({"metadata": {"labels": {"value": value}}, "data": {"value": value}});
        let reply = self.patch(name, "application/merge-patch+json", &patch).await?;
        ensure!(reply.status == 200, "{}", reply.body);
        Ok(reply.body)
    }

    async fn patch(&self, rest: &str, content_type: &str, patch: &Value) -> Result<Reply> {
        let path = self.path(&format!("/{rest}"));
        self.admin.request(http::Method::PATCH, &path, content_type, serde_json::to_vec(patch)?).await
    }
}

/// Names of a list's items.
fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|item| item["metadata"]["name"].as_str()).collect()
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Runs every scenario on a server of this store.
async fn run_all(store: Arc<dyn Store>) -> Result<()> {
    let server = Server::start_on(Arc::clone(&store), |_| {}).await?;
    let mut scenarios = Scenarios::default();
    for (namespace, scenario) in SCENARIOS {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        let created = server.admin.post("/api/v1/namespaces", &object).await?;
        ensure!(created.status == 201, "{}", created.body);
        let ctx = Ctx { admin: &server.admin, store: &*store, namespace };
        let bounded = async {
            let outcome = tokio::time::timeout(LIMIT, scenario(&ctx)).await;
            outcome.unwrap_or_else(|_| Err(anyhow!("not done after {LIMIT:?}")))
        };
        scenarios.run_async(namespace, bounded).await;
    }
    server.stop().await?;
    scenarios.finish();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_store_passes_scenarios() -> Result<()> {
    let dir = tempfile::tempdir()?;
    run_all(Arc::new(Embedded::open(EmbeddedOptions::new(dir.path().join("store")))?)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixed_store_passes_scenarios() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let below: Arc<dyn Store> =
        Arc::new(Embedded::open(EmbeddedOptions::new(directory.path().join("store")))?);
    run_all(Arc::new(store::Prefixed::new(Arc::clone(&below), "/registry", "/clusters/a"))).await
}
