//! nftables through netlink: tables, chains, rules, sets and their elements, changed in one atomic batch.
//!
//! Only what Ferry needs: no listing of rules, no parsing of expressions. Names are chosen by the caller.

mod batch;
mod expr;
pub mod keys;
mod message;
mod socket;
pub mod steps;
mod tables;

pub use batch::{Batch, Chain, Element, Hook, Set, Value};
pub use expr::{Base, CtKey, Expr, MetaKey, Nat, Reject, Side, Verdict};
pub use socket::{Content, NftError, Socket};
pub use tables::Tables;

/// Address families of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    Ipv4,
    Ipv6,
}

pub const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

impl Family {
    /// Family of an address.
    #[must_use]
    pub const fn of(address: std::net::IpAddr) -> Self {
        if address.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Ipv4 => 2,
            Self::Ipv6 => 10,
        }
    }

    /// Length of an address.
    #[must_use]
    pub const fn address_length(self) -> usize {
        match self {
            Self::Ipv4 => 4,
            Self::Ipv6 => 16,
        }
    }
}

/// Family of a table: of one address family, or of the frames of bridges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFamily {
    Ip(Family),
    Bridge,
}

impl TableFamily {
    const fn code(self) -> u8 {
        match self {
            Self::Ip(family) => family.code(),
            Self::Bridge => 7,
        }
    }
}

impl From<Family> for TableFamily {
    fn from(family: Family) -> Self {
        Self::Ip(family)
    }
}

/// A register of four bytes, 0 to 15. Longer values take several in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub u8);

impl Register {
    const fn code(self) -> u32 {
        8 + self.0 as u32
    }

    /// Register behind a value of `length` bytes that starts here.
    #[must_use]
    pub const fn after(self, length: usize) -> Self {
        Self(self.0 + length.div_ceil(4) as u8)
    }
}
