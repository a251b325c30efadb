//! Addresses and host name that the node reports: those of the machine at any time, or the configured ones.

use std::net::IpAddr;
use std::sync::Arc;

use base::machine_network::{self, MachineNetwork};
use parking_lot::RwLock;

use super::facts::node_ips;
use crate::config::Config;
use crate::pods::Workers;
use crate::shared::Shared;

/// Addresses and host name of the node.
#[derive(Debug, Default)]
pub struct NodeAddresses(RwLock<Reported>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reported {
    ips: Arc<[String]>,
    hostname: String,
}

impl NodeAddresses {
    /// Configured addresses, else those of the machine.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let machine = machine_network::current();
        let detected = || match &machine {
            Some(network) if !network.preferred.is_empty() => network.node_ips(&config.families),
            _ => MachineNetwork { preferred: node_ips(), ..MachineNetwork::default() }
                .node_ips(&config.families),
        };
        let ips = if config.node_ips.is_empty() { detected() } else { config.node_ips.clone() };
        let ips = ips.iter().map(ToString::to_string).collect();
        let hostname = config.hostname.clone().unwrap_or_else(|| config.node_name.clone());
        let reported = Self(RwLock::new(Reported { ips, hostname }));
        if let Some(network) = machine {
            reported.update(config, &network);
        }
        reported
    }

    #[must_use]
    pub fn ips(&self) -> Arc<[String]> {
        Arc::clone(&self.0.read().ips)
    }

    #[must_use]
    pub fn hostname(&self) -> String {
        self.0.read().hostname.clone()
    }

    /// Follows the machine, except where the configuration fixes a value. A machine without addresses keeps the last
    /// ones. Returns true if anything changed.
    fn update(&self, config: &Config, network: &MachineNetwork) -> bool {
        let mut reported = self.0.write();
        let before = reported.clone();
        if config.node_ips.is_empty() && !network.preferred.is_empty() {
            reported.ips = network.node_ips(&config.families).iter().map(ToString::to_string).collect();
        }
        if config.hostname.is_none()
            && let Some(hostname) = &network.hostname
        {
            reported.hostname.clone_from(hostname);
        }
        *reported != before
    }
}

/// Address at which a pod is reached.
#[derive(Clone, Debug)]
pub enum PodAddress {
    Own(String),
    /// Of a pod in the network of the node.
    Node(Arc<NodeAddresses>),
}

impl PodAddress {
    /// Current address; empty if there is none.
    #[must_use]
    pub fn ip(&self) -> String {
        match self {
            Self::Own(ip) => ip.clone(),
            Self::Node(addresses) => addresses.ips().first().cloned().unwrap_or_default(),
        }
    }
}

/// Reports changes of the machine in the statuses of the node and its pods, until the kubelet stops.
pub async fn follow(shared: Arc<Shared>, workers: Arc<Workers>) {
    let mut changes = machine_network::subscribe();
    let mut lost = Vec::new();
    // Changes between the start and the subscription.
    let mut next = machine_network::current();
    loop {
        if let Some(network) = next {
            warn_of_lost(&shared.config.node_ips, &network, &mut lost);
            if shared.addresses.update(&shared.config, &network) {
                let (ips, hostname) = (shared.addresses.ips(), shared.addresses.hostname());
                tracing::info!(?ips, hostname, "addresses of the node changed");
                shared.node_news.notify_one();
                workers.wake_all();
            }
        }
        next = Some(changes.next().await);
    }
}

/// Logs configured addresses that the machine no longer has, each once until it returns.
fn warn_of_lost(configured: &[IpAddr], network: &MachineNetwork, lost: &mut Vec<IpAddr>) {
    for ip in configured.iter().filter(|ip| !ip.is_loopback() && !ip.is_unspecified()) {
        let was_lost = lost.contains(ip);
        match network.addresses.contains(ip) {
            true => lost.retain(|one| one != ip),
            false if !was_lost => {
                lost.push(*ip);
                tracing::error!(%ip, "the machine no longer has the address of the node; restart with another --node-ip, or without it to follow the machine's address");
            }
            false => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::machine_network::Family;

    fn network(preferred: &[&str], hostname: &str) -> MachineNetwork {
        let preferred: Vec<IpAddr> = preferred.iter().map(|text| text.parse().expect("an address")).collect();
        let addresses = preferred.iter().copied().collect();
        MachineNetwork {
            preferred,
            addresses,
            hostname: Some(hostname.to_owned()),
            ..MachineNetwork::default()
        }
    }

    fn reported(addresses: &NodeAddresses) -> (Vec<String>, String) {
        (addresses.ips().to_vec(), addresses.hostname())
    }

    #[test]
    fn detected_addresses_follow_the_machine_and_configured_ones_stay() {
        let mut config = Config::new("n1", "/nowhere");
        config.families = vec![Family::V4];
        let addresses = NodeAddresses::default();
        assert!(addresses.update(&config, &network(&["192.0.2.1", "2001:db8::1"], "n1")));
        assert!(!addresses.update(&config, &network(&["192.0.2.1"], "n1")));
        assert!(addresses.update(&config, &network(&["192.0.2.2"], "renamed")));
        assert_eq!(reported(&addresses), (vec!["192.0.2.2".to_owned()], "renamed".to_owned()));
        assert!(!addresses.update(&config, &network(&[], "renamed")), "a machine without addresses");
        config.node_ips = vec!["192.0.2.9".parse().expect("an address")];
        config.hostname = Some("n1".to_owned());
        assert!(!addresses.update(&config, &network(&["192.0.2.3"], "other")));
    }

    #[test]
    fn lost_configured_address_is_reported_once() {
        let configured = ["192.0.2.1".parse().expect("an address")];
        let mut lost = Vec::new();
        for (preferred, want) in [("192.0.2.2", 1), ("192.0.2.3", 1), ("192.0.2.1", 0), ("192.0.2.2", 1)] {
            warn_of_lost(&configured, &network(&[preferred], "n"), &mut lost);
            assert_eq!(lost.len(), want, "{preferred}");
        }
    }
}
