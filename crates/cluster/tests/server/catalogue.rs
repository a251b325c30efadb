//! Definitions are created, changed and deleted while clients read over TLS and HTTP: no response shows half of a
//! change.

use anyhow::{Context, Result, ensure};
use http::Request;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use testkit::{Client, Server, eventually};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const LIMIT: Duration = Duration::from_secs(60);
const ROUNDS: usize = 12;

/// A definition with two versions in a group of its own.
fn definition(group: &str) -> Value {
    let version = |name: &str, stored: bool| json!({"name": name, "served": true, "storage": stored, "schema": {"openAPIV3Schema": {"type": "object"}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {"group": group, "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [version("v1", true), version("v2", false)]},
    })
}

async fn until(client: &Client, path: &str, status: u16) -> Result<()> {
    let observe = async || client.get(path).await.map(|reply| reply.status.as_u16());
    eventually(path, LIMIT, observe, |seen| seen.as_ref().is_ok_and(|seen| *seen == status)).await?;
    Ok(())
}

/// Reports whether a group is shown, in one response each of discovery, OpenAPI and its resource.
async fn read(client: &Client, group: &str) -> Result<[bool; 3]> {
    let request = Request::get("/apis").header("accept", AGGREGATED).body(Default::default())?;
    let discovery = client.exchange(request).await?.body;
    let items = discovery["items"].as_array().context("groups")?;
    let found = items.iter().find(|item| item["metadata"]["name"] == group);
    if let Some(found) = found {
        let versions = found["versions"].as_array().context("versions")?;
        ensure!(versions.len() == 2, "half of the versions: {found}");
        let complete = |version: &Value| version["resources"][0]["resource"] == "widgets";
        ensure!(versions.iter().all(complete), "a version without its resource: {found}");
    }
    let index = client.get("/openapi/v3").await?.body;
    let documents =
        ["v1", "v2"].map(|version| index["paths"].get(format!("apis/{group}/{version}")).is_some());
    ensure!(documents[0] == documents[1], "the document of one version of {group}");
    let list = client.get(&format!("/apis/{group}/v2/widgets")).await?;
    match list.status.as_u16() {
        200 => ensure!(list.body["kind"] == "WidgetList", "{}", list.body),
        // A group without its resource would be answered with a Status.
        status => ensure!(status == 404 && list.body["kind"] != "Status", "{status}: {}", list.body),
    }
    Ok([found.is_some(), documents[0], list.status == 200])
}

/// Waits until a reader has counted a response.
async fn observed(counter: &AtomicUsize) {
    eventually("a response is counted", LIMIT, async || counter.load(Ordering::Relaxed), |count| *count > 0)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn responses_during_catalogue_changes_show_whole_definitions() -> Result<()> {
    let server = Arc::new(Server::start().await?);
    let (coming, staying) = ("coming.example.com", "staying.example.com");
    let created = server.admin.post(DEFINITIONS, &definition(staying)).await?;
    ensure!(created.status == 201, "{}", created.body);
    for version in ["v1", "v2"] {
        until(&server.admin, &format!("/apis/{staying}/{version}/widgets"), 200).await?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (shown, hidden) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let reader = |number: usize| {
        let (server, stop) = (Arc::clone(&server), Arc::clone(&stop));
        let (shown, hidden) = (Arc::clone(&shown), Arc::clone(&hidden));
        tokio::spawn(async move {
            let client = if number == 0 {
                server.admin_http1()?
            } else {
                server.client_as("reader", Some("system:masters"))?
            };
            while !stop.load(Ordering::Relaxed) {
                ensure!(
                    read(&client, staying).await? == [true; 3],
                    "a change of one definition hides another"
                );
                let seen = read(&client, coming).await?;
                shown.fetch_add(usize::from(seen.contains(&true)), Ordering::Relaxed);
                hidden.fetch_add(usize::from(seen.contains(&false)), Ordering::Relaxed);
            }
            anyhow::Ok(())
        })
    };
    let readers: Vec<_> = (0..3).map(reader).collect();
    let path = format!("/apis/{coming}/v1/widgets");
    for round in 0..ROUNDS {
        let created = server.admin.post(DEFINITIONS, &definition(coming)).await?;
        ensure!(created.status == 201, "{}", created.body);
        until(&server.admin, &path, 200).await?;
        // Otherwise slow readers may see one of the two states only.
        if round == 0 {
            observed(&shown).await;
        }
        let own = format!("{DEFINITIONS}/widgets.{staying}");
        let patch = json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/description",
            "value": format!("change {round}")}]);
        let request = Request::patch(&own).header("content-type", "application/json-patch+json");
        let patched = server.admin.exchange(request.body(patch.to_string().into())?).await?;
        ensure!(patched.status == 200, "{}", patched.body);
        server.admin.delete(&format!("{DEFINITIONS}/widgets.{coming}")).await?;
        until(&server.admin, &path, 404).await?;
        until(&server.admin, &format!("{DEFINITIONS}/widgets.{coming}"), 404).await?;
    }
    observed(&hidden).await;
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await??;
    }
    Ok(())
}
