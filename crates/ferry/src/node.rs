//! `ferry kubelet`: a node against any API server, until a signal.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use base::tasks::TaskGroup;
use clap::Args;
use cluster::NodeConfig;

use crate::cli::DataDir;
use crate::flags::parse_listen;
use crate::serve::{say, stop_on_signal};
use crate::upkeep_flags::UpkeepArgs;

#[derive(Args, Debug)]
pub struct KubeletArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// A KubeletConfiguration; flags win over what it says.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// How to reach the API server, and who to be there.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,

    /// A kubeconfig to get the node's own certificate and `--kubeconfig` with, if there is none yet.
    #[arg(long, value_name = "FILE")]
    pub bootstrap_kubeconfig: Option<PathBuf>,

    /// Renew the certificate that was got with `--bootstrap-kubeconfig` before it ends.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub rotate_certificates: bool,

    /// Ask the cluster for the certificate of the kubelet's API, and renew it.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub rotate_server_certificates: bool,

    /// The cluster's DNS domain.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,

    /// Where name servers are found for pods that use the node's.
    #[arg(long, value_name = "FILE", default_value = "/etc/resolv.conf")]
    pub resolv_conf: PathBuf,

    /// Where the container runtime is.
    #[arg(long, value_name = "URL", default_value = "unix:///run/containerd/containerd.sock")]
    pub container_runtime_endpoint: String,

    #[command(flatten)]
    pub node: NodeArgs,

    /// Certificate of the kubelet's API; made by itself if absent.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,

    /// Key of `--tls-cert-file`.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,

    /// Authority of the certificates of those who call the kubelet.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
}

/// What a node can be told, with or without a control plane beside it.
#[derive(Args, Debug)]
pub struct NodeArgs {
    /// Name of the node; the machine's own if not given.
    #[arg(long, value_name = "NAME", alias = "node-name", help_heading = "Node")]
    pub hostname_override: Option<String>,

    /// The node's address, or one of each family.
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',', help_heading = "Node")]
    pub node_ip: Vec<std::net::IpAddr>,

    /// Address and port of the kubelet's API; port 0 takes a free one and prints it.
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:10250", value_parser = parse_listen, help_heading = "Node")]
    pub kubelet_listen: SocketAddr,

    /// Addresses of the cluster's name service.
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',', help_heading = "Node")]
    pub cluster_dns: Vec<std::net::IpAddr>,

    /// How many pods the node may run.
    #[arg(long, value_name = "N", default_value_t = 110, help_heading = "Node")]
    pub max_pods: u32,

    /// Addresses of the node's pods, unless the control plane hands them out.
    #[arg(long, value_name = "CIDR", help_heading = "Node")]
    pub pod_cidr: Option<String>,

    /// Labels of the node.
    #[arg(long, value_name = "KEY=VALUE[,...]", value_delimiter = ',', value_parser = parse_label, help_heading = "Node")]
    pub node_labels: Vec<(String, String)>,

    /// The cgroup under which all pods are.
    #[arg(long, value_name = "PATH", default_value = "/kubepods", help_heading = "Node")]
    pub cgroup_root: String,

    /// Directory of pods that run without the API server; `<data-dir>/manifests` if not given.
    #[arg(long, value_name = "DIR", alias = "pod-manifest-path", help_heading = "Node")]
    pub static_pods: Option<PathBuf>,

    #[command(flatten)]
    pub upkeep: UpkeepArgs,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

pub async fn kubelet(arguments: KubeletArgs) -> Result<ExitCode> {
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    base::limits::raise_open_files();
    let mut node = NodeConfig::new(arguments.data_dir.data_dir);
    node.runtime = arguments.container_runtime_endpoint;
    node.serving = arguments.tls_cert_file.zip(arguments.tls_private_key_file);
    node.client_ca = arguments.client_ca_file;
    node.bootstrap = arguments.bootstrap_kubeconfig;
    node.rotate_client = arguments.rotate_certificates;
    node.rotate_serving = arguments.rotate_server_certificates;
    node.cluster_domain = arguments.cluster_domain;
    node.resolv_conf = Some(arguments.resolv_conf);
    configure(&mut node, arguments.node)?;
    let ready = |begun: cluster::Begun| {
        say(format_args!("Node {} is registered; its kubelet listens on {}", begun.name, begun.address));
    };
    cluster::run_kubelet(&node, &arguments.kubeconfig, &tasks, Box::new(ready)).await?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Sets what the flags say about a node.
pub fn configure(node: &mut NodeConfig, arguments: NodeArgs) -> Result<()> {
    if let Some(name) = arguments.hostname_override {
        node.name = name;
    }
    node.ips = arguments.node_ip;
    node.listen = arguments.kubelet_listen;
    node.cluster_dns = arguments.cluster_dns;
    node.max_pods = arguments.max_pods;
    node.pod_cidr = arguments.pod_cidr;
    node.labels = arguments.node_labels.into_iter().collect();
    node.cgroup_root = arguments.cgroup_root;
    node.static_pods = arguments.static_pods;
    arguments.upkeep.apply(&mut node.upkeep)
}
