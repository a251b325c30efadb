//! Benchmark of resource metrics: CPU and memory of the metrics server with simulated nodes, in the process of the control
//! plane (the difference to a control plane without it) and as a process of its own, optionally beside another metrics
//! server on the same cluster; and CPU of a scrape of the API server's `/metrics`.

use crate::MetricsArguments;
use crate::client::Target;
use crate::pods::{self, Counting, JSON};
use crate::process::{Component, Ferry, Processes};
use crate::report::{self, Line};
use anyhow::{Context, Result, ensure};
use http::{Method, StatusCode};
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(300);
/// Delay after the last pod runs, for the resulting writes and the first two scrapes.
const SETTLE: Duration = Duration::from_secs(45);
/// Time between two requests for the usage of all nodes and pods.
const POLL: Duration = Duration::from_secs(15);
const RUNNING: &str = "\"phase\":\"Running\"";

/// CPU seconds per minute, and proportional memory in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    cpu: f64,
    memory: f64,
}

/// `cgroup` is the control group of real nodes, if there are any.
pub async fn run(arguments: &MetricsArguments, cgroup: &str) -> Result<()> {
    let binary = Ferry::binary(arguments.ferry.as_deref())?;
    let (with, scrape) = control_plane(&binary, arguments, cgroup).await?;
    let (without, alone, other) = without_metrics(&binary, arguments, cgroup).await?;
    let (nodes, real) = (arguments.nodes, arguments.real_nodes);
    let name = |what: &str| format!("{nodes} + {real} nodes, {} pods, every 15 s: {what}", arguments.pods);
    let line = |what: &str, unit, ferry, other: Option<f64>| Line {
        name: name(what),
        unit,
        ferry,
        other,
        more_is_better: false,
    };
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let other_cpu = other.map(|other| other.cpu);
    let other_memory = other.map(|other| mib(other.memory));
    let difference = |with: f64, without: f64| (with - without).max(0.0);
    report::print(&[
        line("CPU alone", "s per min", alone.cpu, other_cpu),
        line("memory alone (PSS)", "MiB", mib(alone.memory), other_memory),
        line("CPU in process, difference", "s per min", difference(with.cpu, without.cpu), other_cpu),
        line(
            "memory in process, difference",
            "MiB",
            mib(difference(with.memory, without.memory)),
            other_memory,
        ),
        line("CPU of the control plane without it", "s per min", without.cpu, None),
        line("CPU of one scrape of the API server's /metrics", "ms", scrape.cpu, None),
        line("length of that page", "kB", scrape.memory / 1000.0, None),
    ]);
    Ok(())
}

/// A control plane with simulated nodes and running pods.
struct World {
    ferry: Ferry,
    target: Target,
    _simulated: Component,
}

async fn world(binary: &Path, arguments: &MetricsArguments, cgroup: &str, flags: &[&str]) -> Result<World> {
    let real = arguments.real_nodes.to_string();
    let mut role = match arguments.real_nodes {
        0 => vec!["server"],
        // Nodes in network namespaces of their own do not reach a loopback address.
        _ => vec!["up", "--nodes", &real, "--listen", "0.0.0.0:0", "--cgroup-root", cgroup],
    };
    role.extend_from_slice(flags);
    let ferry = Ferry::start_as(binary, &role).await?;
    crate::api::wait_ready(&ferry).await?;
    let target = Target::new(&ferry.access()?)?;
    let nodes = arguments.nodes.to_string();
    let simulate = ["simulate", "--nodes", &nodes, "--kubelet-port", "0"];
    let simulated = Component::start(binary, &simulate, &ferry.kubeconfig())?;
    crate::churn::wait_for_nodes(&target, arguments.nodes + arguments.real_nodes).await?;
    let running = Counting::start(&target, RUNNING).await?;
    let body = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "measured"},
        "spec": {
            "replicas": arguments.pods,
            "selector": {"matchLabels": {"app": "measured"}},
            "template": {"metadata": {"labels": {"app": "measured"}}, "spec": {
                "nodeSelector": {"topology.kubernetes.io/region": "simulated"}, "containers": [pods::container()],
            }},
        },
    });
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let (status, _) =
        target.connect().await?.request(Method::POST, path, JSON, body.to_string().into()).await?;
    ensure!(status.is_success(), "the Deployment was rejected: {status}");
    running.reach(arguments.pods, PATIENCE).await?;
    tokio::time::sleep(SETTLE).await;
    Ok(World { ferry, target, _simulated: simulated })
}

/// Requests the usage of all nodes and pods, as autoscalers and `kubectl top` do, until `period` has passed.
async fn poll(target: &Target, pods: usize, period: Duration) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < period {
        let mut connection = target.connect().await?;
        for resource in ["nodes", "pods"] {
            let path = format!("/apis/metrics.k8s.io/v1beta1/{resource}");
            let (status, page) = connection.get(&path, &[]).await?;
            ensure!(status == StatusCode::OK, "{path}: {status}: {}", String::from_utf8_lossy(&page));
            let names = memchr::memmem::find_iter(&page, b"\"timestamp\"").count();
            ensure!(resource == "nodes" || names >= pods, "only {names} of {pods} pods have usage");
        }
        tokio::time::sleep(POLL.min(period.saturating_sub(begin.elapsed()))).await;
    }
    Ok(())
}

/// The cost of processes while `work` runs.
async fn cost(processes: &Processes, work: impl Future<Output = Result<()>>) -> Result<Cost> {
    let (before, begin) = (processes.cpu(), Instant::now());
    work.await?;
    let spent = processes.cpu().saturating_sub(before).as_secs_f64();
    let memory = processes.proportional_memory() as f64;
    Ok(Cost { cpu: spent * 60.0 / begin.elapsed().as_secs_f64(), memory })
}

/// Cost of a control plane with the metrics server in its process, and of one scrape of `/metrics`: its CPU in
/// milliseconds, and its length.
async fn control_plane(binary: &Path, arguments: &MetricsArguments, cgroup: &str) -> Result<(Cost, Cost)> {
    let world = world(binary, arguments, cgroup, &[]).await?;
    let processes = world.ferry.processes();
    let period = Duration::from_secs(arguments.seconds);
    let with = cost(&processes, poll(&world.target, arguments.pods, period)).await?;
    let mut connection = world.target.connect().await?;
    let (_, page) = connection.get("/metrics", &[]).await?;
    let before = processes.cpu();
    for _ in 0..arguments.scrapes {
        connection.get("/metrics", &[]).await?;
    }
    let spent = processes.cpu().saturating_sub(before).as_secs_f64();
    let scrape = Cost { cpu: spent * 1000.0 / arguments.scrapes as f64, memory: page.len() as f64 };
    Ok((with, scrape))
}

/// Cost of a control plane without a metrics server, of Ferry's as a process of its own, and of another one.
async fn without_metrics(
    binary: &Path,
    arguments: &MetricsArguments,
    cgroup: &str,
) -> Result<(Cost, Cost, Option<Cost>)> {
    let world = world(binary, arguments, cgroup, &["--disable", "metrics-server"]).await?;
    let period = Duration::from_secs(arguments.seconds);
    let idle = async {
        tokio::time::sleep(period).await;
        Ok(())
    };
    let without = cost(&world.ferry.processes(), idle).await?;
    let alone =
        server(binary, &["metrics-server"], &world, arguments).await.context("ferry metrics-server")?;
    let other = match &arguments.other {
        Some(program) => {
            let kubeconfig = world.ferry.kubeconfig().display().to_string();
            let flags = [
                "--authentication-kubeconfig".to_owned(),
                kubeconfig.clone(),
                "--authorization-kubeconfig".to_owned(),
                kubeconfig,
            ];
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            Some(server(program, &flags, &world, arguments).await.context("the other metrics server")?)
        }
        None => None,
    };
    Ok((without, alone, other))
}

/// Starts a metrics server on the cluster and measures it from its second scrape on.
async fn server(program: &Path, role: &[&str], world: &World, arguments: &MetricsArguments) -> Result<Cost> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let certificates = tempfile::tempdir()?;
    let (port_flag, directory) =
        (format!("--secure-port={port}"), format!("--cert-dir={}", certificates.path().display()));
    let mut flags = role.to_vec();
    flags.extend([
        "--bind-address=127.0.0.1",
        &port_flag,
        &directory,
        "--kubelet-insecure-tls",
        "--kubelet-use-node-status-port",
        "--kubelet-preferred-address-types=InternalIP",
        "--metric-resolution=15s",
    ]);
    let process = Component::start(program, &flags, &world.ferry.kubeconfig())?;
    let target = Target::unverified(&world.ferry.access()?, SocketAddr::from(([127, 0, 0, 1], port)))?;
    tokio::time::sleep(SETTLE).await;
    let period = Duration::from_secs(arguments.seconds);
    cost(&Processes::of(vec![process.id()]), poll(&target, arguments.pods, period)).await
}
