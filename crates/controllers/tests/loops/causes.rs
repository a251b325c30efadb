//! Causes of writes: the chain from a user's command to the write of the last loop.

use anyhow::Result;
use client::{Cause, Patch, ResourceKey};
use objects::apps::v1::Deployment;
use objects::core::v1::Pod;
use serde_json::{Value, json};
use testkit::eventually;

use crate::deployments::web;
use crate::world::{PATIENCE, World};

/// `verb object subresource by user` of every write of a chain.
fn write_lines(journal: &Value) -> Vec<String> {
    let text = |write: &Value, key: &str| write[key].as_str().unwrap_or_default().to_owned();
    let writes = journal["writes"].as_array().cloned().unwrap_or_default();
    writes
        .iter()
        .map(|write| {
            let (verb, object) = (text(write, "verb"), text(write, "object"));
            format!("{verb} {object} {} by {}", text(write, "subresource"), text(write, "user"))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cause_chain_from_scaled_deployment_to_bound_pod() -> Result<()> {
    let world = World::inside("deployment,replicaset,serviceaccount").await?;
    world.admin.create("default", &web(1)).await?;
    let pods = async || world.pods("default").await;
    let first = eventually("a pod", PATIENCE, pods, |pods| pods.len() == 1).await;

    let deployments = ResourceKey { namespaced: true, ..ResourceKey::of::<Deployment>() };
    let scale = Patch::Merge(json!({"spec": {"replicas": 2}}));
    world.admin.dynamic(&deployments).patch("default", "web", Some("scale"), &scale).await?;
    let both = eventually("another pod", PATIENCE, pods, |pods| pods.len() == 2).await;
    let new = |pod: &&Pod| first.iter().all(|old| old.metadata.uid != pod.metadata.uid);
    let pod = both.iter().find(new).expect("a new one");
    let name = pod.metadata.name.as_deref().expect("a name");

    let cause = Cause {
        controller: "default-scheduler".to_owned(),
        object: format!("pods/default/{name}"),
        revision: pod.metadata.resource_version.clone().unwrap_or_default(),
    };
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"},
    });
    let path = format!("/api/v1/namespaces/default/pods/{name}/binding");
    world.admin.with_cause(&cause).post::<Value, Value>(&path, &binding).await?;

    let path = format!("/debug/ferry/journal?object=pods/default/{name}&chain=true");
    let chain = write_lines(&world.admin.read(&path).await?);
    let owner = runtime::controller_of(&pod.metadata).expect("a replica set");
    let account = |name: &str| format!("system:serviceaccount:kube-system:{name}");
    let want = [
        format!("create pods/default/{name} binding by admin"),
        format!("create pods/default/{name}  by {}", account("replicaset-controller")),
        format!("update replicasets.apps/default/{}  by {}", owner.name, account("deployment-controller")),
        "patch deployments.apps/default/web scale by admin".to_owned(),
    ];
    assert_eq!(chain, want);

    let stranger = world.server.client_as("stranger", None)?;
    assert_eq!(stranger.get("/debug/ferry/journal").await?.status, 403);
    world.stop().await
}
