//! Routes owned by this machine's components, and route lookups.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{
    ACK, CREATE, DUMP, Message, NEW_ROUTE, Netlink, REPLACE, address_of, attributes, family, number, octets,
};

const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const MAIN_TABLE: u8 = 254;
const UNICAST: u8 = 1;
const EVERYWHERE: u8 = 0;
const ON_LINK: u8 = 253;
const GATEWAY_IS_ON_LINK: u32 = 4;

/// Identity of a route's owner: protocol number and metric. Routes to one destination with different metrics coexist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteOwner {
    pub protocol: u8,
    /// The kernel's default if absent.
    pub metric: Option<u32>,
}

impl RouteOwner {
    fn owns(self, protocol: u8, metric: u32) -> bool {
        // IPv6 routes without a metric get 1024.
        protocol == self.protocol && self.metric.map_or(matches!(metric, 0 | 1024), |own| own == metric)
    }
}

/// A next hop.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    pub destination: IpNet,
    pub gateway: Option<IpAddr>,
    /// Interface index.
    pub interface: u32,
    /// Preferred source address for packets of this machine.
    pub source: Option<IpAddr>,
    /// On-link flag: the gateway is reached through the interface regardless of its addresses.
    pub gateway_on_link: bool,
}

/// Result of a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub interface: u32,
    pub gateway: Option<IpAddr>,
    pub source: Option<IpAddr>,
}

impl Netlink {
    /// Sets a route of `owner`, replacing its route to the same destination.
    pub fn set_route(&mut self, route: &Route, owner: RouteOwner) -> io::Result<()> {
        let scope =
            if route.gateway.is_some() || route.destination.addr().is_ipv6() { EVERYWHERE } else { ON_LINK };
        let flags = if route.gateway_on_link { GATEWAY_IS_ON_LINK } else { 0 };
        let to = route.destination;
        let head = [family(to.addr()), to.prefix_len(), 0, 0, MAIN_TABLE, owner.protocol, scope, UNICAST];
        let message = Message::new(NEW_ROUTE, CREATE | REPLACE).raw(&head).raw(&flags.to_ne_bytes());
        self.request(describe(message, route, owner)).map(drop)
    }

    /// Removes a route of `owner`; a missing one is no error.
    pub fn remove_route(&mut self, route: &Route, owner: RouteOwner) -> io::Result<()> {
        const ANY_SCOPE: u8 = 255;
        // Without a metric, the kernel removes the first of the routes of all metrics.
        if owner.metric.is_none() && !self.routes(Some(owner))?.contains(route) {
            return Ok(());
        }
        let to = route.destination;
        let head = [family(to.addr()), to.prefix_len(), 0, 0, MAIN_TABLE, owner.protocol, ANY_SCOPE, 0];
        let message = Message::new(DELETE_ROUTE, 0).raw(&head).raw(&[0; 4]);
        match self.request(describe(message, route, owner)) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Routes of the main table, of one owner or of all. A default route has prefix length 0.
    pub fn routes(&mut self, owner: Option<RouteOwner>) -> io::Result<Vec<Route>> {
        let mut found = Vec::new();
        for unspecified in [IpAddr::from([0; 4]), IpAddr::from([0; 16])] {
            let head = [family(unspecified), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            let answers = self.request(Message::new(GET_ROUTE, DUMP).raw(&head))?;
            let routes = answers.iter().filter(|(kind, _)| *kind == NEW_ROUTE);
            found.extend(routes.filter_map(|(_, body)| read(body, unspecified, owner)));
        }
        Ok(found)
    }

    /// Looks up the route of a packet to `address`; `None` if unreachable.
    pub fn way_to(&mut self, address: IpAddr) -> io::Result<Option<Way>> {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        let head = [family(address), prefix, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let answers =
            self.request(Message::new(GET_ROUTE, ACK).raw(&head).attribute(RTA_DST, &octets(address)));
        let answers = match answers {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH)) => {
                return Ok(None);
            }
            other => other?,
        };
        let way = |body: &[u8]| {
            let mut way = Way { interface: 0, gateway: None, source: None };
            for (kind, data) in attributes(body.get(12..)?) {
                match kind {
                    RTA_OIF => way.interface = number(data)?,
                    RTA_GATEWAY => way.gateway = address_of(data),
                    RTA_PREFSRC => way.source = address_of(data),
                    _ => {}
                }
            }
            Some(way)
        };
        Ok(answers.iter().find_map(|(_, body)| way(body)))
    }
}

fn describe(message: Message, route: &Route, owner: RouteOwner) -> Message {
    let mut message = message.attribute(RTA_DST, &octets(route.destination.addr()));
    if let Some(gateway) = route.gateway {
        message = message.attribute(RTA_GATEWAY, &octets(gateway));
    }
    if let Some(source) = route.source {
        message = message.attribute(RTA_PREFSRC, &octets(source));
    }
    if let Some(metric) = owner.metric {
        message = message.number(RTA_PRIORITY, metric);
    }
    message.number(RTA_OIF, route.interface)
}

fn read(body: &[u8], unspecified: IpAddr, owner: Option<RouteOwner>) -> Option<Route> {
    let head = body.first_chunk::<12>()?;
    if head[4] != MAIN_TABLE || head[7] != UNICAST {
        return None;
    }
    let mut route = Route {
        destination: IpNet::new(unspecified, head[1]).ok()?,
        gateway: None,
        interface: 0,
        source: None,
        gateway_on_link: number(&head[8..])? & GATEWAY_IS_ON_LINK != 0,
    };
    let mut metric = 0;
    for (kind, data) in attributes(body.get(12..)?) {
        match kind {
            RTA_PRIORITY => metric = number(data)?,
            RTA_DST => route.destination = IpNet::new(address_of(data)?, head[1]).ok()?,
            RTA_OIF => route.interface = number(data)?,
            RTA_GATEWAY => route.gateway = address_of(data),
            RTA_PREFSRC => route.source = address_of(data),
            _ => {}
        }
    }
    owner.is_none_or(|owner| owner.owns(head[5], metric)).then_some(route)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{self, Namespace};

    /// Uses a network namespace of this thread, which disappears with it.
    #[test]
    fn routes_are_added_and_removed() {
        const OWNER: RouteOwner = RouteOwner { protocol: 177, metric: None };
        const OTHER: RouteOwner = RouteOwner { protocol: 177, metric: Some(1 << 31 | 7) };
        let worker = std::thread::spawn(|| {
            if process::unshare(&[Namespace::Network]).is_err() {
                return println!("skipped: no permission to create network namespaces");
            }
            let mut netlink = Netlink::open().unwrap();
            netlink.set_up("lo").unwrap();
            netlink.add_bridge("b", 1500).unwrap();
            netlink.add_address("b", "10.9.0.1".parse().unwrap(), 24).unwrap();
            netlink.set_up("b").unwrap();
            let interface = netlink.link("b").unwrap().unwrap().index;
            let near = netlink.way_to("10.9.0.7".parse().unwrap()).unwrap().unwrap();
            assert_eq!((near.interface, near.gateway), (interface, None));
            assert_eq!(netlink.way_to("192.0.2.1".parse().unwrap()).unwrap(), None);
            let gateway = Some("10.9.0.7".parse().unwrap());
            let destination = "10.1.2.0/24".parse().unwrap();
            let route = Route { destination, gateway, interface, source: None, gateway_on_link: false };
            netlink.set_route(&route, OWNER).unwrap();
            netlink.set_route(&route, OWNER).unwrap();
            assert_eq!(netlink.routes(Some(OWNER)).unwrap(), std::slice::from_ref(&route));
            assert_eq!(netlink.way_to("10.1.2.3".parse().unwrap()).unwrap().unwrap().gateway, gateway);
            // Directly to loopback, with a reachable source address.
            let service = Route {
                destination: "10.96.0.0/12".parse().unwrap(),
                gateway: None,
                interface: netlink.link("lo").unwrap().unwrap().index,
                source: Some("10.9.0.1".parse().unwrap()),
                gateway_on_link: false,
            };
            netlink.set_route(&service, OWNER).unwrap();
            assert!(netlink.routes(Some(OWNER)).unwrap().contains(&service));
            // Another owner's route to the same destination is separate.
            netlink.set_route(&route, OTHER).unwrap();
            assert_eq!(netlink.routes(Some(OTHER)).unwrap(), std::slice::from_ref(&route));
            netlink.remove_route(&route, OWNER).unwrap();
            netlink.remove_route(&route, OWNER).unwrap();
            assert_eq!(netlink.routes(Some(OWNER)).unwrap(), [service]);
            assert_eq!(netlink.routes(Some(OTHER)).unwrap(), [route]);
        });
        worker.join().unwrap();
    }
}
