//! Small checks shared by many kinds, with Kubernetes' messages.

use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;

/// One error per message about a string.
pub fn invalid_each(path: &Path<'_>, value: &str, messages: Vec<String>) -> ErrorList {
    messages.into_iter().map(|message| FieldError::invalid_str(path, value, message)).collect()
}

pub fn dns_label(path: &Path<'_>, value: &str) -> ErrorList {
    invalid_each(path, value, names::dns_label(value, false))
}

pub fn dns_subdomain(path: &Path<'_>, value: &str) -> ErrorList {
    invalid_each(path, value, names::dns_subdomain(value, false))
}

pub fn qualified_name(path: &Path<'_>, value: &str) -> ErrorList {
    invalid_each(path, value, names::qualified_name(value))
}

/// Rejects an invalid port number.
pub fn port_number(path: &Path<'_>, port: i64) -> ErrorList {
    names::port_number(port)
        .into_iter()
        .map(|message| FieldError::invalid_shown(path, port.to_string(), message))
        .collect()
}

/// A port by number or by name.
pub fn port_number_or_name(path: &Path<'_>, port: &Value) -> ErrorList {
    match port.as_str() {
        Some(name) => invalid_each(path, name, names::port_name(name)),
        None => port_number(path, port.as_i64().unwrap_or(0)),
    }
}

/// A required value from a fixed set, in the order shown in messages.
pub fn required_one_of(path: &Path<'_>, value: &str, supported: &[&str]) -> ErrorList {
    if value.is_empty() { vec![FieldError::required(path, "")] } else { one_of(path, value, supported) }
}

/// A value from a fixed set.
pub fn one_of(path: &Path<'_>, value: &str, supported: &[&str]) -> ErrorList {
    if supported.contains(&value) {
        return Vec::new();
    }
    vec![FieldError::not_supported(path, &Value::from(value), supported)]
}

/// Protocols of ports, in the order shown in messages.
pub const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

/// `field is immutable`, unless both are equal.
pub fn immutable(path: &Path<'_>, new: &Value, old: &Value) -> ErrorList {
    if new == old { Vec::new() } else { vec![FieldError::invalid(path, new, "field is immutable")] }
}

pub fn non_negative(path: &Path<'_>, value: i64) -> ErrorList {
    if value >= 0 {
        return Vec::new();
    }
    vec![FieldError::invalid_shown(path, value.to_string(), "must be greater than or equal to 0")]
}

/// An address in a field that predates strict validation; values of `old` are tolerated.
pub fn legacy_ip(path: &Path<'_>, value: &str, old: &[&str]) -> ErrorList {
    names::valid_ip_legacy(path, value, true, old)
}

/// Same for networks.
pub fn legacy_cidr(path: &Path<'_>, value: &str, old: &[&str]) -> ErrorList {
    names::valid_cidr_legacy(path, value, true, old)
}

/// An address of an endpoint: not unspecified, loopback, link-local or link-local multicast.
pub fn endpoint_ip(path: &Path<'_>, value: &str) -> ErrorList {
    let reject = |detail: String| FieldError::invalid_str(path, value, detail);
    let Some(ip) = names::parse_ip_sloppy(value) else {
        return vec![reject("must be a valid IP address".to_owned())];
    };
    let (link_local, link_local_multicast) = match ip {
        std::net::IpAddr::V4(ip) => (ip.is_link_local(), ip.octets()[..3] == [224, 0, 0]),
        std::net::IpAddr::V6(ip) => (ip.is_unicast_link_local(), ip.segments()[0] & 0xff0f == 0xff02),
    };
    let mut errors = Vec::new();
    if ip.is_unspecified() {
        errors.push(reject(format!("may not be unspecified ({value})")));
    }
    if ip.is_loopback() {
        errors.push(reject("may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned()));
    }
    if link_local {
        errors.push(reject("may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned()));
    }
    if link_local_multicast {
        let detail = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)";
        errors.push(reject(detail.to_owned()));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_addresses_are_validated() {
        let cases = [
            ("10.1.2.3", 0),
            ("fd00::1", 0),
            ("0.0.0.0", 1),
            ("127.0.0.1", 1),
            ("::1", 1),
            ("169.254.1.1", 1),
            ("224.0.0.5", 1),
            ("ff02::1", 1),
            ("fe80::1", 1),
            ("x", 1),
        ];
        let path = Path::new("ip");
        for (value, errors) in cases {
            assert_eq!(endpoint_ip(&path, value).len(), errors, "{value}");
        }
    }
}
