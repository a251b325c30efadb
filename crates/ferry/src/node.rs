//! `ferry kubelet`: a node against any API server, until a signal.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use base::tasks::TaskGroup;
use clap::Args;
use cluster::NodeConfig;

use crate::cli::DataDir;
use crate::flags::parse_listen;
use crate::housekeeping_flags::HousekeepingArgs;
use crate::registration_flags::RegistrationArgs;
use crate::serve::{say, stop_on_signal};

#[derive(Args, Debug)]
pub struct KubeletArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// The Kubelet will load its initial configuration from this file. Command-line flags override configuration from
    /// this file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Path to a kubeconfig file, specifying how to connect to the API server.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,

    /// Path to a kubeconfig file that will be used to get client certificate for kubelet, if the file specified by
    /// `--kubeconfig` does not exist.
    #[arg(long, value_name = "FILE")]
    pub bootstrap_kubeconfig: Option<PathBuf>,

    /// Auto rotate the kubelet client certificates by requesting new certificates from the kube-apiserver when the
    /// certificate expiration approaches.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub rotate_certificates: bool,

    /// Auto-request and rotate the kubelet serving certificates by requesting new certificates from the
    /// kube-apiserver when the certificate expiration approaches.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub rotate_server_certificates: bool,

    /// Domain for this cluster.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,

    /// Resolver configuration file used as the basis for the container DNS resolution configuration.
    #[arg(long, value_name = "FILE", default_value = "/etc/resolv.conf")]
    pub resolv_conf: PathBuf,

    /// The endpoint of container runtime service.
    #[arg(long, value_name = "URL", default_value = "unix:///run/containerd/containerd.sock")]
    pub container_runtime_endpoint: String,

    #[command(flatten)]
    pub node: NodeArgs,

    /// Enable profiling via web interface host:port/debug/pprof/.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub profiling: bool,

    /// File containing x509 Certificate used for serving HTTPS. If absent, a self-signed certificate and key are
    /// generated.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,

    /// File containing x509 private key matching `--tls-cert-file`.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,

    /// If set, any request presenting a client certificate signed by one of the authorities in the client-ca-file is
    /// authenticated with an identity corresponding to the CommonName of the client certificate.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
}

/// Node flags, with or without a control plane in the same process.
#[derive(Args, Debug)]
pub struct NodeArgs {
    /// If non-empty, will use this string as identification instead of the actual hostname.
    #[arg(long, value_name = "NAME", alias = "node-name", help_heading = "Node")]
    pub hostname_override: Option<String>,

    /// IP address (or comma-separated dual-stack IP addresses) of the node.
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',', help_heading = "Node")]
    pub node_ip: Vec<std::net::IpAddr>,

    /// Serve metrics of the machine with the names of node-exporter, in plain HTTP at `/metrics`; usually on port 9100
    /// [default: not served].
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:9100", require_equals = true, help_heading = "Node")]
    pub machine_metrics: Option<SocketAddr>,

    /// Address and port for the kubelet to serve on; port 0 selects a free port and prints it.
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:10250", value_parser = parse_listen, help_heading = "Node")]
    pub kubelet_listen: SocketAddr,

    /// Comma-separated list of DNS server IP addresses, used for pods with dnsPolicy=ClusterFirst.
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',', help_heading = "Node")]
    pub cluster_dns: Vec<std::net::IpAddr>,

    /// Number of Pods that can run on this Kubelet.
    #[arg(long, value_name = "N", default_value_t = 110, help_heading = "Node")]
    pub max_pods: u32,

    /// The CIDR to use for pod IP addresses, unless the control plane allocates one.
    #[arg(long, value_name = "CIDR", help_heading = "Node")]
    pub pod_cidr: Option<String>,

    /// Labels to add when registering the node in the cluster.
    #[arg(long, value_name = "KEY=VALUE[,...]", value_delimiter = ',', value_parser = parse_label, help_heading = "Node")]
    pub node_labels: Vec<(String, String)>,

    /// Root cgroup to use for pods [default: /kubepods; with another data directory than the default one, `up` and
    /// `agent` use /kubepods-ID].
    #[arg(long, value_name = "PATH", help_heading = "Node")]
    pub cgroup_root: Option<String>,

    /// Enables system logs via web interface host:port/logs/.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "Node")]
    pub enable_system_log_handler: bool,

    /// Enables the node log query feature on the /logs endpoint.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "Node")]
    pub enable_system_log_query: bool,

    /// Path to the directory containing static pod files to run; by default `<data-dir>/manifests`.
    #[arg(long, value_name = "DIR", alias = "pod-manifest-path", help_heading = "Node")]
    pub static_pods: Option<PathBuf>,

    #[command(flatten)]
    pub registration: RegistrationArgs,

    #[command(flatten)]
    pub housekeeping: HousekeepingArgs,

    #[command(flatten)]
    pub tracing: crate::tracing_flags::TracingArgs,
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
    node.pages.profiling = arguments.profiling;
    configure(&mut node, arguments.node)?;
    let ready = |begun: cluster::NodeStarted| {
        say(format_args!("Node {} is registered; its kubelet listens on {}", begun.name, begun.address));
    };
    cluster::run_kubelet(&node, &arguments.kubeconfig, &tasks, Box::new(ready)).await?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Addresses of this machine; empty if they cannot be read.
fn machine_addresses() -> Vec<IpAddr> {
    let addresses = sys::netlink::Netlink::open().and_then(|mut netlink| netlink.all_addresses());
    addresses.unwrap_or_default().into_iter().map(|(_, address)| address.addr()).collect()
}

/// Checks that the node addresses are those of an interface of this machine.
fn check_node_ips(ips: &[IpAddr], own: &[IpAddr]) -> Result<()> {
    for ip in ips.iter().filter(|ip| !ip.is_unspecified()) {
        let usable = own.is_empty() || own.contains(ip) || ip.is_loopback();
        ensure!(usable, "--node-ip {ip} is not an address of this machine; it has {}", listed(own));
        ensure!(!ip.is_multicast(), "--node-ip {ip} is a multicast address");
    }
    Ok(())
}

fn is_usable(address: &IpAddr) -> bool {
    let link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    !address.is_loopback() && !link_local
}

fn listed(addresses: &[IpAddr]) -> String {
    let all: Vec<String> =
        addresses.iter().filter(|address| is_usable(address)).map(ToString::to_string).collect();
    if all.is_empty() { "only loopback addresses".to_owned() } else { all.join(", ") }
}

/// Applies the flags to the node configuration.
pub fn configure(node: &mut NodeConfig, arguments: NodeArgs) -> Result<()> {
    if let Some(name) = arguments.hostname_override {
        node.hostname = Some(name.clone());
        node.name = name;
    }
    check_node_ips(&arguments.node_ip, &machine_addresses())?;
    node.ips = arguments.node_ip;
    node.listen = arguments.kubelet_listen;
    node.machine_metrics = arguments.machine_metrics;
    node.cluster_dns = arguments.cluster_dns;
    node.max_pods = arguments.max_pods;
    node.registration = arguments.registration.config();
    node.pod_cidr = arguments.pod_cidr;
    node.labels = arguments.node_labels.into_iter().collect();
    if let Some(root) = arguments.cgroup_root {
        node.cgroup_root = root;
    }
    node.static_pods = arguments.static_pods;
    let (serve, query) = (arguments.enable_system_log_handler, arguments.enable_system_log_query);
    ensure!(serve || !query, "--enable-system-log-handler is required for --enable-system-log-query");
    (node.node_logs.serve, node.node_logs.query) = (serve, query);
    node.tracing = arguments.tracing.config();
    arguments.housekeeping.apply(&mut node.housekeeping)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ip_of_another_machine_is_rejected() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let own = [ip("127.0.0.1"), ip("192.0.2.1"), ip("2001:db8::1")];
        for allowed in ["192.0.2.1", "2001:db8::1", "127.0.0.1", "0.0.0.0"] {
            assert!(check_node_ips(&[ip(allowed)], &own).is_ok(), "{allowed}");
        }
        let error =
            check_node_ips(&[ip("192.0.2.1"), ip("203.0.113.9")], &own).expect_err("unknown").to_string();
        assert_eq!(
            error,
            "--node-ip 203.0.113.9 is not an address of this machine; it has 192.0.2.1, 2001:db8::1"
        );
    }
}
