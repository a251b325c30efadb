//! The scheduling benchmark: simulated nodes, and pods created by many connections while they are bound.
//!
//! The API server and the scheduler are separate processes, which separates their CPU; with `--in-process` they are
//! one, as in `ferry server`.

use crate::ScheduleArguments;
use crate::client::Target;
use crate::load::{self, Request};
use crate::pods::{self, Counting, JSON, PODS};
use crate::process::{Component, Ferry, Processes};
use crate::report::{self, Line};
use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Text in the events of bound pods.
const BOUND: &str = "\"nodeName\":\"";
const CONNECTIONS: usize = 32;
/// Time limit for binding all pods.
const PATIENCE: Duration = Duration::from_secs(300);

/// One run: requests of the pods and number of nodes.
struct Run {
    variant: &'static str,
    nodes: usize,
    pods: usize,
    /// All pods exist before the scheduler starts; otherwise they are created while it binds.
    waiting: bool,
}

pub async fn run(arguments: &ScheduleArguments) -> Result<()> {
    let binary = Ferry::binary(arguments.ferry.as_deref())?;
    let chosen =
        |variant: &&str| arguments.variants.is_empty() || arguments.variants.iter().any(|v| v == variant);
    let mut runs: Vec<Run> = ["basic", "spread", "anti-affinity"]
        .into_iter()
        .filter(chosen)
        .map(|variant| Run { variant, nodes: arguments.nodes, pods: arguments.pods, waiting: false })
        .collect();
    if arguments.large {
        runs.push(Run { variant: "basic", nodes: 5000, pods: 10_000, waiting: false });
        runs.push(Run { variant: "basic", nodes: 5000, pods: 10_000, waiting: true });
    }
    let mut lines = Vec::new();
    for run in &runs {
        lines.extend(measure(&binary, run, arguments.in_process).await?);
    }
    report::print(&lines);
    Ok(())
}

fn scheduler(binary: &Path, kubeconfig: &Path) -> Result<Component> {
    Component::start(binary, &["scheduler", "--leader-elect=false"], kubeconfig)
}

async fn measure(binary: &Path, run: &Run, in_process: bool) -> Result<Vec<Line>> {
    let in_process = in_process && !run.waiting;
    let role: &[&str] =
        if in_process { &["server", "--controllers", "serviceaccount-controller"] } else { &["apiserver"] };
    let ferry = Ferry::start_as(binary, role).await?;
    crate::api::wait_ready(&ferry).await?;
    let target = Target::new(&ferry.access()?)?;
    let server = ferry.processes();
    load::run(&target, &server, CONNECTIONS, run.nodes, |number| Request {
        method: Method::POST,
        path: "/api/v1/nodes".to_owned(),
        headers: JSON,
        body: node(number).to_string().into(),
    })
    .await?;
    // New nodes are tainted until a controller has seen them ready; none runs here.
    load::run(&target, &server, CONNECTIONS, run.nodes, |number| Request {
        method: Method::PATCH,
        path: format!("/api/v1/nodes/node-{number}"),
        headers: &[("content-type", "application/merge-patch+json")],
        body: Bytes::from_static(br#"{"spec":{"taints":null}}"#),
    })
    .await?;
    account(&target).await?;
    let name = |what: &str| format!("{}, {} nodes, {} pods: {what}", run.variant, run.nodes, run.pods);
    if run.waiting {
        let bound = Counting::start(&target, BOUND).await?;
        create(&target, &server, run).await?;
        let _scheduler = scheduler(binary, &ferry.kubeconfig())?;
        let first = bound.reach(run.pods, PATIENCE).await?;
        let rate = run.pods as f64 / first.elapsed().as_secs_f64();
        return Ok(vec![line(name("all created before: bound"), "pods/s", rate, true)]);
    }
    let scheduler = if in_process { None } else { Some(scheduler(binary, &ferry.kubeconfig())?) };
    let scheduling = Processes::of(scheduler.iter().map(Component::id).collect());
    // The scheduler lists the nodes before the first pod is created; that is not measured.
    settle(&target).await?;

    let bound = Counting::start(&target, BOUND).await?;
    let (server_cpu, scheduler_cpu) = (server.cpu(), scheduling.cpu());
    let begin = Instant::now();
    let created = create(&target, &server, run).await?;
    bound.reach(run.pods, PATIENCE).await?;
    let elapsed = begin.elapsed();
    let server_cpu = server.cpu().saturating_sub(server_cpu);
    let scheduler_cpu = scheduling.cpu().saturating_sub(scheduler_cpu);

    let per_thousand = |cpu: Duration| cpu.as_secs_f64() * 1000.0 / run.pods as f64;
    let mut lines = vec![
        line(name("created and bound"), "pods/s", run.pods as f64 / elapsed.as_secs_f64(), true),
        line(name("created"), "pods/s", created.per_second(), true),
    ];
    if in_process {
        lines.push(line(name("CPU of all per 1,000 pods"), "s", per_thousand(server_cpu), false));
    } else {
        lines.push(line(name("scheduler's CPU per 1,000 pods"), "s", per_thousand(scheduler_cpu), false));
        lines.push(line(name("API server's CPU per 1,000 pods"), "s", per_thousand(server_cpu), false));
    }
    Ok(lines)
}

fn line(name: String, unit: &'static str, ferry: f64, more_is_better: bool) -> Line {
    Line { name, unit, ferry, other: None, more_is_better }
}

async fn create(target: &Target, server: &Processes, run: &Run) -> Result<load::LoadOutcome> {
    let variant = run.variant;
    load::run(target, server, CONNECTIONS, run.pods, move |number| Request {
        method: Method::POST,
        path: PODS.to_owned(),
        headers: JSON,
        body: pod(number, variant).to_string().into(),
    })
    .await
}

/// The service account of the namespace: its controller does not run here.
async fn account(target: &Target) -> Result<()> {
    let account = json!({"metadata": {"name": "default"}}).to_string();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    target.connect().await?.request(Method::POST, accounts, JSON, account.into()).await?;
    Ok(())
}

/// Waits until a pod created for this purpose is bound, and deletes it.
async fn settle(target: &Target) -> Result<()> {
    let mut connection = target.connect().await?;
    let deadline = Instant::now() + Duration::from_secs(60);
    connection.request(Method::POST, PODS, JSON, pod(usize::MAX, "basic").to_string().into()).await?;
    let path = format!("{PODS}/p{}", usize::MAX);
    loop {
        let found = connection.json(Method::GET, &path, Bytes::new()).await?;
        if found["spec"]["nodeName"].is_string() {
            connection
                .request(Method::DELETE, &format!("{path}?gracePeriodSeconds=0"), JSON, Bytes::new())
                .await?;
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "no pod was bound within a minute: {found}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn node(number: usize) -> Value {
    let name = format!("node-{number}");
    let amounts = json!({"cpu": "32", "memory": "256Gi", "pods": "110"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("zone-{}", number % 3)}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn pod(number: usize, variant: &str) -> Value {
    let group = format!("g{}", number % 10);
    let selector = json!({"matchLabels": {"group": group}});
    let mut spec = match variant {
        "spread" => {
            json!({"topologySpreadConstraints": [{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1,
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]})
        }
        "anti-affinity" => json!({"affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}]}}}),
        _ => json!({}),
    };
    spec["containers"] = json!([pods::container()]);
    json!({
        "apiVersion": "v1", "kind": "Pod", "spec": spec,
        "metadata": {"name": format!("p{number}"), "labels": {"group": group}},
    })
}
