//! What the planner knows of a service, whatever the API calls it.

use std::collections::BTreeSet;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    Tcp = 6,
    Udp = 17,
    Sctp = 132,
}

/// `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName {
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for ServiceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A service with virtual addresses, and who stands behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub name: ServiceName,
    pub cluster_ips: Vec<IpAddr>,
    pub external_ips: Vec<IpAddr>,
    pub load_balancer_ips: Vec<IpAddr>,
    /// Who may come through the load balancer's addresses; empty for everybody.
    pub source_ranges: Vec<Cidr>,
    pub ports: Vec<Port>,
    /// Clients come back to the same endpoint for this many seconds.
    pub affinity_seconds: Option<u32>,
    /// Clients in the cluster reach endpoints of their own node only.
    pub internal_local: bool,
    /// Clients outside reach endpoints of the node they came to only, with their own address.
    pub external_local: bool,
    pub health_check_port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
    pub endpoints: Vec<Endpoint>,
}

/// One address behind a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: IpAddr,
    pub port: u16,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// On the planner's own node.
    pub local: bool,
    /// The zones and nodes whose clients should use it; empty where nobody said.
    pub zone_hints: BTreeSet<String>,
    pub node_hints: BTreeSet<String>,
}

/// Where the planner plans for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub zone: Option<String>,
    /// The addresses of the cluster's pods: traffic from elsewhere to a service is masqueraded.
    pub pod_cidrs: Vec<Cidr>,
    pub masquerade_all: bool,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    pub address: IpAddr,
    pub prefix: u8,
}

impl Cidr {
    /// From text such as `10.0.0.0/8`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.trim().split_once('/')?;
        let cidr = Self { address: address.parse().ok()?, prefix: prefix.parse().ok()? };
        (usize::from(cidr.prefix) <= bytes(cidr.address).len() * 8).then_some(cidr)
    }

    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (mask, network) = self.mask_and_network();
        let address = bytes(address);
        address.len() == network.len()
            && address.iter().zip(mask).map(|(byte, mask)| byte & mask).eq(network.iter().copied())
    }

    /// The mask and the network's address under it.
    #[must_use]
    pub fn mask_and_network(&self) -> (Vec<u8>, Vec<u8>) {
        let address = bytes(self.address);
        let mask: Vec<u8> = (0..address.len())
            .map(|at| {
                let bits = usize::from(self.prefix).saturating_sub(at * 8).min(8);
                (0xff00_u16 >> bits) as u8
            })
            .collect();
        let network = address.iter().zip(&mask).map(|(byte, mask)| byte & mask).collect();
        (mask, network)
    }
}

/// An address as bytes.
#[must_use]
pub fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        let parts = |text: &str| Cidr::parse(text).map(|cidr| cidr.mask_and_network());
        assert_eq!(parts("10.244.3.9/20"), Some((vec![255, 255, 240, 0], vec![10, 244, 0, 0])));
        assert_eq!(parts("1.2.3.4/32"), Some((vec![255; 4], vec![1, 2, 3, 4])));
        assert_eq!(parts("0.0.0.0/0"), Some((vec![0; 4], vec![0; 4])));
        assert_eq!(parts("1.2.3.4/33"), None);
        assert_eq!(parts("fd00::/8").map(|(mask, _)| mask[..2].to_vec()), Some(vec![255, 0]));
        assert_eq!(parts("10.0.0.0"), None);
        let within = |range: &str, address: &str| {
            Cidr::parse(range).expect("a range").contains(address.parse().expect("an address"))
        };
        assert!(within("10.244.3.9/20", "10.244.15.255") && !within("10.244.3.9/20", "10.244.16.0"));
        assert!(
            within("0.0.0.0/0", "1.2.3.4") && !within("0.0.0.0/0", "::1") && within("fd00::/8", "fd01::1")
        );
    }
}
