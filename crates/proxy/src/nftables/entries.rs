//! Sets and maps: their shapes, and the plan's entries as their elements.

use std::collections::BTreeMap;
use std::net::IpAddr;

use sys::nftables::{Batch, Element, Family, Set, Value, Verdict};

use super::{Elements, rules};
use crate::model::{Protocol, bytes};
use crate::plan::{Closed, Entry, Front, List};

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

/// How many clients are remembered at most.
const AFFINITY_SIZE: u32 = 65_536;

/// The numbers by which tools know the types of a key's parts.
const TYPE_IPV4: u32 = 7;
const TYPE_IPV6: u32 = 8;
const TYPE_PROTOCOL: u32 = 12;
const TYPE_PORT: u32 = 13;
const TYPE_MARK: u32 = 19;

fn kind(parts: &[u32]) -> u32 {
    parts.iter().fold(0, |kind, part| kind << 6 | part)
}

/// Makes all sets, empty.
pub fn add_sets(batch: &mut Batch, family: Family) {
    let address = family.address_length() as u32;
    let (ip, front) = match family {
        Family::Ipv4 => (TYPE_IPV4, &[TYPE_IPV4, TYPE_PROTOCOL, TYPE_PORT]),
        Family::Ipv6 => (TYPE_IPV6, &[TYPE_IPV6, TYPE_PROTOCOL, TYPE_PORT]),
    };
    let with = |before: &[u32], after: &[u32]| kind(&[before, &front[..], after].concat());
    let endpoint = Value::Bytes { length: address + 4, kind: kind(&[ip, TYPE_PORT]) };
    let port = kind(&[TYPE_PROTOCOL, TYPE_PORT]);
    let plain = |name, key_length, key_kind, value| Set {
        name,
        key_length,
        key_kind,
        value,
        dynamic: None,
        interval: false,
    };
    for set in [
        plain(SERVICES, address + 8, with(&[], &[]), Value::Verdict),
        plain(NODE_PORTS, 8, port, Value::Verdict),
        plain(ENDPOINTS, address + 12, with(&[], &[TYPE_MARK]), endpoint),
        plain(ELSEWHERE, address + 12, with(&[], &[TYPE_MARK]), endpoint),
        Set { dynamic: Some(AFFINITY_SIZE), ..plain(AFFINITY, address * 2 + 8, with(&[ip], &[]), endpoint) },
        plain(KNOWN, address * 2 + 12, with(&[], &[ip, TYPE_PORT]), Value::Nothing),
        plain(HAIRPINS, address * 2, kind(&[ip, ip]), Value::Nothing),
        plain(VIRTUAL, address, ip, Value::Nothing),
        plain(CLOSED, address + 8, with(&[], &[]), Value::Verdict),
        plain(CLOSED_PORTS, 8, port, Value::Verdict),
        plain(GUARDED, address + 8, with(&[], &[]), Value::Verdict),
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
        Entry::Hairpin { address } => (HAIRPINS, Element::Key([bytes(*address), bytes(*address)].concat())),
        Entry::Virtual { address } => (VIRTUAL, Element::Key(bytes(*address))),
        Entry::Closed { front, verdict } => {
            let set = if front.is_node_port() { CLOSED_PORTS } else { CLOSED };
            let verdict = match verdict {
                Closed::Drop => Verdict::Drop,
                Closed::Reject => Verdict::Goto(rules::REJECT.to_owned()),
            };
            (set, Element::Verdict(lookup_key(front), verdict))
        }
        Entry::Guarded { front, ranges } => {
            (GUARDED, Element::Verdict(front_key(front), Verdict::Jump(rules::guard_name(front, ranges))))
        }
    }
}

/// Each part of a key fills whole registers.
fn protocol_and_port(protocol: Protocol, port: u16) -> [u8; 8] {
    let [high, low] = port.to_be_bytes();
    [protocol as u8, 0, 0, 0, high, low, 0, 0]
}

fn front_key(front: &Front) -> Vec<u8> {
    let mut key = bytes(front.address);
    key.extend(protocol_and_port(front.protocol, front.port));
    key
}

/// Ports of the node are looked up without an address.
fn lookup_key(front: &Front) -> Vec<u8> {
    if front.is_node_port() {
        protocol_and_port(front.protocol, front.port).to_vec()
    } else {
        front_key(front)
    }
}

fn endpoint(address: IpAddr, port: u16) -> Vec<u8> {
    let mut value = bytes(address);
    value.extend(port.to_be_bytes());
    value.extend([0, 0]);
    value
}
