//! `ferry up`: a control plane and a node in one process, until a signal; `ferry down` sends it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use base::tasks::TaskGroup;
use clap::Args;
use cluster::{Config, ControlPlane, NodeBeside, NodeConfig, ProxyConfig, ProxyMode};
use rustix::process::geteuid;

use crate::check;
use crate::cli::{DataDir, ServeArgs};
use crate::end_pods::{self, Then};
use crate::flags::NetworkPolicyArgs;
use crate::mark::{self, Mark};
use crate::node::{self, NodeArgs};
use crate::nodes::{self, NodeRange, Nodes};
use crate::serve::{Role, configure, say, stop_on_signal, without};
use crate::traces::Traces;

pub(crate) const DEFAULT_DATA_DIR: &str = "/var/lib/ferry";

#[derive(Args, Debug)]
pub struct UpArgs {
    #[command(flatten)]
    pub serve: ServeArgs,

    #[command(flatten)]
    pub node: NodeArgs,

    #[command(flatten)]
    pub network_policy: NetworkPolicyArgs,

    /// Another container runtime than Ferry's own, such as `unix:///run/containerd/containerd.sock`.
    #[arg(long, value_name = "URL", help_heading = "Node")]
    pub container_runtime_endpoint: Option<String>,

    /// How many nodes; the second and later ones are network namespaces of this machine [default: as many as there
    /// are, or 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100), help_heading = "Node")]
    pub nodes: Option<u16>,

    /// Addresses of the nodes, if there are several.
    #[arg(long, value_name = "CIDR", default_value = "172.30.0.0/24", value_parser = NodeRange::parse, help_heading = "Node")]
    pub node_network: NodeRange,

    /// End the pods too when the cluster is stopped; otherwise their containers go on and are taken up again.
    #[arg(long, help_heading = "Node")]
    pub stop_pods: bool,
}

#[derive(Args, Debug)]
pub struct DownArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// End the pods too; otherwise their containers go on.
    #[arg(long)]
    pub stop_pods: bool,
}

/// Makes the data directory, which holds keys, Secrets and the store, and closes it to other users if it exists already.
fn close_data_dir(data_dir: &Path) -> Result<()> {
    let mode = if geteuid().is_root() { 0o750 } else { 0o700 };
    sys::directories::ensure(data_dir, mode).with_context(|| format!("making {}", data_dir.display()))
}

pub async fn run(arguments: UpArgs) -> Result<ExitCode> {
    let begin = Instant::now();
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    base::limits::raise_open_files();
    let (asked, stop_pods) = (arguments.container_runtime_endpoint, arguments.stop_pods);
    let disabled = arguments.serve.disable.clone();
    let mut config = configure(arguments.serve, Role::Server)?;
    let data_dir = config.data_dir.clone();
    mark::ensure_free(&data_dir)?;
    for note in check::before_start(&data_dir)? {
        say(format_args!("Note: {note}"));
    }
    close_data_dir(&data_dir)?;
    let mark = Mark::claim(&data_dir)?;
    let what = if data_dir.join("store").exists() { "Resuming" } else { "Starting" };
    say(format_args!("{what} the cluster in {}: certificates, store, API server ...", data_dir.display()));
    let mut beside = NodeConfig::new(&data_dir);
    beside.cluster_domain.clone_from(&config.cluster_domain);
    beside.clock = config.clock.clone();
    node::configure(&mut beside, arguments.node)?;
    beside.service_network.policy_failure = arguments.network_policy.on_failure;
    beside.static_pods.get_or_insert_with(|| data_dir.join("manifests"));
    let mut nodes = None;
    if geteuid().is_root() {
        let count = arguments.nodes.map_or_else(|| nodes::count(&data_dir), usize::from);
        ensure!(
            count == 1 || !config.listen.ip().is_loopback(),
            "other nodes cannot reach an API server that listens on {}",
            config.listen
        );
        let both = config.components.cluster_cidrs.iter().any(|range| range.contains(':'));
        nodes = place(&mut beside, count, arguments.node_network, both)?;
    } else {
        ensure!(
            arguments.nodes.is_none_or(|count| count == 1),
            "several nodes on one machine need root: run `sudo ferry up --nodes {}`",
            arguments.nodes.unwrap_or_default()
        );
        find_addresses(&mut beside);
    }
    serve_services(&mut config, &mut beside, &disabled);
    let cluster_ranges = config.components.cluster_cidrs.clone();
    let for_agents = flags_for_agents(&config, &disabled);
    let cgroup_root = beside.cgroup_root.clone();
    let plane = ControlPlane::build(config, tasks.clone()).await?;
    let (mut node, mut traces, mut proxy) = (None, None, None);
    if geteuid().is_root() {
        let left = Traces {
            cgroup_root: beside.cgroup_root.clone(),
            bridge: bridge(&data_dir),
            runtime: asked.clone(),
            node_bridge: nodes::bridge(fingerprint(&data_dir)),
        };
        left.write(&data_dir)?;
        traces = Some(left);
        beside.runtime = match asked {
            Some(asked) => asked,
            None => own_runtime(&data_dir, PodRanges::new(&beside, &cluster_ranges), &tasks)?,
        };
        node = Some(plane.node(beside)?);
    } else {
        let config = beside.service_network.proxy.take();
        proxy = config.map(|config| plane.proxy(without_rights(config))).transpose()?;
        say_what_needs_root(plane.certificates().advertised(), proxy.is_some());
    }
    let (url, kubeconfig) = (plane.certificates().url(), plane.kubeconfig());
    say(format_args!("Listening on {}; waiting for the objects every cluster has ...", plane.address()));
    let starting = tasks.clone();
    let advertised = format!("https://{}", plane.certificates().advertised());
    let administrator = plane.administrator()?;
    let ready = move || match node {
        Some(node) => {
            start(node, &starting, begin, url, &kubeconfig);
            if let Some(nodes) = nodes {
                nodes.start(advertised, for_agents, &cgroup_root, administrator, &starting);
            }
        }
        None => {
            if let Some(proxy) = proxy {
                proxy.start(&starting);
            }
            told(begin, &url, &kubeconfig, "get namespaces");
        }
    };
    let outcome = plane.run(Box::new(ready)).await;
    outcome?;
    if let Some(traces) = traces {
        leave(&data_dir, &traces, stop_pods).await?;
    }
    drop(mark);
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// How services are served by somebody who may not change the kernel's rules.
fn without_rights(config: ProxyConfig) -> ProxyConfig {
    ProxyConfig { mode: Some(ProxyMode::Userspace), ..config }
}

/// What a cluster of somebody who is not root has, what it has not, and what to run for that.
fn say_what_needs_root(advertised: std::net::SocketAddr, services: bool) {
    say(format_args!(
        "This is not root, so there will be no node here: containers, the pods' network, network policies and addresses of load balancers need root."
    ));
    if services {
        say(format_args!(
            "Services are relayed by this process to endpoints that this machine reaches: node ports on its addresses, and every IPv4 service on the loopback network (10.96.0.1:443 is 127.96.0.1:10443; ports below 1024 have 10000 added)."
        ));
    }
    say(format_args!(
        "For a node here run `sudo ferry up`; for one elsewhere `ferry token create`, and there `sudo ferry agent --server https://{advertised} --token ...`; for nodes without containers `ferry simulate`; for a control plane alone `ferry server`."
    ));
}

/// The machine's own addresses, where nobody said which.
fn find_addresses(beside: &mut NodeConfig) {
    if beside.ips.is_empty() {
        beside.ips.extend(cluster::node_ips().into_iter().filter(|ip| !ip.is_loopback()));
    }
}

/// Gives the node its address, and makes the other nodes of this machine, if there are any.
fn place(beside: &mut NodeConfig, count: usize, range: NodeRange, both: bool) -> Result<Option<Nodes>> {
    if count == 1 {
        find_addresses(beside);
        if !beside.ips.is_empty() {
            return Ok(None);
        }
        say(format_args!("This machine has no address; it gets one for the cluster"));
    }
    let bridge = nodes::bridge(fingerprint(&beside.data_dir));
    let nodes = Nodes::prepare(&beside.data_dir, &beside.name, count, range, &bridge, both)?;
    if beside.ips.is_empty() {
        beside.ips.clone_from(&nodes.addresses);
    }
    Ok(Some(nodes))
}

/// Services and names: where they are served, and what pods are told of them.
fn serve_services(config: &mut Config, beside: &mut NodeConfig, disabled: &[String]) {
    if config.listen.ip().is_unspecified() && config.advertise.is_none() {
        config.advertise = beside.ips.first().copied();
    }
    if let Some(dns) = &mut config.components.dns {
        dns.addresses.clone_from(&beside.ips);
        if beside.cluster_dns.is_empty() {
            beside.cluster_dns.clone_from(&dns.service_ips);
        }
    }
    without(&mut beside.service_network, disabled);
    if let Some(load_balancers) = &config.components.load_balancers {
        beside.service_network.load_balancer_ranges.clone_from(&load_balancers.ranges);
    }
    if let Some(proxy) = &mut beside.service_network.proxy {
        proxy.cluster_cidrs.clone_from(&config.components.cluster_cidrs);
    }
}

/// What the agents of this machine are told as this process was.
fn flags_for_agents(config: &Config, disabled: &[String]) -> Vec<String> {
    let mut flags = vec!["--cluster-domain".to_owned(), config.cluster_domain.clone()];
    if !config.components.cluster_cidrs.is_empty() {
        flags.extend(["--cluster-cidr".to_owned(), config.components.cluster_cidrs.join(",")]);
    }
    if let Some(load_balancers) =
        config.components.load_balancers.as_ref().filter(|all| !all.ranges.is_empty())
    {
        flags.extend(["--load-balancers".to_owned(), load_balancers.ranges.join(",")]);
    }
    flags.extend(nodes::flags_of_all_nodes(std::env::args()));
    let disabled: Vec<&str> = disabled.iter().map(String::as_str).filter(|part| *part != "dns").collect();
    if !disabled.is_empty() {
        flags.extend(["--disable".to_owned(), disabled.join(",")]);
    }
    flags
}

/// Starts the node, and tells what it waits for until it is ready.
fn start(node: NodeBeside, tasks: &TaskGroup, begin: Instant, url: String, kubeconfig: &Path) {
    say(format_args!("The API answers after {} ms; waiting for the node ...", begin.elapsed().as_millis()));
    let kubeconfig = kubeconfig.to_owned();
    node.start(
        tasks,
        Box::new(move |begun: cluster::Begun| {
            let ips: Vec<String> = begun.ips.iter().map(ToString::to_string).collect();
            let state = begun
                .not_ready
                .as_deref()
                .map_or_else(|| "ready".to_owned(), |why| format!("not ready yet: {why}"));
            say(format_args!(
                "Node {} at {} is {state}; it has {} pods",
                begun.name,
                ips.join(", "),
                begun.pods
            ));
            told(begin, &url, &kubeconfig, "get nodes");
        }),
    );
}

/// The last words of a start: where, as whom, what next.
fn told(begin: Instant, url: &str, kubeconfig: &Path, command: &str) {
    say(format_args!("Ready after {} ms: {url}", begin.elapsed().as_millis()));
    say(format_args!("Kubeconfig of the administrator: {}", kubeconfig.display()));
    say(format_args!("Try:  kubectl --kubeconfig {} {command}", kubeconfig.display()));
}

/// What becomes of the pods of a cluster that has stopped.
async fn leave(data_dir: &Path, traces: &Traces, stop_pods: bool) -> Result<()> {
    if !stop_pods {
        say(format_args!(
            "Stopped; containers go on. `ferry up` takes them up again, `ferry reset` removes the cluster."
        ));
        return Ok(());
    }
    say(format_args!("Ending the pods ..."));
    let mut ended = end_pods::run(data_dir, traces, Then::Keep).await.context("ending the pods")?;
    for directory in nodes::directories(data_dir) {
        if let Some(traces) = Traces::read(&directory)? {
            ended += end_pods::run(&directory, &traces, Then::Keep).await.context("ending the pods")?;
        }
    }
    say(format_args!("Stopped, with {ended} pods. `ferry up` starts them again."));
    Ok(())
}

/// The bridge of the built-in network: another cluster of this machine has one of its own.
pub fn bridge(data_dir: &Path) -> String {
    if data_dir == Path::new(DEFAULT_DATA_DIR) {
        return "ferry0".to_owned();
    }
    format!("ferry{:08x}", fingerprint(data_dir))
}

/// Which addresses pods have.
#[derive(Clone, Debug, Default)]
pub struct PodRanges {
    /// On this node, until the kubelet says others.
    node: Vec<String>,
    /// On all nodes; what goes elsewhere leaves with the node's address.
    cluster: Vec<String>,
}

impl PodRanges {
    pub fn new(node: &NodeConfig, cluster: &[String]) -> Self {
        Self { node: node.pod_cidr.clone().into_iter().collect(), cluster: cluster.to_vec() }
    }
}

/// Starts Ferry's own container runtime on a socket in the data directory; where that is.
pub fn own_runtime(data_dir: &Path, ranges: PodRanges, tasks: &TaskGroup) -> Result<String> {
    let mut config = container::Config::new(data_dir.join("runtime"));
    config.pod_ranges = ranges.node;
    config.cluster_ranges = ranges.cluster;
    config.bridge = bridge(data_dir);
    let runtime = container::Runtime::open(config, tasks.clone()).context("opening the container runtime")?;
    let socket = data_dir.join("runtime.sock");
    serve_runtime(runtime, &socket, tasks)?;
    Ok(format!("unix://{}", socket.display()))
}

/// Serves a container runtime on a socket until `tasks` stop.
pub fn serve_runtime(runtime: Arc<container::Runtime>, socket: &Path, tasks: &TaskGroup) -> Result<()> {
    let listener = cri::server::bind(socket).with_context(|| format!("listening on {}", socket.display()))?;
    let (mut first, socket) = (Some(listener), socket.to_owned());
    tasks.supervise("container-runtime", move || {
        let listener = first.take().map_or_else(|| cri::server::bind(&socket), Ok);
        let runtime = Arc::clone(&runtime);
        async move {
            match listener {
                Ok(listener) => runtime.serve(listener).await,
                Err(error) => tracing::error!(%error, "failed to listen for CRI"),
            }
        }
    });
    Ok(())
}

/// A short number for a path (FNV-1a).
fn fingerprint(path: &Path) -> u32 {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// `ferry down`.
pub async fn down(arguments: DownArgs) -> Result<ExitCode> {
    let data_dir = &arguments.data_dir.data_dir;
    let stopped = mark::stop(data_dir)?;
    if !stopped {
        say(format_args!("No cluster runs in {}", data_dir.display()));
    }
    match Traces::read(data_dir)? {
        Some(traces) if stopped || arguments.stop_pods => {
            leave(data_dir, &traces, arguments.stop_pods).await?
        }
        None if stopped => say(format_args!("Stopped.")),
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn data_dir_open_to_others_is_closed() {
        let parent = tempfile::tempdir().expect("a directory");
        let path = parent.path().join("data");
        for mode in [0o755, 0o777] {
            std::fs::create_dir_all(&path).expect("a directory");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
            close_data_dir(&path).expect("closed");
            let found = std::fs::metadata(&path).expect("a directory").permissions().mode();
            assert_eq!(found & 0o007, 0, "{found:o}");
        }
    }
}
