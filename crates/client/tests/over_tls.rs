//! The client against a real API server over TCP and TLS.

use std::collections::BTreeMap;

use anyhow::Result;
use client::{
    Client, DeleteOptions, ListOptions, Patch, ResourceKey, WatchEvent, WatchOptions, delete_options,
};
use objects::core::v1::{ConfigMap, Namespace};
use serde_json::json;
use testkit::Server;

fn map(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.data = Some(BTreeMap::from([("k".to_owned(), "1".to_owned())]));
    map
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verbs_and_watches_work_over_tls() -> Result<()> {
    let server = Server::start().await?;
    let client = Client::connect(&server.kubeconfig, "test")?;

    let created = client.create("default", &map("a")).await?;
    let error = client.create("default", &map("a")).await.expect_err("there is one");
    assert!(error.is_already_exists(), "{error}");
    assert_eq!(client.get::<Namespace>("", "default").await?.metadata.name.as_deref(), Some("default"));
    let error = client.get::<ConfigMap>("default", "b").await.expect_err("there is none");
    assert!(error.is_not_found(), "{error}");

    let mut watch = client
        .watch::<ConfigMap>("default", &WatchOptions { send_initial_events: true, ..WatchOptions::default() })
        .await?;
    let mut names = Vec::new();
    loop {
        match watch.next().await?.expect("goes on") {
            WatchEvent::Added(map) => names.push(map.metadata.name.unwrap_or_default()),
            WatchEvent::Bookmark { initial_events_end: true, resource_version } => {
                assert_ne!(resource_version, "");
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(names.contains(&"a".to_owned()), "{names:?}");

    let mut changed = created.clone();
    changed.data = Some(BTreeMap::from([("k".to_owned(), "2".to_owned())]));
    client.update(&changed).await?;
    assert!(client.update(&changed).await.expect_err("an old revision").is_conflict());
    let Some(WatchEvent::Modified(seen)) = watch.next().await? else { panic!("a change") };
    assert_eq!(seen.data, changed.data);

    let patch = Patch::Merge(json!({"data": {"k": "3"}}));
    let patched: ConfigMap = client.patch("default", "a", None, &patch).await?;
    assert_eq!(patched.data.expect("data")["k"], "3");
    let apply = Patch::Apply {
        manager: "test".to_owned(),
        force: true,
        object: json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"l": "4"}}),
    };
    let applied: ConfigMap = client.patch("default", "a", None, &apply).await?;
    assert_eq!(applied.data.expect("data")["l"], "4");

    let list = client.list::<ConfigMap>("", &ListOptions { limit: 1, ..ListOptions::default() }).await?;
    assert_eq!(list.items.len(), 1);

    let wrong = delete_options(Some("another"), None);
    assert!(client.delete::<ConfigMap>("default", "a", &wrong).await.expect_err("another uid").is_conflict());
    client.delete::<ConfigMap>("default", "a", &DeleteOptions::default()).await?;

    let discovery = client.discover().await?;
    let deployments = discovery.find("apps/v1", "Deployment").expect("served");
    assert!(deployments.can("watch") && deployments.key.namespaced);
    let maps = ResourceKey { namespaced: true, ..ResourceKey::of::<ConfigMap>() };
    let metas = client.dynamic(&maps).list_metadata("kube-system", &ListOptions::default()).await?;
    assert!(metas.items.iter().all(|item| item.metadata.uid.is_some()));
    server.stop().await
}

/// More watches than one connection allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_beyond_limit_use_more_connections() -> Result<()> {
    let server = Server::start().await?;
    let client = Client::connect(&server.kubeconfig, "test")?;
    let mut watches = Vec::new();
    for _ in 0..170 {
        let mut watch = client
            .watch::<Namespace>("", &WatchOptions { send_initial_events: true, ..WatchOptions::default() })
            .await?;
        assert!(watch.next().await?.is_some());
        watches.push(watch);
    }
    drop(watches);
    assert!(client.get::<Namespace>("", "default").await.is_ok());
    server.stop().await
}
