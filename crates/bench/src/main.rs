//! Benchmarks of Ferry, optionally beside another API server.
//!
//! `cargo run --release -p bench -- api` starts Ferry on a free loopback port and measures it. With `--other
//! KUBECONFIG --other-pids api=PID,etcd=PID` the same load is applied to that server, in turns, in the same run, and
//! every line gets a ratio. CPU seconds are the reliable figures on a busy machine.

mod api;
mod churn;
mod client;
mod cores;
mod crd;
mod flood;
mod kubeconfig;
mod load;
mod metrics;
mod node;
mod pods;
mod policies;
mod process;
mod report;
mod schedule;
mod services;
mod watch;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

#[derive(Parser)]
#[command(about = "Benchmarks of Ferry", version)]
struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// The API server: start-up, memory, CPU per request, throughput, lists, watches.
    Api(ApiArguments),
    /// Custom resources: memory and time of many definitions, CPU of requests and rules, OpenAPI after a change.
    Crd(CrdArguments),
    /// Latency of one user while another one floods the server.
    Flood(FloodArguments),
    /// Network policies on a node of a large cluster: from empty, then one pod more. Needs root.
    Policies(PoliciesArguments),
    /// The scheduler: pods created by 32 connections while they are bound; throughput and CPU.
    Schedule(ScheduleArguments),
    /// `ferry up` with real containers: start-up, pods, memory and CPU. Needs root; runs in separate namespaces.
    Node(NodeArguments),
    /// Services and names: rules for many, one change, the first packet, queries. Needs root; runs in a namespace.
    Services(ServicesArguments),
    /// Controllers: time until all pods of a Deployment run, and CPU use when idle.
    Churn(ChurnArguments),
    /// Resource metrics: CPU and memory of the metrics server with simulated nodes; CPU of a scrape of `/metrics`.
    Metrics(MetricsArguments),
}

/// Options of the benchmark of resource metrics.
#[derive(clap::Args, Clone, Debug)]
struct MetricsArguments {
    /// The ferry binary to measure [default: beside this program].
    #[arg(long)]
    ferry: Option<PathBuf>,
    /// Also measure this metrics-server program on the same cluster.
    #[arg(long)]
    other: Option<PathBuf>,
    /// Simulated nodes.
    #[arg(long, default_value_t = 100)]
    nodes: usize,
    /// Real nodes besides, in namespaces of the benchmark; requires root.
    #[arg(long, default_value_t = 0)]
    real_nodes: usize,
    /// Pods on the simulated nodes.
    #[arg(long, default_value_t = 1000)]
    pods: usize,
    /// Duration of each measurement, in seconds.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Scrapes of the API server's `/metrics`.
    #[arg(long, default_value_t = 50, value_parser = parse_count)]
    scrapes: usize,
}

/// Options of the benchmark of services.
#[derive(clap::Args, Clone, Debug)]
struct ServicesArguments {
    /// Number of services of the large case.
    #[arg(long, default_value_t = 10_000)]
    services: u32,
    /// Endpoints of each.
    #[arg(long, default_value_t = 5)]
    endpoints: u32,
    /// Run the DNS server until the end of standard input.
    #[arg(long, hide = true)]
    serve_names: Option<std::net::SocketAddr>,
}

/// Options of the node benchmark.
#[derive(clap::Args, Clone, Debug)]
struct NodeArguments {
    /// The ferry binary to measure [default: beside this program].
    #[arg(long)]
    ferry: Option<PathBuf>,
    /// Number of starts on an empty directory.
    #[arg(long, default_value_t = 5)]
    starts: usize,
    /// Pods to create, first sequentially, then concurrently.
    #[arg(long, default_value_t = 100)]
    pods: usize,
    /// Pods that run while nothing happens.
    #[arg(long, default_value_t = 50)]
    running: usize,
    /// Duration of the idle measurement, in seconds.
    #[arg(long, default_value_t = 20)]
    idle: u64,
}

/// Options of the benchmark of policies.
#[derive(clap::Args, Clone, Debug)]
struct PoliciesArguments {
    /// Pods of the cluster.
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Pods on this node.
    #[arg(long, default_value_t = 200)]
    local: usize,
    #[arg(long, default_value_t = 1000)]
    policies: usize,
}

/// Options of the benchmark of controllers.
#[derive(clap::Args, Clone, Debug)]
struct ChurnArguments {
    /// The ferry binary to measure [default: beside this program].
    #[arg(long)]
    ferry: Option<PathBuf>,
    /// Simulated nodes.
    #[arg(long, default_value_t = 100)]
    nodes: usize,
    #[arg(long, default_value_t = 1000)]
    replicas: usize,
    /// Duration of the idle measurement, in seconds.
    #[arg(long, default_value_t = 30)]
    idle_seconds: u64,
}

/// Options of the scheduling benchmark.
#[derive(clap::Args, Clone, Debug)]
struct ScheduleArguments {
    /// The ferry binary to measure [default: beside this program].
    #[arg(long)]
    ferry: Option<PathBuf>,
    #[arg(long, default_value_t = 1000)]
    nodes: usize,
    #[arg(long, default_value_t = 5000)]
    pods: usize,
    /// Also 10,000 pods on 5,000 nodes, created while they are bound, and created before.
    #[arg(long)]
    large: bool,
    /// Only these of basic, spread and anti-affinity.
    #[arg(long, value_delimiter = ',')]
    variants: Vec<String>,
    /// API server and scheduler in one process, as in `ferry server`.
    #[arg(long)]
    in_process: bool,
}

/// Options of the API benchmark.
#[derive(clap::Args, Clone, Debug)]
struct ApiArguments {
    /// The ferry binary to measure [default: beside this program].
    #[arg(long)]
    ferry: Option<PathBuf>,
    /// Also measure the API server of this kubeconfig. It must be on this machine's loopback.
    #[arg(long)]
    other: Option<PathBuf>,
    /// The other server's processes, for CPU and memory: NAME=PID,…
    #[arg(long, requires = "other", value_delimiter = ',')]
    other_pids: Vec<String>,
    /// Requests per measurement (at one connection a quarter of it).
    #[arg(long, default_value_t = 6000)]
    requests: usize,
    /// Connections of the load on config maps, one measurement each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64])]
    connections: Vec<usize>,
    /// Number of repetitions of that load; the best of each figure counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only the load on config maps: no start-up, lists or watches.
    #[arg(long)]
    load_only: bool,
    /// Pods to list.
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Open watches.
    #[arg(long, default_value_t = 1000)]
    watchers: usize,
    /// Duration of the watch measurement, in seconds.
    #[arg(long, default_value_t = 10)]
    watch_seconds: u64,
}

/// Settings of the benchmark of custom resources.
#[derive(clap::Args, Clone, Debug)]
struct CrdArguments {
    /// The ferry binary to measure [default: beside this program].
    #[arg(long)]
    ferry: Option<PathBuf>,
    /// Also measure the API server of this kubeconfig. It must be on this machine's loopback.
    #[arg(long)]
    other: Option<PathBuf>,
    /// The other server's processes, for CPU and memory: NAME=PID,…
    #[arg(long, requires = "other", value_delimiter = ',')]
    other_pids: Vec<String>,
    /// Directory with YAML files of definitions [default: definitions of similar sizes are generated].
    #[arg(long)]
    definitions: Option<PathBuf>,
    /// Definitions to create; the files are copied under other group names.
    #[arg(long, default_value_t = 1000, value_parser = parse_count)]
    count: usize,
    /// Longest wait for an idle server before memory is read, in seconds.
    #[arg(long, default_value_t = 180)]
    settle: u64,
    /// Requests per measurement.
    #[arg(long, default_value_t = 4000)]
    requests: usize,
    /// Open watches.
    #[arg(long, default_value_t = 200)]
    watchers: usize,
    /// Duration of the watch measurement, in seconds.
    #[arg(long, default_value_t = 10)]
    watch_seconds: u64,
}

/// Options of the flood.
#[derive(clap::Args, Clone, Debug)]
struct FloodArguments {
    /// The ferry binary to measure [default: beside this program].
    #[arg(long)]
    ferry: Option<PathBuf>,
    /// Connections of the flood.
    #[arg(long, default_value_t = 500)]
    connections: usize,
    /// Requests of the other user per measurement.
    #[arg(long, default_value_t = 3000)]
    requests: usize,
    /// Number of measurements of both.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Enables priority and fairness in the server.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    fair: bool,
    /// Generate the flood against the server of this kubeconfig until the end of standard input.
    #[arg(long, hide = true)]
    hammer: Option<PathBuf>,
}

/// A number of at least one.
fn parse_count(text: &str) -> Result<usize, String> {
    let count: std::num::NonZeroUsize = text.parse().map_err(|error| format!("{error}"))?;
    Ok(count.get())
}

fn main() -> Result<()> {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match Arguments::parse().benchmark {
        Benchmark::Api(arguments) => runtime()?.block_on(api::run(&arguments)),
        Benchmark::Crd(arguments) => runtime()?.block_on(crd::run(&arguments)),
        // One thread: the measurement must not wait for another thread of this process.
        Benchmark::Flood(arguments) => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(flood::run(&arguments)),
        Benchmark::Schedule(arguments) => runtime()?.block_on(schedule::run(&arguments)),
        Benchmark::Node(arguments) => {
            if let Some(reason) = node::missing() {
                anyhow::bail!("{reason}");
            }
            // Namespaces are created first: existing threads would stay outside.
            node::in_own_world(|cgroup| runtime()?.block_on(node::run(&arguments, cgroup)))
        }
        Benchmark::Services(arguments) => services::run(&arguments),
        Benchmark::Policies(arguments) => policies::run(&arguments),
        Benchmark::Metrics(arguments) if arguments.real_nodes > 0 => {
            node::in_own_world(|cgroup| runtime()?.block_on(metrics::run(&arguments, cgroup)))
        }
        Benchmark::Metrics(arguments) => runtime()?.block_on(metrics::run(&arguments, "")),
        Benchmark::Churn(arguments) => runtime()?.block_on(churn::run(&arguments)),
    }
}
