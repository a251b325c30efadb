//! Allocation of devices by the scheduler, with claims that the resource claim loop makes.

use anyhow::Result;
use client::{Client, DeleteOptions, Patch};
use objects::core::v1::{Node, Pod, ServiceAccount};
use objects::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use serde_json::{Value, json};
use testkit::{Server, eventually};

use crate::world::PATIENCE;

const DRIVER: &str = "gpu.example.com";
const RESOURCE: &str = "example.com/gpu";

struct World {
    server: Server,
    admin: Client,
}

impl World {
    /// A server with the scheduler and the resource claim loop, two nodes, and a device class.
    async fn start() -> Result<Self> {
        let server = Server::start_with(|config| {
            config.components.controllers = vec!["resourceclaim-controller".to_owned()];
            config.components.scheduler = Some(Default::default());
        })
        .await?;
        let admin = Client::connect(&server.kubeconfig, "admin")?;
        let world = Self { server, admin };
        let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
        world.admin.create("default", &account).await?;
        for name in ["a", "b"] {
            let allocatable = json!({"cpu": "8", "memory": "8Gi", "pods": "110"});
            let node: Node = serde_json::from_value(json!({"metadata": {"name": name},
                "status": {"allocatable": allocatable, "capacity": allocatable}}))?;
            let mut node = world.admin.create("", &node).await?;
            // Admission adds the not-ready taint, and the node lifecycle loop that removes it does not run here.
            node.spec.get_or_insert_default().taints = None;
            world.admin.update(&node).await?;
        }
        let selector = json!({"cel": {"expression": format!("device.driver == '{DRIVER}'")}});
        let class: DeviceClass = serde_json::from_value(json!({"metadata": {"name": "gpus"},
            "spec": {"selectors": [selector], "extendedResourceName": RESOURCE}}))?;
        world.admin.create("", &class).await?;
        Ok(world)
    }

    /// Publishes the devices of a node.
    async fn publish(&self, node: &str, devices: Value) -> Result<()> {
        let slice: ResourceSlice = serde_json::from_value(json!({"metadata": {"name": node}, "spec": {
            "driver": DRIVER, "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        }}))?;
        self.admin.create("", &slice).await?;
        Ok(())
    }

    async fn template(&self, name: &str, request: Value) -> Result<()> {
        let template: ResourceClaimTemplate = serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": [request]}}}}))?;
        self.admin.create("default", &template).await?;
        Ok(())
    }

    async fn pod(&self, name: &str, spec: Value) -> Result<()> {
        let mut pod = json!({"metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "image:1"}]}});
        for (key, value) in spec.as_object().into_iter().flatten() {
            pod["spec"][key] = value.clone();
        }
        self.admin.create("default", &serde_json::from_value::<Pod>(pod)?).await?;
        Ok(())
    }

    /// Pod with a claim from a template.
    async fn user(&self, name: &str, template: &str) -> Result<()> {
        let containers =
            json!([{"name": "c", "image": "image:1", "resources": {"claims": [{"name": "gpu"}]}}]);
        let claims = json!([{"name": "gpu", "resourceClaimTemplateName": template}]);
        self.pod(name, json!({"containers": containers, "resourceClaims": claims})).await
    }

    async fn get(&self, name: &str) -> Pod {
        self.admin.get::<Pod>("default", name).await.expect("a pod")
    }

    /// Node of a pod, and the device of its claim with the request that it satisfies.
    async fn placement(&self, name: &str) -> (String, String) {
        let pod = self.get(name).await;
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let generated = status.resource_claim_statuses.iter().flatten();
        let generated = generated.filter_map(|status| status.resource_claim_name.clone());
        let extended = status.extended_resource_claim_status.map(|status| status.resource_claim_name);
        let Some(claim) = generated.chain(extended).next() else { return (node, String::new()) };
        let Ok(claim) = self.admin.get::<ResourceClaim>("default", &claim).await else {
            return (node, String::new());
        };
        let status = claim.status.unwrap_or_default();
        let uid = pod.metadata.uid.unwrap_or_default();
        let is_reserved = status.reserved_for.iter().flatten().any(|user| user.uid == uid);
        let results = status.allocation.and_then(|allocation| allocation.devices?.results);
        let device = results.into_iter().flatten().next();
        let device =
            device.filter(|_| is_reserved).map(|result| format!("{}={}", result.request, result.device));
        (node, device.unwrap_or_default())
    }

    async fn placed(&self, name: &str, node: &str, device: &str) {
        let want = (node.to_owned(), device.to_owned());
        eventually(
            "the pod gets its device",
            PATIENCE,
            async || self.placement(name).await,
            |seen| *seen == want,
        )
        .await;
    }

    /// Waits for the reason why a pod is unschedulable.
    async fn waits(&self, name: &str, reason: &str) {
        let message = async || {
            let conditions = self.get(name).await.status.and_then(|status| status.conditions);
            let scheduled = conditions.into_iter().flatten().find(|one| one.type_ == "PodScheduled");
            scheduled.and_then(|condition| condition.message).unwrap_or_default()
        };
        eventually("the pod is unschedulable", PATIENCE, message, |message| message.contains(reason)).await;
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let now = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        Ok(self.admin.delete::<Pod>("default", name, &now).await?)
    }
}

fn request(fields: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "gpus"});
    for (key, value) in fields.as_object().into_iter().flatten() {
        exactly[key] = value.clone();
    }
    json!({"name": "r", "exactly": exactly})
}

fn of_model(model: &str) -> Value {
    json!([{"cel": {"expression": format!("device.attributes['{DRIVER}'].model == '{model}'")}}])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_get_devices_one_after_another() -> Result<()> {
    let world = World::start().await?;
    world.publish("b", json!([{"name": "gpu0"}])).await?;
    world.template("one", request(json!({}))).await?;
    world.user("first", "one").await?;
    world.placed("first", "b", "r=gpu0").await;
    let claim = world.get("first").await.status.and_then(|status| status.resource_claim_statuses);
    let name = claim.into_iter().flatten().next().and_then(|status| status.resource_claim_name);
    let claim = world.admin.get::<ResourceClaim>("default", &name.expect("a claim")).await?;
    assert_eq!(claim.metadata.finalizers, Some(vec!["resource.kubernetes.io/delete-protection".to_owned()]));
    let allocation = claim.status.and_then(|status| status.allocation).expect("allocated");
    assert!(allocation.allocation_timestamp.is_some());
    let selector = serde_json::to_value(allocation.node_selector)?;
    assert_eq!(selector["nodeSelectorTerms"][0]["matchFields"][0]["values"], json!(["b"]));

    world.user("second", "one").await?;
    world.waits("second", "2 cannot allocate all claims").await;
    world.delete("first").await?;
    world.placed("second", "b", "r=gpu0").await;

    // A pod whose claim needs devices that are published later.
    world.user("third", "one").await?;
    world.waits("third", "2 cannot allocate all claims").await;
    world.publish("a", json!([{"name": "gpu1"}])).await?;
    world.placed("third", "a", "r=gpu1").await;
    world.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prioritized_list_falls_back_and_taints_are_avoided() -> Result<()> {
    let world = World::start().await?;
    let model = |name: &str, model: &str| json!({"name": name, "attributes": {"model": {"string": model}}});
    let mut tainted = model("gpu2", "large");
    tainted["taints"] = json!([{"key": "example.com/broken", "effect": "NoSchedule"}]);
    world.publish("a", json!([tainted, model("gpu0", "small")])).await?;
    world.publish("b", json!([model("gpu1", "large")])).await?;
    let alternatives = json!([
        {"name": "large", "deviceClassName": "gpus", "selectors": of_model("large")},
        {"name": "small", "deviceClassName": "gpus", "selectors": of_model("small")},
    ]);
    world.template("list", json!({"name": "r", "firstAvailable": alternatives})).await?;
    world.user("first", "list").await?;
    world.placed("first", "b", "r/large=gpu1").await;
    world.user("second", "list").await?;
    world.placed("second", "a", "r/small=gpu0").await;
    world.user("third", "list").await?;
    world.waits("third", "2 cannot allocate all claims").await;
    let tolerations = json!([{"key": "example.com/broken", "operator": "Exists"}]);
    world.template("tolerant", request(json!({"tolerations": tolerations}))).await?;
    world.user("fourth", "tolerant").await?;
    world.placed("fourth", "a", "r=gpu2").await;
    world.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_claim_and_extended_resource_get_devices() -> Result<()> {
    let world = World::start().await?;
    world.publish("a", json!([{"name": "gpu0"}])).await?;
    world.publish("b", json!([{"name": "gpu1"}])).await?;
    let claim: ResourceClaim = serde_json::from_value(json!({
        "metadata": {"name": "shared"}, "spec": {"devices": {"requests": [request(json!({}))]}}}))?;
    world.admin.create("default", &claim).await?;
    let spec = json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]});
    for name in ["one", "two", "three"] {
        world.pod(name, spec.clone()).await?;
    }
    let users = async || {
        let claim = world.admin.get::<ResourceClaim>("default", "shared").await.expect("the claim");
        claim.status.and_then(|status| status.reserved_for).unwrap_or_default().len()
    };
    eventually("all pods share the claim", PATIENCE, users, |users| *users == 3).await;
    let node = async |name: &str| world.placement(name).await.0;
    let (one, two, three) = (node("one").await, node("two").await, node("three").await);
    eventually("all pods are bound", PATIENCE, async || node("three").await, |node| !node.is_empty()).await;
    assert!([&one, &two, &three].iter().all(|node| node.is_empty() || **node == one || one.is_empty()));

    let (free, device) = if node("one").await == "a" { ("b", "gpu1") } else { ("a", "gpu0") };
    let resources = json!({"requests": {RESOURCE: "1"}, "limits": {RESOURCE: "1"}});
    let containers = json!([{"name": "c", "image": "image:1", "resources": resources}]);
    world.pod("extended", json!({"containers": containers})).await?;
    let want = format!("container-0-request-0={device}");
    world.placed("extended", free, &want).await;
    let status = world.get("extended").await.status.and_then(|status| status.extended_resource_claim_status);
    let status = status.expect("a claim for extended resources");
    assert_eq!(status.request_mappings[0].resource_name, RESOURCE);
    world.pod("more", json!({"containers": containers})).await?;
    world.waits("more", "2 cannot allocate all claims").await;
    world.server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_is_bound_when_binding_conditions_are_true() -> Result<()> {
    let world = World::start().await?;
    let device =
        json!({"name": "gpu0", "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]});
    world.publish("a", json!([device])).await?;
    let claim: ResourceClaim = serde_json::from_value(json!({
        "metadata": {"name": "c"}, "spec": {"devices": {"requests": [request(json!({}))]}}}))?;
    world.admin.create("default", &claim).await?;
    world.pod("p", json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]})).await?;
    let reserved = async || {
        let claim = world.admin.get::<ResourceClaim>("default", "c").await.expect("the claim");
        claim.status.and_then(|status| status.reserved_for).is_some_and(|users| !users.is_empty())
    };
    eventually("the claim is reserved", PATIENCE, reserved, |reserved| *reserved).await;
    assert_eq!(world.get("p").await.spec.and_then(|spec| spec.node_name), None);
    let condition = |name: &str| {
        let condition = json!({"type": name, "status": "True", "reason": "R", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let device = json!({"driver": DRIVER, "pool": "a", "device": "gpu0", "conditions": [condition]});
        Patch::Merge(json!({"status": {"devices": [device]}}))
    };
    // The failure frees the claim, and the pod gets the device again.
    let mut before = world.admin.get::<ResourceClaim>("default", "c").await?;
    let first = before.status.take().and_then(|status| status.allocation?.allocation_timestamp);
    world.admin.patch::<ResourceClaim>("default", "c", Some("status"), &condition("Broken")).await?;
    let again = async || {
        let claim = world.admin.get::<ResourceClaim>("default", "c").await.expect("the claim");
        let status = claim.status.unwrap_or_default();
        let is_new = status.devices.is_none() && status.reserved_for.is_some();
        is_new && status.allocation.is_some_and(|own| own.allocation_timestamp >= first)
    };
    eventually("the claim is allocated again", PATIENCE, again, |again| *again).await;
    world.admin.patch::<ResourceClaim>("default", "c", Some("status"), &condition("Attached")).await?;
    let node = async || world.get("p").await.spec.and_then(|spec| spec.node_name);
    eventually("the pod is bound", PATIENCE, node, |node| node.as_deref() == Some("a")).await;
    world.server.stop().await
}
