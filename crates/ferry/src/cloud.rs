//! `ferry cloud-controller-manager`, and the address source of LoadBalancer services without it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base::clock::Clock;
use base::tasks::TaskGroup;
use clap::Args;
use cluster::{CloudConfig, CloudProvider, LocalLoadBalancers, ProviderConfig};

use crate::flags::parse_duration;
use crate::serve::stop_on_signal;

/// Ports in use on nodes: SSH, etcd, kubelet, proxy, controllers, scheduler.
const RESERVED: [u16; 8] = [22, 2379, 2380, 10249, 10250, 10256, 10257, 10259];

#[derive(Args, Debug)]
pub struct CloudControllerManagerArgs {
    /// Path to a kubeconfig file, specifying how to connect to the API server.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,

    /// The provider for cloud services: `local` assigns addresses of nodes or ranges, `http` calls an external
    /// provider server.
    #[arg(long, value_name = "NAME", default_value = "local")]
    pub cloud_provider: String,

    /// The path to the cloud provider configuration file: endpoint or address ranges.
    #[arg(long, value_name = "FILE", required_if_eq("cloud_provider", "http"))]
    pub cloud_config: Option<PathBuf>,

    /// A list of controllers to enable. `*` enables all that the provider supports, `foo` enables the controller
    /// named `foo`, `-foo` disables the controller named `foo`.
    #[arg(
        long,
        value_name = "NAME[,NAME]",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    pub controllers: Vec<String>,

    /// The instance prefix for the cluster.
    #[arg(long, value_name = "NAME", default_value = "kubernetes")]
    pub cluster_name: String,

    /// CIDR Range for Pods in cluster; the route controller owns routes within it.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,

    /// Should CIDRs of pods be configured as routes on the cloud provider.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub configure_cloud_routes: bool,

    /// The period for syncing NodeStatus in the cloud node lifecycle controller.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub node_monitor_period: Duration,

    /// Specifies how often the controller updates nodes' status.
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = parse_duration)]
    pub node_status_update_frequency: Duration,

    /// The period for reconciling routes created for Nodes by cloud provider [default: 10m].
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub route_reconciliation_period: Option<Duration>,

    /// Start a leader election client and gain leadership before executing the main loop. Enable this when running
    /// replicated components for high availability.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub leader_elect: bool,
}

pub async fn run(arguments: CloudControllerManagerArgs) -> Result<ExitCode> {
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    let file = match &arguments.cloud_config {
        None => ProviderConfig::default(),
        Some(file) => {
            let text = std::fs::read(file).with_context(|| format!("failed to read {}", file.display()))?;
            ProviderConfig::parse(&text).with_context(|| format!("failed to load {}", file.display()))?
        }
    };
    let provider = match arguments.cloud_provider.as_str() {
        "local" => CloudProvider::Local(LocalLoadBalancers {
            ranges: file.load_balancer_ranges,
            reserved_ports: reserved_ports(6443),
        }),
        "http" => CloudProvider::Http(file),
        other => bail!("unknown cloud provider {other:?}: expected local or http"),
    };
    let config = CloudConfig {
        controllers: arguments.controllers,
        cluster_name: arguments.cluster_name,
        cluster_cidrs: arguments.cluster_cidr,
        configure_routes: arguments.configure_cloud_routes,
        node_monitor_period: arguments.node_monitor_period,
        node_status_update_frequency: arguments.node_status_update_frequency,
        route_reconciliation_period: arguments.route_reconciliation_period,
        leader_election: arguments.leader_elect,
        ..CloudConfig::new(provider)
    };
    cluster::run_cloud(&config, &arguments.kubeconfig, &Clock::system(), &tasks).await?;
    Ok(ExitCode::SUCCESS)
}

/// Parses `--load-balancers`: `nodes`, `none`, or ranges.
pub fn load_balancers(specified: &[String], api_port: u16) -> Option<LocalLoadBalancers> {
    let reserved_ports = reserved_ports(api_port);
    match specified {
        [one] if one == "none" => None,
        [one] if one == "nodes" => Some(LocalLoadBalancers { ranges: Vec::new(), reserved_ports }),
        ranges => Some(LocalLoadBalancers { ranges: ranges.to_vec(), reserved_ports }),
    }
}

fn reserved_ports(api_port: u16) -> Vec<u16> {
    RESERVED.into_iter().chain([api_port]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_balancers_flag_selects_address_source() {
        let specified = |texts: &[&str]| {
            load_balancers(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), 7443)
        };
        assert_eq!(specified(&["none"]), None);
        let nodes = specified(&["nodes"]).expect("some");
        assert!(nodes.ranges.is_empty() && nodes.reserved_ports.contains(&7443));
        assert_eq!(specified(&["192.0.2.0/28", "fd00::/120"]).expect("some").ranges.len(), 2);
    }
}
