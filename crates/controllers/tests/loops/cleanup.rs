//! Deletions that follow from an owner or a namespace, and the content of a new namespace.

use anyhow::Result;
use client::{ListOptions, Patch, Propagation, delete_options};
use objects::apps::v1::{Deployment, ReplicaSet};
use objects::core::v1::{ConfigMap, Endpoints, Namespace, Node, Pod, Service, ServiceAccount};
use objects::discovery::v1::EndpointSlice;
use serde_json::json;
use testkit::eventually;

use crate::deployments::web;
use crate::world::{PATIENCE, World};

async fn names<K: client::Object>(world: &World, ns: &str) -> Vec<String> {
    let list = world.admin.list::<K>(ns, &ListOptions::default()).await.expect("lists");
    list.items.iter().filter_map(|object| object.metadata().name.clone()).collect()
}

fn map(name: &str, owner: Option<&ConfigMap>) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.metadata.owner_references = owner.map(|owner| {
        vec![
            serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "ConfigMap", "blockOwnerDeletion": true,
                "name": owner.metadata.name, "uid": owner.metadata.uid,
            }))
            .expect("a reference"),
        ]
    });
    map
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dependents_are_deleted_by_propagation_policy() -> Result<()> {
    let world = World::inside("garbage-collector").await?;
    let admin = &world.admin;
    for (name, policy) in [
        ("background", Propagation::Background),
        ("foreground", Propagation::Foreground),
        ("orphan", Propagation::Orphan),
    ] {
        let parent = admin.create("default", &map(name, None)).await?;
        let child = admin.create("default", &map(&format!("{name}-child"), Some(&parent))).await?;
        admin.create("default", &map(&format!("{name}-grandchild"), Some(&child))).await?;
        admin.delete::<ConfigMap>("default", name, &delete_options(None, Some(policy))).await?;
    }
    // An owner that never existed.
    let mut ghost = map("ghost", None);
    ghost.metadata.uid = Some("00000000-0000-0000-0000-000000000000".to_owned());
    admin.create("default", &map("ghost-child", Some(&ghost))).await?;
    eventually(
        "only orphans are left",
        PATIENCE,
        async || names::<ConfigMap>(&world, "default").await,
        |names| *names == ["orphan-child", "orphan-grandchild"],
    )
    .await;
    let orphan: ConfigMap = admin.get("default", "orphan-child").await?;
    assert!(orphan.metadata.owner_references.is_none_or(|owners| owners.is_empty()));
    world.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_deployment_deletes_its_dependents() -> Result<()> {
    let world = World::inside("deployment,replicaset,serviceaccount,garbage-collector").await?;
    for policy in [Propagation::Background, Propagation::Foreground] {
        world.admin.create("default", &web(3)).await?;
        let count = async || names::<Pod>(&world, "default").await.len();
        eventually("pods", PATIENCE, count, |count| *count == 3).await;
        world.admin.delete::<Deployment>("default", "web", &delete_options(None, Some(policy))).await?;
        let left = async || {
            world.run_pods("default").await;
            let deployments = names::<Deployment>(&world, "default").await.len();
            (deployments, names::<ReplicaSet>(&world, "default").await.len(), count().await)
        };
        eventually("nothing is left", PATIENCE, left, |left| *left == (0, 0, 0)).await;
    }
    world.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespace_gets_defaults_and_is_deleted_with_content() -> Result<()> {
    let world = World::inside("*").await?;
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "team"}}))?;
    world.admin.create("", &namespace).await?;
    let accounts = async || names::<ServiceAccount>(&world, "team").await;
    eventually("a service account", PATIENCE, accounts, |names| *names == ["default"]).await;
    let maps = async || names::<ConfigMap>(&world, "team").await;
    eventually("the CA config map", PATIENCE, maps, |names| *names == ["kube-root-ca.crt"]).await;

    let mut held = map("held", None);
    held.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    world.admin.create("team", &held).await?;
    let mut deployment = web(2);
    deployment.metadata.namespace = Some("team".to_owned());
    world.admin.create("team", &deployment).await?;
    let pods = async || names::<Pod>(&world, "team").await.len();
    eventually("pods", PATIENCE, pods, |count| *count == 2).await;

    world.admin.delete::<Namespace>("", "team", &delete_options(None, None)).await?;
    let state = async || {
        world.run_pods("team").await;
        let namespace: Namespace = world.admin.get("", "team").await.expect("still there");
        let conditions = namespace.status.and_then(|status| status.conditions).unwrap_or_default();
        let held = conditions.into_iter().find(|condition| condition.type_ == "NamespaceFinalizersRemaining");
        (pods().await, held.and_then(|condition| condition.message).unwrap_or_default())
    };
    eventually("only objects with finalizers are left", PATIENCE, state, |(pods, message)| {
        *pods == 0 && message.contains("example.com/hold in 1 resource instances")
    })
    .await;
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    world.admin.patch::<ConfigMap>("team", "held", None, &release).await?;
    let gone =
        async || world.admin.get::<Namespace>("", "team").await.is_err_and(|error| error.is_not_found());
    eventually("the namespace is deleted", PATIENCE, gone, |gone| *gone).await;
    world.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_endpoints_follow_pods() -> Result<()> {
    let world = World::inside("endpointslice,endpoints,serviceaccount").await?;
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1"}}))?;
    world.admin.create("", &node).await?;
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }))?;
    world.admin.create("default", &service).await?;
    let account = async || names::<ServiceAccount>(&world, "default").await.len();
    eventually("a service account", PATIENCE, account, |count| *count == 1).await;
    for number in 1..=3 {
        let name = format!("p{number}");
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "example.com/x"}]},
        }))?;
        world.admin.create("default", &pod).await?;
        let ip = format!("10.1.0.{number}");
        let status = Patch::Strategic(json!({"status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": if number == 3 { "False" } else { "True" }}],
        }}));
        world.admin.patch::<Pod>("default", &name, Some("status"), &status).await?;
    }
    let ready = async || {
        let slices =
            world.admin.list::<EndpointSlice>("default", &ListOptions::default()).await.expect("lists");
        let own = slices.items.iter().filter(|slice| {
            slice.metadata.labels.as_ref().is_some_and(|labels| labels["kubernetes.io/service-name"] == "web")
        });
        let all: Vec<bool> = own
            .flat_map(|slice| slice.endpoints.iter().flatten())
            .map(|endpoint| {
                endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true)
            })
            .collect();
        let endpoints = world.admin.get::<Endpoints>("default", "web").await.ok();
        let subsets = endpoints.and_then(|endpoints| endpoints.subsets).unwrap_or_default();
        let addresses =
            subsets.iter().map(|subset| subset.addresses.as_ref().map_or(0, Vec::len)).sum::<usize>();
        (all.len(), all.iter().filter(|ready| **ready).count(), addresses)
    };
    eventually("three endpoints, two of them ready", PATIENCE, ready, |seen| *seen == (3, 2, 2)).await;
    world
        .admin
        .delete::<Pod>(
            "default",
            "p1",
            &client::DeleteOptions { grace_period_seconds: Some(0), ..client::DeleteOptions::default() },
        )
        .await?;
    eventually("one less", PATIENCE, ready, |seen| *seen == (2, 1, 1)).await;
    world.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_of_deleted_service_are_deleted() -> Result<()> {
    let mut world = World::outside().await?;
    let endpoints = |name: &str, annotation: &str| {
        let meta = json!({
            "name": name, "annotations": {annotation: "{}"},
            "labels": {"endpoints.kubernetes.io/managed-by": "endpoint-controller"},
        });
        serde_json::from_value::<Endpoints>(json!({"metadata": meta})).expect("endpoints")
    };
    world.admin.create("default", &endpoints("leftover", "example.com/note")).await?;
    let election = endpoints("election", "control-plane.alpha.kubernetes.io/leader");
    world.admin.create("default", &election).await?;
    world.start_loops("endpoints")?;
    let left = async || {
        let mut names = names::<Endpoints>(&world, "default").await;
        names.retain(|name| name != "kubernetes");
        names
    };
    eventually("no leftovers", PATIENCE, left, |names| *names == ["election"]).await;

    // Endpoints without a service are left alone while the loop runs; those of a service are deleted with it.
    world.admin.create("default", &endpoints("alone", "example.com/note")).await?;
    let service: Service =
        serde_json::from_value(json!({"metadata": {"name": "manual"}, "spec": {"ports": [{"port": 80}]}}))?;
    world.admin.create("default", &service).await?;
    let mut manual = endpoints("manual", "example.com/note");
    manual.metadata.labels = None;
    world.admin.create("default", &manual).await?;
    world.admin.delete::<Service>("default", "manual", &delete_options(None, None)).await?;
    eventually("the service's endpoints are deleted", PATIENCE, left, |names| {
        !names.iter().any(|name| name == "manual")
    })
    .await;
    assert_eq!(left().await, ["alone", "election"]);
    world.stop().await
}
