//! Source checks: a pod may send from its own addresses only.
//!
//! The MAC address of a pod is derived from its address, and the bridge port is bound to it
//! ([`Netlink::bind_port`](sys::netlink::Netlink::bind_port)). So a set of MAC and IP address pairs suffices to drop
//! packets with any other source before other rules. Pods connected by an earlier version have other MAC addresses
//! and are exempt.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};
use sys::netlink::octets;
use sys::nftables::keys::Part;
use sys::nftables::steps::{address, interface, within};
use sys::nftables::{
    Base, Batch, Chain, Element, Expr, Family, Hook, MetaKey, Register, Set, Side, Socket, Value, Verdict,
};

const R0: Register = Register(0);
const LINK_LOCAL: IpNet = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10));
const PREROUTING: u32 = 0;
/// Priority before connection tracking.
const PRIORITY: i32 = -310;
const CHAIN: &str = "sources";
const PAIRS: &str = "pairs";
/// MAC prefix of pods: locally administered, and common for container networks.
const PREFIX: [u8; 2] = [0x0a, 0x58];
const HARDWARE_LENGTH: usize = 6;

/// MAC address of the pod with these addresses.
pub fn hardware(addresses: &[IpAddr]) -> Option<[u8; HARDWARE_LENGTH]> {
    let from = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first())?;
    let bytes = octets(*from);
    let last = bytes.last_chunk::<4>()?;
    Some([PREFIX[0], PREFIX[1], last[0], last[1], last[2], last[3]])
}

/// Adds the addresses of the pods that are `wanted` to the admitted ones.
pub fn admit(batch: &mut Batch, family: Family, all: &[(IpAddr, String)], wanted: impl Fn(&str) -> bool) {
    batch.add_elements(PAIRS, &pairs(all, family, wanted));
}

/// Removes the addresses of `owner`. Missing ones are no error.
pub fn forget(table: &str, all: &[(IpAddr, String)], owner: &str) {
    let Ok(socket) = Socket::open() else { return };
    for family in [Family::Ipv4, Family::Ipv6] {
        let mut batch = Batch::new(family, table);
        batch.remove_elements(PAIRS, &pairs(all, family, |one| one == owner));
        if !batch.is_empty() {
            let _ = socket.apply(batch);
        }
    }
}

fn pairs(all: &[(IpAddr, String)], family: Family, wanted: impl Fn(&str) -> bool) -> Vec<Element> {
    let own = |owner: &str| -> Vec<IpAddr> {
        all.iter().filter(|(_, one)| one == owner).map(|(address, _)| *address).collect()
    };
    all.iter()
        .filter(|(address, owner)| Family::of(*address) == family && wanted(owner))
        .filter_map(|(address, owner)| {
            let hardware = hardware(&own(owner))?;
            Some(Element::Key([&hardware[..], &[0, 0], &octets(*address)].concat()))
        })
        .collect()
}

/// Adds the set and the chain.
pub fn write(batch: &mut Batch, family: Family, bridge: &str) {
    batch.add_set(&Set::plain(PAIRS, family, &[Part::Hardware, Part::Address], Value::Nothing));
    let hook = Some(Hook { kind: "filter", number: PREROUTING, priority: PRIORITY });
    batch.add_chain(&Chain { name: CHAIN, hook });
    let from_pod = || interface(MetaKey::InInterfaceName, bridge, true, R0);
    if family == Family::Ipv6 {
        // Router advertisements and redirects are accepted from the node only.
        for kind in [134, 137] {
            let mut rule = from_pod();
            rule.extend([
                Expr::Meta { key: MetaKey::L4Protocol, to: R0 },
                Expr::Compare { from: R0, equal: true, value: vec![58] },
                Expr::Payload { base: Base::Transport, offset: 0, length: 1, to: R0 },
                Expr::Compare { from: R0, equal: true, value: vec![kind] },
                Expr::Verdict(Verdict::Drop),
            ]);
            batch.add_rule(CHAIN, &rule);
        }
    }
    let mut rule = from_pod();
    rule.extend([
        Expr::Payload { base: Base::Link, offset: 6, length: 2, to: R0 },
        Expr::Compare { from: R0, equal: true, value: PREFIX.to_vec() },
    ]);
    if family == Family::Ipv6 {
        // Neighbour discovery uses link-local addresses, and the unspecified one at first.
        rule.extend(within(family, Side::Source, &LINK_LOCAL, false, R0));
        rule.push(address(family, Side::Source, R0));
        rule.push(Expr::Compare { from: R0, equal: false, value: vec![0; 16] });
    }
    rule.extend([
        Expr::Payload { base: Base::Link, offset: 6, length: 6, to: R0 },
        address(family, Side::Source, R0.after(HARDWARE_LENGTH)),
        Expr::In { set: PAIRS.to_owned(), key: R0, inverted: true },
        Expr::Verdict(Verdict::Drop),
    ]);
    batch.add_rule(CHAIN, &rule);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_address_is_derived_from_first_ipv4_address() {
        let both = ["fd00::7".parse().unwrap(), "10.1.2.3".parse().unwrap()];
        assert_eq!(hardware(&both), Some([0x0a, 0x58, 10, 1, 2, 3]));
        assert_eq!(hardware(&both[..1]), Some([0x0a, 0x58, 0, 0, 0, 7]));
        assert_eq!(hardware(&[]), None);
        let all =
            [(both[0], "a".to_owned()), (both[1], "a".to_owned()), ([10, 1, 2, 4].into(), "b".to_owned())];
        assert_eq!(pairs(&all, Family::Ipv4, |_| true).len(), 2);
        let wanted = [0x0a, 0x58, 10, 1, 2, 3, 0, 0, 10, 1, 2, 3].to_vec();
        assert_eq!(pairs(&all, Family::Ipv4, |owner| owner == "a"), [Element::Key(wanted)]);
    }
}
