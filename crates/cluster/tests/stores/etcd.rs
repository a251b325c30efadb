//! The test suite on a real etcd; etcd restarts; two servers on one etcd.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::{EtcdConfig, EtcdOverride, StoreConfig};
use serde_json::json;
use store::{EtcdOptions, Store};
use testkit::{Client, Server, eventually};

use crate::{LIMIT, run_all};

const PATH: &str = "/api/v1/namespaces/default/configmaps";

async fn connect(etcd: &testkit::Etcd) -> Result<Arc<dyn Store>> {
    let store = store::Etcd::connect(EtcdOptions::new([etcd.endpoint()]))
        .await
        .context("failed to connect to etcd")?;
    Ok(Arc::new(store))
}

async fn create(client: &Client, name: &str) -> Result<u16> {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    Ok(client.post(PATH, &object).await?.status.as_u16())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_store_passes_scenarios() -> Result<()> {
    let Some(etcd) = testkit::Etcd::start()? else { return Ok(()) };
    run_all(connect(&etcd).await?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_restart_recovers() -> Result<()> {
    let Some(mut etcd) = testkit::Etcd::start()? else { return Ok(()) };
    let server = Server::start_on(connect(&etcd).await?, |_| {}).await?;
    ensure!(create(&server.admin, "before").await? == 201);
    let mut watch = server.admin.stream(&format!("{PATH}?watch=true")).await?;
    let mut seen = Vec::new();
    while !seen.iter().any(|name| name == "before") {
        let event = tokio::time::timeout(LIMIT, watch.next()).await??.context("the watch ended")?;
        seen.push(event["object"]["metadata"]["name"].as_str().unwrap_or_default().to_owned());
    }

    etcd.kill();
    let refused = create(&server.admin, "refused").await?;
    ensure!(refused >= 500, "an error within the time limit: {refused}");
    let unhealthy = server.admin.get("/livez/etcd").await?;
    ensure!(unhealthy.status == 500, "{}", unhealthy.status);

    etcd.run()?;
    let write = async || create(&server.admin, "after").await.unwrap_or(0);
    eventually("writes continue", LIMIT, write, |code| [201, 409].contains(code)).await;
    let listed = server.admin.get(PATH).await?;
    let names = crate::names(&listed.body);
    ensure!(names.contains(&"before") && names.contains(&"after"), "{}", listed.body);
    let event = tokio::time::timeout(LIMIT, watch.next()).await.context("the watch is silent")??;
    let event = event.context("the watch ended although nothing was lost")?;
    ensure!(event["type"] == "ADDED" && event["object"]["metadata"]["name"] != "before", "{event}");
    let ready = async || server.admin.get("/readyz").await.map(|reply| reply.status.as_u16()).unwrap_or(0);
    eventually("ready again", LIMIT, ready, |code| *code == 200).await;
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_on_one_etcd_see_writes_of_both() -> Result<()> {
    let Some(etcd) = testkit::Etcd::start()? else { return Ok(()) };
    let one = Server::start_on(connect(&etcd).await?, |_| {}).await?;
    let two = Server::start_on(connect(&etcd).await?, |_| {}).await?;
    let mut watch = two.admin.stream(&format!("{PATH}?watch=true&labelSelector=n")).await?;
    for n in 0..20 {
        let (writer, reader) = if n % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("n{n}"), "labels": {"n": n.to_string()}}});
        let created = writer.admin.post(PATH, &object).await?;
        ensure!(created.status == 201, "{}", created.body);
        let read = reader.admin.get(&format!("{PATH}/n{n}")).await?;
        ensure!(read.body == created.body, "an acknowledged write is visible on all servers: {}", read.body);
        let event =
            tokio::time::timeout(Duration::from_secs(60), watch.next()).await??.context("an event")?;
        ensure!(event["object"] == created.body, "{event}");
    }
    for n in 0..10 {
        let name = format!("contested{n}");
        let (a, b) = tokio::join!(create(&one.admin, &name), create(&two.admin, &name));
        let mut codes = [a?, b?];
        codes.sort_unstable();
        ensure!(codes == [201, 409], "exactly one creates {name}: {codes:?}");
    }
    one.stop().await?;
    ensure!(create(&two.admin, "alone").await? == 201);
    two.stop().await
}

/// Definitions created on one server are soon served by the other, and removed from both on deletion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_on_one_etcd_serve_the_same_definitions() -> Result<()> {
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let Some(etcd) = testkit::Etcd::start()? else { return Ok(()) };
    let one = Server::start_on(connect(&etcd).await?, |_| {}).await?;
    let two = Server::start_on(connect(&etcd).await?, |_| {}).await?;
    let limit = Duration::from_secs(60);
    let mut slowest = Duration::ZERO;
    for n in 0..10 {
        let (writer, reader) = if n % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let plural = format!("widgets{n}");
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "scope": "Cluster",
                "names": {"plural": plural, "kind": format!("Widget{n}")},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}}]},
        });
        let created = writer.admin.post(DEFINITIONS, &definition).await?;
        ensure!(created.status == 201, "{}", created.body);
        let path = format!("/apis/example.com/v1/{plural}");
        let status = async |server: &Server, want: u16| {
            let observe = async || server.admin.get(&path).await.map(|reply| reply.status.as_u16());
            testkit::eventually(&path, limit, observe, |seen| seen.as_ref().is_ok_and(|code| *code == want))
                .await
        };
        status(writer, 200).await?;
        let served = std::time::Instant::now();
        status(reader, 200).await?;
        slowest = slowest.max(served.elapsed());
        let object =
            json!({"apiVersion": "example.com/v1", "kind": format!("Widget{n}"), "metadata": {"name": "a"}});
        ensure!(reader.admin.post(&path, &object).await?.status == 201);
        ensure!(writer.admin.get(&format!("{path}/a")).await?.status == 200);
        ensure!(reader.admin.delete(&format!("{DEFINITIONS}/{plural}.example.com")).await?.status == 200);
        status(reader, 404).await?;
        status(writer, 404).await?;
    }
    println!("slowest definition until the other server had it: {slowest:?}");
    ensure!(slowest < Duration::from_secs(10), "{slowest:?}");
    one.stop().await?;
    two.stop().await
}

/// Keys of a store with this prefix.
async fn keys(store: &dyn Store, prefix: &str) -> Result<Vec<String>> {
    let end = store::prefix_end(prefix);
    let request = store::RangeRequest { start: prefix.to_owned(), end, ..store::RangeRequest::default() };
    Ok(store.range(request).await?.kvs.iter().map(|kv| kv.key.to_string()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_prefix_and_overrides_select_keys() -> Result<()> {
    let (Some(main), Some(for_events)) = (testkit::Etcd::start()?, testkit::Etcd::start()?) else {
        return Ok(());
    };
    let endpoint = |etcd: &testkit::Etcd| vec![etcd.endpoint().to_string()];
    let (servers, others) = (endpoint(&main), endpoint(&for_events));
    let server = Server::start_with(|config| {
        let own = EtcdOverride { group: String::new(), resource: "events".to_owned(), endpoints: others };
        config.store = StoreConfig::Etcd(EtcdConfig {
            endpoints: servers,
            prefix: "/clusters/a".to_owned(),
            overrides: vec![own],
            ..EtcdConfig::default()
        });
    })
    .await?;
    let events = "/api/v1/namespaces/default/events";
    let mut watch = server.admin.stream(&format!("{events}?watch=true&resourceVersion=0")).await?;
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}});
    let created = server.admin.post(events, &event).await?;
    ensure!(created.status == 201, "{}", created.body);
    ensure!(create(&server.admin, "c").await? == 201);
    let seen = tokio::time::timeout(LIMIT, watch.next()).await??.context("an event")?;
    ensure!(seen["object"]["metadata"]["name"] == "e", "{seen}");
    let version = created.body["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    for path in [events, "/apis/events.k8s.io/v1/namespaces/default/events"] {
        let list = server.admin.get(&format!("{path}?resourceVersion={version}")).await?;
        ensure!(crate::names(&list.body) == ["e"], "{}", list.body);
    }
    let (main_store, event_store) = (connect(&main).await?, connect(&for_events).await?);
    ensure!(keys(&*event_store, "/").await? == ["/clusters/a/core/events/default/e"]);
    ensure!(keys(&*main_store, "/registry").await?.is_empty());
    let in_main = keys(&*main_store, "/clusters/a/core/").await?;
    ensure!(in_main.iter().any(|key| key.ends_with("/configmaps/default/c")), "{in_main:?}");
    ensure!(!in_main.iter().any(|key| key.contains("/events/")), "{in_main:?}");
    let statuses = server.admin.get("/api/v1/componentstatuses").await?;
    ensure!(crate::names(&statuses.body).contains(&"etcd-1"), "{}", statuses.body);
    ensure!(server.admin.get("/readyz/etcd-override-readiness-0").await?.status == 200);
    server.stop().await
}
