//! Steps that many rules have in common.

use super::{Base, CtKey, Expr, Family, MetaKey, Register, Side};

/// Addresses of this machine, as its routes see them.
const LOCAL: u32 = 2;
const STATUS_TRANSLATED: u32 = 0x20;
const INTERFACE_NAME: usize = 16;

/// The packet's source or destination address.
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

/// The packet's protocol, and behind it the port it goes to.
#[must_use]
pub fn protocol_and_port(to: Register) -> Vec<Expr> {
    vec![
        Expr::Meta { key: MetaKey::L4Protocol, to },
        Expr::Payload { base: Base::Transport, offset: 2, length: 2, to: to.after(4) },
    ]
}

/// Keeps only the bits of the mask.
#[must_use]
pub fn bits(register: Register, mask: u32) -> Expr {
    Expr::Bitwise { from: register, to: register, mask: mask.to_ne_bytes().to_vec(), xor: vec![0; 4] }
}

/// The packet goes on if the number is not zero.
#[must_use]
pub fn not_zero(register: Register) -> Expr {
    Expr::Compare { from: register, equal: false, value: vec![0; 4] }
}

/// The packet goes on if its address is in the range, or is not. Uses the register.
#[must_use]
pub fn within(
    family: Family,
    of: Side,
    (mask, network): (Vec<u8>, Vec<u8>),
    inside: bool,
    register: Register,
) -> Vec<Expr> {
    let xor = vec![0; mask.len()];
    vec![
        address(family, of, register),
        Expr::Bitwise { from: register, to: register, mask, xor },
        Expr::Compare { from: register, equal: inside, value: network },
    ]
}

/// The packet goes on if the address is one of this machine's.
#[must_use]
pub fn is_local(of: Side, register: Register) -> Vec<Expr> {
    vec![
        Expr::AddressType { of, to: register },
        Expr::Compare { from: register, equal: true, value: LOCAL.to_ne_bytes().to_vec() },
    ]
}

/// The packet goes on if its destination was translated.
#[must_use]
pub fn was_translated(register: Register) -> Vec<Expr> {
    vec![Expr::Ct { key: CtKey::Status, to: register }, bits(register, STATUS_TRANSLATED), not_zero(register)]
}

/// The packet goes on if it leaves (or comes) through this interface, or through another.
#[must_use]
pub fn interface(key: MetaKey, name: &str, equal: bool, register: Register) -> Vec<Expr> {
    let mut value = name.as_bytes().to_vec();
    value.resize(INTERFACE_NAME, 0);
    vec![Expr::Meta { key, to: register }, Expr::Compare { from: register, equal, value }]
}
