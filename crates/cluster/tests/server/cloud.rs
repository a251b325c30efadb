//! Cloud controllers against a real server: the local provider as `ferry up` runs it, with only its controllers'
//! permissions, and an HTTP provider of the test.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use base::clock::Clock;
use base::tasks::TaskGroup;
use client::{Client, ListOptions, Object, Patch, delete_options};
use cluster::{CloudConfig, CloudProvider, LocalLoadBalancers, ProviderConfig, run_cloud};
use objects::core::v1::{Node, Service};
use objects::events::v1::Event;
use serde_json::{Value, json};
use testkit::{Responder, Server, eventually};

const PATIENCE: Duration = Duration::from_secs(30);
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

struct World {
    server: Server,
    client: Client,
}

impl World {
    async fn start(load_balancers: Option<LocalLoadBalancers>) -> Result<Self> {
        let server = Server::start_with(|config| {
            config.components.controllers = vec!["service-cidr-controller".to_owned()];
            config.components.load_balancers = load_balancers;
        })
        .await?;
        let client = Client::connect(&server.kubeconfig, "test")?;
        Ok(Self { server, client })
    }

    async fn create<K: Object>(&self, ns: &str, object: Value) -> Result<K> {
        let object: K = objects::from_value(&object)?;
        self.client.create(ns, &object).await.context("an object could not be created")
    }

    async fn node(&self, name: &str, address: &str) -> Result<Node> {
        self.node_with(name, address, json!({})).await
    }

    async fn node_with(&self, name: &str, address: &str, spec: Value) -> Result<Node> {
        self.create::<Node>("", json!({ "metadata": { "name": name }, "spec": spec })).await?;
        let status = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": address }] } });
        Ok(self.client.patch("", name, Some("status"), &Patch::Merge(status)).await?)
    }

    async fn service(&self, name: &str, port: u16, change: impl FnOnce(&mut Value)) -> Result<Service> {
        let mut object = json!({
            "metadata": { "name": name },
            "spec": { "type": "LoadBalancer", "ports": [{ "port": port }], "selector": { "app": name } },
        });
        change(&mut object);
        self.create("default", object).await
    }

    async fn get(&self, name: &str) -> Option<Service> {
        self.client.get::<Service>("default", name).await.ok()
    }

    /// Waits until a service has these addresses.
    async fn has(&self, name: &str, expected: &[&str]) -> Service {
        let seen = eventually(
            &format!("the addresses of {name}"),
            PATIENCE,
            async || self.get(name).await,
            |service| service.as_ref().is_some_and(|service| addresses(service) == expected),
        )
        .await;
        seen.expect("a service")
    }

    async fn delete(&self, name: &str) -> Result<()> {
        Ok(self.client.delete::<Service>("default", name, &delete_options(None, None)).await?)
    }

    async fn gone(&self, name: &str) {
        eventually("gone", PATIENCE, async || self.get(name).await.map(|one| one.metadata), Option::is_none)
            .await;
    }

    async fn wait_for_event(&self, name: &str, reason: &str) -> String {
        let events = async || {
            let list = self.client.list::<Event>("", &ListOptions::default()).await.expect("events");
            let about = list.items.into_iter().filter(|event| {
                event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(name)
            });
            about
                .map(|event| (event.reason.unwrap_or_default(), event.note.unwrap_or_default()))
                .collect::<Vec<_>>()
        };
        let all = eventually(&format!("{reason} of {name}"), PATIENCE, events, |all| {
            all.iter().any(|(known, _)| known == reason)
        })
        .await;
        all.into_iter().find(|(known, _)| known == reason).map(|(_, note)| note).unwrap_or_default()
    }
}

fn addresses(service: &Service) -> Vec<String> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.clone()).unwrap_or_default();
    ingress.into_iter().filter_map(|one| one.ip.or(one.hostname)).collect()
}

fn finalizers(service: &Service) -> Vec<String> {
    service.metadata.finalizers.clone().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_balancer_services_get_node_addresses_by_default() -> Result<()> {
    let world = World::start(Some(LocalLoadBalancers { ranges: vec![], reserved_ports: vec![6443] })).await?;
    // No address before a node exists.
    let made = world.service("web", 80, |_| {}).await?;
    assert!(addresses(&made).is_empty());
    world.wait_for_event("web", "UnAvailableLoadBalancer").await;
    world.node("a", "192.0.2.1").await?;
    let web = world.has("web", &["192.0.2.1"]).await;
    assert_eq!(finalizers(&web), [FINALIZER]);
    world.node("b", "192.0.2.2").await?;
    world.has("web", &["192.0.2.1", "192.0.2.2"]).await;
    for reason in ["EnsuringLoadBalancer", "EnsuredLoadBalancer", "UpdatedLoadBalancer"] {
        world.wait_for_event("web", reason).await;
    }
    // A node is removed.
    let exclude = json!({ "metadata": { "labels": { "node.kubernetes.io/exclude-from-external-load-balancers": "true" } } });
    world.client.patch::<Node>("", "b", None, &Patch::Merge(exclude)).await?;
    world.has("web", &["192.0.2.1"]).await;
    // Another class, the node's own port, an allocated port.
    let other =
        world.service("other", 80, |one| one["spec"]["loadBalancerClass"] = json!("example.com/lb")).await?;
    world.service("api", 6443, |_| {}).await?;
    let note = world.wait_for_event("api", "SyncLoadBalancerFailed").await;
    assert!(note.contains("port 6443 is in use by the nodes"), "{note}");
    world.service("late", 80, |_| {}).await?;
    let note = world.wait_for_event("late", "SyncLoadBalancerFailed").await;
    assert!(note.contains("port 80/TCP of 192.0.2.1 is allocated to default/web"), "{note}");
    // The first one is deleted with its load balancer; the waiting one gets its port.
    world.delete("web").await?;
    world.gone("web").await;
    world.has("late", &["192.0.2.1"]).await;
    world.wait_for_event("web", "DeletedLoadBalancer").await;
    // No longer a load balancer: no address, no finalizer.
    let plain = json!({ "spec": { "type": "ClusterIP", "allocateLoadBalancerNodePorts": null, "externalTrafficPolicy": null,
        "ports": [{ "port": 80, "protocol": "TCP", "nodePort": null }] } });
    world.client.patch::<Service>("default", "late", None, &Patch::Merge(plain)).await?;
    let freed = |service: &Option<Service>| {
        service.as_ref().is_some_and(|one| addresses(one).is_empty() && finalizers(one).is_empty())
    };
    eventually("freed", PATIENCE, async || world.get("late").await, freed).await;
    let other = world.get("other").await.unwrap_or(other);
    assert!(addresses(&other).is_empty() && finalizers(&other).is_empty(), "{other:?}");
    world.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_balancer_services_get_addresses_of_range() -> Result<()> {
    let ranges = vec!["192.0.2.100-192.0.2.101".to_owned()];
    let world = World::start(Some(LocalLoadBalancers { ranges, reserved_ports: vec![] })).await?;
    world.service("one", 80, |_| {}).await?;
    world.has("one", &["192.0.2.100"]).await;
    world.service("two", 80, |one| one["spec"]["loadBalancerIP"] = json!("192.0.2.101")).await?;
    world.has("two", &["192.0.2.101"]).await;
    world.service("three", 80, |_| {}).await?;
    let note = world.wait_for_event("three", "SyncLoadBalancerFailed").await;
    assert!(note.contains("the load balancer range is exhausted"), "{note}");
    world.delete("one").await?;
    world.has("three", &["192.0.2.100"]).await;
    world.server.stop().await
}

/// State of the test's cloud.
#[derive(Debug, Default)]
struct Cloud {
    gone: Vec<String>,
    off: Vec<String>,
    routes: Vec<Value>,
    balancers: Vec<Value>,
    /// Remaining responses that ask for a retry.
    slow: usize,
}

impl Cloud {
    fn answer(&mut self, path: &str, body: &Value) -> (u16, Value) {
        if path != "/cloud/v1/describe" && body["cluster"] != "prod" {
            return (400, json!({ "message": "which cluster?" }));
        }
        let uid = &body["service"]["uid"];
        match path {
            "/cloud/v1/describe" => {
                (200, json!({ "name": "acme", "capabilities": ["instances", "routes", "loadBalancers"] }))
            }
            "/cloud/v1/instances/find" => {
                let name = body["node"]["name"].as_str().unwrap_or_default().to_owned();
                let there = !self.gone.contains(&name);
                (
                    200,
                    json!({
                        "exists": there, "providerID": format!("acme://{name}"), "type": "big", "zone": "z1",
                        "region": "r1", "shutDown": self.off.contains(&name),
                        "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }, { "type": "ExternalIP", "address": "198.51.100.1" }],
                        "labels": { "acme.example/rack": "7" },
                    }),
                )
            }
            "/cloud/v1/routes/list" => (200, json!({ "routes": self.routes })),
            "/cloud/v1/routes/create" => {
                let mut route = body["route"].clone();
                route["name"] = json!(format!("route-{}", body["nameHint"].as_str().unwrap_or_default()));
                self.routes.push(route);
                (200, json!({}))
            }
            "/cloud/v1/routes/delete" => {
                self.routes.retain(|route| route["name"] != body["route"]["name"]);
                (200, json!({}))
            }
            "/cloud/v1/load-balancers/get" => {
                let found = self.balancers.iter().any(|one| one["service"]["uid"] == *uid);
                (200, json!({ "exists": found, "ingress": [{ "hostname": "lb.acme.example" }] }))
            }
            "/cloud/v1/load-balancers/ensure" | "/cloud/v1/load-balancers/update" => {
                if self.slow > 0 {
                    self.slow -= 1;
                    return (503, json!({ "message": "being built", "retryAfterSeconds": 1 }));
                }
                self.balancers.retain(|one| one["service"]["uid"] != *uid);
                self.balancers.push(body.clone());
                (200, json!({ "ingress": [{ "hostname": "lb.acme.example" }] }))
            }
            "/cloud/v1/load-balancers/delete" => {
                self.balancers.retain(|one| one["service"]["uid"] != *uid);
                (200, json!({}))
            }
            _ => (404, json!({ "message": format!("no {path}") })),
        }
    }
}

/// A node that the cloud initialized, with a route.
fn is_initialized(node: &Node) -> bool {
    let (spec, status) = (node.spec.clone().unwrap_or_default(), node.status.clone().unwrap_or_default());
    let label = |key: &str| node.metadata.labels.as_ref().and_then(|all| all.get(key)).cloned();
    let taints = spec.taints.unwrap_or_default();
    let routed = status.conditions.unwrap_or_default().iter().any(|condition| {
        condition.type_ == "NetworkUnavailable" && condition.reason.as_deref() == Some("RouteCreated")
    });
    spec.provider_id.as_deref() == Some("acme://n1")
        && label("topology.kubernetes.io/zone").as_deref() == Some("z1")
        && label("acme.example/rack").as_deref() == Some("7")
        && !taints.iter().any(|taint| taint.key.starts_with("node.cloudprovider"))
        && status.addresses.unwrap_or_default().len() == 2
        && routed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_provider_manages_nodes_and_load_balancers() -> Result<()> {
    let world = World::start(None).await?;
    let cloud = Arc::new(Mutex::new(Cloud { slow: 1, ..Cloud::default() }));
    let state = Arc::clone(&cloud);
    let responder =
        Responder::start(move |path, body| state.lock().expect("the cloud").answer(path, body)).await?;
    let directory = tempfile::tempdir()?;
    let authority = directory.path().join("ca.pem");
    std::fs::write(&authority, &responder.certificate)?;
    let text = format!("url: {}/cloud\ncaFile: {}\n", responder.url, authority.display());
    let provider = CloudProvider::Http(ProviderConfig::parse(text.as_bytes())?);
    let config = CloudConfig {
        cluster_name: "prod".to_owned(),
        cluster_cidrs: vec!["10.1.0.0/16".to_owned()],
        node_monitor_period: Duration::from_millis(200),
        ..CloudConfig::new(provider)
    };
    let tasks = TaskGroup::new();
    let (kubeconfig, running) = (world.server.kubeconfig.clone(), tasks.clone());
    let manager =
        tokio::spawn(async move { run_cloud(&config, &kubeconfig, &Clock::system(), &running).await });

    // A node with the uninitialized taint.
    let taint = json!([{ "key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule" }]);
    world
        .node_with(
            "n1",
            "10.0.0.9",
            json!({ "taints": taint, "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"] }),
        )
        .await?;
    let node = async || world.client.get::<Node>("", "n1").await.expect("a node");
    eventually("initialized and routed", PATIENCE, node, is_initialized).await;
    // The route is replaced when the node gets its second address.
    let routed = async || cloud.lock().expect("the cloud").routes.clone();
    let to_the_pods =
        |routes: &Vec<Value>| routes.len() == 1 && routes[0]["destinationCIDR"] == "10.1.0.0/24";
    eventually("a route to the pods", PATIENCE, routed, to_the_pods).await;

    // A service; the cloud is slow.
    world.service("web", 80, |one| one["spec"]["externalTrafficPolicy"] = json!("Local")).await?;
    let web = world.has("web", &["lb.acme.example"]).await;
    world.wait_for_event("web", "SyncLoadBalancerFailed").await;
    let balancer = cloud.lock().expect("the cloud").balancers[0].clone();
    assert_eq!(balancer["nodes"][0]["providerID"], "acme://n1");
    let health = web.spec.as_ref().and_then(|spec| spec.health_check_node_port);
    assert_eq!(balancer["service"]["healthCheck"]["port"], json!(health));

    // Shut down, then deleted.
    cloud.lock().expect("the cloud").off.push("n1".to_owned());
    let off = |node: &Node| {
        let taints = node.spec.clone().unwrap_or_default().taints.unwrap_or_default();
        taints.iter().any(|taint| taint.key == "node.cloudprovider.kubernetes.io/shutdown")
    };
    eventually("tainted", PATIENCE, node, off).await;
    cloud.lock().expect("the cloud").gone.push("n1".to_owned());
    let nodes =
        async || world.client.list::<Node>("", &ListOptions::default()).await.expect("nodes").items.len();
    eventually("deleted", PATIENCE, nodes, |count| *count == 0).await;
    world.wait_for_event("n1", "DeletingNode").await;
    let routes = async || cloud.lock().expect("the cloud").routes.len();
    eventually("no route", PATIENCE, routes, |count| *count == 0).await;

    world.delete("web").await?;
    world.gone("web").await;
    assert!(cloud.lock().expect("the cloud").balancers.is_empty());
    tasks.stop();
    manager.await??;
    world.server.stop().await
}
