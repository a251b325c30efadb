//! Definitions whose versions are converted by a webhook.

use super::tests::{Cluster, DEFINITIONS, MERGE, WAIT_LIMIT, WIDGETS, condition, definition, widget};
use crate::registry::watch::{Notice, Watcher};
use crate::selection::Selection;
use crate::wire::options::ListOptions;
use crate::wire::query::Query;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use machinery::Value;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use testbase::Responder;

pub(super) const V2: &str = "/apis/example.com/v2/namespaces/n/widgets";

/// An object of a review with `spec.size` renamed to `spec.length` for version 2, or back; also returns the new name.
pub(super) fn renamed(request: &Value, object: &Value) -> (Value, &'static str) {
    let wanted = &request["desiredAPIVersion"];
    let (from, to) = if wanted == "example.com/v2" { ("size", "length") } else { ("length", "size") };
    let mut object = object.clone();
    object["apiVersion"] = wanted.clone();
    if let Some(spec) = object["spec"].as_object_mut()
        && let Some(value) = spec.remove(from)
    {
        spec.insert(to.to_owned(), value);
    }
    (object, to)
}

/// A review with this response.
pub(super) fn review_of(response: &Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response})
}

/// A webhook that renames `spec.size` to `spec.length` and back, and sets the label `version`, until it is set to
/// fail.
async fn renaming_webhook(fails: &Arc<AtomicBool>) -> Responder {
    let fails = Arc::clone(fails);
    let answer = move |_: &str, review: &Value| {
        let request = &review["request"];
        let mut response = json!({"uid": request["uid"], "result": {"status": "Success"}});
        if fails.load(Ordering::Relaxed) {
            response["result"] = json!({"status": "Failure", "message": "not now"});
        } else {
            let convert = |object: &Value| {
                let (mut object, field) = renamed(request, object);
                object["metadata"]["labels"]["version"] = json!(field);
                object
            };
            let objects = request["objects"].as_array().into_iter().flatten();
            response["convertedObjects"] = objects.map(convert).collect();
        }
        (200, review_of(&response))
    };
    Responder::start(answer).await.expect("a webhook")
}

pub(super) fn converted_definition(webhook: &Responder) -> Value {
    let version = |name: &str, field: &str, stored: bool| {
        let spec = json!({"type": "object", "properties": {field: {"type": "integer"}}});
        let schema = json!({"type": "object", "properties": {"spec": spec}});
        json!({"name": name, "served": true, "storage": stored, "schema": {"openAPIV3Schema": schema}})
    };
    let config =
        json!({"url": format!("{}/convert", webhook.url), "caBundle": STANDARD.encode(&webhook.certificate)});
    let mut definition = definition();
    definition["spec"]["versions"] = json!([version("v1", "size", true), version("v2", "length", false)]);
    definition["spec"]["conversion"] = json!({
        "strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": config},
    });
    definition
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversion_webhook_is_called_once_per_list_and_its_failures_are_reported() {
    let fails = Arc::new(AtomicBool::new(false));
    let webhook = renaming_webhook(&fails).await;
    let cluster = Cluster::start().await;
    cluster.define(&converted_definition(&webhook)).await;
    for name in ["a", "b"] {
        assert_eq!(cluster.ask(Method::POST, WIDGETS, &widget(name, json!({"size": 3}))).await.0, 201);
    }
    assert_eq!(webhook.seen().len(), 0, "the stored version needs no conversion");
    let list = cluster.get(V2).await.1;
    assert_eq!(
        (&list["items"][0]["spec"], &list["items"][1]["spec"]),
        (&json!({"length": 3}), &json!({"length": 3}))
    );
    assert_eq!(webhook.seen().len(), 1, "one review for the whole list");
    let (code, changed) = cluster.patch(&format!("{V2}/a"), MERGE, &json!({"spec": {"length": 4}})).await;
    assert_eq!((code, &changed["spec"]), (200, &json!({"length": 4})), "{changed}");
    assert_eq!(cluster.get(&format!("{WIDGETS}/a")).await.1["spec"], json!({"size": 4}));

    // Objects stay in their stored version until they are written again.
    let own = format!("{DEFINITIONS}/widgets.example.com");
    let mut changed = cluster.get(&own).await.1;
    for (at, stored) in [(0, false), (1, true)] {
        changed["spec"]["versions"][at]["storage"] = json!(stored);
    }
    assert_eq!(cluster.ask(Method::PUT, &own, &changed).await.0, 200);
    let in_v2 = |_: u16, _: &Value| {
        let catalogue = cluster.server.chain.rest.registry.catalogue();
        let served = catalogue.served("example.com", "v2", "widgets");
        served.is_some_and(|served| served.storage.kind.version() == "v2")
    };
    cluster.until(V2, in_v2).await;
    let path = format!("{V2}/b");
    let found = cluster.get(&path).await.1;
    assert_eq!(found["spec"], json!({"length": 3}));
    assert_eq!(cluster.ask(Method::PUT, &path, &found).await.0, 200);
    fails.store(true, Ordering::Relaxed);
    assert_eq!(cluster.get(&path).await.1["spec"], json!({"length": 3}), "stored in version 2 now");
    let (code, failed) = cluster.get(&format!("{V2}/a")).await;
    assert_eq!(code, 500, "{failed}");
    let message = "conversion webhook for example.com/v1, Kind=Widget failed: not now";
    assert!(failed["message"].as_str().is_some_and(|text| text.ends_with(message)), "{failed}");
    assert_eq!(cluster.get(V2).await.0, 500, "a list is complete or fails");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversion_review_has_the_first_listed_supported_version() {
    let webhook = Responder::start(|_: &str, review: &Value| {
        let request = &review["request"];
        let objects = request["objects"].as_array().into_iter().flatten();
        let objects: Vec<Value> = objects.map(|object| renamed(request, object).0).collect();
        let response =
            json!({"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects});
        (200, json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}))
    });
    let webhook = webhook.await.expect("a webhook");
    let cluster = Cluster::start().await;
    let mut definition = converted_definition(&webhook);
    definition["spec"]["conversion"]["webhook"]["conversionReviewVersions"] = json!(["v9", "v1beta1", "v1"]);
    cluster.define(&definition).await;
    assert_eq!(cluster.ask(Method::POST, WIDGETS, &widget("a", json!({"size": 3}))).await.0, 201);
    assert_eq!(cluster.get(&format!("{V2}/a")).await.1["spec"], json!({"length": 3}));
    let seen = webhook.seen();
    let (_, review) = seen.first().expect("a review");
    assert_eq!(review["apiVersion"], "apiextensions.k8s.io/v1beta1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definition_deletion_waiting_for_webhook_does_not_block_others() {
    let webhook = renaming_webhook(&Arc::new(AtomicBool::new(false))).await;
    let cluster = Cluster::start().await;
    cluster.define(&converted_definition(&webhook)).await;
    assert_eq!(cluster.ask(Method::POST, WIDGETS, &widget("a", json!({"size": 3}))).await.0, 201);
    // The object is stored in the earlier version, and the webhook accepts connections but never responds.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let own = format!("{DEFINITIONS}/widgets.example.com");
    let mut changed = cluster.get(&own).await.1;
    for (at, stored) in [(0, false), (1, true)] {
        changed["spec"]["versions"][at]["storage"] = json!(stored);
    }
    let address = silent.local_addr().expect("an address");
    changed["spec"]["conversion"]["webhook"]["clientConfig"]["url"] = json!(format!("https://{address}/"));
    assert_eq!(cluster.ask(Method::PUT, &own, &changed).await.0, 200);
    assert_eq!(cluster.ask(Method::DELETE, &own, &Value::Null).await.0, 200);
    let accepted = tokio::time::timeout(WAIT_LIMIT, silent.accept()).await.expect("asked in time");
    let (_connection, _) = accepted.expect("a connection");

    let mut other = definition();
    other["metadata"]["name"] = json!("zebras.example.org");
    other["spec"]["group"] = json!("example.org");
    other["spec"]["names"] = json!({"plural": "zebras", "kind": "Zebra"});
    cluster.define(&other).await;
    assert_eq!(condition(&cluster.get(&own).await.1, "Terminating"), "True", "it still waits");
}

/// Observed watch events: type and object.
async fn changes(watcher: &mut Watcher) -> Vec<(&'static str, String)> {
    let notices = tokio::time::timeout(WAIT_LIMIT, watcher.next()).await.expect("in time").expect("notices");
    let seen = notices.iter().map(|notice| match notice {
        Notice::Initial(entry) => ("INITIAL", entry.key.to_string()),
        Notice::Event(event, change) => (change.text(), event.entry.key.to_string()),
        Notice::Bookmark(..) => ("BOOKMARK", String::new()),
        Notice::Error(status) => ("ERROR", status.message.clone()),
    });
    seen.map(|(what, key)| (what, key.rsplit('/').next().unwrap_or("").to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn selectors_compare_fields_and_labels_of_the_requested_version() {
    let fails = Arc::new(AtomicBool::new(false));
    let webhook = renaming_webhook(&fails).await;
    let cluster = Cluster::start().await;
    let mut definition = converted_definition(&webhook);
    for (at, field) in [(0, ".spec.size"), (1, ".spec.length")] {
        definition["spec"]["versions"][at]["selectableFields"] = json!([{"jsonPath": field}]);
    }
    cluster.define(&definition).await;
    for (name, size) in [("a", 3), ("b", 4)] {
        assert_eq!(cluster.ask(Method::POST, WIDGETS, &widget(name, json!({"size": size}))).await.0, 201);
    }
    let names = async |path: &str| {
        let (code, list) = cluster.get(path).await;
        assert_eq!(code, 200, "{list}");
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let names = items.iter().map(|item| item["metadata"]["name"].as_str().unwrap_or("").to_owned());
        names.collect::<Vec<_>>().join(",")
    };
    for (path, selector, want) in [
        (V2, "spec.length=3", "a"),
        (V2, "spec.length!=3", "b"),
        (V2, "spec.length=3,metadata.name=b", ""),
        (V2, "metadata.name=b", "b"),
        (WIDGETS, "spec.size=4", "b"),
    ] {
        assert_eq!(names(&format!("{path}?fieldSelector={selector}")).await, want, "{selector}");
    }
    assert_eq!(names(&format!("{V2}?fieldSelector=spec.length!=9&limit=1")).await, "a");
    assert_eq!(cluster.get(&format!("{V2}?fieldSelector=spec.size=3")).await.0, 400, "a field of version 1");

    let registry = &cluster.server.chain.rest.registry;
    let catalogue = registry.catalogue();
    let served = catalogue.served("example.com", "v2", "widgets").expect("version 2");
    let query = Query::parse(Some("fieldSelector=spec.length%3D3"));
    let options = ListOptions::read(&query, true).expect("options");
    let selection = Selection::read(served, &options).expect("a selection");
    let mut watcher = registry.watch(served, "n", selection, &options).await.expect("a watch");
    assert_eq!(changes(&mut watcher).await, [("INITIAL", "a".to_owned())]);
    for (name, size, seen) in [("b", 3, "ADDED"), ("a", 4, "DELETED"), ("a", 3, "ADDED")] {
        let patch = json!({"spec": {"size": size}});
        assert_eq!(cluster.patch(&format!("{WIDGETS}/{name}"), MERGE, &patch).await.0, 200);
        assert_eq!(changes(&mut watcher).await, [(seen, name.to_owned())]);
    }
    // The webhook sets this label in version 2 only.
    for (path, selector, want) in [
        (V2, "version=length", "a,b"),
        (V2, "version!=length", ""),
        (V2, "version=length&fieldSelector=metadata.name=b", "b"),
        (WIDGETS, "version=length", ""),
        (WIDGETS, "!version", "a,b"),
    ] {
        assert_eq!(names(&format!("{path}?labelSelector={selector}")).await, want, "{path} {selector}");
    }
    let query = Query::parse(Some("labelSelector=version%3Dlength"));
    let options = ListOptions::read(&query, true).expect("options");
    let selection = Selection::read(served, &options).expect("a selection");
    let mut labelled = registry.watch(served, "n", selection, &options).await.expect("a watch");
    assert_eq!(changes(&mut labelled).await.len(), 2);
    let patch = json!({"spec": {"size": 3}, "metadata": {"annotations": {"touched": "yes"}}});
    assert_eq!(cluster.patch(&format!("{WIDGETS}/b"), MERGE, &patch).await.0, 200);
    assert_eq!(changes(&mut labelled).await, [("MODIFIED", "b".to_owned())]);
    assert_eq!(changes(&mut watcher).await, [("MODIFIED", "b".to_owned())]);
    fails.store(true, Ordering::Relaxed);
    assert_eq!(cluster.get(&format!("{V2}?fieldSelector=spec.length=3")).await.0, 500);
    let patch = json!({"spec": {"size": 5}});
    assert_eq!(cluster.patch(&format!("{WIDGETS}/a"), MERGE, &patch).await.0, 200);
    assert_eq!(changes(&mut watcher).await[0].0, "ERROR", "a failed conversion is reported");
}
