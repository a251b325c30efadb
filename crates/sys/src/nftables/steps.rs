//! Expression sequences shared by many rules.

use ipnet::IpNet;

use crate::netlink::octets;

use super::{Base, CtKey, Expr, Family, MetaKey, Register, Side};

/// Local address type.
const LOCAL: u32 = 2;
const STATUS_TRANSLATED: u32 = 0x20;
const INTERFACE_NAME: usize = 16;

/// Loads the packet's source or destination address.
#[must_use]
pub fn address(family: Family, of: Side, to: Register) -> Expr {
    let offset = match (family, of) {
        (Family::Ipv4, Side::Source) => 12,
        (Family::Ipv4, Side::Destination) => 16,
        (Family::Ipv6, Side::Source) => 8,
        (Family::Ipv6, Side::Destination) => 24,
    };
    Expr::Payload { base: Base::Network, offset, length: family.address_length() as u32, to }
}

/// Loads the packet's protocol, followed by the destination port.
#[must_use]
pub fn protocol_and_port(to: Register) -> Vec<Expr> {
    vec![
        Expr::Meta { key: MetaKey::L4Protocol, to },
        Expr::Payload { base: Base::Transport, offset: 2, length: 2, to: to.after(4) },
    ]
}

/// Applies a bit mask.
#[must_use]
pub fn bits(register: Register, mask: u32) -> Expr {
    Expr::Bitwise { from: register, to: register, mask: mask.to_ne_bytes().to_vec(), xor: vec![0; 4] }
}

/// Continues if the number is not zero.
#[must_use]
pub fn not_zero(register: Register) -> Expr {
    Expr::Compare { from: register, equal: false, value: vec![0; 4] }
}

/// Continues if the address is in the range, or is not. Uses the register.
#[must_use]
pub fn within(family: Family, of: Side, range: &IpNet, inside: bool, register: Register) -> Vec<Expr> {
    let (mask, network) = (octets(range.netmask()), octets(range.network()));
    let xor = vec![0; mask.len()];
    vec![
        address(family, of, register),
        Expr::Bitwise { from: register, to: register, mask, xor },
        Expr::Compare { from: register, equal: inside, value: network },
    ]
}

/// Continues if the address is local.
#[must_use]
pub fn is_local(of: Side, register: Register) -> Vec<Expr> {
    vec![
        Expr::AddressType { of, to: register },
        Expr::Compare { from: register, equal: true, value: LOCAL.to_ne_bytes().to_vec() },
    ]
}

/// Continues if the destination was translated.
#[must_use]
pub fn was_translated(register: Register) -> Vec<Expr> {
    vec![Expr::Ct { key: CtKey::Status, to: register }, bits(register, STATUS_TRANSLATED), not_zero(register)]
}

/// Continues if the packet's output (or input) interface is this one, or is not.
#[must_use]
pub fn interface(key: MetaKey, name: &str, equal: bool, register: Register) -> Vec<Expr> {
    let mut value = name.as_bytes().to_vec();
    value.resize(INTERFACE_NAME, 0);
    vec![Expr::Meta { key, to: register }, Expr::Compare { from: register, equal, value }]
}
