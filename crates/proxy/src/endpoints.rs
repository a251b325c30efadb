//! Endpoint selection: ready endpoints, serving terminating ones if there is no ready one, topology hints, and
//! node-local ones for `Local` policies.

use std::net::IpAddr;

use crate::model::{Endpoint, Node};

/// Endpoints of one port and one address family, in an order independent of their listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// For clients that may be sent to any node.
    pub everywhere: Vec<(IpAddr, u16)>,
    /// Endpoints of this node.
    pub here: Vec<(IpAddr, u16)>,
}

/// Chooses among the endpoints of the family of `like`.
#[must_use]
pub fn choose(endpoints: &[Endpoint], node: &Node, ipv4: bool) -> Chosen {
    let family = endpoints.iter().filter(|endpoint| endpoint.address.is_ipv4() == ipv4);
    let all: Vec<&Endpoint> = family.collect();
    Chosen {
        everywhere: addresses(&usable(&near(&all, node))),
        here: addresses(&usable(&all.into_iter().filter(|endpoint| endpoint.local).collect::<Vec<_>>())),
    }
}

/// The ready ones; if there are none, terminating ones that still serve.
fn usable<'a>(all: &[&'a Endpoint]) -> Vec<&'a Endpoint> {
    let ready: Vec<&Endpoint> = all.iter().copied().filter(|endpoint| endpoint.ready).collect();
    if !ready.is_empty() {
        return ready;
    }
    all.iter().copied().filter(|endpoint| endpoint.serving && endpoint.terminating).collect()
}

/// The endpoints with a hint for this node, else for its zone, if every ready endpoint has such hints; else all.
fn near<'a>(all: &[&'a Endpoint], node: &Node) -> Vec<&'a Endpoint> {
    let hinted = |has: &dyn Fn(&Endpoint) -> bool, mine: &dyn Fn(&Endpoint) -> bool| {
        let mut ready = all.iter().filter(|endpoint| endpoint.ready).peekable();
        ready.peek()?;
        if !ready.all(|endpoint| has(endpoint)) {
            return None;
        }
        let near: Vec<&Endpoint> =
            all.iter().copied().filter(|endpoint| endpoint.ready && mine(endpoint)).collect();
        (!near.is_empty()).then_some(near)
    };
    let by_node = hinted(&|e| !e.node_hints.is_empty(), &|e| e.node_hints.contains(&node.name));
    let by_zone = || {
        let zone = node.zone.as_ref()?;
        hinted(&|e| !e.zone_hints.is_empty(), &|e| e.zone_hints.contains(zone))
    };
    by_node.or_else(by_zone).unwrap_or_else(|| all.to_vec())
}

fn addresses(endpoints: &[&Endpoint]) -> Vec<(IpAddr, u16)> {
    let mut out: Vec<(IpAddr, u16)> =
        endpoints.iter().map(|endpoint| (endpoint.address, endpoint.port)).collect();
    out.sort_unstable();
    out.dedup();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(last: u8, state: &str) -> Endpoint {
        let has = |letter: char| state.contains(letter);
        let zones = state.chars().filter(char::is_ascii_digit).map(|digit| digit.to_string()).collect();
        Endpoint {
            address: [10, 1, 0, last].into(),
            port: 80,
            ready: has('r'),
            serving: has('r') || has('s'),
            terminating: has('t'),
            local: has('l'),
            zone_hints: zones,
            node_hints: Default::default(),
        }
    }

    /// The last bytes of the selected addresses: on any node, on this node.
    fn chosen(states: &[&str]) -> (Vec<u8>, Vec<u8>) {
        let all: Vec<Endpoint> = states.iter().zip(1..).map(|(state, last)| endpoint(last, state)).collect();
        let node = Node { name: "n".into(), zone: Some("1".into()), ..Node::default() };
        let last = |list: Vec<(IpAddr, u16)>| list.iter().map(|(a, _)| sys::netlink::octets(*a)[3]).collect();
        let Chosen { everywhere, here } = choose(&all, &node, true);
        (last(everywhere), last(here))
    }

    #[test]
    fn rules_of_all_features_are_rendered() {
        for (states, everywhere, here) in [
            (&["r", "rl", "s"][..], &[1, 2][..], &[2][..]),
            (&["st", "stl", ""], &[1, 2], &[2]),
            (&["r", "stl"], &[1], &[2]),
            (&["", ""], &[], &[]),
            // Hints are used if all ready endpoints have them and one is for this node.
            (&["r1", "r2", "r2l"], &[1], &[3]),
            (&["r1", "r"], &[1, 2], &[]),
            (&["r2", "r3"], &[1, 2], &[]),
        ] {
            assert_eq!(chosen(states), (everywhere.to_vec(), here.to_vec()), "{states:?}");
        }
    }
}
