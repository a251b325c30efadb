//! Computes the routes a node needs to connect its pods with those of other nodes. Pure.

use std::net::IpAddr;

use ipnet::IpNet;
use objects::core::v1::Node;
use sys::netlink::{Peer, Route, Way};

/// A node, reduced to its routing data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub name: String,
    pub addresses: Vec<IpAddr>,
    /// Its pod ranges.
    pub ranges: Vec<IpNet>,
}

impl View {
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let spec = node.spec.clone().unwrap_or_default();
        let ranges = spec.pod_cidrs.unwrap_or_else(|| spec.pod_cidr.into_iter().collect());
        let status = node.status.clone().unwrap_or_default();
        let addresses = status.addresses.into_iter().flatten();
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            addresses: addresses
                .filter(|address| address.type_ == "InternalIP")
                .filter_map(|address| address.address.parse().ok())
                .collect(),
            ranges: ranges.iter().filter_map(|text| text.trim().parse().ok()).collect(),
        }
    }

    fn address_like(&self, like: IpAddr) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| address.is_ipv4() == like.is_ipv4())
    }
}

/// Kernel facts about this machine.
pub trait Machine {
    /// Route lookup.
    fn way_to(&mut self, address: IpAddr) -> Option<Way>;
    /// True if a default route exists, by family.
    fn has_default_route(&self, ipv4: bool) -> bool;
    /// Index of the loopback interface.
    fn loopback(&self) -> u32;
}

/// Desired routes and tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutePlan {
    pub routes: Vec<Route>,
    /// Pod ranges behind tunnels, and the tunnels' remote endpoints.
    pub tunnels: Vec<(IpNet, Peer)>,
    /// Local tunnel endpoint: underlay address and overlay addresses.
    pub tunnel_from: Option<(IpAddr, Vec<IpAddr>)>,
}

/// Plans for the node `own`. Locally sent packets to `services` need a route too, or the kernel rejects them before
/// the proxy sees them.
pub fn plan(own: &View, others: &[View], services: &[IpNet], machine: &mut dyn Machine) -> RoutePlan {
    let mut plan = RoutePlan::default();
    for &destination in services {
        if !machine.has_default_route(destination.addr().is_ipv4()) {
            plan.routes.push(Route {
                destination,
                gateway: None,
                interface: machine.loopback(),
                source: own.address_like(destination.addr()),
                gateway_on_link: false,
            });
        }
    }
    for other in others.iter().filter(|other| other.name != own.name) {
        for &destination in &other.ranges {
            // Two nodes with the same range cannot both be reached; the node's own range takes precedence.
            if own.ranges.contains(&destination) {
                continue;
            }
            let Some(address) = other.address_like(destination.addr()) else { continue };
            if own.addresses.contains(&address) {
                continue;
            }
            match machine.way_to(address) {
                Some(Way { interface, gateway: None, .. }) => plan.routes.push(Route {
                    destination,
                    gateway: Some(address),
                    interface,
                    source: None,
                    gateway_on_link: false,
                }),
                Some(_) => plan.tunnels.push((destination, peer(address, destination.addr()))),
                None => {}
            }
        }
    }
    if let Some((_, first)) = plan.tunnels.first()
        && let Some(local) = own.address_like(first.machine)
    {
        plan.tunnel_from = Some((local, own.ranges.iter().map(IpNet::addr).collect()));
    }
    plan
}

/// Tunnel endpoint: the first address of the node's pod range, which no pod has, and a MAC address that both sides
/// derive from the node's address.
#[must_use]
pub fn peer(machine: IpAddr, inside: IpAddr) -> Peer {
    Peer { machine, inside, hardware: hardware(machine) }
}

#[must_use]
pub fn hardware(machine: IpAddr) -> [u8; 6] {
    let last: [u8; 4] = match machine {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let o = address.octets();
            [o[12], o[13], o[14], o[15]]
        }
    };
    // Locally administered, unicast.
    [0x0e, 0xfe, last[0], last[1], last[2], last[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake {
        default: bool,
    }

    impl Machine for Fake {
        fn way_to(&mut self, address: IpAddr) -> Option<Way> {
            let octets = match address {
                IpAddr::V4(address) => address.octets(),
                IpAddr::V6(_) => return None,
            };
            let gateway = (octets[0] != 172).then(|| IpAddr::from([172, 30, 0, 254]));
            Some(Way { interface: 2, gateway, source: None })
        }

        fn has_default_route(&self, _: bool) -> bool {
            self.default
        }

        fn loopback(&self) -> u32 {
            1
        }
    }

    fn view(name: &str, address: &str, pods: &str) -> View {
        let addresses = address.parse().into_iter().collect();
        View { name: name.into(), addresses, ranges: pods.parse().into_iter().collect() }
    }

    #[test]
    fn near_nodes_get_routes_far_nodes_get_tunnels() {
        let own = view("a", "172.30.0.1", "10.244.0.0/24");
        let others = [
            own.clone(),
            view("b", "172.30.0.2", "10.244.1.0/24"),
            view("c", "192.0.2.9", "10.244.2.0/24"),
            view("unready", "172.30.0.4", ""),
            view("thief", "172.30.0.5", "10.244.0.0/24"),
            view("myself", "172.30.0.1", "10.244.7.0/24"),
        ];
        let services = "10.96.0.0/12".parse().expect("a range");
        let plan = plan(&own, &others, &[services], &mut Fake { default: true });
        let got: Vec<String> = plan
            .routes
            .iter()
            .map(|route| format!("{} via {:?}", route.destination, route.gateway))
            .collect();
        assert_eq!(got, ["10.244.1.0/24 via Some(172.30.0.2)"]);
        let [(destination, peer)] = &plan.tunnels[..] else { panic!("one tunnel: {plan:?}") };
        assert_eq!(
            (destination.addr(), peer.inside),
            (IpAddr::from([10, 244, 2, 0]), IpAddr::from([10, 244, 2, 0]))
        );
        assert_eq!(plan.tunnel_from, Some(([172, 30, 0, 1].into(), vec![[10, 244, 0, 0].into()])));
    }

    #[test]
    fn service_range_without_default_route_gets_route() {
        let own = view("a", "172.30.0.1", "10.244.0.0/24");
        let services = "10.96.0.0/12".parse().expect("a range");
        let plan = plan(&own, &[], &[services], &mut Fake { default: false });
        let [route] = &plan.routes[..] else { panic!("one route: {plan:?}") };
        assert_eq!((route.interface, route.source), (1, Some([172, 30, 0, 1].into())));
    }
}
