//! `ferry proxy` and `ferry dns`: service proxy and cluster DNS alone, against any API server.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use base::clock::Clock;
use base::tasks::TaskGroup;
use base::zpages::PageSettings;
use clap::Args;
use cluster::{DnsConfig, ProxyConfig, ProxyFile, ProxyMode, StubDomain};

use sys::instance::Instance;

use crate::flags::parse_listen;
use crate::serve::{say, stop_on_signal};

#[derive(Args, Debug)]
pub struct ProxyArgs {
    /// The path to the configuration file: a KubeProxyConfiguration (v1alpha1). Command-line flags take precedence.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Path to kubeconfig file with authorization information.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["cleanup", "config"])]
    pub kubeconfig: Option<PathBuf>,

    /// If non-empty, will be used as the name of the Node instead of the actual hostname.
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,

    /// The CIDR range of the pods in the cluster; by default the range of this node's pods.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,

    /// SNAT all traffic sent via Service cluster IPs.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub masquerade_all: Option<bool>,

    /// Proxy mode: nftables, iptables, ipvs or userspace; if unavailable, the next one is tried.
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub proxy_mode: Option<ProxyMode>,

    /// The IP address with port for the health check server to serve on; empty to disable [default: 0.0.0.0:10256].
    #[arg(long, value_name = "ADDR:PORT")]
    pub healthz_bind_address: Option<String>,

    /// The IP address with port for /proxyMode and /metrics to serve on; empty to disable [default: 127.0.0.1:10249].
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics_bind_address: Option<String>,

    /// If true, treat failure to bind to a port as fatal and exit.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub bind_address_hard_fail: Option<bool>,

    /// If true enables profiling via web interface on /debug/pprof handler [default: the value in `--config`, or false].
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub profiling: Option<bool>,

    /// Remove the proxy's kernel rules and exit.
    #[arg(long)]
    pub cleanup: bool,
}

fn parse_mode(text: &str) -> Result<ProxyMode, String> {
    ProxyMode::parse(text)
        .ok_or_else(|| format!("{text:?} is not one of nftables, iptables, ipvs, userspace"))
}

/// Listen address: from the flag, the file, or the default.
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
        cluster::clean_up_services(Instance::MAIN);
        return Ok(ExitCode::SUCCESS);
    }
    let file = arguments.config.as_deref().map(ProxyFile::read).transpose()?.unwrap_or_default();
    if !file.without_effect.is_empty() {
        tracing::warn!(settings = file.without_effect.join(", "), "settings without effect in this version");
    }
    let kubeconfig = arguments.kubeconfig.or(file.kubeconfig);
    let kubeconfig = kubeconfig.context("--kubeconfig or clientConnection.kubeconfig is required")?;
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    let name = arguments.hostname_override.or(file.hostname).or_else(base::addresses::hostname);
    let name = name.unwrap_or_default();
    ensure!(!name.is_empty(), "this machine has no hostname; set --hostname-override");
    let usual = ProxyConfig::default();
    let specified = Some(arguments.cluster_cidr).filter(|ranges| !ranges.is_empty());
    let config = ProxyConfig {
        cluster_cidrs: specified.unwrap_or(file.cluster_cidrs),
        masquerade_all: arguments.masquerade_all.unwrap_or(file.masquerade_all),
        mode: arguments.proxy_mode.or(file.mode),
        healthz: bind(arguments.healthz_bind_address.as_deref(), file.healthz, usual.healthz)?,
        metrics: bind(arguments.metrics_bind_address.as_deref(), file.metrics, usual.metrics)?,
        ports_are_needed: arguments.bind_address_hard_fail.unwrap_or(file.ports_are_needed),
        pages: PageSettings { profiling: arguments.profiling.unwrap_or(file.profiling) },
        is_node: true,
        instance: Instance::MAIN,
    };
    let node = name.clone();
    let ready = move || say(format_args!("Serving services on node {node}"));
    cluster::run_proxy(&config, &name, &kubeconfig, &tasks, Box::new(ready)).await?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

#[derive(Args, Debug)]
pub struct DnsArgs {
    /// Path to a kubeconfig file, specifying how to connect to the API server.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,

    /// Addresses to serve on, UDP and TCP; no wildcards, since replies must be sent from the queried address.
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',', default_value = "127.0.0.1")]
    pub address: Vec<IpAddr>,

    /// Port to serve on; 0 selects a free port and prints it.
    #[arg(long, value_name = "PORT", default_value_t = 53)]
    pub port: u16,

    /// Domain for this cluster.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,

    /// Cluster IP of the service kube-dns, which is created if missing and directed to this server; without it the
    /// service is not managed.
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',')]
    pub cluster_dns: Vec<IpAddr>,

    /// Resolver configuration file with the upstream name servers for other domains.
    #[arg(long, value_name = "FILE", default_value = "/etc/resolv.conf")]
    pub resolv_conf: PathBuf,

    /// Upstream name servers, instead of those of `--resolv-conf`.
    #[arg(long, value_name = "ADDR:PORT[,...]", value_delimiter = ',')]
    pub upstream: Vec<SocketAddr>,

    /// Domain with its own upstream name servers.
    #[arg(long, value_name = "DOMAIN=ADDR[,ADDR]", value_parser = parse_stub)]
    pub stub_domain: Vec<StubDomain>,

    /// CIDRs of additional clients, besides this machine and the nodes and pods of the cluster.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    pub client_cidr: Vec<String>,

    /// Port of `/metrics`; if it is in use, any free port.
    #[arg(long, value_name = "PORT", default_value_t = 9153)]
    pub metrics_port: u16,
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
        metrics_port: arguments.metrics_port,
        domain: arguments.cluster_domain,
        resolv_conf: arguments.resolv_conf,
        upstreams: arguments.upstream,
        stub_domains: arguments.stub_domain,
        client_ranges: arguments.client_cidr,
    };
    let ready = |own: &[SocketAddr]| {
        let own: Vec<String> = own.iter().map(ToString::to_string).collect();
        say(format_args!("Serving DNS of {} at {}", config.domain, own.join(", ")));
    };
    cluster::run_dns(&config, &arguments.kubeconfig, &Clock::system(), &tasks, Box::new(ready)).await?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}
