//! The planner's model of a service, independent of the API types.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use sys::instance::Instance;

pub use sys::protocol::Protocol;

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

/// A service with virtual addresses, and its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub name: ServiceName,
    pub cluster_ips: Vec<IpAddr>,
    pub external_ips: Vec<IpAddr>,
    pub load_balancer_ips: Vec<IpAddr>,
    /// Source ranges of the load balancer's addresses; empty for all.
    pub source_ranges: Vec<IpNet>,
    pub ports: Vec<Port>,
    /// Session affinity timeout in seconds.
    pub affinity_seconds: Option<u32>,
    /// Clients in the cluster reach endpoints of their own node only (`internalTrafficPolicy: Local`).
    pub internal_local: bool,
    /// External clients reach endpoints of the receiving node only, with their source address preserved
    /// (`externalTrafficPolicy: Local`).
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
    /// Zones and nodes of its topology hints; empty without hints.
    pub zone_hints: BTreeSet<String>,
    pub node_hints: BTreeSet<String>,
}

/// The node for which rules are planned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub zone: Option<String>,
    /// Pod addresses of the cluster: traffic from other addresses to a service is masqueraded.
    pub pod_cidrs: Vec<IpNet>,
    pub masquerade_all: bool,
    /// Instance whose rules and links these are.
    pub instance: Instance,
}
