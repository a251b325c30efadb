//! Which routes a node needs so that its pods and those of other nodes reach each other. Pure.

use std::net::IpAddr;

use objects::core::v1::Node;
use sys::netlink::{Peer, Route, Way};

/// A node, as far as routes are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub name: String,
    pub addresses: Vec<IpAddr>,
    /// The addresses of its pods.
    pub ranges: Vec<(IpAddr, u8)>,
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
            ranges: ranges.iter().filter_map(|text| range(text)).collect(),
        }
    }

    fn address_like(&self, like: IpAddr) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| address.is_ipv4() == like.is_ipv4())
    }
}

/// `10.244.1.0/24`, as address and prefix length.
#[must_use]
pub fn range(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = text.trim().split_once('/')?;
    let (address, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
    (prefix <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, prefix))
}

/// What the kernel says about this machine.
pub trait Machine {
    /// Which way a packet would go.
    fn way_to(&mut self, address: IpAddr) -> Option<Way>;
    /// Whether packets to anywhere have a way, by family.
    fn has_default_route(&self, ipv4: bool) -> bool;
    /// The number of the loopback interface.
    fn loopback(&self) -> u32;
}

/// What there should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub routes: Vec<Route>,
    /// Ranges of pods behind tunnels, and the tunnels' other ends.
    pub tunnels: Vec<((IpAddr, u8), Peer)>,
    /// Where tunnels begin on this node: its own address, and its addresses inside.
    pub tunnel_from: Option<(IpAddr, Vec<IpAddr>)>,
}

/// Plans for the node `own`. Packets to `services` that this machine sends itself need a way too, or the kernel refuses
/// them before the proxy sees them.
pub fn plan(own: &View, others: &[View], services: &[(IpAddr, u8)], machine: &mut dyn Machine) -> Plan {
    let mut plan = Plan::default();
    for &destination in services {
        if !machine.has_default_route(destination.0.is_ipv4()) {
            plan.routes.push(Route {
                destination,
                gateway: None,
                interface: machine.loopback(),
                source: own.address_like(destination.0),
                gateway_on_link: false,
            });
        }
    }
    for other in others.iter().filter(|other| other.name != own.name) {
        for &destination in &other.ranges {
            // Two nodes that say they have the same addresses cannot both be reached; ours are ours.
            if own.ranges.contains(&destination) {
                continue;
            }
            let Some(address) = other.address_like(destination.0) else { continue };
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
                Some(_) => plan.tunnels.push((destination, peer(address, destination.0))),
                None => {}
            }
        }
    }
    if let Some((_, first)) = plan.tunnels.first()
        && let Some(local) = own.address_like(first.machine)
    {
        plan.tunnel_from = Some((local, own.ranges.iter().map(|(network, _)| *network).collect()));
    }
    plan
}

/// The other end of a tunnel: the first address of the node's pods, which no pod has, and a hardware address that both
/// sides can tell from the node's own.
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
    // Locally administered, for one.
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
        View { name: name.into(), addresses, ranges: range(pods).into_iter().collect() }
    }

    #[test]
    fn near_nodes_by_routes_and_far_ones_by_tunnels() {
        let own = view("a", "172.30.0.1", "10.244.0.0/24");
        let others = [
            own.clone(),
            view("b", "172.30.0.2", "10.244.1.0/24"),
            view("c", "192.0.2.9", "10.244.2.0/24"),
            view("unready", "172.30.0.4", ""),
            view("thief", "172.30.0.5", "10.244.0.0/24"),
            view("myself", "172.30.0.1", "10.244.7.0/24"),
        ];
        let services = range("10.96.0.0/12").expect("a range");
        let plan = plan(&own, &others, &[services], &mut Fake { default: true });
        let got: Vec<String> = plan
            .routes
            .iter()
            .map(|route| format!("{}/{} via {:?}", route.destination.0, route.destination.1, route.gateway))
            .collect();
        assert_eq!(got, ["10.244.1.0/24 via Some(172.30.0.2)"]);
        let [(destination, peer)] = &plan.tunnels[..] else { panic!("one tunnel: {plan:?}") };
        assert_eq!(
            (destination.0, peer.inside),
            (IpAddr::from([10, 244, 2, 0]), IpAddr::from([10, 244, 2, 0]))
        );
        assert_eq!(plan.tunnel_from, Some(([172, 30, 0, 1].into(), vec![[10, 244, 0, 0].into()])));
    }

    #[test]
    fn services_need_a_way_where_there_is_none() {
        let own = view("a", "172.30.0.1", "10.244.0.0/24");
        let services = range("10.96.0.0/12").expect("a range");
        let plan = plan(&own, &[], &[services], &mut Fake { default: false });
        let [route] = &plan.routes[..] else { panic!("one route: {plan:?}") };
        assert_eq!((route.interface, route.source), (1, Some([172, 30, 0, 1].into())));
    }

    #[test]
    fn ranges() {
        assert_eq!(range("10.244.1.0/24"), Some(([10, 244, 1, 0].into(), 24)));
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "x/8"] {
            assert_eq!(range(bad), None, "{bad}");
        }
    }
}
