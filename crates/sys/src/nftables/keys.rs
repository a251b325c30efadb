//! Parts of set keys and values. Each part fills whole registers.

use super::{Family, Set, Value};

/// A part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Address,
    Protocol,
    Port,
    Number,
    Hardware,
}

impl Part {
    /// Length and type number used by tools.
    const fn shape(self, family: Family) -> (u32, u32) {
        match (self, family) {
            (Self::Address, Family::Ipv4) => (4, 7),
            (Self::Address, Family::Ipv6) => (16, 8),
            (Self::Protocol, _) => (4, 12),
            (Self::Port, _) => (4, 13),
            (Self::Number, _) => (4, 19),
            (Self::Hardware, _) => (8, 9),
        }
    }
}

/// Total length of parts, and their display type.
#[must_use]
pub fn shape(family: Family, parts: &[Part]) -> (u32, u32) {
    parts
        .iter()
        .map(|part| part.shape(family))
        .fold((0, 0), |(length, kind), (more, part)| (length + more, kind << 6 | part))
}

/// Values composed of parts.
#[must_use]
pub fn values(family: Family, parts: &[Part]) -> Value {
    let (length, kind) = shape(family, parts);
    Value::Bytes { length, kind }
}

impl<'a> Set<'a> {
    /// A set or map with static elements and exact keys.
    #[must_use]
    pub fn plain(name: &'a str, family: Family, parts: &[Part], value: Value) -> Self {
        let (key_length, key_kind) = shape(family, parts);
        Self { name, key_length, key_kind, value, dynamic: None, interval: false }
    }
}

/// Protocol number and port.
#[must_use]
pub fn protocol_and_port(protocol: u8, port: u16) -> [u8; 8] {
    let [high, low] = port.to_be_bytes();
    [protocol, 0, 0, 0, high, low, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_parts_have_length_and_type() {
        let front = [Part::Address, Part::Protocol, Part::Port];
        assert_eq!(shape(Family::Ipv4, &front), (12, (7 << 6 | 12) << 6 | 13));
        assert_eq!(shape(Family::Ipv6, &front), (24, (8 << 6 | 12) << 6 | 13));
        assert_eq!(protocol_and_port(17, 0x1234), [17, 0, 0, 0, 0x12, 0x34, 0, 0]);
    }
}
