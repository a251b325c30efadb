//! IP addresses and CIDRs: the lenient forms of old fields and the canonical forms of new ones.

use crate::field::{ErrorList, FieldError, Path, show_str};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Parses an address by the rules of old fields: leading zeros are accepted, an IPv4-mapped address is an IPv4 one.
pub fn parse_ip_sloppy(text: &str) -> Option<IpAddr> {
    if let Some(v4) = sloppy_v4(text) {
        return Some(IpAddr::V4(v4));
    }
    let v6 = sloppy_v6(text)?;
    Some(v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4))
}

/// Parses a CIDR by the rules of old fields; the result retains its host bits.
pub fn parse_cidr_sloppy(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let prefix = prefix.trim_start_matches('0');
    let prefix: u8 = if prefix.is_empty() { 0 } else { prefix.parse().ok()? };
    if let Some(v4) = sloppy_v4(address) {
        return IpNet::new(v4.into(), prefix).ok();
    }
    let v6 = sloppy_v6(address)?;
    match v6.to_ipv4_mapped() {
        Some(v4) if prefix >= 96 => IpNet::new(v4.into(), prefix - 96).ok(),
        _ => IpNet::new(v6.into(), prefix).ok(),
    }
}

fn sloppy_v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let digits = part.trim_start_matches('0');
        *octet = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

fn sloppy_v6(text: &str) -> Option<Ipv6Addr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    if text.len() > 256 || !text.contains(':') {
        return None;
    }
    // Strips what strict parsing rejects: extra zeros before a group, and inside a trailing IPv4 part.
    let mut groups: Vec<String> = text.split(':').map(str::to_owned).collect();
    for group in &mut groups {
        if group.contains('.') {
            *group = sloppy_v4(group)?.to_string();
        } else if group.len() > 4 {
            let trimmed = group.trim_start_matches('0');
            *group = if trimmed.is_empty() { "0".to_owned() } else { trimmed.to_owned() };
        }
    }
    groups.join(":").parse().ok()
}

fn strict_ip(path: &Path<'_>, text: &str) -> Result<IpAddr, ErrorList> {
    let Some(address) = parse_ip_sloppy(text) else {
        let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        return Err(vec![FieldError::invalid_str(path, text, detail)]);
    };
    match text.parse::<IpAddr>() {
        Err(_) => Err(vec![FieldError::invalid_str(path, text, "must not have leading 0s")]),
        Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => {
            Err(vec![FieldError::invalid_str(path, text, "must not be an IPv4-mapped IPv6 address")])
        }
        Ok(_) => Ok(address),
    }
}

/// An address in its canonical form.
pub fn valid_ip(path: &Path<'_>, text: &str) -> ErrorList {
    match strict_ip(path, text) {
        Err(errors) => errors,
        Ok(address) => canonical(path, text, &address.to_string()),
    }
}

/// Validates an address in a legacy field; `strict` rejects leading zeros and mapped addresses.
pub fn valid_ip_legacy(path: &Path<'_>, text: &str, strict: bool, old: &[&str]) -> ErrorList {
    if old.contains(&text) {
        return Vec::new();
    }
    match strict_ip(path, text) {
        Err(errors) if strict || parse_ip_sloppy(text).is_none() => errors,
        _ => Vec::new(),
    }
}

fn strict_cidr(path: &Path<'_>, text: &str) -> Result<IpNet, ErrorList> {
    let Some(cidr) = parse_cidr_sloppy(text) else {
        let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        return Err(vec![FieldError::invalid_str(path, text, detail)]);
    };
    let detail = match strict_prefix(text) {
        None => "must not have leading 0s in IP or prefix length",
        Some(strict) if mapped(strict.addr()) => "must not have an IPv4-mapped IPv6 address",
        Some(strict) if strict.network() != strict.addr() => {
            "must not have bits set beyond the prefix length"
        }
        Some(_) => return Ok(cidr),
    };
    Err(vec![FieldError::invalid_str(path, text, detail)])
}

fn strict_prefix(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    if prefix.len() > 1 && !matches!(prefix.as_bytes().first(), Some(b'1'..=b'9')) {
        return None;
    }
    IpNet::new(address.parse().ok()?, prefix.parse().ok()?).ok()
}

fn mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

/// A network in its canonical form.
pub fn valid_cidr(path: &Path<'_>, text: &str) -> ErrorList {
    match strict_cidr(path, text) {
        Err(errors) => errors,
        Ok(cidr) => canonical(path, text, &cidr.trunc().to_string()),
    }
}

/// Validates a network in a legacy field.
pub fn valid_cidr_legacy(path: &Path<'_>, text: &str, strict: bool, old: &[&str]) -> ErrorList {
    if old.contains(&text) {
        return Vec::new();
    }
    match strict_cidr(path, text) {
        Err(errors) if strict || parse_cidr_sloppy(text).is_none() => errors,
        _ => Vec::new(),
    }
}

/// An interface's address: CIDR form with host bits.
pub fn valid_interface_address(path: &Path<'_>, text: &str) -> ErrorList {
    let Some(cidr) = parse_cidr_sloppy(text) else {
        let detail = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return vec![FieldError::invalid_str(path, text, detail)];
    };
    canonical(path, text, &cidr.to_string())
}

fn canonical(path: &Path<'_>, text: &str, wanted: &str) -> ErrorList {
    if text == wanted {
        return Vec::new();
    }
    let detail = format!("must be in canonical form ({})", show_str(wanted));
    vec![FieldError::invalid_str(path, text, detail)]
}

/// `Warning`s for an accepted but unusual address.
pub fn warnings_for_ip(path: &Path<'_>, text: &str) -> Vec<String> {
    let Some(address) = parse_ip_sloppy(text) else {
        return Vec::new();
    };
    let (shown, wanted) = (show_str(text), show_str(&address.to_string()));
    match text.parse::<IpAddr>() {
        Ok(strict) if !mapped(strict) => {
            if strict.is_ipv6() && strict.to_string() != text {
                let form = "should be in RFC 5952 canonical format";
                return vec![format!("{path}: IPv6 address {shown} {form} ({wanted})")];
            }
            Vec::new()
        }
        _ => vec![format!("{path}: non-standard IP address {shown} is invalid: use {wanted}")],
    }
}

/// `Warning`s for an accepted but unusual network.
pub fn warnings_for_cidr(path: &Path<'_>, text: &str) -> Vec<String> {
    let Some(cidr) = parse_cidr_sloppy(text) else {
        return Vec::new();
    };
    let (shown, wanted) = (show_str(text), show_str(&cidr.trunc().to_string()));
    let mut warnings = Vec::new();
    if cidr.addr() != cidr.network() {
        let single = show_str(&IpNet::from(cidr.addr()).to_string());
        warnings.push(format!(
            "{path}: CIDR value {shown} is ambiguous in this context (should be {wanted} or {single}?)"
        ));
    }
    let strict = strict_prefix(text);
    if strict.is_none_or(|s| mapped(s.addr())) {
        warnings.push(format!("{path}: non-standard CIDR value {shown} is invalid: use {wanted}"));
    }
    if let Some(strict) = strict
        && warnings.is_empty()
        && strict.addr().is_ipv6()
        && strict.trunc().to_string() != text
    {
        let form = "should be in RFC 5952 canonical format";
        warnings.push(format!("{path}: IPv6 CIDR value {shown} {form} ({wanted})"));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(errors: ErrorList) -> String {
        errors.first().map_or(String::new(), |e| e.detail.clone())
    }

    #[test]
    fn addresses_strict_and_lenient_are_validated() {
        let path = Path::new("ip");
        let table = [
            ("10.0.0.1", ""),
            ("fd00::1", ""),
            ("010.0.0.1", "must not have leading 0s"),
            ("::ffff:1.2.3.4", "must not be an IPv4-mapped IPv6 address"),
            ("fd00:0::1", "must be in canonical form (\"fd00::1\")"),
            ("FD00::1", "must be in canonical form (\"fd00::1\")"),
            ("1.2.3", "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
            ("fe80::1%eth0", "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        ];
        for (text, want) in table {
            assert_eq!(first(valid_ip(&path, text)), want, "{text}");
        }
        assert!(valid_ip_legacy(&path, "010.0.0.1", false, &[]).is_empty());
        assert_eq!(valid_ip_legacy(&path, "x", false, &[]).len(), 1);
        assert!(valid_ip_legacy(&path, "010.0.0.1", true, &["010.0.0.1"]).is_empty());
        assert_eq!(parse_ip_sloppy("00001::0000002"), "1::2".parse().ok());
    }

    #[test]
    fn networks_strict_and_lenient_are_validated() {
        let path = Path::new("cidr");
        let table = [
            ("10.0.0.0/8", ""),
            ("fd00::/8", ""),
            ("10.0.0.1/8", "must not have bits set beyond the prefix length"),
            ("10.0.0.0/08", "must not have leading 0s in IP or prefix length"),
            ("FD00::/8", "must be in canonical form (\"fd00::/8\")"),
            ("10.0.0.0/33", "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"),
            ("0.0.0.0/0", ""),
            ("::/0", ""),
        ];
        for (text, want) in table {
            assert_eq!(first(valid_cidr(&path, text)), want, "{text}");
        }
        assert!(valid_interface_address(&path, "10.0.0.1/8").is_empty());
        let cidr = parse_cidr_sloppy("10.1.0.0/16").unwrap();
        assert!(cidr.contains(&"10.1.2.3".parse::<IpAddr>().unwrap()));
        assert!(!cidr.contains(&"10.2.2.3".parse::<IpAddr>().unwrap()));
        assert_eq!(
            warnings_for_cidr(&path, "10.0.0.1/8"),
            [
                "cidr: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)"
            ]
        );
    }
}
