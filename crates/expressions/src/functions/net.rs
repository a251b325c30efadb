//! IP addresses and CIDRs.

use super::Row;
use crate::value::{EvaluationResult, Fault, Value};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv6Addr};

pub const ROWS: &[Row] = &[
    ("ip", &["(string) -> Ip", "Cidr.() -> Ip"], |values| match values {
        [Value::String(text)] => parse_ip(text).map(Value::Ip).map_err(Fault::new),
        [Value::Cidr(cidr)] => Ok(Value::Ip(cidr.addr())),
        _ => Err(Fault::no_such_overload()),
    }),
    ("isIP", &["(string) -> bool"], |values| match values {
        [Value::String(text)] => Ok(Value::Bool(parse_ip(text).is_ok())),
        _ => Err(Fault::no_such_overload()),
    }),
    ("ip.isCanonical", &["(string) -> bool"], |values| match values {
        [Value::String(text)] => {
            let ip = parse_ip(text).map_err(Fault::new)?;
            Ok(Value::Bool(ip.to_string() == **text))
        }
        _ => Err(Fault::no_such_overload()),
    }),
    ("family", &["Ip.() -> int"], |values| match values {
        [Value::Ip(ip)] => Ok(Value::Int(if ip.is_ipv4() { 4 } else { 6 })),
        _ => Err(Fault::no_such_overload()),
    }),
    ("isUnspecified", &["Ip.() -> bool"], |values| about(values, IpAddr::is_unspecified)),
    ("isLoopback", &["Ip.() -> bool"], |values| about(values, IpAddr::is_loopback)),
    ("isLinkLocalMulticast", &["Ip.() -> bool"], |values| about(values, is_link_local_multicast)),
    ("isLinkLocalUnicast", &["Ip.() -> bool"], |values| about(values, is_link_local_unicast)),
    ("isGlobalUnicast", &["Ip.() -> bool"], |values| {
        about(values, |ip| {
            let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
            !ip.is_unspecified()
                && !ip.is_loopback()
                && !ip.is_multicast()
                && !is_link_local_unicast(ip)
                && !broadcast
        })
    }),
    ("string", &["(Ip) -> string", "(Cidr) -> string"], |values| match values {
        [Value::Ip(ip)] => Ok(ip.to_string().into()),
        [Value::Cidr(cidr)] => Ok(cidr.to_string().into()),
        _ => Err(Fault::no_such_overload()),
    }),
    ("cidr", &["(string) -> Cidr"], |values| match values {
        [Value::String(text)] => parse_cidr(text).map(Value::Cidr).map_err(|why| {
            Fault::new(format!("network address parse error during conversion from string: {why}"))
        }),
        _ => Err(Fault::no_such_overload()),
    }),
    ("isCIDR", &["(string) -> bool"], |values| match values {
        [Value::String(text)] => Ok(Value::Bool(parse_cidr(text).is_ok())),
        _ => Err(Fault::no_such_overload()),
    }),
    ("containsIP", &["Cidr.(string) -> bool", "Cidr.(Ip) -> bool"], |values| {
        let (cidr, ip) = match values {
            [Value::Cidr(cidr), Value::Ip(ip)] => (cidr, *ip),
            [Value::Cidr(cidr), Value::String(text)] => (cidr, parse_ip(text).map_err(Fault::new)?),
            _ => return Err(Fault::no_such_overload()),
        };
        Ok(Value::Bool(cidr.contains(&ip)))
    }),
    ("containsCIDR", &["Cidr.(string) -> bool", "Cidr.(Cidr) -> bool"], |values| {
        let (cidr, inner) = match values {
            [Value::Cidr(cidr), Value::Cidr(inner)] => (cidr, *inner),
            [Value::Cidr(cidr), Value::String(text)] => {
                let inner = parse_cidr(text).map_err(|why| {
                    Fault::new(format!("network address parse error during conversion from string: {why}"))
                })?;
                (cidr, inner)
            }
            _ => return Err(Fault::no_such_overload()),
        };
        Ok(Value::Bool(cidr.contains(&inner)))
    }),
    ("prefixLength", &["Cidr.() -> int"], |values| match values {
        [Value::Cidr(cidr)] => Ok(Value::Int(cidr.prefix_len().into())),
        _ => Err(Fault::no_such_overload()),
    }),
    ("masked", &["Cidr.() -> Cidr"], |values| match values {
        [Value::Cidr(cidr)] => Ok(Value::Cidr(cidr.trunc())),
        _ => Err(Fault::no_such_overload()),
    }),
];

fn about<'a>(values: &[Value<'a>], holds: impl Fn(&IpAddr) -> bool) -> EvaluationResult<'a> {
    match values {
        [Value::Ip(ip)] => Ok(Value::Bool(holds(ip))),
        _ => Err(Fault::no_such_overload()),
    }
}

fn is_link_local_unicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments().first().is_some_and(|first| first & 0xffc0 == 0xfe80),
    }
}

fn is_link_local_multicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => matches!(ip.octets(), [224, 0, 0, _]),
        IpAddr::V6(ip) => ip.segments().first().is_some_and(|first| first & 0xff0f == 0xff02),
    }
}

fn parse_ip(text: &str) -> Result<IpAddr, String> {
    if let Some((address, zone)) = text.split_once('%')
        && address.parse::<Ipv6Addr>().is_ok()
        && !zone.is_empty()
    {
        return Err(format!("IP address {text:?} with zone value is not allowed"));
    }
    let ip: IpAddr = text.parse().map_err(|_| {
        format!("IP Address {text:?} parse error during conversion from string: ParseAddr({text:?}): unable to parse IP")
    })?;
    if matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()) {
        return Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"));
    }
    Ok(ip)
}

fn parse_cidr(text: &str) -> Result<IpNet, String> {
    let wrong = |why: &str| format!("netip.ParsePrefix({text:?}): {why}");
    let (address, bits) = text.split_once('/').ok_or_else(|| wrong("no '/'"))?;
    let address: IpAddr =
        address.parse().map_err(|_| wrong(&format!("ParseAddr({address:?}): unable to parse IP")))?;
    if matches!(address, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()) {
        return Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"));
    }
    let is_number = !bits.is_empty()
        && bits.bytes().all(|byte| byte.is_ascii_digit())
        && (bits.len() == 1 || !bits.starts_with('0'));
    if !is_number {
        return Err(wrong(&format!("bad bits after slash: {bits:?}")));
    }
    let cidr = bits.parse().ok().and_then(|bits| IpNet::new(address, bits).ok());
    cidr.ok_or_else(|| wrong("prefix length out of range"))
}
