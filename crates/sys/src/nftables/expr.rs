//! Expressions of a rule.

use super::message::Writer;
use super::{Family, Register};

/// Verdict on a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

impl Verdict {
    pub(super) fn write(&self, to: &mut Writer) {
        let (code, chain) = match self {
            Self::Drop => (0, None),
            Self::Accept => (1, None),
            Self::Jump(chain) => (-3, Some(chain)),
            Self::Goto(chain) => (-4, Some(chain)),
            Self::Return => (-5_i32, None),
        };
        // NFTA_DATA_VERDICT
        to.nest(2, |to| {
            to.number(1, code as u32);
            if let Some(chain) = chain {
                to.text(2, chain);
            }
        });
    }
}

/// Base of a payload offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    Link = 0,
    Network = 1,
    Transport = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKey {
    Mark = 3,
    InInterfaceName = 6,
    OutInterfaceName = 7,
    L4Protocol = 16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtKey {
    State = 0,
    Direction = 1,
    Status = 2,
}

/// Source or destination address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Source = 1,
    Destination = 2,
}

/// Destination address translation from registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nat {
    pub family: Family,
    pub address: Register,
    pub port: Register,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// ICMP port unreachable, of the packet's family.
    Unreachable(Family),
    TcpReset,
}

/// One expression of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    Payload {
        base: Base,
        offset: u32,
        length: u32,
        to: Register,
    },
    Meta {
        key: MetaKey,
        to: Register,
    },
    SetMark {
        from: Register,
    },
    Ct {
        key: CtKey,
        to: Register,
    },
    /// Address type by the routing table: local, unicast, broadcast.
    AddressType {
        of: Side,
        to: Register,
    },
    Compare {
        from: Register,
        equal: bool,
        value: Vec<u8>,
    },
    /// Continues if the value is in the range, both ends included.
    Range {
        from: Register,
        first: Vec<u8>,
        last: Vec<u8>,
    },
    /// `to = from & mask ^ xor`
    Bitwise {
        from: Register,
        to: Register,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    Load {
        to: Register,
        value: Vec<u8>,
    },
    /// Random number from 0 to `modulus - 1`.
    Random {
        to: Register,
        modulus: u32,
    },
    /// Continues if the set contains the key (or does not).
    In {
        set: String,
        key: Register,
        inverted: bool,
    },
    /// Value of the key; the rule ends if it is missing.
    Lookup {
        map: String,
        key: Register,
        to: Register,
    },
    /// Verdict of the key; the rule ends if it is missing.
    VerdictOf {
        map: String,
        key: Register,
    },
    /// Adds `key: value` to a map for `seconds`, or renews it.
    Remember {
        map: String,
        key: Register,
        value: Register,
        seconds: u64,
    },
    Dnat(Nat),
    Masquerade {
        random: bool,
    },
    Reject(Reject),
    Verdict(Verdict),
}

fn data(to: &mut Writer, kind: u16, value: &[u8]) {
    to.nest(kind, |to| to.attribute(1, value));
}

impl Expr {
    /// Encodes an element of a rule's expression list. Attribute numbers are the kernel's, per expression.
    pub(super) fn write(&self, out: &mut Writer) {
        match self {
            Self::Payload { base, offset, length, to } => step(out, "payload", |out| {
                out.number(1, to.code());
                out.number(2, *base as u32);
                out.number(3, *offset);
                out.number(4, *length);
            }),
            Self::Meta { key, to } => step(out, "meta", |out| {
                out.number(2, *key as u32);
                out.number(1, to.code());
            }),
            Self::SetMark { from } => step(out, "meta", |out| {
                out.number(2, MetaKey::Mark as u32);
                out.number(3, from.code());
            }),
            Self::Ct { key, to } => step(out, "ct", |out| {
                out.number(2, *key as u32);
                out.number(1, to.code());
            }),
            Self::AddressType { of, to } => step(out, "fib", |out| {
                const ADDRESS_TYPE: u32 = 3;
                out.number(3, *of as u32);
                out.number(2, ADDRESS_TYPE);
                out.number(1, to.code());
            }),
            Self::Compare { from, equal, value } => step(out, "cmp", |out| {
                out.number(1, from.code());
                out.number(2, u32::from(!*equal));
                data(out, 3, value);
            }),
            Self::Range { from, first, last } => step(out, "range", |out| {
                out.number(1, from.code());
                out.number(2, 0);
                data(out, 3, first);
                data(out, 4, last);
            }),
            Self::Bitwise { from, to, mask, xor } => step(out, "bitwise", |out| {
                out.number(1, from.code());
                out.number(2, to.code());
                out.number(3, mask.len() as u32);
                data(out, 4, mask);
                data(out, 5, xor);
            }),
            Self::Load { to, value } => step(out, "immediate", |out| {
                out.number(1, to.code());
                data(out, 2, value);
            }),
            Self::Verdict(verdict) => step(out, "immediate", |out| {
                out.number(1, 0);
                out.nest(2, |out| verdict.write(out));
            }),
            Self::Random { to, modulus } => step(out, "numgen", |out| {
                out.number(1, to.code());
                out.number(2, *modulus);
                out.number(3, 1);
                out.number(4, 0);
            }),
            Self::In { set, key, inverted } => step(out, "lookup", |out| {
                out.text(1, set);
                out.number(2, key.code());
                if *inverted {
                    out.number(5, 1);
                }
            }),
            Self::Lookup { map, key, to } => lookup(out, map, *key, to.code()),
            Self::VerdictOf { map, key } => lookup(out, map, *key, 0),
            Self::Remember { map, key, value, seconds } => remember(out, map, *key, *value, *seconds),
            Self::Dnat(nat) => translate_destination(out, nat),
            Self::Masquerade { random } => step(out, "masq", |out| {
                if *random {
                    out.number(1, 0x10);
                }
            }),
            Self::Reject(Reject::TcpReset) => reject(out, 1, 0),
            Self::Reject(Reject::Unreachable(Family::Ipv4)) => reject(out, 0, 3),
            Self::Reject(Reject::Unreachable(Family::Ipv6)) => reject(out, 0, 4),
        }
    }
}

fn step(out: &mut Writer, name: &str, attributes: impl FnOnce(&mut Writer)) {
    out.nest(1, |out| {
        out.text(1, name);
        out.nest(2, attributes);
    });
}

fn lookup(out: &mut Writer, map: &str, key: Register, to: u32) {
    step(out, "lookup", |out| {
        out.text(1, map);
        out.number(2, key.code());
        out.number(3, to);
    });
}

fn remember(out: &mut Writer, map: &str, key: Register, value: Register, seconds: u64) {
    step(out, "dynset", |out| {
        out.text(1, map);
        out.number(3, 1);
        out.number(4, key.code());
        out.number(5, value.code());
        out.long(6, seconds * 1000);
    });
}

fn translate_destination(out: &mut Writer, Nat { family, address, port }: &Nat) {
    step(out, "nat", |out| {
        out.number(1, 1);
        out.number(2, u32::from(family.code()));
        for (first, register) in [(3, address), (5, port)] {
            out.number(first, register.code());
            out.number(first + 1, register.code());
        }
    });
}

fn reject(out: &mut Writer, kind: u32, code: u8) {
    step(out, "reject", |out| {
        out.number(1, kind);
        out.attribute(2, &[code]);
    });
}
