//! Requests for objects of a definition, and the cost that a validation rule adds to a create.

use super::{DEFINITIONS, JSON};
use crate::CrdArguments;
use crate::api::{Side, figure};
use crate::client::Target;
use crate::load::{self, Request};
use crate::watch;
use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const GROUP: &str = "requests.example.com";
const CONNECTIONS: usize = 16;
/// Items of the list over which the costly rule iterates, once per item.
const ITEMS: usize = 64;
const RULE: &str = "self.spec.items.all(a, self.spec.items.exists_one(b, a == b))";

pub async fn measure(sides: &mut [Side], arguments: &CrdArguments) -> Result<()> {
    let namespace = format!("bench-{}", std::process::id());
    for side in &*sides {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        let mut setup = side.target.connect().await?;
        setup.request(Method::POST, "/api/v1/namespaces", JSON, object.to_string().into()).await?;
        for (plural, kind, rules) in [("widgets", "Widget", ""), ("ruledwidgets", "RuledWidget", RULE)] {
            define(&side.target, plural, kind, rules, &namespace).await?;
        }
    }
    let base = |plural: &str| format!("/apis/{GROUP}/v1/namespaces/{namespace}/{plural}");
    let count = arguments.requests;
    let rounds = 3;
    let mut least: Vec<[f64; 4]> = vec![[f64::INFINITY; 4]; sides.len()];
    for round in 0..rounds {
        for (side, least) in sides.iter().zip(&mut least) {
            for (at, (plural, kind, verb)) in [
                ("widgets", "Widget", "create"),
                ("widgets", "Widget", "get"),
                ("ruledwidgets", "RuledWidget", "create"),
            ]
            .into_iter()
            .enumerate()
            {
                let collection = base(plural);
                let make = move |n| request(verb, &collection, kind, &format!("w{round}-{n}"));
                let outcome = load::run(&side.target, &side.processes, CONNECTIONS, count, make).await?;
                least[at] = least[at].min(outcome.cpu_ms() * 1000.0);
            }
            let path = base("widgets");
            let request = move |_| Request {
                method: Method::GET,
                path: path.clone(),
                headers: &[],
                body: Bytes::new(),
            };
            let outcome = load::run(&side.target, &side.processes, 1, 10, request).await?;
            let items = count * (round + 1);
            least[3] = least[3].min(outcome.cpu_ms() * 1000.0 / items as f64);
        }
    }
    for (side, [create, get, ruled, item]) in sides.iter_mut().zip(least) {
        let name = |what: &str| format!("custom resource: {what}");
        side.figures.push(figure(name("CPU per create"), "µs", create));
        side.figures.push(figure(name("CPU per get"), "µs", get));
        side.figures.push(figure(name("CPU per list item"), "µs", item));
        side.figures.push(figure(
            name(&format!("CPU of a rule that compares {ITEMS} items with each other")),
            "µs",
            (ruled - create).max(0.0),
        ));
        let watched = |n: u64| Bytes::from(object("Widget", "watched", n).to_string());
        let (watchers, seconds) = (arguments.watchers, arguments.watch_seconds);
        let outcome =
            watch::run(&side.target, &side.processes, &base("widgets"), watched, watchers, 20, seconds)
                .await?;
        side.figures.push(figure(name("CPU per watch event"), "µs", outcome.cpu_us()));
        side.figures.push(figure(name("watch events lost"), "", outcome.lost as f64));
    }
    Ok(())
}

/// Creates a definition and waits until its objects can be listed.
async fn define(target: &Target, plural: &str, kind: &str, rule: &str, namespace: &str) -> Result<()> {
    let text = json!({"type": "string", "maxLength": 2000});
    let rules =
        if rule.is_empty() { json!([]) } else { json!([{"rule": rule, "message": "items must differ"}]) };
    let schema = json!({
        "type": "object", "x-kubernetes-validations": rules,
        "properties": {
            "spec": {"type": "object", "required": ["size", "items"], "properties": {
                "n": text, "filler": text, "size": {"type": "integer", "minimum": 0, "maximum": 1000},
                "mode": {"type": "string", "enum": ["A", "B"], "default": "A"},
                "ratio": {"type": "number"}, "enabled": {"type": "boolean", "default": true},
                "selector": {"type": "object", "additionalProperties": {"type": "string"}},
                "items": {"type": "array", "maxItems": ITEMS, "items": {"type": "string", "maxLength": 20}},
                "parts": {"type": "array", "maxItems": 16, "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "required": ["name"], "properties": {
                        "name": {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9-]+$"},
                        "port": {"type": "integer", "minimum": 1, "maximum": 65535}}}},
            }},
            "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
        },
    });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}],
        },
    });
    let mut connection = target.connect().await?;
    let answer = connection.json(Method::POST, DEFINITIONS, definition.to_string().into()).await?;
    ensure!(answer["kind"] == "CustomResourceDefinition" || answer["code"] == 409, "{answer}");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let path = format!("/apis/{GROUP}/v1/namespaces/{namespace}/{plural}");
        let (status, _) = connection.request(Method::GET, &path, &[], Bytes::new()).await?;
        if status.is_success() {
            // Some servers answer lists before they accept objects.
            tokio::time::sleep(Duration::from_secs(1)).await;
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{path} is not served after 60 s: {status}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn request(verb: &str, collection: &str, kind: &str, name: &str) -> Request {
    match verb {
        "create" => Request {
            method: Method::POST,
            path: collection.to_owned(),
            headers: JSON,
            body: Bytes::from(object(kind, name, 0).to_string()),
        },
        _ => Request {
            method: Method::GET,
            path: format!("{collection}/{name}"),
            headers: &[],
            body: Bytes::new(),
        },
    }
}

fn object(kind: &str, name: &str, n: u64) -> Value {
    let items: Vec<String> = (0..ITEMS).map(|item| format!("item-{item}")).collect();
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind,
        "metadata": {"name": name, "labels": {"app": "bench"}},
        "spec": {"n": n.to_string(), "size": 3, "ratio": 0.5, "filler": "x".repeat(200), "items": items,
            "selector": {"app": "bench"},
            "parts": [{"name": "web", "port": 80}, {"name": "metrics", "port": 9090}]},
    })
}
