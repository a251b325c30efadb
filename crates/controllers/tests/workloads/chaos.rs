//! Chaos: deployments, stateful sets, daemon sets and jobs on simulated nodes, while loops are killed and restarted and
//! pods and nodes are deleted at random. Afterwards the world is exactly as desired: nothing missing, nothing too much.
//!
//! The short form runs always; `FERRY_CHAOS=long` makes it twenty of each on fifty nodes for two minutes.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use anyhow::Result;
use client::{ListOptions, Patch, delete_options};
use controllers::LOOPS;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use testkit::eventually;

use crate::world::{World, template};

struct Size {
    each: usize,
    nodes: usize,
    chaos: Duration,
    settle: Duration,
}

fn size() -> Size {
    if std::env::var("FERRY_CHAOS").is_ok_and(|size| size == "long") {
        Size { each: 20, nodes: 50, chaos: Duration::from_secs(120), settle: Duration::from_secs(300) }
    } else {
        Size { each: 3, nodes: 5, chaos: Duration::from_secs(5), settle: Duration::from_secs(120) }
    }
}

/// One round of the scheduler and all kubelets: every pod moves one step on.
async fn run_nodes(world: &World) -> Result<()> {
    let nodes: Vec<String> = world
        .client
        .list::<Node>("", &ListOptions::default())
        .await?
        .items
        .into_iter()
        .filter_map(|node| node.metadata.name)
        .collect();
    let pods = world.client.list::<Pod>("default", &ListOptions::default()).await?.items;
    for (turn, pod) in pods.iter().enumerate() {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty());
        let lost = node.as_ref().is_some_and(|node| !nodes.contains(node));
        // Errors are other parts of the chaos: the pod went meanwhile.
        if pod.metadata.deletion_timestamp.is_some() || lost {
            if !matches!(phase, "Succeeded" | "Failed") {
                // A kubelet, or for a lost node the pod garbage collector, says how it ended before it goes.
                let end = json!({ "status": { "phase": "Failed", "conditions": [
                    { "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC" },
                ] } });
                let _ =
                    world.client.patch::<Pod>("default", name, Some("status"), &Patch::Strategic(end)).await;
            }
            let mut options = delete_options(pod.metadata.uid.as_deref(), None);
            options.grace_period_seconds = Some(0);
            let _ = world.client.delete::<Pod>("default", name, &options).await;
            continue;
        }
        match (node, phase) {
            (None, _) => {
                let target = target_of(pod).or_else(|| nodes.get(turn % nodes.len().max(1)).cloned());
                let Some(target) = target.filter(|target| nodes.contains(target)) else { continue };
                let binding = json!({
                    "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
                    "target": { "apiVersion": "v1", "kind": "Node", "name": target },
                });
                let path = format!("/api/v1/namespaces/default/pods/{name}/binding");
                let _ = world.client.post::<Value, Value>(&path, &binding).await;
            }
            (Some(_), "Pending") => {
                let _ = world.phase(name, "Running", 0).await;
            }
            (Some(_), "Running") if is_of_job(pod) => {
                let _ = world.phase(name, "Succeeded", 0).await;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The node that a daemon's pod asks for.
fn target_of(pod: &Pod) -> Option<String> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let field = required.node_selector_terms.first()?.match_fields.as_ref()?.first()?;
    field.values.as_ref()?.first().cloned()
}

fn owner(pod: &Pod) -> Option<(String, String)> {
    let owner =
        pod.metadata.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))?;
    Some((owner.kind.clone(), owner.name.clone()))
}

fn is_of_job(pod: &Pod) -> bool {
    owner(pod).is_some_and(|(kind, _)| kind == "Job")
}

/// A node that is ready, as the lifecycle loop would have it.
async fn add_node(world: &World, name: &str) -> Result<()> {
    world.node(name).await?;
    world.client.patch::<Node>("", name, None, &Patch::Merge(json!({ "spec": { "taints": null } }))).await?;
    Ok(())
}

/// What differs from what is desired.
async fn troubles(world: &World, size: &Size, deployments: bool) -> Vec<String> {
    let mut troubles = Vec::new();
    let nodes = world.client.list::<Node>("", &ListOptions::default()).await.expect("nodes").items.len();
    let pods = world.client.list::<Pod>("default", &ListOptions::default()).await.expect("pods").items;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut ready: BTreeMap<String, usize> = BTreeMap::new();
    for pod in &pods {
        let app =
            pod.metadata.labels.as_ref().and_then(|labels| labels.get("app")).cloned().unwrap_or_default();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let good = if is_of_job(pod) { phase == "Succeeded" } else { phase == "Running" };
        let name = pod.metadata.name.clone().unwrap_or_default();
        if pod.metadata.deletion_timestamp.is_some() {
            troubles.push(format!("{name} is still going"));
        }
        if owner(pod).is_none() {
            troubles.push(format!("{name} has no owner"));
        }
        if pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty()) {
            troubles.push(format!("{name} has a finalizer"));
        }
        *counts.entry(app.clone()).or_default() += 1;
        *ready.entry(app).or_default() += usize::from(good);
    }
    for n in 0..size.each {
        let mut wanted = HashMap::from([(format!("set{n}"), 3), (format!("daemon{n}"), nodes)]);
        if deployments {
            wanted.insert(format!("deploy{n}"), 3);
        }
        for (app, count) in wanted {
            let (all, good) = (counts.get(&app).copied().unwrap_or(0), ready.get(&app).copied().unwrap_or(0));
            if (all, good) != (count, count) {
                troubles.push(format!("{app}: {all} pods, {good} good, of {count}"));
            }
        }
        let job = world.client.get::<Job>("default", &format!("job{n}")).await.expect("a job");
        let status = job.status.unwrap_or_default();
        let complete =
            status.conditions.iter().flatten().any(|c| c.type_ == "Complete" && c.status == "True");
        if !complete || status.succeeded != Some(4) {
            troubles.push(format!("job{n}: {:?} succeeded, complete: {complete}", status.succeeded));
        }
        let daemon =
            world.client.get::<DaemonSet>("default", &format!("daemon{n}")).await.expect("a daemon set");
        let available = daemon.status.and_then(|status| status.number_available).unwrap_or(0);
        if usize::try_from(available).ok() != Some(nodes) {
            troubles.push(format!("daemon{n} says {available} available"));
        }
        let set =
            world.client.get::<StatefulSet>("default", &format!("set{n}")).await.expect("a stateful set");
        if set.status.and_then(|status| status.available_replicas) != Some(3) {
            troubles.push(format!("set{n} does not say 3 available"));
        }
    }
    troubles
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_world_converges_whatever_is_killed() -> Result<()> {
    let size = size();
    let wanted = [
        "job-controller",
        "statefulset-controller",
        "daemonset-controller",
        "deployment-controller",
        "replicaset-controller",
        "garbage-collector-controller",
    ];
    let there = |name: &&str| LOOPS.iter().any(|row| row.descriptor.name == *name);
    let names: Vec<&'static str> = wanted.into_iter().filter(there).collect();
    let deployments = names.contains(&"deployment-controller") && names.contains(&"replicaset-controller");
    let mut world = World::start(&names).await?;
    let seed =
        std::env::var("FERRY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    for n in 0..size.nodes {
        add_node(&world, &format!("node{n}")).await?;
    }
    for n in 0..size.each {
        let select = |app: &str| json!({ "matchLabels": { "app": app } });
        let app = format!("set{n}");
        let policy = if n % 2 == 0 { "OrderedReady" } else { "Parallel" };
        world
            .create::<StatefulSet>(json!({ "metadata": { "name": app }, "spec": {
            "replicas": 3, "serviceName": app, "podManagementPolicy": policy,
            "selector": select(&app), "template": template(&app),
        } }))
            .await?;
        let app = format!("daemon{n}");
        world
            .create::<DaemonSet>(json!({ "metadata": { "name": app }, "spec": {
            "selector": select(&app), "template": template(&app),
        } }))
            .await?;
        let app = format!("job{n}");
        let mut pod = template(&app);
        pod["spec"]["restartPolicy"] = json!("Never");
        let mode = if n % 2 == 0 { "Indexed" } else { "NonIndexed" };
        world
            .create::<Job>(json!({ "metadata": { "name": app }, "spec": {
            "completions": 4, "parallelism": 2, "backoffLimit": 1000, "completionMode": mode, "template": pod,
            // Deleted pods are nobody's fault: they neither count nor delay.
            "podFailurePolicy": { "rules": [{ "action": "Ignore", "onPodConditions": [
                { "type": "DisruptionTarget", "status": "True" },
            ] }] },
        } }))
            .await?;
        if deployments {
            let app = format!("deploy{n}");
            world
                .create::<Deployment>(json!({ "metadata": { "name": app }, "spec": {
                "replicas": 3, "selector": select(&app), "template": template(&app),
            } }))
                .await?;
        }
    }
    let end = Instant::now() + size.chaos;
    let mut extra = 0;
    while Instant::now() < end {
        run_nodes(&world).await?;
        match random.random_range(0..10) {
            0..=1 => world.restart_loops().await?,
            2..=6 => {
                let pods: Vec<_> = world.pods().await.into_iter().filter(|pod| !is_of_job(pod)).collect();
                if !pods.is_empty() {
                    let pod = &pods[random.random_range(0..pods.len())];
                    let options = delete_options(pod.metadata.uid.as_deref(), None);
                    let name = pod.metadata.name.as_deref().unwrap_or_default();
                    let _ = world.client.delete::<Pod>("default", name, &options).await;
                }
            }
            7 => {
                let nodes = world.client.list::<Node>("", &ListOptions::default()).await?.items;
                if nodes.len() > 2 {
                    let name =
                        nodes[random.random_range(0..nodes.len())].metadata.name.clone().unwrap_or_default();
                    let _ = world.client.delete::<Node>("", &name, &delete_options(None, None)).await;
                }
            }
            8 => {
                extra += 1;
                add_node(&world, &format!("extra{extra}")).await?;
            }
            _ => tokio::time::sleep(Duration::from_millis(random.random_range(0..100))).await,
        }
    }
    world.restart_loops().await?;
    let seen = async || {
        run_nodes(&world).await.expect("nodes that run");
        troubles(&world, &size, deployments).await
    };
    eventually("the world is as desired", size.settle, seen, Vec::is_empty).await;
    // And it stays so.
    run_nodes(&world).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let later = troubles(&world, &size, deployments).await;
    assert!(later.is_empty(), "{later:?}");
    world.end().await
}
