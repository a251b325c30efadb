//! The scheduling loop against a fake API server.

use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use base::clock::Clock;
use base::tasks::TaskGroup;
use bytes::Bytes;
use client::{Body, Call, Client, Transport, TransportError};
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper::body::Frame;
use objects::core::v1::{Node, Pod};
use objects::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use parking_lot::Mutex;
use runtime::{Cache, Harness};
use serde_json::{Value, json};

use super::*;
use crate::devices::fixture::{allocated, claim, claim_named, class, class_named, devices, exactly, slice};
use crate::testing::{NodeBuilder, PodBuilder, node, pod};

/// A watch: the end of an empty list, then no events.
struct Quiet(Option<Bytes>);

impl hyper::body::Body for Quiet {
    type Data = Bytes;
    type Error = TransportError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TransportError>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}

/// Records every write and rejects a configured number of bindings.
#[derive(Default)]
struct FakeApi {
    writes: Mutex<Vec<(Method, String, Value)>>,
    refusals: Mutex<Vec<(u16, &'static str)>>,
}

impl Transport for FakeApi {
    fn call(&self, request: http::Request<Bytes>) -> Call<'_> {
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let path = head.uri.path().to_owned();
            if head.method == Method::GET {
                let end = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "1",
                    "annotations": {"k8s.io/initial-events-end": "true"}}}});
                let body: Body = Quiet(Some(Bytes::from(format!("{end}\n")))).boxed_unsync();
                return Ok(http::Response::new(body));
            }
            let value: Value = serde_json::from_slice(&body).unwrap_or_default();
            let mut answer = (200, value.clone());
            if path.ends_with("/binding") {
                answer.1 = json!({"kind": "Status", "status": "Success"});
                if let Some((code, reason)) = self.refusals.lock().pop() {
                    let status = json!({"kind": "Status", "code": code, "reason": reason, "message": "no"});
                    answer = (code, status);
                }
            }
            self.writes.lock().push((head.method, path, value));
            let text = Full::new(Bytes::from(answer.1.to_string())).map_err(|never| match never {});
            let response = http::Response::builder().status(answer.0).body(text.boxed_unsync());
            response.map_err(TransportError::Request)
        })
    }
}

struct World {
    api: Arc<FakeApi>,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    claims: Cache<ResourceClaim>,
    slices: Cache<ResourceSlice>,
    classes: Cache<DeviceClass>,
    tasks: TaskGroup,
}

impl World {
    async fn start() -> Self {
        let api = Arc::new(FakeApi::default());
        let client = Client::new(Arc::clone(&api) as Arc<dyn Transport>, "test");
        let tasks = TaskGroup::new();
        let harness =
            Harness::new("kube-scheduler", client.clone(), Arc::new(client), Clock::system(), &tasks);
        let informers = harness.informers();
        let (pods, nodes) = (informers.of::<Pod>(), informers.of::<Node>());
        let (claims, slices, classes) = (informers.of(), informers.of(), informers.of());
        let context = harness.context(&DESCRIPTOR).expect("a context");
        let scheduler = Scheduler::new(context, &Configuration::default(), None).expect("a scheduler");
        // The informers' lists are empty; they must not undo the tests' objects.
        pods.synced().await;
        nodes.synced().await;
        tokio::join!(claims.synced(), slices.synced(), classes.synced());
        tasks.spawn(scheduler.run());
        Self { api, pods, nodes, claims, slices, classes, tasks }
    }

    fn add_node(&self, node: NodeBuilder) {
        self.nodes.apply(Node::clone(&node.arc()));
    }

    fn add_pod(&self, pod: PodBuilder) {
        self.pods.apply(Pod::clone(&pod.arc()));
    }

    /// Waits for a write that `wanted` accepts.
    async fn write(&self, wanted: impl Fn(&Method, &str, &Value) -> bool) -> Value {
        for _ in 0..2000 {
            let found = self
                .api
                .writes
                .lock()
                .iter()
                .find(|(method, path, value)| wanted(method, path, value))
                .cloned();
            if let Some((_, _, value)) = found {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("no such write among {:#?}", self.api.writes.lock());
    }

    async fn bound(&self, pod: &str) -> String {
        let path = format!("/api/v1/namespaces/default/pods/{pod}/binding");
        let binding = self.write(|_, own, _| own == path).await;
        binding["target"]["name"].as_str().unwrap_or_default().to_owned()
    }

    async fn event(&self, reason: &str) -> Value {
        self.write(|method, path, value| {
            *method == Method::POST && path.ends_with("/events") && value["reason"] == reason
        })
        .await
    }

    async fn status(&self, pod: &str) -> Value {
        let path = format!("/api/v1/namespaces/default/pods/{pod}/status");
        self.write(|_, own, _| own == path).await["status"].clone()
    }

    async fn stop(self) {
        self.tasks.drain(Duration::from_secs(5)).await.expect("a clean stop");
    }
}

#[tokio::test]
async fn scheduled_pod_is_bound_with_event() {
    let world = World::start().await;
    world.add_node(node("a"));
    world.add_pod(pod("p").cpu("1"));
    assert_eq!(world.bound("p").await, "a");
    let event = world.event("Scheduled").await;
    assert_eq!(event["note"], "Successfully assigned default/p to a");
    assert_eq!(event["reportingController"], "default-scheduler");
    world.add_pod(pod("other").spec(json!({"schedulerName": "somebody-else"})));
    world.add_pod(pod("q").cpu("1"));
    world.bound("q").await;
    let writes = world.api.writes.lock().iter().filter(|(_, path, _)| path.contains("other")).count();
    assert_eq!(writes, 0, "pods of another scheduler are left alone");
    world.stop().await;
}

#[tokio::test]
async fn rejected_binding_is_retried() {
    let world = World::start().await;
    world.api.refusals.lock().push((409, "Conflict"));
    world.add_node(node("a").allocatable(json!({"cpu": "1", "memory": "1Gi", "pods": "10"})));
    world.add_pod(pod("p").cpu("1"));
    let status = world.status("p").await;
    assert_eq!(status["conditions"][0]["reason"], "SchedulerError");
    // The assumed resources are released, or the second attempt would fail.
    for _ in 0..2000 {
        let bindings =
            world.api.writes.lock().iter().filter(|(_, path, _)| path.ends_with("/binding")).count();
        if bindings == 2 {
            return world.stop().await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not tried again: {:#?}", world.api.writes.lock());
}

#[tokio::test]
async fn unschedulable_pod_is_bound_after_node_is_added() {
    let world = World::start().await;
    world.add_node(node("small").allocatable(json!({"cpu": "1", "memory": "1Gi", "pods": "10"})));
    world.add_pod(pod("p").cpu("2"));
    let message = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: \
                   1 Preemption is not helpful for scheduling.";
    let status = world.status("p").await;
    assert_eq!(status["conditions"][0]["message"], message);
    assert_eq!(status["conditions"][0]["reason"], "Unschedulable");
    let event = world.event("FailedScheduling").await;
    assert_eq!((&event["note"], &event["type"]), (&json!(message), &json!("Warning")));
    world.add_node(node("large"));
    assert_eq!(world.bound("p").await, "large");
    world.stop().await;
}

#[tokio::test]
async fn pod_before_first_node_is_scheduled_later() {
    let world = World::start().await;
    world.add_pod(pod("p"));
    assert_eq!(world.status("p").await["conditions"][0]["message"], "no nodes available to schedule pods");
    world.add_node(node("a"));
    assert_eq!(world.bound("p").await, "a");
    world.stop().await;
}

#[tokio::test]
async fn preemption_evicts_lower_priority_pod() {
    let world = World::start().await;
    world.add_node(node("a"));
    world.add_pod(pod("low").cpu("8").priority(1).on("a"));
    world.add_pod(pod("vip").cpu("8").priority(10));
    let status = world.status("vip").await;
    assert_eq!(status["nominatedNodeName"], "a");
    assert_eq!(status["conditions"][0]["message"], "0/1 nodes are available: 1 Insufficient cpu.");
    let marked = world.status("low").await;
    assert_eq!(marked["conditions"][0]["reason"], "PreemptionByScheduler");
    world.write(|method, path, _| *method == Method::DELETE && path.ends_with("/pods/low")).await;
    let event = world.event("Preempted").await;
    assert_eq!(event["note"], "Preempted by pod vip on node a");
    world.pods.remove(Pod::clone(&pod("low").cpu("8").priority(1).on("a").arc()));
    assert_eq!(world.bound("vip").await, "a");
    world.stop().await;
}

#[tokio::test]
async fn gated_pod_waits_until_gates_are_removed() {
    let world = World::start().await;
    world.add_node(node("a"));
    world.add_pod(pod("p").spec(json!({"schedulingGates": [{"name": "wait"}]})));
    world.add_pod(pod("q"));
    world.bound("q").await;
    assert!(!world.api.writes.lock().iter().any(|(_, path, _)| path.contains("/pods/p")));
    world.add_pod(pod("p").metadata(json!({"resourceVersion": "2"})));
    assert_eq!(world.bound("p").await, "a");
    world.stop().await;
}

#[tokio::test]
async fn devices_of_deleted_claim_are_free() {
    let world = World::start().await;
    world.classes.apply(class_named(class("class")));
    let slice = slice("s", devices(&["x"]), json!({"nodeName": "a"}));
    world.slices.apply(serde_json::from_value(slice).expect("a slice"));
    let holder = claim_named(allocated("holder", &["x"], json!({})));
    world.claims.apply(holder.clone());
    world.claims.apply(claim_named(claim("c", json!([exactly("r", json!({}))]))));
    world.add_node(node("a"));
    world.add_pod(pod("p").spec(json!({"resourceClaims": [{"name": "own", "resourceClaimName": "c"}]})));
    let message = world.status("p").await["conditions"][0]["message"].clone();
    assert!(message.as_str().is_some_and(|text| text.contains("cannot allocate all claims")), "{message}");
    world.claims.remove(holder);
    assert_eq!(world.bound("p").await, "a");
    let path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c/status";
    let written = world.write(|method, own, _| *method == Method::PUT && own == path).await;
    assert_eq!(written["status"]["allocation"]["devices"]["results"][0]["device"], "x");
    assert_eq!(written["status"]["reservedFor"][0]["uid"], "p");
    world.stop().await;
}
