//! Computes the entries and chains of one service. Pure, and the same for every backend with maps.
//!
//! A packet to a service is looked up by address, protocol and port; the entry names the chain that selects an
//! endpoint. Such a chain depends only on the number of endpoints and on the policy, so services share them, and a
//! change of endpoints changes map entries, never rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::endpoints::{Chosen, choose};
use crate::model::{Node, Port, Protocol, Service};

/// A frontend: an address and a port, or a port of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frontend {
    /// Unspecified for a port of the node.
    pub address: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
}

impl Frontend {
    #[must_use]
    pub fn is_node_port(&self) -> bool {
        self.address.is_unspecified()
    }
}

impl std::fmt::Display for Frontend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let protocol = self.protocol.name();
        if self.is_node_port() {
            let family = if self.address.is_ipv4() { "IPv4" } else { "IPv6" };
            return write!(f, "node port {}/{protocol} ({family})", self.port);
        }
        write!(f, "{}/{protocol}", std::net::SocketAddr::new(self.address, self.port))
    }
}

/// Endpoint selection. Services with equal values share a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pick {
    pub source: Source,
    /// For a port of the node, which has no address to look up by.
    pub node_port: bool,
    pub count: u32,
    pub affinity_seconds: Option<u32>,
}

/// Accepted packets and their translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// From the cluster; sources that are not pods are masqueraded.
    Inside,
    /// From outside: masqueraded, so that replies return through this node.
    Outside,
    /// From outside to endpoints of this node only, with the client's own address. Clients in the cluster may use all
    /// `elsewhere` endpoints.
    OutsideLocal { elsewhere: u32 },
}

/// Endpoint list of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum List {
    /// The list that the frontend's own chain selects from.
    Own,
    /// List for clients in the cluster, where the policy restricts others to this node.
    Elsewhere,
}

/// Treatment of packets to a frontend without endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Closed {
    Reject,
    Drop,
}

/// An entry of one of the maps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    Service {
        front: Frontend,
        pick: Pick,
    },
    Endpoint {
        front: Frontend,
        list: List,
        index: u32,
        address: IpAddr,
        port: u16,
    },
    /// An endpoint that has affinity clients of the frontend.
    Known {
        front: Frontend,
        address: IpAddr,
        port: u16,
    },
    /// An endpoint that may connect to itself through a service (hairpin).
    Hairpin {
        address: IpAddr,
    },
    /// A service address: packets to it that were not translated are rejected.
    Virtual {
        address: IpAddr,
    },
    Closed {
        front: Frontend,
        verdict: Closed,
    },
    /// Only these sources may use the front.
    Guarded {
        front: Frontend,
        ranges: Vec<IpNet>,
    },
}

/// Key of an entry: entries with the same key exclude each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EntryKey {
    Service(Frontend),
    Endpoint(Frontend, List, u32),
    Known(Frontend, IpAddr, u16),
    Hairpin(IpAddr),
    Virtual(IpAddr),
    Closed(Frontend),
    Guarded(Frontend),
}

impl Entry {
    #[must_use]
    pub fn key(&self) -> EntryKey {
        match self {
            Self::Service { front, .. } => EntryKey::Service(*front),
            Self::Endpoint { front, list, index, .. } => EntryKey::Endpoint(*front, *list, *index),
            Self::Known { front, address, port } => EntryKey::Known(*front, *address, *port),
            Self::Hairpin { address } => EntryKey::Hairpin(*address),
            Self::Virtual { address } => EntryKey::Virtual(*address),
            Self::Closed { front, .. } => EntryKey::Closed(*front),
            Self::Guarded { front, .. } => EntryKey::Guarded(*front),
        }
    }

    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        match self {
            Self::Hairpin { address } | Self::Virtual { address } => address.is_ipv4(),
            Self::Service { front, .. }
            | Self::Endpoint { front, .. }
            | Self::Known { front, .. }
            | Self::Closed { front, .. }
            | Self::Guarded { front, .. } => front.address.is_ipv4(),
        }
    }
}

/// All entries that `service` needs on `node`.
#[must_use]
pub fn plan(service: &Service, node: &Node) -> Vec<Entry> {
    let mut out = Vec::new();
    for &address in &service.cluster_ips {
        out.push(Entry::Virtual { address });
    }
    for ipv4 in [true, false] {
        if !service.cluster_ips.iter().any(|address| address.is_ipv4() == ipv4) {
            continue;
        }
        for port in &service.ports {
            frontends(service, port, &choose(&port.endpoints, node, ipv4), ipv4, &mut out);
        }
    }
    out
}

fn frontends(service: &Service, port: &Port, chosen: &Chosen, ipv4: bool, out: &mut Vec<Entry>) {
    let of_family = |addresses: &[IpAddr]| -> Vec<IpAddr> {
        addresses.iter().copied().filter(|address| address.is_ipv4() == ipv4).collect()
    };
    let front = |address: IpAddr| Frontend { address, protocol: port.protocol, port: port.port };
    for address in of_family(&service.cluster_ips) {
        let own = if service.internal_local { &chosen.here } else { &chosen.everywhere };
        let hidden = own.is_empty() && !chosen.everywhere.is_empty();
        open(service, front(address), Source::Inside, own, hidden, out);
    }
    let (source, own) = if service.external_local {
        (Source::OutsideLocal { elsewhere: count(&chosen.everywhere) }, &chosen.here)
    } else {
        (Source::Outside, &chosen.everywhere)
    };
    let unspecified: IpAddr = if ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let node_port = port.node_port.map(|port| (unspecified, port));
    let balanced = of_family(&service.load_balancer_ips);
    let outside = of_family(&service.external_ips).into_iter().chain(balanced.iter().copied());
    for (address, number) in outside.map(|address| (address, port.port)).chain(node_port) {
        let front = Frontend { address, protocol: port.protocol, port: number };
        let hidden = own.is_empty() && !chosen.everywhere.is_empty();
        open(service, front, source, own, hidden, out);
        if let Source::OutsideLocal { .. } = source {
            endpoints(front, List::Elsewhere, &chosen.everywhere, service.affinity_seconds.is_some(), out);
        }
    }
    if !service.source_ranges.is_empty() {
        let ranges: Vec<IpNet> =
            service.source_ranges.iter().copied().filter(|range| range.addr().is_ipv4() == ipv4).collect();
        out.extend(
            balanced
                .into_iter()
                .map(|address| Entry::Guarded { front: front(address), ranges: ranges.clone() }),
        );
    }
}

fn count(list: &[(IpAddr, u16)]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}

/// Entries of one frontend. `hidden`: there are endpoints, but not for these clients.
fn open(
    service: &Service,
    front: Frontend,
    source: Source,
    own: &[(IpAddr, u16)],
    hidden: bool,
    out: &mut Vec<Entry>,
) {
    if own.is_empty() {
        let verdict = if hidden { Closed::Drop } else { Closed::Reject };
        out.push(Entry::Closed { front, verdict });
        // Clients in the cluster are not bound to this node.
        if !matches!(source, Source::OutsideLocal { elsewhere: 1.. }) {
            return;
        }
    }
    let pick = Pick {
        source,
        node_port: front.is_node_port(),
        count: count(own),
        affinity_seconds: service.affinity_seconds,
    };
    out.push(Entry::Service { front, pick });
    endpoints(front, List::Own, own, service.affinity_seconds.is_some(), out);
}

fn endpoints(front: Frontend, list: List, all: &[(IpAddr, u16)], affine: bool, out: &mut Vec<Entry>) {
    for (index, &(address, port)) in (0..).zip(all) {
        out.push(Entry::Endpoint { front, list, index, address, port });
        out.push(Entry::Hairpin { address });
        if affine {
            out.push(Entry::Known { front, address, port });
        }
    }
}

#[cfg(test)]
mod tests;
