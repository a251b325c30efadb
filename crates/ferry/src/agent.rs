//! `ferry agent`: joins this machine to a cluster as a node, until a signal.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use base::tasks::TaskGroup;
use clap::Args;
use cluster::{Join, NodeConfig, PodRanges};
use sys::process::{Namespace, enter};

use crate::claims::{self, Claims, Registry};
use crate::cli::DataDir;
use crate::flags::NetworkPolicyArgs;
use crate::machine_record::MachineRecord;
use crate::node::{self, NodeArgs};
use crate::serve::{say, stop_on_signal};
use crate::up::{close_data_dir, own_runtime, with_flag};

#[derive(Args, Debug)]
pub struct AgentArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// The cluster's API server, such as https://10.0.0.1:6443.
    #[arg(long, value_name = "URL")]
    pub server: String,

    /// A bootstrap token created by `ferry token create`; required until the node has its own certificate.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,

    /// File containing the token.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,

    /// Certificate authority of the API server; by default it is discovered and verified with the token.
    #[arg(long, value_name = "FILE")]
    pub certificate_authority: Option<PathBuf>,

    /// The endpoint of container runtime service instead of Ferry's own, such as
    /// `unix:///run/containerd/containerd.sock`.
    #[arg(long, value_name = "URL")]
    pub container_runtime_endpoint: Option<String>,

    /// Domain for this cluster.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,

    /// The CIDR range of the pods in the cluster; by default the range of this node's pods.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,

    /// Components to disable: network-policy, proxy, routes.
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',',
          value_parser = ["network-policy", "proxy", "routes"])]
    pub disable: Vec<String>,

    /// Address ranges of load balancers that nodes announce; must match the control plane.
    #[arg(long, value_name = "RANGE[,RANGE]", value_delimiter = ',')]
    pub load_balancers: Vec<String>,

    /// Network namespace to run the node in [default: the current one].
    #[arg(long, value_name = "FILE")]
    pub network_namespace: Option<PathBuf>,

    #[command(flatten)]
    pub node: NodeArgs,

    #[command(flatten)]
    pub network_policy: NetworkPolicyArgs,
}

/// Moves the whole process, which must be single-threaded, to a network namespace. It gets its own host name, which
/// pods in the network of the node have too.
pub fn enter_namespace(path: &Path, hostname: Option<&str>) -> Result<()> {
    let file = File::open(path).with_context(|| format!("failed to open {}", path.display()))?;
    enter(file.as_fd(), Namespace::Network)
        .with_context(|| format!("failed to enter the network namespace {}", path.display()))?;
    if let Some(name) = hostname {
        sys::process::own_hostname(name).context("failed to set the host name of the node")?;
    }
    // The creator of the namespace supervises this node and its end must stop it.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .context("failed to set the parent death signal")
}

/// Chooses ports that no other cluster of this machine has, unless a flag sets them.
fn claim_ports(data_dir: &Path, node: &mut NodeConfig) -> Result<()> {
    let registry = Registry::open(data_dir)?;
    let mut ports = vec![
        (claims::PROXY_HEALTH, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
        (claims::PROXY_METRICS, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
    ];
    if !claims::is_flag_set("kubelet-listen") {
        ports.push((claims::KUBELET, node.listen));
    }
    // The ranges are the cluster's.
    let mut claims =
        Claims { ports: claims::choose(data_dir, &registry.taken(), &ports)?.ports, ..Claims::default() };
    let port = |(name, default): (&str, u16)| claims.ports.get(name).copied().unwrap_or(default);
    if !claims::is_flag_set("kubelet-listen") {
        node.listen.set_port(port(claims::KUBELET));
    }
    if let Some(proxy) = &mut node.service_network.proxy {
        let all = [(&mut proxy.healthz, claims::PROXY_HEALTH), (&mut proxy.metrics, claims::PROXY_METRICS)];
        for (address, name) in all {
            if let Some(address) = address {
                address.set_port(port(name));
            }
        }
    }
    claims.ports.insert(claims::KUBELET.0.to_owned(), node.listen.port());
    registry.record(&claims)
}

pub async fn run(arguments: AgentArgs) -> Result<ExitCode> {
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    base::limits::raise_open_files();
    let data_dir = arguments.data_dir.data_dir;
    let token = match (&arguments.token, &arguments.token_file) {
        (Some(token), _) => Some(token.clone()),
        (None, Some(file)) => {
            // A node with a certificate no longer needs the token.
            std::fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
        }
        (None, None) => None,
    };
    let mut node = NodeConfig::new(&data_dir);
    node.cluster_domain = arguments.cluster_domain;
    close_data_dir(&data_dir)?;
    let record = MachineRecord::names(&data_dir, arguments.node.cgroup_root.clone())?;
    node::configure(&mut node, arguments.node)?;
    node.cgroup_root.clone_from(&record.cgroup_root);
    node.service_network.instance = record.instance;
    claim_ports(&data_dir, &mut node)?;
    node.static_pods.get_or_insert_with(|| data_dir.join("manifests"));
    crate::serve::without(&mut node.service_network, &arguments.disable);
    node.service_network.load_balancer_ranges = arguments.load_balancers;
    node.service_network.policy_failure = arguments.network_policy.on_failure;
    let cluster_ranges = arguments.cluster_cidr;
    if let Some(proxy) = &mut node.service_network.proxy {
        proxy.cluster_cidrs.clone_from(&cluster_ranges);
    }
    MachineRecord { runtime: arguments.container_runtime_endpoint.clone(), ..record }.write(&data_dir)?;
    node.runtime = match arguments.container_runtime_endpoint {
        Some(specified) => specified,
        None => own_runtime(&data_dir, PodRanges::new(&node, &cluster_ranges), &tasks)?,
    };
    let join = Join {
        server: arguments.server,
        token,
        authority: arguments.certificate_authority,
        directory: data_dir.join("agent"),
        node: node.name.clone(),
        clock: node.clock.clone(),
    };
    say(format_args!("Joining {} as node {} ...", join.server, node.name));
    let ready = |begun: cluster::NodeStarted| {
        say(format_args!("Node {} is registered; its kubelet listens on {}", begun.name, begun.address));
    };
    cluster::run_agent(node, join, &tasks, Box::new(ready)).await.map_err(with_flag)?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}
