//! From one service to the entries and chains it needs. Pure, and the same for every backend that has maps.
//!
//! A packet to a service is looked up by address, protocol and port; the entry says which chain picks an endpoint.
//! Such a chain depends only on how many endpoints there are and on the policy, so that services share them, and a
//! change of endpoints changes entries of maps, never rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::endpoints::{Chosen, choose};
use crate::model::{Cidr, Node, Port, Protocol, Service};

/// What a client speaks to: an address and a port, or a port of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Front {
    /// Unspecified for a port of the node.
    pub address: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
}

impl Front {
    #[must_use]
    pub fn is_node_port(&self) -> bool {
        self.address.is_unspecified()
    }
}

impl std::fmt::Display for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        };
        if self.is_node_port() {
            let family = if self.address.is_ipv4() { "IPv4" } else { "IPv6" };
            return write!(f, "node port {}/{protocol} ({family})", self.port);
        }
        write!(f, "{}/{protocol}", std::net::SocketAddr::new(self.address, self.port))
    }
}

/// How an endpoint is picked. Services with the same one share a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pick {
    pub source: Source,
    /// For a port of the node, which has no address to look up by.
    pub node_port: bool,
    pub count: u32,
    pub affinity_seconds: Option<u32>,
}

/// Whose packets come, and what is done to them on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// From the cluster; clients outside the pods' addresses are masqueraded.
    Inside,
    /// From outside: masqueraded, so that answers come back through this node.
    Outside,
    /// From outside to endpoints of this node only, with the client's own address. Clients in the cluster may use
    /// all `elsewhere` endpoints.
    OutsideLocal { elsewhere: u32 },
}

/// Which list of endpoints of a front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum List {
    /// The one its own chain picks from.
    Own,
    /// The one clients in the cluster get where policy keeps others to this node.
    Elsewhere,
}

/// What is done to packets to a front without endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Closed {
    Reject,
    Drop,
}

/// An entry of one of the maps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    Service {
        front: Front,
        pick: Pick,
    },
    Endpoint {
        front: Front,
        list: List,
        index: u32,
        address: IpAddr,
        port: u16,
    },
    /// An endpoint that clients of the front may be remembered with.
    Known {
        front: Front,
        address: IpAddr,
        port: u16,
    },
    /// An endpoint that may speak to itself through a service.
    Hairpin {
        address: IpAddr,
    },
    /// An address that no packet may leave with: what was not translated is refused.
    Virtual {
        address: IpAddr,
    },
    Closed {
        front: Front,
        verdict: Closed,
    },
    /// Only these sources may use the front.
    Guarded {
        front: Front,
        ranges: Vec<Cidr>,
    },
}

/// Where an entry is: two entries with the same place exclude each other, whatever they say.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    Service(Front),
    Endpoint(Front, List, u32),
    Known(Front, IpAddr, u16),
    Hairpin(IpAddr),
    Virtual(IpAddr),
    Closed(Front),
    Guarded(Front),
}

impl Entry {
    #[must_use]
    pub fn place(&self) -> Place {
        match self {
            Self::Service { front, .. } => Place::Service(*front),
            Self::Endpoint { front, list, index, .. } => Place::Endpoint(*front, *list, *index),
            Self::Known { front, address, port } => Place::Known(*front, *address, *port),
            Self::Hairpin { address } => Place::Hairpin(*address),
            Self::Virtual { address } => Place::Virtual(*address),
            Self::Closed { front, .. } => Place::Closed(*front),
            Self::Guarded { front, .. } => Place::Guarded(*front),
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
            fronts(service, port, &choose(&port.endpoints, node, ipv4), ipv4, &mut out);
        }
    }
    out
}

fn fronts(service: &Service, port: &Port, chosen: &Chosen, ipv4: bool, out: &mut Vec<Entry>) {
    let of_family = |addresses: &[IpAddr]| -> Vec<IpAddr> {
        addresses.iter().copied().filter(|address| address.is_ipv4() == ipv4).collect()
    };
    let front = |address: IpAddr| Front { address, protocol: port.protocol, port: port.port };
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
        let front = Front { address, protocol: port.protocol, port: number };
        let hidden = own.is_empty() && !chosen.everywhere.is_empty();
        open(service, front, source, own, hidden, out);
        if let Source::OutsideLocal { .. } = source {
            endpoints(front, List::Elsewhere, &chosen.everywhere, service.affinity_seconds.is_some(), out);
        }
    }
    if !service.source_ranges.is_empty() {
        let ranges: Vec<Cidr> =
            service.source_ranges.iter().copied().filter(|range| range.address.is_ipv4() == ipv4).collect();
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

/// The entries of one front. `hidden` says that there are endpoints, only not for these clients.
fn open(
    service: &Service,
    front: Front,
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

fn endpoints(front: Front, list: List, all: &[(IpAddr, u16)], affine: bool, out: &mut Vec<Entry>) {
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
