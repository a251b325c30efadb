//! Sets: their shapes, and the planner's entries as their elements.

use std::net::IpAddr;

use sys::netlink::octets;
use sys::nftables::keys::{Part, protocol_and_port};
use sys::nftables::{Batch, Element, Family, Set, Value};

use crate::model::Direction;
use crate::ranges::Ranges;
use crate::state::{Entry, Id, NewSet, SetKey};

/// Pairs of equal addresses: a pod that connects to itself.
pub const SELVES: &str = "selves";
/// Addresses, protocols and ports that pods may always reach.
pub const OPEN: &str = "open";

const PORT: [Part; 3] = [Part::Address, Part::Protocol, Part::Port];

/// The map from pod addresses to their ingress or egress chains.
pub fn dispatch_map(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress-pods",
        Direction::Egress => "egress-pods",
    }
}

/// Creates the permanent sets, empty.
pub fn add_fixed(batch: &mut Batch, family: Family) {
    batch.add_set(&Set::plain(SELVES, family, &[Part::Address, Part::Address], Value::Nothing));
    batch.add_set(&Set::plain(OPEN, family, &PORT, Value::Nothing));
    for direction in crate::model::DIRECTIONS {
        batch.add_set(&Set::plain(dispatch_map(direction), family, &[Part::Address], Value::Verdict));
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

/// Address blocks exist in the table of their family only.
#[must_use]
pub fn exists(family: Family, key: &SetKey) -> bool {
    match key {
        SetKey::Block(ranges) => ranges.v6 == (family == Family::Ipv6),
        SetKey::Pods(_) | SetKey::Ports(_) => true,
    }
}

/// Creates a set with all its elements.
pub fn add(batch: &mut Batch, family: Family, set: &NewSet) {
    if !exists(family, &set.key) {
        return;
    }
    let name = name(set.id, &set.key);
    let plain = |parts: &[Part]| Set::plain(&name, family, parts, Value::Nothing);
    match &set.key {
        SetKey::Pods(_) => batch.add_set(&plain(&[Part::Address])),
        SetKey::Ports(_) => batch.add_set(&plain(&PORT)),
        SetKey::Block(ranges) => {
            batch.add_set(&Set { interval: true, ..plain(&[Part::Address]) });
            batch.add_elements(&name, &bounds(ranges));
        }
    }
    batch.add_elements(&name, &elements(family, &set.entries));
}

fn bounds(ranges: &Ranges) -> Vec<Element> {
    let both = |(first, behind): (IpAddr, Option<IpAddr>)| {
        let end = behind.map(|behind| Element::IntervalEnd(octets(behind)));
        [Some(Element::Key(octets(first))), end]
    };
    ranges.bounds().flat_map(both).flatten().collect()
}

/// The elements of entries of a family.
pub fn elements(family: Family, entries: &[Entry]) -> Vec<Element> {
    let element = |entry: &Entry| match entry {
        Entry::Address(one) => Element::Key(octets(*one)),
        Entry::Port(one, protocol, port) => {
            let mut key = octets(*one);
            key.extend(protocol_and_port(*protocol as u8, *port));
            Element::Key(key)
        }
    };
    entries.iter().filter(|entry| Family::of(entry.address()) == family).map(element).collect()
}

pub fn selves(family: Family, addresses: &[IpAddr]) -> Vec<Element> {
    let ours = addresses.iter().filter(|one| Family::of(**one) == family);
    ours.map(|one| Element::Key([octets(*one), octets(*one)].concat())).collect()
}
