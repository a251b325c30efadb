//! The scheduling benchmark: nodes that are only objects, pods created by many connections while they are bound.
//!
//! The API server and the scheduler are processes of their own, so that the CPU of each is known; with `--in-process`
//! they are one, as in `ferry server`.

use crate::ScheduleArguments;
use crate::client::Target;
use crate::load::{self, Request};
use crate::process::{Ferry, Processes};
use crate::report::{self, Line};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
const CONNECTIONS: usize = 32;
/// Pods that are not bound by then never will be.
const PATIENCE: Duration = Duration::from_secs(300);

/// One run: what pods ask for, and of how many nodes.
struct Run {
    variant: &'static str,
    nodes: usize,
    pods: usize,
}

pub async fn run(arguments: &ScheduleArguments) -> Result<()> {
    let binary = Ferry::binary(arguments.ferry.as_deref())?;
    let mut runs: Vec<Run> = ["basic", "spread", "anti-affinity"]
        .map(|variant| Run { variant, nodes: arguments.nodes, pods: arguments.pods })
        .into();
    if arguments.large {
        runs.push(Run { variant: "basic", nodes: 5000, pods: 10_000 });
    }
    let mut lines = Vec::new();
    for run in &runs {
        lines.extend(measure(&binary, run, arguments.in_process).await?);
    }
    report::print(&lines);
    Ok(())
}

/// A scheduler of its own; it ends with the benchmark.
struct Scheduler(Child);

impl Scheduler {
    fn start(binary: &Path, kubeconfig: &Path) -> Result<Self> {
        let child = Command::new(binary)
            .args(["scheduler", "--leader-elect=false", "--kubeconfig"])
            .arg(kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {} scheduler", binary.display()))?;
        Ok(Self(child))
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn measure(binary: &Path, run: &Run, in_process: bool) -> Result<Vec<Line>> {
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
    let scheduler = if in_process { None } else { Some(Scheduler::start(binary, &ferry.kubeconfig())?) };
    let scheduling = Processes::of(scheduler.iter().map(|scheduler| scheduler.0.id()).collect());
    // It lists the nodes before the first pod comes; that is not what is measured.
    settle(&target).await?;

    let bound = Arc::new(AtomicUsize::new(0));
    let watching = watch(&target, Arc::clone(&bound)).await?;
    let (server_cpu, scheduler_cpu) = (server.cpu(), scheduling.cpu());
    let begin = Instant::now();
    let variant = run.variant;
    let created = load::run(&target, &server, CONNECTIONS, run.pods, move |number| Request {
        method: Method::POST,
        path: "/api/v1/namespaces/default/pods".to_owned(),
        headers: JSON,
        body: pod(number, variant).to_string().into(),
    })
    .await?;
    while bound.load(Ordering::Relaxed) < run.pods {
        ensure!(
            begin.elapsed() < PATIENCE,
            "{} of {} pods were bound",
            bound.load(Ordering::Relaxed),
            run.pods
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let elapsed = begin.elapsed();
    let server_cpu = server.cpu().saturating_sub(server_cpu);
    let scheduler_cpu = scheduling.cpu().saturating_sub(scheduler_cpu);
    watching.abort();
    drop(scheduler);

    let name = |what: &str| format!("{}, {} nodes, {} pods: {what}", run.variant, run.nodes, run.pods);
    let per_thousand = |cpu: Duration| cpu.as_secs_f64() * 1000.0 / run.pods as f64;
    let line =
        |name: String, unit, ferry, more_is_better| Line { name, unit, ferry, other: None, more_is_better };
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

/// Waits until a pod that was made for this is bound, and takes it away again.
async fn settle(target: &Target) -> Result<()> {
    let mut connection = target.connect().await?;
    let base = "/api/v1/namespaces/default/pods";
    let deadline = Instant::now() + Duration::from_secs(60);
    // The service account controller does not run here.
    let account = json!({"metadata": {"name": "default"}}).to_string();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    connection.request(Method::POST, accounts, JSON, account.into()).await?;
    connection.request(Method::POST, base, JSON, pod(usize::MAX, "basic").to_string().into()).await?;
    let path = format!("{base}/p{}", usize::MAX);
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

/// Counts pods as a watch sees them get a node.
async fn watch(target: &Target, bound: Arc<AtomicUsize>) -> Result<tokio::task::JoinHandle<()>> {
    let base = "/api/v1/namespaces/default/pods";
    let list = target.connect().await?.json(Method::GET, &format!("{base}?limit=1"), Bytes::new()).await?;
    let version = list["metadata"]["resourceVersion"].as_str().context("a list without version")?.to_owned();
    let (keep, mut stream) =
        target.connect().await?.stream(&format!("{base}?watch=1&resourceVersion={version}")).await?;
    Ok(tokio::spawn(async move {
        let _keep = keep;
        let mut pending: Vec<u8> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        while let Some(Ok(frame)) = stream.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            pending.extend_from_slice(&data);
            let mut from = 0;
            while let Some(end) = memchr::memchr(b'\n', &pending[from..]) {
                let event = &pending[from..from + end];
                if memchr::memmem::find(event, b"\"nodeName\":\"").is_some()
                    && let Some(uid) = uid(event)
                    && seen.insert(uid)
                {
                    bound.fetch_add(1, Ordering::Relaxed);
                }
                from += end + 1;
            }
            pending.drain(..from);
        }
    }))
}

fn uid(event: &[u8]) -> Option<Vec<u8>> {
    let at = memchr::memmem::find(event, b"\"uid\":\"")? + 7;
    event.get(at..at + 36).map(<[u8]>::to_vec)
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
    spec["containers"] = json!([{"name": "c", "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}]);
    json!({
        "apiVersion": "v1", "kind": "Pod", "spec": spec,
        "metadata": {"name": format!("p{number}"), "labels": {"group": group}},
    })
}
