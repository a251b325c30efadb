//! The plan by frontend, for backends without the planner's maps: endpoints and allowed clients of each. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::plan::{Entry, Frontend, List, Pick, Source};
use crate::state::Difference;

/// Limit of affinity entries per frontend.
const MOST_CLIENTS: usize = 65_536;

/// Origin of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A process on this node.
    Node,
    Pod,
    Outside,
}

/// Endpoints of a frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontEndpoints {
    pick: Option<Pick>,
    own: BTreeMap<u32, SocketAddr>,
    elsewhere: BTreeMap<u32, SocketAddr>,
    guard: Option<Vec<IpNet>>,
}

impl FrontEndpoints {
    /// True if there are endpoints.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.pick.is_some() && !(self.own.is_empty() && self.elsewhere.is_empty())
    }

    /// True if the endpoints depend on the client's origin.
    #[must_use]
    pub fn depends_on_origin(&self) -> bool {
        self.guard.is_some() || matches!(self.source(), Some(Source::OutsideLocal { .. }))
    }

    #[must_use]
    pub fn affinity_seconds(&self) -> Option<u32> {
        self.pick.and_then(|pick| pick.affinity_seconds)
    }

    /// Endpoints for a client; none if the client is not allowed.
    #[must_use]
    pub fn endpoints(&self, client: IpAddr, origin: Origin) -> Vec<SocketAddr> {
        let let_in = |ranges: &Vec<IpNet>| ranges.iter().any(|range| range.contains(&client));
        if origin != Origin::Node && self.guard.as_ref().is_some_and(|ranges| !let_in(ranges)) {
            return Vec::new();
        }
        self.all(origin)
    }

    /// The same, ignoring source ranges.
    #[must_use]
    pub fn all(&self, origin: Origin) -> Vec<SocketAddr> {
        let inside = origin != Origin::Outside;
        let list = match self.source() {
            Some(Source::OutsideLocal { .. }) if inside => &self.elsewhere,
            _ => &self.own,
        };
        list.values().copied().collect()
    }

    /// Accepted packets; `None` without endpoints.
    #[must_use]
    pub fn source(&self) -> Option<Source> {
        self.pick.map(|pick| pick.source)
    }

    /// True if an endpoint is still valid.
    #[must_use]
    pub fn has(&self, endpoint: SocketAddr) -> bool {
        self.own.values().chain(self.elsewhere.values()).any(|one| *one == endpoint)
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn put(&mut self, entry: &Entry, there: bool) {
        match entry {
            Entry::Service { pick, .. } => self.pick = there.then_some(*pick),
            Entry::Endpoint { list, index, address, port, .. } => {
                let list = match list {
                    List::Own => &mut self.own,
                    List::Elsewhere => &mut self.elsewhere,
                };
                if there {
                    list.insert(*index, SocketAddr::new(*address, *port));
                } else {
                    list.remove(index);
                }
            }
            Entry::Guarded { ranges, .. } => self.guard = there.then(|| ranges.clone()),
            // A frontend without endpoints is not opened, so that the kernel rejects its clients; the relay
            // implements affinity, and hairpin connections pass through it.
            Entry::Known { .. } | Entry::Closed { .. } | Entry::Hairpin { .. } | Entry::Virtual { .. } => {}
        }
    }
}

/// All frontends.
#[derive(Clone, Debug, Default)]
pub struct Table {
    frontends: BTreeMap<Frontend, FrontEndpoints>,
    virtuals: BTreeSet<IpAddr>,
}

/// Frontends changed by a difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedFrontends {
    pub frontends: BTreeSet<Frontend>,
    pub addresses: BTreeSet<IpAddr>,
}

impl Table {
    /// Applies a difference; returns the changed frontends.
    pub fn apply(&mut self, difference: &Difference) -> ChangedFrontends {
        let mut changed = ChangedFrontends::default();
        let removed = difference.removed.iter().map(|entry| (entry, false));
        for (entry, there) in removed.chain(difference.added.iter().map(|entry| (entry, true))) {
            match entry {
                Entry::Service { front, .. }
                | Entry::Endpoint { front, .. }
                | Entry::Closed { front, .. }
                | Entry::Guarded { front, .. } => {
                    self.frontends.entry(*front).or_default().put(entry, there);
                    changed.frontends.insert(*front);
                }
                Entry::Virtual { address } => {
                    if there {
                        self.virtuals.insert(*address);
                    } else {
                        self.virtuals.remove(address);
                    }
                    changed.addresses.insert(*address);
                }
                Entry::Known { .. } | Entry::Hairpin { .. } => {}
            }
        }
        for front in &changed.frontends {
            if self.frontends.get(front).is_some_and(FrontEndpoints::is_empty) {
                self.frontends.remove(front);
            }
            if !front.is_node_port() {
                changed.addresses.insert(front.address);
            }
        }
        changed
    }

    /// All frontends and service addresses.
    #[must_use]
    pub fn all(&self) -> ChangedFrontends {
        let of_fronts =
            self.frontends.keys().filter(|front| !front.is_node_port()).map(|front| front.address);
        ChangedFrontends {
            frontends: self.frontends.keys().copied().collect(),
            addresses: self.virtuals.iter().copied().chain(of_fronts).collect(),
        }
    }

    #[must_use]
    pub fn get(&self, front: &Frontend) -> Option<&FrontEndpoints> {
        self.frontends.get(front)
    }

    /// True if an address belongs to a service.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        let first = Frontend { address, protocol: crate::model::Protocol::Tcp, port: 0 };
        let of_front =
            || self.frontends.range(first..).next().is_some_and(|(front, _)| front.address == address);
        self.virtuals.contains(&address) || of_front()
    }
}

/// Affinity of a frontend: clients and their endpoints.
#[derive(Debug, Default)]
pub struct Memory {
    clients: HashMap<IpAddr, (SocketAddr, Instant)>,
}

impl Memory {
    /// One of `endpoints`: the one that the client used within the last `seconds`, or a random one.
    pub fn pick(
        &mut self,
        client: IpAddr,
        endpoints: &[SocketAddr],
        seconds: Option<u32>,
        now: Instant,
    ) -> Option<SocketAddr> {
        if endpoints.is_empty() {
            return None;
        }
        let any = || endpoints.get(rand::random_range(0..endpoints.len())).copied();
        let Some(seconds) = seconds else { return any() };
        let counts = |since: Instant| now.duration_since(since) < Duration::from_secs(seconds.into());
        let had = self.clients.get(&client).filter(|(one, since)| endpoints.contains(one) && counts(*since));
        let chosen = had.map(|(endpoint, _)| *endpoint).or_else(any)?;
        if self.clients.len() >= MOST_CLIENTS {
            self.clients.retain(|_, (_, since)| counts(*since));
        }
        if self.clients.len() < MOST_CLIENTS {
            self.clients.insert(client, (chosen, now));
        }
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Endpoint, Node, Port, Protocol, Service, ServiceName};
    use crate::plan::plan;
    use crate::state::State;

    fn service() -> Service {
        let endpoint = |last, local| Endpoint {
            address: [10, 1, 0, last].into(),
            port: 8080,
            ready: true,
            serving: true,
            terminating: false,
            local,
            zone_hints: BTreeSet::new(),
            node_hints: BTreeSet::new(),
        };
        Service {
            name: ServiceName { namespace: "default".into(), name: "web".into() },
            cluster_ips: vec![[10, 96, 0, 9].into()],
            external_ips: vec![],
            load_balancer_ips: vec![[192, 0, 2, 9].into()],
            source_ranges: vec!["198.51.100.0/24".parse().expect("a range")],
            ports: vec![Port {
                name: String::new(),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: Some(30_080),
                endpoints: vec![endpoint(1, true), endpoint(2, false)],
            }],
            affinity_seconds: None,
            internal_local: false,
            external_local: true,
            health_check_port: None,
        }
    }

    fn front(address: [u8; 4], port: u16) -> Frontend {
        Frontend { address: address.into(), protocol: Protocol::Tcp, port }
    }

    #[test]
    fn endpoints_depend_on_origin_and_source_ranges() {
        let (mut state, mut table, service) = (State::default(), Table::default(), service());
        let changed = table.apply(&state.set(&service.name, plan(&service, &Node::default())));
        assert_eq!((changed.frontends.len(), changed.addresses.len()), (3, 2));
        let lasts = |front: Frontend, client: [u8; 4], origin: Origin| -> Vec<u8> {
            let served = table.get(&front).expect("served");
            let found = served.endpoints(client.into(), origin);
            found.iter().map(|one| sys::netlink::octets(one.ip())[3]).collect()
        };
        let (inner, balanced, port) =
            (front([10, 96, 0, 9], 80), front([192, 0, 2, 9], 80), front([0; 4], 30_080));
        for (front, client, origin, wanted) in [
            (inner, [203, 0, 113, 1], Origin::Outside, &[1, 2][..]),
            (port, [203, 0, 113, 1], Origin::Outside, &[1]),
            (port, [10, 1, 0, 7], Origin::Pod, &[1, 2]),
            (balanced, [203, 0, 113, 1], Origin::Outside, &[]),
            (balanced, [198, 51, 100, 1], Origin::Outside, &[1]),
            (balanced, [10, 1, 0, 7], Origin::Pod, &[]),
            (balanced, [192, 0, 2, 1], Origin::Node, &[1, 2]),
        ] {
            assert_eq!(lasts(front, client, origin), wanted, "{front:?} {client:?} {origin:?}");
        }
        assert!(table.has_address(inner.address) && table.has_address(balanced.address));
        table.apply(&state.set(&service.name, vec![]));
        assert!(table.all() == ChangedFrontends::default() && !table.has_address(inner.address));
    }

    #[test]
    fn affinity_expires_after_its_timeout() {
        let endpoints: Vec<SocketAddr> =
            (1..=9).map(|last| SocketAddr::from(([10, 1, 0, last], 80))).collect();
        let (mut memory, now) = (Memory::default(), Instant::now());
        let client: IpAddr = [10, 1, 0, 77].into();
        let first = memory.pick(client, &endpoints, Some(60), now).expect("one");
        for second in 0..40 {
            let later = now + Duration::from_secs(second * 30);
            assert_eq!(memory.pick(client, &endpoints, Some(60), later), Some(first));
        }
        let others: Vec<SocketAddr> = endpoints.iter().copied().filter(|one| *one != first).collect();
        assert_ne!(memory.pick(client, &others, Some(60), now), Some(first));
        assert_eq!(memory.pick(client, &[], Some(60), now), None);
    }
}
