//! Informers, events, leader election and the harness against a real API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, ListOptions, Patch};
use objects::coordination::v1::Lease;
use objects::core::v1::{ConfigMap, Namespace};
use objects::events::v1::Event;
use runtime::{
    Action, Context, Descriptor, Harness, Informers, Key, LeaderElection, Leading, Loop, LoopError, Recorder,
    Row, Selection, lead,
};
use serde_json::json;
use testkit::{Responder, Server, eventually};

#[path = "../examples/label-copier.rs"]
#[expect(dead_code, reason = "the main function of an example")]
mod label_copier;

const PATIENCE: Duration = Duration::from_secs(30);

fn map(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map
}

fn names(cache: &runtime::Cache<ConfigMap>) -> Vec<String> {
    cache.list("default").iter().filter_map(|map| map.metadata.name.clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cache_after_server_restart_resumes() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let server = Server::start_in(directory.path()).await?;
    let client = Client::connect(&server.kubeconfig, "test")?;
    let tasks = TaskGroup::new();
    let informers = Informers::new(client.clone(), &tasks);
    client.create("default", &map("a")).await?;
    let cache = informers.of::<ConfigMap>();
    let only_b = informers.of_selected::<ConfigMap>(Selection::by_field("metadata.name=b"));
    cache.synced().await;
    assert!(names(&cache).contains(&"a".to_owned()));
    client.create("default", &map("b")).await?;
    let has = |name: &'static str| move |names: &Vec<String>| names.iter().any(|known| known == name);
    eventually("b appears", PATIENCE, async || names(&cache), has("b")).await;
    eventually("b is selected", PATIENCE, async || names(&only_b), |names| *names == ["b"]).await;
    server.stop().await?;

    // A new port: the cache must resume once the server is reachable again.
    let server = Server::start_in(directory.path()).await?;
    let client = Client::connect(&server.kubeconfig, "test")?;
    let informers = Informers::new(client.clone(), &tasks);
    let cache = informers.of::<ConfigMap>();
    cache.synced().await;
    assert!(names(&cache).contains(&"b".to_owned()));
    client.delete::<ConfigMap>("default", "a", &client::DeleteOptions::default()).await?;
    eventually("a is deleted", PATIENCE, async || names(&cache), |names| !has("a")(names)).await;
    tasks.drain(PATIENCE).await?;
    server.stop().await
}

/// A server on an etcd without progress notifications ends a streamed list with such an event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cache_of_server_without_streamed_lists_syncs_by_list() -> Result<()> {
    let item = |name: &str, revision: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": revision}})
    };
    let server = Responder::start_api_server(move |path, _| {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500,
            "message": "progress notifications are not supported"});
        let answer = match path {
            path if path.contains("sendInitialEvents=true") => {
                json!({"stream": [{"type": "ERROR", "object": status}]})
            }
            path if path.contains("watch=") => {
                json!({"stream": [{"type": "ADDED", "object": item("b", "8")}]})
            }
            _ => json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"},
                "items": [item("a", "5")]}),
        };
        (200, answer)
    });
    let server = server.await?;
    let directory = tempfile::tempdir()?;
    let kubeconfig = server.kubeconfig(directory.path(), "")?;
    let tasks = TaskGroup::new();
    let cache = Informers::new(Client::connect(&kubeconfig, "test")?, &tasks).of::<ConfigMap>();
    tokio::time::timeout(PATIENCE, cache.synced()).await?;
    eventually("both appear", PATIENCE, async || names(&cache), |names| *names == ["a", "b"]).await;
    tasks.drain(PATIENCE).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_event_increases_series_count() -> Result<()> {
    let server = Server::start().await?;
    let client = Client::connect(&server.kubeconfig, "test")?;
    let tasks = TaskGroup::new();
    let recorder = Recorder::new(client.clone(), "test-controller", Clock::system(), &tasks);
    let object = client.create("default", &map("a")).await?;
    recorder.normal(&object, "Tried", "it worked");
    recorder.normal(&object, "Tried", "it worked");
    recorder.warning(&object, "Failed", "it did not");
    let events = async || {
        let list = client.list::<Event>("default", &ListOptions::default()).await.expect("lists");
        let own =
            list.items.into_iter().filter(|e| e.reporting_controller.as_deref() == Some("test-controller"));
        let mut reported: Vec<(String, String, i32)> = own
            .map(|e| {
                let count = e.series.map_or(1, |series| series.count);
                (e.reason.unwrap_or_default(), e.type_.unwrap_or_default(), count)
            })
            .collect();
        reported.sort();
        reported
    };
    let want = [("Failed", "Warning", 1), ("Tried", "Normal", 2)]
        .map(|(reason, kind, count)| (reason.to_owned(), kind.to_owned(), count));
    eventually("events", PATIENCE, events, |reported| *reported == want).await;
    tasks.drain(PATIENCE).await?;
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_stop_releases_lease_to_next_candidate() -> Result<()> {
    let server = Server::start().await?;
    let client = Client::connect(&server.kubeconfig, "test")?;
    let (led, mut leaders) = tokio::sync::mpsc::unbounded_channel();
    let candidates: Vec<_> = ["one", "two"]
        .into_iter()
        .map(|identity| {
            let tasks = TaskGroup::new();
            let mut election = LeaderElection::new("test", identity);
            election.retry_period = Duration::from_millis(50);
            let (client, led, group) = (client.clone(), led.clone(), tasks.clone());
            let running = tokio::spawn(async move {
                lead(&client, &election, &Clock::system(), &group, || led.send(identity).expect("heard"))
                    .await
            });
            (identity, tasks, running)
        })
        .collect();
    let first = leaders.recv().await.expect("a leader");
    for (identity, tasks, _) in &candidates {
        if *identity == first {
            tasks.stop();
        }
    }
    let second = leaders.recv().await.expect("the next leader");
    assert_ne!(first, second);
    let lease: Lease = client.get("kube-system", "test").await?;
    assert_eq!(lease.spec.and_then(|spec| spec.holder_identity).as_deref(), Some(second));
    let events = async || {
        let events = client.list::<Event>("kube-system", &ListOptions::default()).await.ok()?;
        let of_election =
            events.items.into_iter().filter(|event| event.reason.as_deref() == Some("LeaderElection"));
        Some(of_election.filter_map(|event| event.note).collect::<Vec<_>>())
    };
    let want = format!("{second} became leader");
    eventually("an event", PATIENCE, events, |notes| notes.iter().flatten().any(|note| *note == want)).await;
    for (_, tasks, running) in candidates {
        tasks.stop();
        assert_eq!(running.await?, Leading::Stopped);
    }
    server.stop().await
}

/// Writes the number of reconciliations into every config map, failing the first time.
struct Marker {
    maps: runtime::Cache<ConfigMap>,
}

const MARKER: Descriptor =
    Descriptor { name: "marker", resource: "configmaps", identity: "marker", workers: 2 };

#[async_trait]
impl Loop for Marker {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(map) = self.maps.get_key(key) else { return Ok(Action::Done) };
        if &*key.namespace != "default" || map.data.is_some() {
            return Ok(Action::Done);
        }
        if ctx.queue.failures(key) == 0 {
            return Err("not the first time".into());
        }
        let mut marked = (*map).clone();
        marked.data = Some(BTreeMap::from([("marked".to_owned(), "yes".to_owned())]));
        ctx.client.update(&marked).await?;
        Ok(Action::Done)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_loop_is_retried_until_success() -> Result<()> {
    let server = Server::start().await?;
    let client = Client::connect(&server.kubeconfig, "test")?;
    let tasks = TaskGroup::new();
    let harness = Harness::new("tester", client.clone(), Arc::new(client.clone()), Clock::system(), &tasks);
    let row = Row {
        descriptor: &MARKER,
        build: |ctx| Box::new(Marker { maps: ctx.watch_self::<ConfigMap>() }),
        by_default: true,
    };
    harness.start(&row)?;
    client.create("default", &map("a")).await?;
    let read = async || client.get::<ConfigMap>("default", "a").await.expect("there").data;
    eventually("the mark", PATIENCE, read, Option::is_some).await;
    tasks.drain(PATIENCE).await?;
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_controller_copies_and_removes_labels() -> Result<()> {
    let server = Server::start().await?;
    let client = Client::connect(&server.kubeconfig, "test")?;
    let tasks = TaskGroup::new();
    client.create("default", &map("a")).await?;
    label_copier::start(&server.kubeconfig, &tasks)?;
    for team in [Some("blue"), Some("green"), None] {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"team": team}}}));
        client.patch::<Namespace>("", "default", None, &patch).await?;
        let labels = async || client.get::<ConfigMap>("default", "a").await.expect("there").metadata.labels;
        let copied = |labels: &Option<BTreeMap<String, String>>| {
            labels.as_ref().and_then(|labels| labels.get("team")).map(String::as_str) == team
        };
        eventually("the label of the namespace", PATIENCE, labels, copied).await;
    }
    tasks.drain(PATIENCE).await?;
    server.stop().await
}
