//! `ferry up`: a control plane and a node in one process, until a signal; `ferry down` sends it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use base::machine_network::Family;
use base::tasks::TaskGroup;
use clap::Args;
use cluster::{
    ClusterError, Config, ControlPlane, LocalNode, LocalProxy, NodeConfig, PodRanges, ProxyConfig, ProxyMode,
};
use rustix::process::geteuid;

use crate::check;
use crate::claims::{self, Claims, Registry};
use crate::cli::DataDir;
use crate::controller_flags::{check_families, check_max_pods};
use crate::data_dir_lock::{self, DataDirLock};
use crate::flags::{NetworkPolicyArgs, parse_cidrs};
use crate::machine_record::MachineRecord;
use crate::node::{self, NodeArgs};
use crate::nodes::{self, NodeRange, Nodes};
use crate::output;
use crate::serve::{Role, configure, say, stop_on_signal, without};
use crate::serve_flags::ServeArgs;
use crate::stop_pods::{self, Then};

pub(crate) const DEFAULT_DATA_DIR: &str = "/var/lib/ferry";

#[derive(Args, Debug)]
pub struct UpArgs {
    #[command(flatten)]
    pub serve: ServeArgs,

    #[command(flatten)]
    pub node: NodeArgs,

    #[command(flatten)]
    pub network_policy: NetworkPolicyArgs,

    /// The endpoint of container runtime service instead of Ferry's own, such as
    /// `unix:///run/containerd/containerd.sock`.
    #[arg(long, value_name = "URL", help_heading = "Node")]
    pub container_runtime_endpoint: Option<String>,

    /// Number of nodes; the second and later ones are network namespaces of this machine [default: the existing
    /// number, or 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100), help_heading = "Node")]
    pub nodes: Option<u16>,

    /// Address range of the nodes, if there are several.
    #[arg(long, value_name = "CIDR", default_value = "172.30.0.0/24", value_parser = NodeRange::parse, help_heading = "Node")]
    pub node_network: NodeRange,

    /// Also stop the pods when the cluster stops; otherwise their containers keep running and are resumed by the next
    /// start.
    #[arg(long, help_heading = "Node")]
    pub stop_pods: bool,
}

#[derive(Args, Debug)]
pub struct DownArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Also stop the pods; otherwise their containers keep running.
    #[arg(long)]
    pub stop_pods: bool,
}

/// Creates the data directory, which holds keys, Secrets and the store, and removes other users' access if it exists.
pub fn close_data_dir(data_dir: &Path) -> Result<()> {
    let mode = if geteuid().is_root() { 0o750 } else { 0o700 };
    sys::directories::ensure(data_dir, mode)
        .with_context(|| format!("failed to create {}", data_dir.display()))
}

pub async fn run(arguments: UpArgs) -> Result<ExitCode> {
    let begin = Instant::now();
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    base::limits::raise_open_files();
    let (endpoint, stop_pods) = (arguments.container_runtime_endpoint, arguments.stop_pods);
    let disabled = arguments.serve.disable.clone();
    let mut serve = arguments.serve;
    let mut node_network = arguments.node_network;
    let data_dir = serve.data_dir.data_dir.clone();
    let claimed = claim_ranges(&mut serve, &mut node_network, arguments.node.kubelet_listen)?;
    let mut config = configure(serve, Role::Server)?;
    if geteuid().is_root() {
        check_families(&config.families, &config.components)?;
        check_max_pods(&config.components, arguments.node.max_pods)?;
    }
    let lock = claim_data_dir(&data_dir)?;
    let mut node_config = NodeConfig::new(&data_dir);
    node_config.cluster_domain.clone_from(&config.cluster_domain);
    node_config.clock = config.clock.clone();
    node_config.pages = config.api.chain.pages;
    let record = MachineRecord::names(&data_dir, arguments.node.cgroup_root.clone())?;
    node::configure(&mut node_config, arguments.node)?;
    node_config.cgroup_root.clone_from(&record.cgroup_root);
    node_config.service_network.instance = record.instance;
    if let Some((registry, claims)) = claimed {
        set_ports(&mut config, &mut node_config, &claims);
        check_kubelet_port(node_config.listen)?;
        registry.record(&claims)?;
    }
    node_config.service_network.policy_failure = arguments.network_policy.on_failure;
    node_config.static_pods.get_or_insert_with(|| data_dir.join("manifests"));
    let nodes = other_nodes(&config, &mut node_config, arguments.nodes, node_network)?;
    configure_services(&mut config, &mut node_config, &disabled);
    let cluster_ranges = config.components.cluster_cidrs.clone();
    let for_agents = flags_for_agents(&config, &disabled);
    let cgroup_root = node_config.cgroup_root.clone();
    let plane = ControlPlane::build(config, tasks.clone()).await.map_err(with_flag)?;
    let Local { node, proxy, record } =
        Local::build(&plane, node_config, record, endpoint, &cluster_ranges, &tasks)?;
    let failure = NodeFailure::default();
    let (url, kubeconfig) = (plane.certificates().url(), plane.kubeconfig());
    say(format_args!("Listening on {}; creating the bootstrap objects ...", plane.address()));
    let starting = tasks.clone();
    let advertised = format!("https://{}", plane.certificates().advertised());
    let administrator = plane.administrator()?;
    let failed = failure.clone();
    let ready = move || match node {
        Some(node) => {
            start(node, &starting, begin, url, &kubeconfig, failed);
            if let Some(nodes) = nodes {
                nodes.start(advertised, for_agents, &cgroup_root, administrator, &starting);
            }
        }
        None => {
            if let Some(proxy) = proxy {
                proxy.start(&starting);
            }
            print_summary(begin, &url, &kubeconfig, "get namespaces");
        }
    };
    plane.run(Box::new(ready)).await?;
    if let Some(error) = failure.take() {
        return Err(error);
    }
    if let Some(record) = record {
        finish_pods(&data_dir, &record, stop_pods).await?;
    }
    drop(lock);
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Chooses ranges and ports that no other cluster of this machine has, unless flags set them.
fn claim_ranges(
    serve: &mut ServeArgs,
    node_network: &mut NodeRange,
    kubelet: SocketAddr,
) -> Result<Option<(Registry, Claims)>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let data_dir = &serve.data_dir.data_dir;
    let registry = Registry::open(data_dir)?;
    let ports = [
        (claims::KUBELET, kubelet),
        (claims::PROXY_HEALTH, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
        (claims::PROXY_METRICS, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        (claims::CONTROLLERS, SocketAddr::from((serve.component_bind_address, 0))),
        (claims::SCHEDULER, SocketAddr::from((serve.component_bind_address, 0))),
    ];
    let mut claims = claims::choose(data_dir, &registry.taken(), &ports)?;
    if claims::is_flag_set("kubelet-listen") {
        claims.ports.insert(claims::KUBELET.0.to_owned(), kubelet.port());
    }
    if claims::is_flag_set("cluster-cidr") || claims.pods.is_empty() {
        claims.pods.clone_from(&serve.cluster_cidr);
    } else {
        serve.cluster_cidr.clone_from(&claims.pods);
    }
    match &serve.service_cluster_ip_range {
        Some(ranges) => claims.services = ranges.texts(),
        None if claims.services.is_empty() => {}
        None => {
            let ranges = parse_cidrs(&claims.services.join(",")).map_err(anyhow::Error::msg)?;
            serve.service_cluster_ip_range = Some(ranges);
        }
    }
    if claims::is_flag_set("node-network") || claims.nodes.is_empty() {
        claims.nodes = vec![node_network.to_string()];
    } else if let Some(range) = claims.nodes.first() {
        *node_network = NodeRange::parse(range).map_err(anyhow::Error::msg)?;
    }
    Ok(Some((registry, claims)))
}

/// Sets the chosen ports of the control plane and its node.
fn set_ports(config: &mut Config, node_config: &mut NodeConfig, claims: &Claims) {
    let port = |(name, default): (&str, u16)| claims.ports.get(name).copied().unwrap_or(default);
    node_config.listen.set_port(port(claims::KUBELET));
    if let Some(proxy) = &mut node_config.service_network.proxy {
        let all = [(&mut proxy.healthz, claims::PROXY_HEALTH), (&mut proxy.metrics, claims::PROXY_METRICS)];
        for (address, name) in all {
            if let Some(address) = address {
                address.set_port(port(name));
            }
        }
    }
    for one in &mut config.components.ports {
        if let Some(port) = claims.ports.get(one.component) {
            one.port.listen.set_port(*port);
        }
    }
    let defaults = [
        claims::KUBELET,
        claims::PROXY_HEALTH,
        claims::PROXY_METRICS,
        claims::CONTROLLERS,
        claims::SCHEDULER,
    ];
    let is_other = |(name, default): &(&str, u16)| {
        port((*name, *default)) != *default
            && !(*name == claims::KUBELET.0 && claims::is_flag_set("kubelet-listen"))
    };
    let others: Vec<String> =
        defaults.into_iter().filter(is_other).map(|one| format!("{} {}", one.0, port(one))).collect();
    if !others.is_empty() {
        say(format_args!("Default ports are in use; selected other ports: {}", others.join(", ")));
    }
}

/// Checks that the kubelet's port is free, before anything is started.
fn check_kubelet_port(address: SocketAddr) -> Result<()> {
    match base::listen::listen(address) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Err(anyhow::anyhow!(
            "another process listens on {address}, the kubelet's port: select another port with --kubelet-listen ADDR:PORT"
        )),
        // Other errors are reported by the kubelet.
        _ => Ok(()),
    }
}

/// Checks the machine and claims the data directory for this process.
fn claim_data_dir(data_dir: &Path) -> Result<DataDirLock> {
    data_dir_lock::ensure_free(data_dir)?;
    for note in check::before_start(data_dir)? {
        say(format_args!("Note: {note}"));
    }
    close_data_dir(data_dir)?;
    let lock = DataDirLock::claim(data_dir)?;
    let what = if data_dir.join("store").exists() { "Resuming" } else { "Starting" };
    say(format_args!("{what} the cluster in {}: certificates, store, API server ...", data_dir.display()));
    Ok(lock)
}

/// Sets the node's addresses and creates the other nodes of this machine, which requires root.
fn other_nodes(
    config: &Config,
    node_config: &mut NodeConfig,
    count: Option<u16>,
    range: NodeRange,
) -> Result<Option<Nodes>> {
    if !geteuid().is_root() {
        ensure!(
            count.is_none_or(|count| count == 1),
            "several nodes on one machine require root: run `sudo ferry up --nodes {}`",
            count.unwrap_or_default()
        );
        return Ok(None);
    }
    let count = count.map_or_else(|| nodes::count(&config.data_dir), usize::from);
    ensure!(
        count == 1 || !config.listen.ip().is_loopback(),
        "other nodes cannot reach an API server that listens on {}",
        config.listen
    );
    let mut families = config.families.clone();
    for family in Family::all_of(&config.components.cluster_cidrs) {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    prepare_nodes(node_config, count, range, &families)
}

/// The part of the cluster on this machine: a node with root, otherwise a service proxy.
#[derive(Default)]
struct Local {
    node: Option<LocalNode>,
    proxy: Option<LocalProxy>,
    record: Option<MachineRecord>,
}

impl Local {
    fn build(
        plane: &ControlPlane,
        mut node_config: NodeConfig,
        record: MachineRecord,
        endpoint: Option<String>,
        cluster_ranges: &[String],
        tasks: &TaskGroup,
    ) -> Result<Self> {
        if !geteuid().is_root() {
            let config = node_config.service_network.proxy.take();
            let proxy = config.map(|config| plane.proxy(without_root(config))).transpose()?;
            print_root_notes(plane.certificates().advertised(), proxy.is_some());
            return Ok(Self { proxy, ..Self::default() });
        }
        let data_dir = node_config.data_dir.clone();
        let node_bridge = nodes::bridge_of(&data_dir);
        let record = MachineRecord { runtime: endpoint.clone(), node_bridge, ..record };
        record.write(&data_dir)?;
        node_config.runtime = match endpoint {
            Some(endpoint) => endpoint,
            None => own_runtime(&data_dir, PodRanges::new(&node_config, cluster_ranges), tasks)?,
        };
        Ok(Self { node: Some(plane.node(node_config)?), record: Some(record), ..Self::default() })
    }
}

/// Proxy mode without permission to change kernel rules.
fn without_root(config: ProxyConfig) -> ProxyConfig {
    ProxyConfig { mode: Some(ProxyMode::Userspace), ..config }
}

/// Notes for a cluster without root: available and missing features, and the commands for the missing ones.
fn print_root_notes(advertised: std::net::SocketAddr, services: bool) {
    say(format_args!(
        "Not running as root, so no node is started: containers, the pod network, network policies and load balancer addresses require root."
    ));
    if services {
        say(format_args!(
            "Services are proxied by this process to endpoints reachable from this machine: node ports on its addresses, and every IPv4 service on the loopback network (10.96.0.1:443 is 127.96.0.1:10443; ports below 1024 have 10000 added)."
        ));
    }
    say(format_args!(
        "For a node here run `sudo ferry up`; for a node elsewhere `ferry token create`, and there `sudo ferry agent --server https://{advertised} --token ...`; for nodes without containers `ferry simulate`; for a control plane alone `ferry server`."
    ));
}

/// Sets the node's address and creates the other nodes of this machine, if any.
fn prepare_nodes(
    node_config: &mut NodeConfig,
    count: usize,
    range: NodeRange,
    families: &[Family],
) -> Result<Option<Nodes>> {
    if count == 1 {
        // Addresses of the machine are followed, so they are not part of the configuration.
        if !node_config.ips.is_empty() || cluster::node_ips().iter().any(|ip| !ip.is_loopback()) {
            return Ok(None);
        }
        say(format_args!("This machine has no address; one is added for the cluster"));
    }
    let bridge = nodes::bridge_of(&node_config.data_dir);
    let nodes = Nodes::prepare(&node_config.data_dir, &node_config.name, count, range, &bridge, families)?;
    if node_config.ips.is_empty() {
        node_config.ips.clone_from(&nodes.addresses);
    }
    Ok(Some(nodes))
}

/// Configures the service proxy and cluster DNS, and the DNS settings of pods.
fn configure_services(config: &mut Config, node_config: &mut NodeConfig, disabled: &[String]) {
    if config.listen.ip().is_unspecified() && config.advertise.is_none() {
        config.advertise = node_config.ips.first().copied();
    }
    node_config.families.clone_from(&config.families);
    if let Some(dns) = &mut config.components.dns {
        dns.addresses.clone_from(&node_config.ips);
        if node_config.cluster_dns.is_empty() {
            node_config.cluster_dns.clone_from(&dns.service_ips);
        }
    }
    without(&mut node_config.service_network, disabled);
    if let Some(load_balancers) = &config.components.load_balancers {
        node_config.service_network.load_balancer_ranges.clone_from(&load_balancers.ranges);
    }
    if let Some(proxy) = &mut node_config.service_network.proxy {
        proxy.cluster_cidrs.clone_from(&config.components.cluster_cidrs);
    }
}

/// Flags that the agents of this machine share with this process.
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
    let disabled: Vec<&str> = disabled
        .iter()
        .map(String::as_str)
        .filter(|part| !matches!(*part, "dns" | "metrics-server"))
        .collect();
    if !disabled.is_empty() {
        flags.extend(["--disable".to_owned(), disabled.join(",")]);
    }
    flags
}

/// Error of a node that could not be started, after which the cluster stops.
#[derive(Clone, Default)]
struct NodeFailure(Arc<Mutex<Option<anyhow::Error>>>);

impl NodeFailure {
    fn set(&self, error: ClusterError) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(with_flag(error));
    }

    fn take(&self) -> Option<anyhow::Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Adds the flag that selects another port to an error about a port in use.
pub fn with_flag(error: ClusterError) -> anyhow::Error {
    match error.port_in_use() {
        Some((address, "API server")) => anyhow::Error::new(error).context(format!(
            "another process listens on {address}: select another port with --listen ADDR:PORT"
        )),
        Some((address, _)) => anyhow::Error::new(error).context(format!(
            "another process listens on {address}: select another port with --kubelet-listen ADDR:PORT"
        )),
        None => anyhow::Error::new(error),
    }
}

/// Starts the node and reports its progress until it is ready.
fn start(
    node: LocalNode,
    tasks: &TaskGroup,
    begin: Instant,
    url: String,
    kubeconfig: &Path,
    failure: NodeFailure,
) {
    say(format_args!(
        "The API server responds after {} ms; waiting for the node ...",
        begin.elapsed().as_millis()
    ));
    let kubeconfig = kubeconfig.to_owned();
    node.start(
        tasks,
        Box::new(move |begun: cluster::NodeStarted| {
            let ips: Vec<String> = begun.ips.iter().map(ToString::to_string).collect();
            let state = begun
                .not_ready
                .as_deref()
                .map_or_else(|| "ready".to_owned(), |why| format!("not ready yet: {why}"));
            say(format_args!(
                "Node {} at {} is {state}; it runs {}",
                begun.name,
                ips.join(", "),
                output::counted(begun.pods, "pod")
            ));
            print_summary(begin, &url, &kubeconfig, "get nodes");
        }),
        Box::new(move |error| failure.set(error)),
    );
}

/// Prints the summary of a start: URL, kubeconfig, next command.
fn print_summary(begin: Instant, url: &str, kubeconfig: &Path, command: &str) {
    say(format_args!("Ready after {} ms: {url}", begin.elapsed().as_millis()));
    say(format_args!("Kubeconfig of the administrator: {}", kubeconfig.display()));
    say(format_args!("Try:  kubectl --kubeconfig {} {command}", kubeconfig.display()));
}

/// Leaves or stops the pods after the cluster has stopped.
async fn finish_pods(data_dir: &Path, record: &MachineRecord, stop_pods: bool) -> Result<()> {
    if !stop_pods {
        say(format_args!(
            "Stopped; containers keep running. `ferry up` resumes them, `ferry reset` removes the cluster."
        ));
        return Ok(());
    }
    say(format_args!("Stopping the pods ..."));
    let mut ended = stop_pods::run(data_dir, record, Then::Keep).await.context("failed to stop the pods")?;
    for directory in nodes::directories(data_dir) {
        if let Some(record) = MachineRecord::read(&directory)? {
            ended +=
                stop_pods::run(&directory, &record, Then::Keep).await.context("failed to stop the pods")?;
        }
    }
    say(format_args!("Stopped, with {ended} pods. `ferry up` starts them again."));
    Ok(())
}

/// Bridge of the built-in network; each cluster of this machine has its own.
pub fn bridge(data_dir: &Path) -> String {
    if data_dir == Path::new(DEFAULT_DATA_DIR) {
        return "ferry0".to_owned();
    }
    format!("ferry{:08x}", fingerprint(data_dir))
}

/// Starts Ferry's own container runtime and returns its endpoint in the data directory.
pub fn own_runtime(data_dir: &Path, ranges: PodRanges, tasks: &TaskGroup) -> Result<String> {
    Ok(cluster::start_container_runtime(data_dir, bridge(data_dir), ranges, tasks)?)
}

/// Short hash of a path.
pub fn fingerprint(path: &Path) -> u32 {
    sys::instance::fingerprint(path.as_os_str().as_encoded_bytes())
}

/// `ferry down`.
pub async fn down(arguments: DownArgs) -> Result<ExitCode> {
    let data_dir = &arguments.data_dir.data_dir;
    let stopped = data_dir_lock::stop(data_dir)?;
    if !stopped {
        anyhow::ensure!(
            std::os::unix::net::UnixStream::connect(data_dir.join("runtime.sock")).is_err(),
            "no cluster is running in {0}, but an agent or a container runtime is: stop it with Ctrl-C or by its service",
            data_dir.display()
        );
        say(format_args!("No cluster is running in {}", data_dir.display()));
    }
    match MachineRecord::read(data_dir)? {
        Some(record) if stopped || arguments.stop_pods => {
            finish_pods(data_dir, &record, arguments.stop_pods).await?
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
    fn data_dir_accessible_to_others_is_restricted() {
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
