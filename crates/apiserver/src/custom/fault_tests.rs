//! Definitions with failing conversion webhooks and restarting servers.

use super::conversion_tests::{V2, converted_definition, renamed, review_of};
use super::tests::{Cluster, DEFINITIONS, MERGE, WAIT_LIMIT, WIDGETS, condition, definition, reason, widget};
use crate::serve::{RequestBody, ResponseBody};
use crate::test_server::{ADMIN, TestServer};
use bytes::Buf;
use futures_util::FutureExt;
use http::{Method, Request};
use http_body_util::BodyExt;
use machinery::Value;
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testbase::Responder;

const OWN: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
const LIMIT: Duration = Duration::from_secs(1);

/// Response modes of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    WrongUid,
    OtherName,
    OtherUid,
    MissingObject,
    WrongVersion,
    WrongKind,
    NoResponse,
    ServerError,
    Slow,
    /// No response until another fault is set.
    Silent,
}

/// A webhook that renames `spec.size` to `spec.length` and back, with the configured fault.
async fn webhook(fault: &Arc<Mutex<Fault>>) -> Responder {
    let set = Arc::clone(fault);
    let answer = move |_: &str, review: &Value| {
        let fault = *set.lock();
        let request = &review["request"];
        let convert = |object: &Value| {
            let (mut object, _) = renamed(request, object);
            match fault {
                Fault::OtherName => object["metadata"]["name"] = json!("other"),
                Fault::OtherUid => object["metadata"]["uid"] = json!("other"),
                Fault::WrongVersion => object["apiVersion"] = json!("example.com/v3"),
                Fault::WrongKind => object["kind"] = json!("Gadget"),
                _ => {}
            }
            object
        };
        let mut objects: Vec<Value> =
            request["objects"].as_array().into_iter().flatten().map(convert).collect();
        if fault == Fault::MissingObject {
            objects.pop();
        }
        let uid = if fault == Fault::WrongUid { json!("x") } else { request["uid"].clone() };
        if fault == Fault::Slow {
            tokio::task::block_in_place(|| std::thread::sleep(LIMIT * 5));
        }
        if fault == Fault::Silent {
            tokio::task::block_in_place(|| {
                while *set.lock() == Fault::Silent {
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
        let response = json!({"uid": uid, "result": {"status": "Success"}, "convertedObjects": objects});
        match fault {
            Fault::ServerError => (503, json!({})),
            Fault::NoResponse => {
                (200, json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview"}))
            }
            _ => (200, review_of(&response)),
        }
    };
    Responder::start(answer).await.expect("a webhook")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn faulty_conversion_webhook_fails_requests_and_changes_nothing() {
    let fault = Arc::new(Mutex::new(Fault::None));
    let responder = webhook(&fault).await;
    let cluster = Cluster::with_settings(TestServer::start(), LIMIT, Duration::ZERO);
    cluster.server.create("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
    cluster.define(&converted_definition(&responder)).await;
    assert_eq!(cluster.ask(Method::POST, WIDGETS, &widget("a", json!({"size": 3}))).await.0, 201);
    let stored = cluster.get(&format!("{WIDGETS}/a")).await.1;
    let mut other = widget("b", json!({"length": 3}));
    other["apiVersion"] = json!("example.com/v2");
    let refused = |fault: Fault, why: &'static str| {
        let (cluster, stored, other) = (&cluster, &stored, &other);
        async move {
            let path = format!("{V2}/a");
            let message = |answer: &Value| answer["message"].as_str().unwrap_or_default().to_owned();
            let (code, answer) = cluster.get(&path).await;
            assert_eq!(code, 500, "{fault:?}: {answer}");
            assert!(
                message(&answer).contains("conversion webhook for example.com/v1, Kind=Widget failed: "),
                "{answer}"
            );
            assert!(message(&answer).contains(why), "{fault:?}: {answer}");
            assert_eq!(cluster.get(V2).await.0, 500, "{fault:?}: a list is whole or not at all");
            let (code, answer) = cluster.patch(&path, MERGE, &json!({"spec": {"length": 4}})).await;
            assert_eq!(code, 500, "{fault:?}: {answer}");
            let (code, answer) = cluster.ask(Method::POST, V2, other).await;
            assert_eq!(code, 500, "{fault:?}: {answer}");
            // The stored version needs no webhook, and has not changed.
            let (code, list) = cluster.get(WIDGETS).await;
            assert_eq!((code, &list["items"]), (200, &json!([stored])), "{fault:?}");
        }
    };
    for (kind, why) in [
        (Fault::WrongUid, "got \"x\""),
        (Fault::OtherName, "must have the same name"),
        (Fault::OtherUid, "must have the same uid"),
        (Fault::MissingObject, "returned 0 objects, expected 1"),
        (Fault::WrongVersion, "invalid groupVersion (expected example.com/v2, received example.com/v3)"),
        (Fault::WrongKind, "invalid kind (expected Widget, received Gadget)"),
        (Fault::NoResponse, "no response provided"),
        (Fault::ServerError, ""),
    ] {
        *fault.lock() = kind;
        refused(kind, why).await;
    }
    let metrics = String::from_utf8(cluster.server.chain.metrics.encode().expect("metrics")).expect("text");
    for kind in ["call", "malformed_response", "partial_response", "invalid_converted_object"] {
        let name = format!(
            "apiserver_conversion_webhook_request_total{{failure_type=\"conversion_webhook_{kind}_failure\",result=\"failure\"}}"
        );
        assert!(metrics.contains(&name), "{name}: {metrics}");
    }
    let by_definition = "apiserver_crd_conversion_webhook_duration_seconds_count{crd_name=\"widgets.example.com\",from_version=\"v1\",succeeded=\"false\",to_version=\"v2\"}";
    assert!(metrics.contains(by_definition), "{metrics}");
    *fault.lock() = Fault::Slow;
    let start = Instant::now();
    let (code, answer) = cluster.get(&format!("{V2}/a")).await;
    assert_eq!(code, 500, "{answer}");
    assert!(start.elapsed() >= LIMIT, "{:?}", start.elapsed());
    // Requests without conversion do not wait for it.
    let (slow, quick) = tokio::join!(cluster.get(V2), async {
        let start = Instant::now();
        let code = cluster.get(WIDGETS).await.0;
        (code, start.elapsed())
    });
    assert_eq!((slow.0, quick.0), (500, 200));
    assert!(quick.1 < LIMIT, "{:?}", quick.1);
    *fault.lock() = Fault::None;
    cluster
        .until(&format!("{V2}/a"), |code, found| code == 200 && found["spec"] == json!({"length": 3}))
        .await;
    assert_eq!(cluster.ask(Method::POST, V2, &other).await.0, 201);
    assert_eq!(cluster.get(&format!("{WIDGETS}/b")).await.1["spec"], json!({"size": 3}));
    drop(responder);
    // Kept-alive connections end with the first failing request.
    cluster.until(&format!("{V2}/a"), |code, _| code == 500).await;
    assert_eq!(cluster.get(&format!("{WIDGETS}/a")).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_completes_the_deletion_of_a_definition() {
    let first = Cluster::start().await;
    first.define(&definition()).await;
    let mut held = widget("held", json!({"size": 1}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    assert_eq!(first.ask(Method::POST, WIDGETS, &held).await.0, 201);
    assert_eq!(first.ask(Method::POST, WIDGETS, &widget("free", json!({"size": 1}))).await.0, 201);
    assert_eq!(first.ask(Method::DELETE, OWN, &Value::Null).await.0, 200);
    first.until(OWN, |_, found| condition(found, "Terminating") == "True").await;
    first.until(&format!("{WIDGETS}/free"), |code, _| code == 404).await;
    first.tasks.stop();
    let second = Cluster::on(first.server.beside());
    second
        .until(WIDGETS, |code, list| code == 200 && list["items"].as_array().map(Vec::len) == Some(1))
        .await;
    let (code, answer) = second.ask(Method::POST, WIDGETS, &widget("new", json!({"size": 1}))).await;
    assert_eq!(code, 403, "creation fails while the definition is deleted: {answer}");
    assert_eq!(second.get(OWN).await.0, 200, "the held object holds its definition");
    let release = json!({"metadata": {"finalizers": null}});
    assert_eq!(second.patch(&format!("{WIDGETS}/held"), MERGE, &release).await.0, 200);
    second.until(OWN, |code, _| code == 404).await;
    second.until(WIDGETS, |code, _| code == 404).await;
    second.define(&definition()).await;
    assert_eq!(second.get(WIDGETS).await.1["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn failed_deletion_of_objects_is_reported_in_the_condition() {
    let fault = Arc::new(Mutex::new(Fault::None));
    let responder = webhook(&fault).await;
    let cluster = Cluster::start().await;
    cluster.define(&converted_definition(&responder)).await;
    assert_eq!(cluster.ask(Method::POST, WIDGETS, &widget("a", json!({"size": 3}))).await.0, 201);
    // The object is stored in the earlier version, so that its deletion needs the webhook.
    let mut changed = cluster.get(OWN).await.1;
    for (at, stored) in [(0, false), (1, true)] {
        changed["spec"]["versions"][at]["storage"] = json!(stored);
    }
    assert_eq!(cluster.ask(Method::PUT, OWN, &changed).await.0, 200);
    cluster.until(V2, |code, _| code == 200).await;
    *fault.lock() = Fault::WrongUid;
    assert_eq!(cluster.ask(Method::DELETE, OWN, &Value::Null).await.0, 200);
    let failed =
        cluster.until(OWN, |_, found| reason(found, "Terminating") == "InstanceDeletionFailed").await;
    assert_eq!(condition(&failed, "Terminating"), "True");
    let message = &crate::registry::conditions::find(&failed, "Terminating").expect("a condition")["message"];
    let message = message.as_str().expect("text");
    assert!(message.starts_with("could not issue all deletes: "), "{message}");
    assert!(message.contains("conversion webhook for example.com/v1, Kind=Widget failed"), "{message}");
    *fault.lock() = Fault::None;
    cluster.until(OWN, |code, _| code == 404).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_reads_objects_of_both_storage_versions() {
    let fault = Arc::new(Mutex::new(Fault::None));
    let responder = webhook(&fault).await;
    let first = Cluster::start().await;
    first.define(&converted_definition(&responder)).await;
    for name in ["old", "rewritten"] {
        assert_eq!(first.ask(Method::POST, WIDGETS, &widget(name, json!({"size": 3}))).await.0, 201);
    }
    let mut changed = first.get(OWN).await.1;
    for (at, stored) in [(0, false), (1, true)] {
        changed["spec"]["versions"][at]["storage"] = json!(stored);
    }
    let (code, changed) = first.ask(Method::PUT, OWN, &changed).await;
    assert_eq!(code, 200, "{changed}");
    // The server stops before it has served the change.
    first.tasks.stop();
    let second = Cluster::on(first.server.beside());
    second.until(V2, |code, list| code == 200 && list["items"].as_array().map(Vec::len) == Some(2)).await;
    let versions =
        second.until(OWN, |_, found| found["status"]["storedVersions"].as_array().map(Vec::len) == Some(2));
    assert_eq!(versions.await["status"]["storedVersions"], json!(["v1", "v2"]));
    let path = format!("{V2}/rewritten");
    let found = second.get(&path).await.1;
    assert_eq!(second.ask(Method::PUT, &path, &found).await.0, 200);
    let third = Cluster::on(second.server.beside());
    for path in [WIDGETS, V2] {
        let field = if path == V2 { "length" } else { "size" };
        let list = third.until(path, |code, _| code == 200).await;
        for item in list["items"].as_array().expect("items") {
            assert_eq!(item["spec"], json!({field: 3}), "{item}");
        }
    }
}

/// While the clock is paused and a task is always ready, no timer expires: another server publishes a change because the
/// store reports it, not by polling, so only its processing takes time.
#[tokio::test]
async fn changed_schema_is_published_by_every_server_without_a_timer() {
    let first = Cluster::start().await;
    let second = Cluster::on(first.server.beside());
    first.define(&definition()).await;
    second.until(WIDGETS, |code, _| code == 200).await;
    let document = "/openapi/v3/apis/example.com/v1";
    let mut slowest = Duration::ZERO;
    for turn in 0..10 {
        let mut changed = first.get(OWN).await.1;
        let text = format!("change {turn}");
        changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = json!(text);
        assert_eq!(first.ask(Method::PUT, OWN, &changed).await.0, 200);
        tokio::time::pause();
        let (start, paused) = (Instant::now(), tokio::time::Instant::now());
        for server in [&second, &first] {
            loop {
                let found = server.get(document).await.1;
                if found["components"]["schemas"]["com.example.v1.Widget"]["description"] == *text {
                    break;
                }
                assert!(start.elapsed() < WAIT_LIMIT, "{text}: not published without a timer");
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(paused.elapsed(), Duration::ZERO, "timers have expired");
        slowest = slowest.max(start.elapsed());
        tokio::time::resume();
    }
    println!("slowest change until both servers published it: {slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn restart_while_conversion_webhook_is_down_preserves_objects() {
    let fault = Arc::new(Mutex::new(Fault::None));
    let responder = webhook(&fault).await;
    let first = Cluster::start().await;
    first.define(&converted_definition(&responder)).await;
    assert_eq!(first.ask(Method::POST, WIDGETS, &widget("a", json!({"size": 3}))).await.0, 201);
    let converted = format!("{V2}/a");
    first.until(&converted, |code, _| code == 200).await;
    drop(responder);
    first.until(&converted, |code, _| code == 500).await;
    assert_eq!(first.ask(Method::POST, WIDGETS, &widget("b", json!({"size": 4}))).await.0, 201);
    first.tasks.stop();

    let second = Cluster::on(first.server.beside());
    let stored = second.until(WIDGETS, |code, _| code == 200).await["items"].clone();
    assert_eq!((&stored[0]["spec"], &stored[1]["spec"]), (&json!({"size": 3}), &json!({"size": 4})));
    assert_eq!(second.get(V2).await.0, 500);
    let patch = json!({"spec": {"length": 5}});
    assert_eq!(second.patch(&converted, MERGE, &patch).await.0, 500);
    assert_eq!(second.get(WIDGETS).await.1["items"], stored, "the failed write changed nothing");
    let mut watch = Watch::open(&second, WIDGETS).await;
    for (name, size) in [("a", 3), ("b", 4)] {
        assert_eq!(watch.next().await, ("ADDED".to_owned(), name.to_owned(), json!({"size": size})));
    }

    // The webhook runs again, at another address.
    let responder = webhook(&fault).await;
    let conversion = converted_definition(&responder)["spec"]["conversion"].clone();
    assert_eq!(second.patch(OWN, MERGE, &json!({"spec": {"conversion": conversion}})).await.0, 200);
    let list = second.until(V2, |code, _| code == 200).await;
    assert_eq!(
        (&list["items"][0]["spec"], &list["items"][1]["spec"]),
        (&json!({"length": 3}), &json!({"length": 4}))
    );
    assert_eq!(second.patch(&converted, MERGE, &patch).await.0, 200);
    assert_eq!(second.get(&format!("{WIDGETS}/a")).await.1["spec"], json!({"size": 5}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definition_is_established_after_delay_with_several_servers() {
    let delay = Duration::from_secs(2);
    let cluster = Cluster::with_settings(TestServer::start(), LIMIT, delay);
    let start = Instant::now();
    cluster.server.create(DEFINITIONS, &definition()).await;
    cluster.until(OWN, |_, found| condition(found, "NamesAccepted") == "True").await;
    cluster.until(OWN, |_, found| condition(found, "Established") == "True").await;
    assert!(start.elapsed() >= delay, "{:?}", start.elapsed());
}

/// The manager of one version owns fields that a write through another version compares with converted objects.
#[tokio::test]
async fn managers_of_other_versions_are_retained_with_conversion_webhook() {
    let fault = Arc::new(Mutex::new(Fault::None));
    let responder = webhook(&fault).await;
    // Single-threaded runtime: nothing may block during the webhook call.
    let cluster = Cluster::start().await;
    cluster.define(&converted_definition(&responder)).await;
    let apply = |version: &str, field: &str, size: i64| {
        json!({"apiVersion": format!("example.com/{version}"), "kind": "Widget", "metadata": {"name": "a"},
            "spec": {field: size}})
    };
    let media = "application/apply-patch+yaml";
    let path =
        |base: &str, manager: &str, force: bool| format!("{base}/a?fieldManager={manager}&force={force}");
    let (code, answer) = cluster.patch(&path(WIDGETS, "one", false), media, &apply("v1", "size", 3)).await;
    assert_eq!(code, 201, "{answer}");
    let (code, answer) = cluster.patch(&path(V2, "two", false), media, &apply("v2", "length", 4)).await;
    assert_eq!(code, 409, "the field of the other version is owned: {answer}");
    let (code, answer) = cluster.patch(&path(V2, "two", true), media, &apply("v2", "length", 4)).await;
    assert_eq!((code, &answer["spec"]), (200, &json!({"length": 4})), "{answer}");
    let managers: Vec<&str> = answer["metadata"]["managedFields"]
        .as_array()
        .expect("managers")
        .iter()
        .filter_map(|entry| entry["manager"].as_str())
        .collect();
    assert_eq!(managers, ["two"], "forced fields have one owner: {answer}");
}

/// An open watch, through the whole request chain.
struct Watch {
    body: ResponseBody,
    received: Vec<u8>,
}

impl Watch {
    async fn open(cluster: &Cluster, path: &str) -> Self {
        let joint = if path.contains('?') { '&' } else { '?' };
        let request = Request::get(format!("{path}{joint}watch=true&resourceVersion=0"))
            .header("authorization", format!("Bearer {ADMIN}"))
            .body(RequestBody::default())
            .expect("a request");
        let reply = cluster.server.send(request).await;
        assert_eq!(reply.status(), 200, "{path}");
        Self { body: reply.into_body(), received: Vec::new() }
    }

    /// Type, name and spec of the next event.
    async fn next(&mut self) -> (String, String, Value) {
        while !self.received.contains(&b'\n') {
            let frame = tokio::time::timeout(WAIT_LIMIT, self.body.frame()).await.expect("an event in time");
            let data = frame.expect("an open watch").expect("a frame").into_data().expect("data");
            self.received.extend_from_slice(data.chunk());
        }
        let end = self.received.iter().position(|byte| *byte == b'\n').unwrap_or_default();
        let line: Vec<u8> = self.received.drain(..=end).collect();
        let event: Value = serde_json::from_slice(&line).expect("one event");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &event["object"];
        (text(&event["type"]), text(&object["metadata"]["name"]), object["spec"].clone())
    }

    /// Waits for the end of the watch.
    async fn ended(&mut self) {
        let end = async { while let Some(Ok(_)) = self.body.frame().await {} };
        tokio::time::timeout(WAIT_LIMIT, end).await.expect("the watch ends in time");
    }

    fn has_event(&mut self) -> bool {
        !self.received.is_empty() || self.body.frame().now_or_never().is_some()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_ends_when_its_definition_changes_and_the_next_one_has_the_new_schema() {
    let cluster = Cluster::start().await;
    cluster.define(&definition()).await;
    assert_eq!(cluster.ask(Method::POST, WIDGETS, &widget("a", json!({"size": 1}))).await.0, 201);
    let mut watch = Watch::open(&cluster, WIDGETS).await;
    assert_eq!(watch.next().await.1, "a");
    let mut changed = cluster.get(OWN).await.1;
    let properties = &mut changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    properties["spec"]["properties"]["shape"] = json!({"type": "string", "default": "round"});
    let (code, answer) = cluster.ask(Method::PUT, OWN, &changed).await;
    assert_eq!(code, 200, "{answer}");
    watch.ended().await;
    let mut watch = Watch::open(&cluster, WIDGETS).await;
    assert_eq!(watch.next().await.2, json!({"size": 1, "color": "red", "shape": "round"}));
    // A definition that is deleted and created again at once serves none of the old objects.
    assert_eq!(cluster.ask(Method::DELETE, OWN, &Value::Null).await.0, 200);
    watch.ended().await;
    cluster.until(OWN, |code, _| code == 404).await;
    cluster.define(&definition()).await;
    assert_eq!(cluster.until(WIDGETS, |code, _| code == 200).await["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hanging_conversion_webhook_blocks_only_watches_of_converted_versions() {
    let fault = Arc::new(Mutex::new(Fault::None));
    let responder = webhook(&fault).await;
    let cluster = Cluster::start().await;
    let mut definition = converted_definition(&responder);
    definition["spec"]["versions"][1]["selectableFields"] = json!([{"jsonPath": ".spec.length"}]);
    cluster.define(&definition).await;
    assert_eq!(cluster.ask(Method::POST, WIDGETS, &widget("a", json!({"size": 1}))).await.0, 201);
    let mut stored = Watch::open(&cluster, WIDGETS).await;
    let mut converted = Watch::open(&cluster, V2).await;
    let mut selected = Watch::open(&cluster, &format!("{V2}?fieldSelector=spec.length!=3")).await;
    let mut other = Watch::open(&cluster, "/api/v1/namespaces").await;
    let event = |kind: &str, name: &str, spec: Value| (kind.to_owned(), name.to_owned(), spec);
    assert_eq!(stored.next().await, event("ADDED", "a", json!({"size": 1})));
    assert_eq!(converted.next().await, event("ADDED", "a", json!({"length": 1})));
    assert_eq!(selected.next().await, event("ADDED", "a", json!({"length": 1})));
    while other.next().await.1 != "n" {}

    *fault.lock() = Fault::Silent;
    for size in 2..5 {
        let patch = json!({"spec": {"size": size}});
        assert_eq!(cluster.patch(&format!("{WIDGETS}/a"), MERGE, &patch).await.0, 200);
        assert!(!converted.has_event() && !selected.has_event(), "the webhook has not answered");
        assert_eq!(stored.next().await, event("MODIFIED", "a", json!({"size": size})));
    }
    let namespace = json!({"metadata": {"name": "m"}});
    assert_eq!(cluster.ask(Method::POST, "/api/v1/namespaces", &namespace).await.0, 201);
    assert_eq!(other.next().await.1, "m");
    // A watch that starts now waits for its own events only.
    let mut late = Watch::open(&cluster, WIDGETS).await;
    assert_eq!(late.next().await, event("ADDED", "a", json!({"size": 4})));

    *fault.lock() = Fault::None;
    for length in 2..5 {
        assert_eq!(converted.next().await, event("MODIFIED", "a", json!({"length": length})), "none is lost");
    }
    for (kind, length) in [("MODIFIED", 2), ("DELETED", 2), ("ADDED", 4)] {
        let (of_event, name, spec) = selected.next().await;
        assert_eq!((of_event.as_str(), name.as_str(), &spec), (kind, "a", &json!({"length": length})));
    }
}
