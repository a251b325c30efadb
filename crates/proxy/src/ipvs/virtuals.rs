//! Frontends as virtual services with destinations, and the steps from the actual to the desired state. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use sys::netlink::{Destination, Step, VirtualService};

use crate::frontends::{FrontEndpoints, Origin};
use crate::model::Protocol;
use crate::plan::{Frontend, Source};

/// Drain time of a removed destination.
const GRACE: Duration = Duration::from_secs(15 * 60);

/// A desired virtual service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    persistent: Option<u32>,
    destinations: BTreeSet<Destination>,
}

/// Virtual services of a frontend: a node port has one at each of the node's addresses.
pub fn wanted(
    front: &Frontend,
    served: Option<&FrontEndpoints>,
    own: impl Iterator<Item = IpAddr>,
) -> BTreeMap<VirtualService, Wanted> {
    let Some(served) = served.filter(|served| served.is_open()) else { return BTreeMap::new() };
    // The nftables rules check source ranges before the load balancer.
    let origin = match served.source() {
        Some(Source::OutsideLocal { .. }) => Origin::Outside,
        _ => Origin::Node,
    };
    let endpoints = served.all(origin);
    let destinations: BTreeSet<Destination> = endpoints
        .into_iter()
        .map(|endpoint| Destination { address: endpoint.ip(), port: endpoint.port() })
        .collect();
    if destinations.is_empty() {
        return BTreeMap::new();
    }
    let wanted = Wanted { persistent: served.affinity_seconds(), destinations };
    let service = |address| VirtualService { address, protocol: front.protocol as u8, port: front.port };
    if !front.is_node_port() {
        return BTreeMap::from([(service(front.address), wanted)]);
    }
    let same_family =
        own.filter(|address| address.is_ipv4() == front.address.is_ipv4() && !address.is_loopback());
    same_family.map(|address| (service(address), wanted.clone())).collect()
}

#[derive(Clone, Debug, Default)]
struct Present {
    persistent: Option<u32>,
    /// With the time since which it receives no new connections.
    destinations: BTreeMap<Destination, Option<Instant>>,
}

/// Actual state of the kernel.
#[derive(Clone, Debug, Default)]
pub struct Virtuals {
    services: BTreeMap<VirtualService, Present>,
    frontends: HashMap<Frontend, BTreeSet<VirtualService>>,
}

impl Virtuals {
    /// Steps to the desired virtual services of a frontend.
    pub fn set(
        &mut self,
        front: &Frontend,
        wanted: BTreeMap<VirtualService, Wanted>,
        now: Instant,
    ) -> Vec<Step> {
        let old = self.frontends.remove(front).unwrap_or_default();
        let mut steps = Vec::new();
        for service in old.iter().filter(|service| !wanted.contains_key(service)) {
            self.services.remove(service);
            steps.push(Step::RemoveService(*service));
        }
        if !wanted.is_empty() {
            self.frontends.insert(*front, wanted.keys().copied().collect());
        }
        for (service, wanted) in wanted {
            let new = !self.services.contains_key(&service);
            let present = self.services.entry(service).or_default();
            if new || present.persistent != wanted.persistent {
                steps.push(Step::Service { service, new, persistent: wanted.persistent });
                present.persistent = wanted.persistent;
            }
            steps.extend(destinations(service, present, &wanted.destinations, now));
        }
        steps
    }

    /// Steps that remove destinations whose drain time is over.
    pub fn expired(&mut self, now: Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        for (service, present) in &mut self.services {
            present.destinations.retain(|destination, left| {
                let over = left.is_some_and(|left| now.duration_since(left) >= GRACE);
                if over {
                    steps.push(Step::RemoveDestination(*service, *destination));
                }
                !over
            });
        }
        steps
    }
}

fn destinations(
    service: VirtualService,
    present: &mut Present,
    wanted: &BTreeSet<Destination>,
    now: Instant,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for destination in wanted {
        let there = present.destinations.get(destination);
        if there != Some(&None) {
            let new = there.is_none();
            steps.push(Step::Destination { service, destination: *destination, new, weight: 1 });
            present.destinations.insert(*destination, None);
        }
    }
    // UDP flows have no end, so they end with their destination.
    let at_once = service.protocol == Protocol::Udp as u8;
    let leaving: Vec<Destination> = present
        .destinations
        .iter()
        .filter(|(destination, left)| left.is_none() && !wanted.contains(destination))
        .map(|(destination, _)| *destination)
        .collect();
    for destination in leaving {
        if at_once {
            present.destinations.remove(&destination);
            steps.push(Step::RemoveDestination(service, destination));
        } else {
            present.destinations.insert(destination, Some(now));
            steps.push(Step::Destination { service, destination, new: false, weight: 0 });
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(protocol: Protocol) -> VirtualService {
        VirtualService { address: [10, 96, 0, 9].into(), protocol: protocol as u8, port: 80 }
    }

    fn destination(last: u8) -> Destination {
        Destination { address: [10, 1, 0, last].into(), port: 8080 }
    }

    fn one(protocol: Protocol, lasts: &[u8], persistent: Option<u32>) -> BTreeMap<VirtualService, Wanted> {
        let destinations = lasts.iter().map(|last| destination(*last)).collect();
        BTreeMap::from([(service(protocol), Wanted { persistent, destinations })])
    }

    #[test]
    fn connections_end_before_their_destination() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let (mut virtuals, now) = (Virtuals::default(), Instant::now());
            let front = Frontend { address: [10, 96, 0, 9].into(), protocol, port: 80 };
            let service = service(protocol);
            let made = virtuals.set(&front, one(protocol, &[1, 2], None), now);
            let add = |last, new, weight| Step::Destination {
                service,
                destination: destination(last),
                new,
                weight,
            };
            let new = Step::Service { service, new: true, persistent: None };
            assert_eq!(made, [new, add(1, true, 1), add(2, true, 1)]);
            assert_eq!(virtuals.set(&front, one(protocol, &[1, 2], None), now), []);
            let left = virtuals.set(&front, one(protocol, &[1], Some(60)), now);
            let settings = Step::Service { service, new: false, persistent: Some(60) };
            let gone = Step::RemoveDestination(service, destination(2));
            if protocol == Protocol::Udp {
                assert_eq!(left, [settings, gone]);
                continue;
            }
            assert_eq!(left, [settings, add(2, false, 0)]);
            assert_eq!(virtuals.expired(now), []);
            // It returns before the end of its drain time, is removed again, and is deleted in the end.
            assert_eq!(virtuals.set(&front, one(protocol, &[1, 2], Some(60)), now), [add(2, false, 1)]);
            assert_eq!(virtuals.set(&front, one(protocol, &[1], Some(60)), now), [add(2, false, 0)]);
            assert_eq!(virtuals.expired(now + GRACE), [gone]);
            assert_eq!(virtuals.set(&front, BTreeMap::new(), now), [Step::RemoveService(service)]);
        }
    }
}
