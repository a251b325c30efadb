//! `ferry proxy` and `ferry dns`: what serves services and names, alone, against any API server.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use base::clock::Clock;
use base::tasks::TaskGroup;
use clap::Args;
use cluster::{DnsConfig, ProxyConfig, ProxyFile, ProxyMode, StubDomain};

use crate::flags::parse_listen;
use crate::serve::{say, stop_on_signal};

#[derive(Args, Debug)]
pub struct ProxyArgs {
    /// A KubeProxyConfiguration (v1alpha1); flags count more than what it says.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// How to reach the API server, and who to be there.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["cleanup", "config"])]
    pub kubeconfig: Option<PathBuf>,

    /// Name of the node; the machine's own if not given.
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,

    /// Ranges of pod addresses of the cluster; by default those of this node's pods.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,

    /// Whether all traffic to services is masqueraded.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub masquerade_all: Option<bool>,

    /// How services are served: nftables, iptables, ipvs or userspace; the next is tried if it does not work here.
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub proxy_mode: Option<ProxyMode>,

    /// Where /healthz and /livez are answered; empty for nowhere [default: 0.0.0.0:10256].
    #[arg(long, value_name = "ADDR:PORT")]
    pub healthz_bind_address: Option<String>,

    /// Where /proxyMode and /metrics are; empty for nowhere [default: 127.0.0.1:10249].
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics_bind_address: Option<String>,

    /// Whether a port that cannot be opened is an error.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub bind_address_hard_fail: Option<bool>,

    /// Remove what the proxy left in the kernel, and end.
    #[arg(long)]
    pub cleanup: bool,
}

fn parse_mode(text: &str) -> Result<ProxyMode, String> {
    ProxyMode::parse(text).ok_or_else(|| format!("{text:?} is none of nftables, iptables, ipvs, userspace"))
}

/// Where to listen: as the flag says, else the file, else as always.
fn bind(
    flag: Option<&str>,
    file: Option<SocketAddr>,
    otherwise: Option<SocketAddr>,
) -> Result<Option<SocketAddr>> {
    match flag {
        None => Ok(file.or(otherwise)),
        Some("") => Ok(None),
        Some(text) => parse_listen(text).map(Some).map_err(anyhow::Error::msg),
    }
}

/// `ferry proxy`.
pub async fn proxy(arguments: ProxyArgs) -> Result<ExitCode> {
    if arguments.cleanup {
        cluster::clean_up_services();
        return Ok(ExitCode::SUCCESS);
    }
    let file = arguments.config.as_deref().map(ProxyFile::read).transpose()?.unwrap_or_default();
    if !file.without_effect.is_empty() {
        tracing::warn!(settings = file.without_effect.join(", "), "settings that have no effect here");
    }
    let kubeconfig = arguments.kubeconfig.or(file.kubeconfig);
    let kubeconfig = kubeconfig.context("neither --kubeconfig nor clientConnection.kubeconfig is given")?;
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    let name = arguments.hostname_override.or(file.hostname).or_else(base::addresses::hostname);
    let name = name.unwrap_or_default();
    ensure!(!name.is_empty(), "this machine has no name; say --hostname-override");
    let usual = ProxyConfig::default();
    let asked = Some(arguments.cluster_cidr).filter(|ranges| !ranges.is_empty());
    let config = ProxyConfig {
        cluster_cidrs: asked.unwrap_or(file.cluster_cidrs),
        masquerade_all: arguments.masquerade_all.unwrap_or(file.masquerade_all),
        mode: arguments.proxy_mode.or(file.mode),
        healthz: bind(arguments.healthz_bind_address.as_deref(), file.healthz, usual.healthz)?,
        metrics: bind(arguments.metrics_bind_address.as_deref(), file.metrics, usual.metrics)?,
        ports_are_needed: arguments.bind_address_hard_fail.unwrap_or(file.ports_are_needed),
        is_node: true,
    };
    let node = name.clone();
    let ready = move || say(format_args!("Services are served on node {node}"));
    cluster::run_proxy(&config, &name, &kubeconfig, &tasks, Box::new(ready)).await?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

#[derive(Args, Debug)]
pub struct DnsArgs {
    /// How to reach the API server, and who to be there.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,

    /// Addresses to serve at, UDP and TCP; not wildcards, since answers have to come from the address that was asked.
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',', default_value = "127.0.0.1")]
    pub address: Vec<IpAddr>,

    /// The port to serve at; 0 takes a free one and prints it.
    #[arg(long, value_name = "PORT", default_value_t = 53)]
    pub port: u16,

    /// The cluster's domain.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,

    /// The address of the service kube-dns, which is created if it is not there and led to this server; without it the
    /// service is left alone.
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',')]
    pub cluster_dns: Vec<IpAddr>,

    /// Names the servers that know other names.
    #[arg(long, value_name = "FILE", default_value = "/etc/resolv.conf")]
    pub resolv_conf: PathBuf,

    /// Servers that know other names, instead of those of `--resolv-conf`.
    #[arg(long, value_name = "ADDR:PORT[,...]", value_delimiter = ',')]
    pub upstream: Vec<SocketAddr>,

    /// A domain that servers of its own know.
    #[arg(long, value_name = "DOMAIN=ADDR[,ADDR]", value_parser = parse_stub)]
    pub stub_domain: Vec<StubDomain>,

    /// Ranges of clients that are answered besides this machine and the nodes and pods of the cluster.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    pub client_cidr: Vec<String>,
}

fn parse_stub(text: &str) -> Result<StubDomain, String> {
    StubDomain::parse(text).map_err(|error| error.to_string())
}

/// `ferry dns`.
pub async fn dns(arguments: DnsArgs) -> Result<ExitCode> {
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    base::limits::raise_open_files();
    let config = DnsConfig {
        service_ips: arguments.cluster_dns,
        addresses: arguments.address,
        port: arguments.port,
        port_is_fixed: true,
        domain: arguments.cluster_domain,
        resolv_conf: arguments.resolv_conf,
        upstreams: arguments.upstream,
        stub_domains: arguments.stub_domain,
        client_ranges: arguments.client_cidr,
    };
    let ready = |own: &[SocketAddr]| {
        let own: Vec<String> = own.iter().map(ToString::to_string).collect();
        say(format_args!("Names of {} are served at {}", config.domain, own.join(", ")));
    };
    cluster::run_dns(&config, &arguments.kubeconfig, &Clock::system(), &tasks, Box::new(ready)).await?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}
