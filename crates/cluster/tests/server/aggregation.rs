//! Group versions served by an extension server.

use anyhow::{Context, Result, ensure};
use apiserver::aggregate::Routing;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::{Responder, Server, eventually};

const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.example.com";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const FLUNDERS: &str = "/apis/example.com/v1/namespaces/default/flunders";

const LIMIT: Duration = Duration::from_secs(60);

/// An extension server with one resource.
fn answer(path: &str, body: &Value) -> (u16, Value) {
    match path {
        "/apis/example.com/v1" => (
            200,
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "example.com/v1", "resources": [
                {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder",
                 "verbs": ["create", "get", "list"], "shortNames": ["fl"]}]}),
        ),
        FLUNDERS if body.is_null() => {
            (200, json!({"kind": "FlunderList", "apiVersion": "example.com/v1", "items": []}))
        }
        FLUNDERS => (201, body.clone()),
        "/openapi/v3/apis/example.com/v1" => (200, json!({"openapi": "3.0.0", "paths": {}})),
        _ => (404, json!({"kind": "Status", "apiVersion": "v1", "code": 404})),
    }
}

/// A server whose `v1.example.com` is served by `responder`.
async fn aggregated(responder: &Responder, service: &str) -> Result<Server> {
    let server = Server::start_with(|config| config.api.aggregator_routing = Routing::Service).await?;
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": service},
                        "spec": {"type": "ExternalName", "externalName": "localhost"}});
    let created = server.admin.post(SERVICES, &object).await?;
    ensure!(created.status == 201, "{}", created.body);
    let object = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.example.com"},
        "spec": {"group": "example.com", "version": "v1", "groupPriorityMinimum": 1500, "versionPriority": 15,
                 "caBundle": STANDARD.encode(&responder.certificate),
                 "service": {"namespace": "default", "name": service, "port": responder.port()?}},
    });
    let created = server.admin.post(API_SERVICES, &object).await?;
    ensure!(created.status == 201, "{}", created.body);
    Ok(server)
}

/// Waits for the `Available` condition with this reason; returns its message.
async fn condition(server: &Server, reason: &str) -> Result<String> {
    let seen = eventually(
        reason,
        LIMIT,
        async || {
            Ok::<_, anyhow::Error>(
                server.admin.get(API_SERVICE).await?.body["status"]["conditions"][0].clone(),
            )
        },
        |seen| seen.as_ref().is_ok_and(|condition| condition["reason"] == reason),
    );
    Ok(seen.await?["message"].as_str().unwrap_or_default().to_owned())
}

/// Waits until the resource returns this status.
async fn status_of_flunders(server: &Server, status: u16) {
    let observe = async || server.admin.get(FLUNDERS).await.map(|reply| reply.status.as_u16());
    eventually("status of the resource", LIMIT, observe, |seen| {
        seen.as_ref().is_ok_and(|code| *code == status)
    })
    .await
    .ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_reach_the_extension_server_as_their_user() -> Result<()> {
    let responder = Responder::start(answer).await?;
    let server = aggregated(&responder, "responder").await?;
    ensure!(condition(&server, "Passed").await? == "all checks passed");
    // Go's servers return 400 for requests without a Host header.
    let host = format!("localhost:{}", responder.port()?);
    ensure!(responder.headers().iter().all(|seen| seen["host"] == *host), "{:?}", responder.headers());
    let groups = server.admin.get("/apis").await?.body;
    let known = |group: &Value| group["name"] == "example.com";
    ensure!(groups["groups"].as_array().context("groups")?.iter().any(known), "{groups}");

    let forged = Request::get(FLUNDERS)
        .header("X-Remote-User", "somebody")
        .header("X-Remote-Group", "forged")
        .header("X-Remote-Extra-Scopes", "forged")
        .body(Full::new(Bytes::new()))?;
    let listed = server.admin.exchange(forged).await?;
    ensure!(listed.status == 200 && listed.body["kind"] == "FlunderList", "{}", listed.body);
    let seen = responder.headers().pop().context("a request")?;
    ensure!(seen["x-remote-user"] == "admin", "{seen:?}");
    let groups: Vec<_> = seen.get_all("x-remote-group").iter().collect();
    ensure!(groups == ["system:masters", "system:authenticated"], "{seen:?}");
    ensure!(!seen.contains_key("x-remote-extra-scopes") && !seen.contains_key("authorization"), "{seen:?}");

    let object = json!({"apiVersion": "example.com/v1", "kind": "Flunder", "metadata": {"name": "a"}});
    let created = server.admin.post(FLUNDERS, &object).await?;
    ensure!(created.status == 201 && created.body["metadata"]["name"] == "a", "{}", created.body);
    let document = server.admin.get("/openapi/v3/apis/example.com/v1").await?;
    ensure!(document.body["openapi"] == "3.0.0", "{}", document.body);

    let before = responder.seen().len();
    let refused = server.client_as("alice", None)?.get(FLUNDERS).await?;
    ensure!(refused.status == 403, "{}", refused.body);
    ensure!(responder.seen().len() == before, "a rejected request reached the extension server");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_extension_server_is_unavailable_until_its_api_service_is_gone() -> Result<()> {
    let failing = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&failing);
    let responder = Responder::start(move |path, body| match fails.load(Ordering::Relaxed) {
        true => (500, json!({})),
        false => answer(path, body),
    })
    .await?;
    let server = aggregated(&responder, "responder").await?;
    condition(&server, "Passed").await?;
    failing.store(true, Ordering::Relaxed);
    // A change of the service triggers an immediate check.
    let mut service = server.admin.get(&format!("{SERVICES}/responder")).await?.body;
    service["metadata"]["annotations"] = json!({"touched": "yes"});
    ensure!(server.admin.put(&format!("{SERVICES}/responder"), &service).await?.status == 200);
    let message = condition(&server, "FailedDiscoveryCheck").await?;
    let url = format!("https://localhost:{}/apis/example.com/v1", responder.port()?);
    ensure!(
        message == format!("failing or missing response from {url}: bad status from {url}: 500"),
        "{message}"
    );
    status_of_flunders(&server, 503).await;
    let discovery = server.admin.get("/apis/example.com/v1").await?;
    ensure!(discovery.status == 503, "{}", discovery.body);

    ensure!(server.admin.delete(API_SERVICE).await?.status == 200);
    status_of_flunders(&server, 404).await;
    Ok(())
}

/// The certificate is for another service: nothing is sent to an unverified server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extension_server_with_the_certificate_of_another_is_not_trusted() -> Result<()> {
    let responder = Responder::start(answer).await?;
    let server = aggregated(&responder, "impostor").await?;
    let message = condition(&server, "FailedDiscoveryCheck").await?;
    ensure!(message.contains("certificate"), "{message}");
    ensure!(responder.seen().is_empty(), "the server got requests");
    ensure!(server.admin.get(FLUNDERS).await?.status == 503);
    Ok(())
}

/// A proxied watch ends with the extension server; other watches continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_ends_when_the_extension_server_is_killed() -> Result<()> {
    const WATCHED: &str = "/apis/example.com/v1/flunders";
    let flunder = json!({"apiVersion": "example.com/v1", "kind": "Flunder", "metadata": {"name": "a"}});
    let event = json!({"type": "ADDED", "object": flunder});
    let sent = event.clone();
    let responder = Responder::start(move |path, body| match path {
        WATCHED => (200, json!({"stream": [sent]})),
        _ => answer(path, body),
    })
    .await?;
    let server = aggregated(&responder, "responder").await?;
    condition(&server, "Passed").await?;
    status_of_flunders(&server, 200).await;
    let mut watch = server.admin.stream(&format!("{WATCHED}?watch=true")).await?;
    let mut own = server.admin.stream("/api/v1/namespaces?watch=true&resourceVersion=0").await?;
    let first = tokio::time::timeout(LIMIT, watch.next()).await??;
    ensure!(first == Some(event), "{first:?}");
    drop(responder);
    let last =
        tokio::time::timeout(LIMIT, watch.next()).await.context("the watch continues without its server")?;
    ensure!(!matches!(last, Ok(Some(_))), "{last:?}");
    // The next check detects the failure; until then requests fail individually.
    status_of_flunders(&server, 503).await;
    let mut service = server.admin.get(&format!("{SERVICES}/responder")).await?.body;
    service["metadata"]["annotations"] = json!({"touched": "yes"});
    ensure!(server.admin.put(&format!("{SERVICES}/responder"), &service).await?.status == 200);
    condition(&server, "FailedDiscoveryCheck").await?;
    ensure!(tokio::time::timeout(LIMIT, own.next()).await??.is_some(), "watches of this server continue");
    Ok(())
}

/// Custom resource definitions are added and removed along with APIServices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extension_server_is_reached_after_definitions_have_changed() -> Result<()> {
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let responder = Responder::start(answer).await?;
    let server = aggregated(&responder, "responder").await?;
    condition(&server, "Passed").await?;
    status_of_flunders(&server, 200).await;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.custom.example.com"},
        "spec": {"group": "custom.example.com", "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]},
    });
    let created = server.admin.post(DEFINITIONS, &definition).await?;
    ensure!(created.status == 201, "{}", created.body);
    let observe = async || {
        server.admin.get("/apis/custom.example.com/v1/widgets").await.map(|reply| reply.status.as_u16())
    };
    eventually("the definition", LIMIT, observe, |seen| seen.as_ref().is_ok_and(|code| *code == 200))
        .await
        .ok();
    ensure!(server.admin.get(FLUNDERS).await?.status == 200, "the extension server is no longer reached");
    Ok(())
}
