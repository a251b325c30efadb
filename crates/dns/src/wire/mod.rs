//! DNS messages: names, questions and an encoder of replies. No IO, no allocation while decoding.

mod name;
mod query;
mod reply;

pub(crate) use name::labels;
pub use name::{Name, NameError};
pub use query::{Edns, Query, QueryError, skip_name};
pub use reply::{Reply, Section};

/// Supported record types.
pub mod rtype {
    pub const A: u16 = 1;
    pub const NS: u16 = 2;
    pub const CNAME: u16 = 5;
    pub const SOA: u16 = 6;
    pub const PTR: u16 = 12;
    pub const TXT: u16 = 16;
    pub const AAAA: u16 = 28;
    pub const SRV: u16 = 33;
    pub const OPT: u16 = 41;
    pub const AXFR: u16 = 252;
    pub const IXFR: u16 = 251;
    pub const ANY: u16 = 255;

    /// The type's name, for metrics and logs.
    #[must_use]
    pub fn text(rtype: u16) -> &'static str {
        match rtype {
            A => "A",
            NS => "NS",
            CNAME => "CNAME",
            SOA => "SOA",
            PTR => "PTR",
            TXT => "TXT",
            AAAA => "AAAA",
            SRV => "SRV",
            ANY => "ANY",
            _ => "other",
        }
    }
}

/// Response codes.
pub mod rcode {
    pub const NO_ERROR: u8 = 0;
    pub const FORMAT_ERROR: u8 = 1;
    pub const SERVER_FAILURE: u8 = 2;
    pub const NAME_ERROR: u8 = 3;
    pub const NOT_IMPLEMENTED: u8 = 4;
    pub const REFUSED: u8 = 5;

    #[must_use]
    pub fn text(rcode: u8) -> &'static str {
        match rcode {
            NO_ERROR => "NOERROR",
            FORMAT_ERROR => "FORMERR",
            SERVER_FAILURE => "SERVFAIL",
            NAME_ERROR => "NXDOMAIN",
            NOT_IMPLEMENTED => "NOTIMP",
            REFUSED => "REFUSED",
            _ => "other",
        }
    }
}

pub const CLASS_IN: u16 = 1;
/// The smallest message every client accepts.
pub const PLAIN_SIZE: usize = 512;
/// Largest reply over UDP: fits every path without fragmentation, and limits amplification.
pub const LARGEST_UDP: usize = 1232;
pub const HEADER: usize = 12;

/// Bits of the header flags.
pub mod flags {
    pub const RESPONSE: u16 = 0x8000;
    pub const AUTHORITATIVE: u16 = 0x0400;
    pub const TRUNCATED: u16 = 0x0200;
    pub const RECURSION_DESIRED: u16 = 0x0100;
    pub const RECURSION_AVAILABLE: u16 = 0x0080;
    pub const CHECKING_DISABLED: u16 = 0x0010;
    pub const OPCODE: u16 = 0x7800;
}
