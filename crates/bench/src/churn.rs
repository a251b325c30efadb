//! Benchmark of the controllers: a Deployment on simulated nodes, from the request until every pod runs, and the idle
//! CPU of the controllers.
//!
//! Once with everything in one process, as in `ferry server`, and once with API server, scheduler and controllers in
//! separate processes, which separates their CPU.

use crate::ChurnArguments;
use crate::client::Target;
use crate::pods::{self, Counting, JSON};
use crate::process::{Component, Ferry, Processes};
use crate::report::{self, Line};
use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
/// Delay after the last pod runs, for the resulting writes (status, endpoints, events).
const SETTLE: Duration = Duration::from_secs(5);
const RUNNING: &str = "\"phase\":\"Running\"";

pub async fn run(arguments: &ChurnArguments) -> Result<()> {
    let binary = Ferry::binary(arguments.ferry.as_deref())?;
    let mut lines = measure(&binary, arguments, true).await?;
    lines.extend(measure(&binary, arguments, false).await?);
    report::print(&lines);
    Ok(())
}

async fn measure(binary: &Path, arguments: &ChurnArguments, in_process: bool) -> Result<Vec<Line>> {
    let ferry = Ferry::start_as(binary, &[if in_process { "server" } else { "apiserver" }]).await?;
    crate::api::wait_ready(&ferry).await?;
    let target = Target::new(&ferry.access()?)?;
    let mut components = Vec::new();
    if !in_process {
        for role in
            [&["scheduler", "--leader-elect=false"][..], &["controller-manager", "--leader-elect=false"]]
        {
            components.push(Component::start(binary, role, &ferry.kubeconfig())?);
        }
    }
    let loops = Processes::of(components.iter().map(Component::id).collect());
    let nodes = arguments.nodes.to_string();
    let simulated = Component::start(binary, &["simulate", "--nodes", &nodes], &ferry.kubeconfig())?;
    let simulation = Processes::of(vec![simulated.id()]);
    wait_for_nodes(&target, arguments.nodes).await?;

    let server = ferry.processes();
    let running = Counting::start(&target, RUNNING).await?;
    let before = (server.cpu(), loops.cpu(), simulation.cpu());
    let begin = Instant::now();
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let body = deployment(arguments.replicas).to_string();
    let (status, _) = target.connect().await?.request(Method::POST, path, JSON, body.into()).await?;
    ensure!(status.is_success(), "the Deployment was refused: {status}");
    running.reach(arguments.replicas, PATIENCE).await?;
    let elapsed = begin.elapsed();
    let spent =
        |processes: &Processes, before: Duration| processes.cpu().saturating_sub(before).as_secs_f64();
    let busy = (spent(&server, before.0), spent(&loops, before.1), spent(&simulation, before.2));

    tokio::time::sleep(SETTLE).await;
    let before = (server.cpu(), loops.cpu());
    let period = Duration::from_secs(arguments.idle_seconds);
    tokio::time::sleep(period).await;
    let share = |cpu: f64| 100.0 * cpu / period.as_secs_f64();
    let (server_idle, loops_idle) = (share(spent(&server, before.0)), share(spent(&loops, before.1)));

    let arrangement = if in_process { "one process" } else { "processes of their own" };
    let line = |what: &str, unit, ferry| Line {
        name: format!("{} replicas on {nodes} nodes, {arrangement}: {what}", arguments.replicas),
        unit,
        ferry,
        other: None,
        more_is_better: false,
    };
    let mut lines = vec![line("until all run", "s", elapsed.as_secs_f64())];
    if in_process {
        lines.push(line("CPU of the server until then", "s", busy.0));
    } else {
        lines.push(line("CPU of the API server until then", "s", busy.0));
        lines.push(line("CPU of scheduler and controllers until then", "s", busy.1));
        lines.push(line("CPU of scheduler and controllers when idle", "% of a core", loops_idle));
    }
    lines.push(line("CPU of the simulated nodes until then", "s", busy.2));
    lines.push(line("CPU of the server when idle, heartbeats included", "% of a core", server_idle));
    Ok(lines)
}

/// Waits until the nodes are ready, and pods may be created.
pub async fn wait_for_nodes(target: &Target, wanted: usize) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut connection = target.connect().await?;
    loop {
        let nodes = connection.json(Method::GET, "/api/v1/nodes", Bytes::new()).await?;
        let account = "/api/v1/namespaces/default/serviceaccounts/default";
        let account = connection.json(Method::GET, account, Bytes::new()).await?;
        let ready =
            nodes["items"].as_array().map_or(0, |items| items.iter().filter(|node| fit(node)).count());
        if ready >= wanted && account["metadata"]["uid"].is_string() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "only {ready} of {wanted} nodes were ready within a minute");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn fit(node: &Value) -> bool {
    let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    node["status"]["conditions"].as_array().is_some_and(|conditions| conditions.iter().any(ready))
        && node["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
}

fn deployment(replicas: usize) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "churn"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "churn"}},
            "template": {"metadata": {"labels": {"app": "churn"}}, "spec": {"containers": [pods::container()]}},
        },
    })
}
