//! Sets: their shapes, and the planner's entries as their elements.

use std::net::IpAddr;

use sys::nftables::{Batch, Element, Family, Set, Value};

use crate::model::Direction;
use crate::ranges::Ranges;
use crate::state::{Entry, Id, NewSet, SetKey};

/// Pairs of equal addresses: a pod that speaks to itself.
pub const SELVES: &str = "selves";
/// Addresses, protocols and ports that pods may always reach.
pub const OPEN: &str = "open";

/// The numbers by which tools know the types of a key's parts.
const TYPE_IPV4: u32 = 7;
const TYPE_IPV6: u32 = 8;
const TYPE_PROTOCOL: u32 = 12;
const TYPE_PORT: u32 = 13;

fn kind(parts: &[u32]) -> u32 {
    parts.iter().fold(0, |kind, part| kind << 6 | part)
}

fn address_kind(family: Family) -> u32 {
    match family {
        Family::Ipv4 => TYPE_IPV4,
        Family::Ipv6 => TYPE_IPV6,
    }
}

/// The map from the addresses of pods to what they may receive, or send.
pub fn dispatch_map(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress-pods",
        Direction::Egress => "egress-pods",
    }
}

fn plain(name: &str, key_length: u32, key_kind: u32, value: Value) -> Set<'_> {
    Set { name, key_length, key_kind, value, dynamic: None, interval: false }
}

/// Makes the sets that are always there, empty.
pub fn add_fixed(batch: &mut Batch, family: Family) {
    let (length, ip) = (family.address_length() as u32, address_kind(family));
    batch.add_set(&plain(SELVES, length * 2, kind(&[ip, ip]), Value::Nothing));
    let port = kind(&[ip, TYPE_PROTOCOL, TYPE_PORT]);
    batch.add_set(&plain(OPEN, length + 8, port, Value::Nothing));
    for direction in crate::model::DIRECTIONS {
        batch.add_set(&plain(dispatch_map(direction), length, ip, Value::Verdict));
    }
}

#[must_use]
pub fn name(id: Id, key: &SetKey) -> String {
    match key {
        SetKey::Pods(_) => pods_name(id),
        SetKey::Ports(_) => ports_name(id),
        SetKey::Block(_) => block_name(id),
    }
}

#[must_use]
pub fn pods_name(id: Id) -> String {
    format!("pods-{id}")
}

#[must_use]
pub fn ports_name(id: Id) -> String {
    format!("ports-{id}")
}

#[must_use]
pub fn block_name(id: Id) -> String {
    format!("block-{id}")
}

/// Blocks are there in the table of their family only.
#[must_use]
pub fn exists(family: Family, key: &SetKey) -> bool {
    match key {
        SetKey::Block(ranges) => ranges.v6 == (family == Family::Ipv6),
        SetKey::Pods(_) | SetKey::Ports(_) => true,
    }
}

/// Makes a set with all its elements.
pub fn add(batch: &mut Batch, family: Family, set: &NewSet) {
    if !exists(family, &set.key) {
        return;
    }
    let name = name(set.id, &set.key);
    let (length, ip) = (family.address_length() as u32, address_kind(family));
    match &set.key {
        SetKey::Pods(_) => batch.add_set(&plain(&name, length, ip, Value::Nothing)),
        SetKey::Ports(_) => {
            let kind = kind(&[ip, TYPE_PROTOCOL, TYPE_PORT]);
            batch.add_set(&plain(&name, length + 8, kind, Value::Nothing));
        }
        SetKey::Block(ranges) => {
            batch.add_set(&Set { interval: true, ..plain(&name, length, ip, Value::Nothing) });
            batch.add_elements(&name, &bounds(ranges));
        }
    }
    batch.add_elements(&name, &elements(family, &set.entries));
}

fn bounds(ranges: &Ranges) -> Vec<Element> {
    let both = |(first, behind): (IpAddr, Option<IpAddr>)| {
        let end = behind.map(|behind| Element::IntervalEnd(bytes(behind)));
        [Some(Element::Key(bytes(first))), end]
    };
    ranges.bounds().flat_map(both).flatten().collect()
}

/// The elements of entries of a family.
pub fn elements(family: Family, entries: &[Entry]) -> Vec<Element> {
    let element = |entry: &Entry| match entry {
        Entry::Address(address) => Element::Key(bytes(*address)),
        Entry::Port(address, protocol, port) => {
            let [high, low] = port.to_be_bytes();
            let mut key = bytes(*address);
            // Each part of a key fills whole registers.
            key.extend([*protocol as u8, 0, 0, 0, high, low, 0, 0]);
            Element::Key(key)
        }
    };
    entries.iter().filter(|entry| is_of(family, entry.address())).map(element).collect()
}

pub fn selves(family: Family, addresses: &[IpAddr]) -> Vec<Element> {
    let ours = addresses.iter().filter(|address| is_of(family, **address));
    ours.map(|address| Element::Key([bytes(*address), bytes(*address)].concat())).collect()
}

#[must_use]
pub fn is_of(family: Family, address: IpAddr) -> bool {
    address.is_ipv4() == (family == Family::Ipv4)
}

/// An address as bytes.
#[must_use]
pub fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
