//! `ferry cloud-controller-manager`, and where services of type LoadBalancer get addresses from without one.

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

/// Ports that nodes need themselves: remote shells, etcd, kubelet, proxy, controllers, scheduler.
const RESERVED: [u16; 8] = [22, 2379, 2380, 10249, 10250, 10256, 10257, 10259];

#[derive(Args, Debug)]
pub struct CloudControllerManagerArgs {
    /// How to reach the API server, and who to be there.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,

    /// `local`, which gives services addresses of nodes or of ranges, or `http`, a server that speaks for a cloud.
    #[arg(long, value_name = "NAME", default_value = "local")]
    pub cloud_provider: String,

    /// The provider's configuration: where it is, or which ranges it has.
    #[arg(long, value_name = "FILE", required_if_eq("cloud_provider", "http"))]
    pub cloud_config: Option<PathBuf>,

    /// The loops to run: `*` is all that the provider is able to, `name` that one, `-name` not that one.
    #[arg(
        long,
        value_name = "NAME[,NAME]",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    pub controllers: Vec<String>,

    /// What the provider calls this cluster.
    #[arg(long, value_name = "NAME", default_value = "kubernetes")]
    pub cluster_name: String,

    /// Ranges of pod addresses; routes within them are the route loop's.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,

    /// Whether the provider routes the addresses of pods to their nodes.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub configure_cloud_routes: bool,

    /// How often nodes that are not ready are asked after.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub node_monitor_period: Duration,

    /// How often the provider is asked again what it knows of a node.
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = parse_duration)]
    pub node_status_update_frequency: Duration,

    /// How often routes are compared though no node changed [default: 10m].
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub route_reconciliation_period: Option<Duration>,

    /// Whether to wait for a lease before acting, so that of several managers one acts.
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
            let text = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            ProviderConfig::parse(&text).with_context(|| format!("using {}", file.display()))?
        }
    };
    let provider = match arguments.cloud_provider.as_str() {
        "local" => CloudProvider::Local(LocalLoadBalancers {
            ranges: file.load_balancer_ranges,
            reserved_ports: reserved_ports(6443),
        }),
        "http" => CloudProvider::Http(file),
        other => bail!("the provider {other:?} is not known: it is either local or http"),
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

/// What `--load-balancers` means: `nodes`, `none`, or ranges.
pub fn load_balancers(asked: &[String], api_port: u16) -> Option<LocalLoadBalancers> {
    let reserved_ports = reserved_ports(api_port);
    match asked {
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
    fn where_addresses_come_from() {
        let asked = |texts: &[&str]| {
            load_balancers(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), 7443)
        };
        assert_eq!(asked(&["none"]), None);
        let nodes = asked(&["nodes"]).expect("some");
        assert!(nodes.ranges.is_empty() && nodes.reserved_ports.contains(&7443));
        assert_eq!(asked(&["192.0.2.0/28", "fd00::/120"]).expect("some").ranges.len(), 2);
    }
}
