//! Names derived from addresses: dashed pod names and the reverse trees.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::rtype;

/// The label of an endpoint: its hostname, or its address with dashes.
#[must_use]
pub fn endpoint_label(hostname: Option<&str>, address: IpAddr) -> String {
    match hostname {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => address.to_string().replace(['.', ':'], "-"),
    }
}

/// The address of a dashed label: `10-1-0-2`, `fd00--2`.
#[must_use]
pub fn dashed(label: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(label).ok()?;
    if text.len() > 45 || !text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()) {
        return None;
    }
    let v4 = || text.replace('-', ".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    let v6 = || text.replace('-', ":").parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    if text.bytes().filter(|byte| *byte == b'-').count() == 3 { v4().or_else(v6) } else { v6() }
}

/// The address of a reverse name; `labels` leftmost first, without the root.
#[must_use]
pub fn reverse(labels: &[&[u8]]) -> Option<IpAddr> {
    match labels {
        [parts @ .., b"in-addr", b"arpa"] if parts.len() == 4 => {
            let mut octets = [0; 4];
            for (octet, label) in octets.iter_mut().rev().zip(parts) {
                *octet = std::str::from_utf8(label).ok()?.parse().ok()?;
            }
            Some(Ipv4Addr::from(octets).into())
        }
        [parts @ .., b"ip6", b"arpa"] if parts.len() == 32 => {
            let mut value: u128 = 0;
            for label in parts.iter().rev() {
                let [digit] = label else { return None };
                value = value << 4 | u128::from(char::from(*digit).to_digit(16)?);
            }
            Some(Ipv6Addr::from(value).into())
        }
        _ => None,
    }
}

/// True if an address matches the record type.
#[must_use]
pub fn answers(address: IpAddr, kind: u16) -> bool {
    matches!((address, kind), (IpAddr::V4(_), rtype::A) | (IpAddr::V6(_), rtype::AAAA))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashed_label_round_trips_address() {
        for (label, want) in [
            ("10-1-0-2", Some("10.1.0.2")),
            ("fd00--2", Some("fd00::2")),
            ("2001-db8-0-0-0-0-0-1", Some("2001:db8::1")),
            ("--1", Some("::1")),
            ("10-1-0", None),
            ("300-1-0-2", None),
            ("web-0", None),
            ("", None),
        ] {
            assert_eq!(dashed(label.as_bytes()).map(|a| a.to_string()).as_deref(), want, "{label}");
        }
        assert_eq!(endpoint_label(None, "fd00::2".parse().expect("v6")), "fd00--2");
        assert_eq!(endpoint_label(Some("db-0"), "10.0.0.1".parse().expect("v4")), "db-0");
    }

    #[test]
    fn reverse_name_yields_address() {
        let address = |text: &str| reverse(&text.split('.').map(str::as_bytes).collect::<Vec<_>>());
        assert_eq!(address("9.0.96.10.in-addr.arpa"), Some("10.96.0.9".parse().expect("v4")));
        let six = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa";
        assert_eq!(address(six), Some("2001:db8::1".parse().expect("v6")));
        assert_eq!(address("0.96.10.in-addr.arpa"), None);
        assert_eq!(address("x.0.96.10.in-addr.arpa"), None);
    }
}
