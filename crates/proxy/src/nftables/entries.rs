//! Sets and maps: their shapes, and the plan's entries as their elements.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use sys::netlink::octets;
use sys::nftables::keys::{Part, protocol_and_port, values};
use sys::nftables::{Batch, Element, Family, Set, Value, Verdict};

use super::{Elements, rules};
use crate::plan::{Closed, Entry, Frontend, List};

pub const SERVICES: &str = "services";
pub const NODE_PORTS: &str = "node-ports";
pub const ENDPOINTS: &str = "endpoints";
pub const ELSEWHERE: &str = "endpoints-elsewhere";
pub const AFFINITY: &str = "affinity";
pub const KNOWN: &str = "affinity-endpoints";
pub const HAIRPINS: &str = "hairpins";
pub const VIRTUAL: &str = "virtual-addresses";
pub const CLOSED: &str = "closed";
pub const CLOSED_PORTS: &str = "closed-node-ports";
pub const GUARDED: &str = "guarded";

/// Limit of affinity entries.
const AFFINITY_SIZE: u32 = 65_536;

/// Key of a service.
pub const FRONT: [Part; 3] = [Part::Address, Part::Protocol, Part::Port];
/// Key of a node port.
pub const NODE_PORT: [Part; 2] = [Part::Protocol, Part::Port];

/// Creates all sets, empty.
pub fn add_sets(batch: &mut Batch, family: Family) {
    let endpoint = [Part::Address, Part::Port];
    let plain = |name, parts: &[Part], value| Set::plain(name, family, parts, value);
    let numbered = [&FRONT[..], &[Part::Number]].concat();
    let to = values(family, &endpoint);
    for set in [
        plain(SERVICES, &FRONT, Value::Verdict),
        plain(NODE_PORTS, &NODE_PORT, Value::Verdict),
        plain(ENDPOINTS, &numbered, to),
        plain(ELSEWHERE, &numbered, to),
        Set { dynamic: Some(AFFINITY_SIZE), ..plain(AFFINITY, &[&[Part::Address], &FRONT[..]].concat(), to) },
        plain(KNOWN, &[&FRONT[..], &endpoint].concat(), Value::Nothing),
        plain(HAIRPINS, &[Part::Address, Part::Address], Value::Nothing),
        plain(VIRTUAL, &[Part::Address], Value::Nothing),
        plain(CLOSED, &FRONT, Value::Verdict),
        plain(CLOSED_PORTS, &NODE_PORT, Value::Verdict),
        plain(GUARDED, &FRONT, Value::Verdict),
    ] {
        batch.add_set(&set);
    }
}

/// The elements of entries, by set.
pub fn by_set<'a>(entries: impl Iterator<Item = &'a Entry>) -> BTreeMap<&'static str, Elements> {
    let mut out: BTreeMap<&'static str, Elements> = BTreeMap::new();
    for entry in entries {
        let (set, element) = element(entry);
        out.entry(set).or_default().push(element);
    }
    out
}

fn element(entry: &Entry) -> (&'static str, Element) {
    match entry {
        Entry::Service { front, pick } => {
            let set = if front.is_node_port() { NODE_PORTS } else { SERVICES };
            (set, Element::Verdict(lookup_key(front), Verdict::Goto(rules::pick_name(pick))))
        }
        Entry::Endpoint { front, list, index, address, port } => {
            let set = match list {
                List::Own => ENDPOINTS,
                List::Elsewhere => ELSEWHERE,
            };
            let mut key = front_key(front);
            key.extend(index.to_ne_bytes());
            (set, Element::Bytes(key, endpoint(*address, *port)))
        }
        Entry::Known { front, address, port } => {
            let mut key = front_key(front);
            key.extend(endpoint(*address, *port));
            (KNOWN, Element::Key(key))
        }
        Entry::Hairpin { address } => (HAIRPINS, hairpin(*address)),
        Entry::Virtual { address } => (VIRTUAL, Element::Key(octets(*address))),
        Entry::Closed { front, verdict } => {
            let set = if front.is_node_port() { CLOSED_PORTS } else { CLOSED };
            let verdict = match verdict {
                Closed::Drop => Verdict::Drop,
                Closed::Reject => Verdict::Goto(rules::REJECT.to_owned()),
            };
            (set, Element::Verdict(lookup_key(front), verdict))
        }
        Entry::Guarded { front, ranges } => (GUARDED, guarded(front, ranges)),
    }
}

pub fn hairpin(address: IpAddr) -> Element {
    Element::Key([octets(address), octets(address)].concat())
}

pub fn guarded(front: &Frontend, ranges: &[IpNet]) -> Element {
    Element::Verdict(front_key(front), Verdict::Jump(rules::guard_name(front, ranges)))
}

fn front_key(front: &Frontend) -> Vec<u8> {
    let mut key = octets(front.address);
    key.extend(protocol_and_port(front.protocol as u8, front.port));
    key
}

/// Ports of the node are looked up without an address.
pub fn lookup_key(front: &Frontend) -> Vec<u8> {
    if front.is_node_port() {
        protocol_and_port(front.protocol as u8, front.port).to_vec()
    } else {
        front_key(front)
    }
}

fn endpoint(address: IpAddr, port: u16) -> Vec<u8> {
    let mut value = octets(address);
    value.extend(port.to_be_bytes());
    value.extend([0, 0]);
    value
}
