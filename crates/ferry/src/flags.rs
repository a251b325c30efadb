//! Value parsers of flags.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::Args;
use cluster::PolicyFailure;
use ipnet::IpNet;

/// One or two CIDRs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cidrs(pub Vec<IpNet>);

impl Cidrs {
    /// CIDRs in their textual form.
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    /// First usable address of the first CIDR.
    pub fn first_address(&self) -> IpAddr {
        self.0.first().map_or(Ipv4Addr::LOCALHOST.into(), |range| nth(*range, 1))
    }

    /// Address of cluster DNS: the tenth of the first CIDR, if it is large enough.
    pub fn name_service(&self) -> Option<IpAddr> {
        let range = self.0.first()?;
        (range.max_prefix_len() - range.prefix_len() >= 4).then(|| nth(*range, 10))
    }
}

fn nth(range: IpNet, number: u8) -> IpAddr {
    match range.addr() {
        IpAddr::V4(base) => Ipv4Addr::from(u32::from(base).wrapping_add(u32::from(number))).into(),
        IpAddr::V6(base) => Ipv6Addr::from(u128::from(base).wrapping_add(u128::from(number))).into(),
    }
}

/// `10.0.0.0/16` or `10.0.0.0/16,fd00::/112`.
pub fn parse_cidrs(text: &str) -> Result<Cidrs, String> {
    let ranges = text.split(',').map(parse_cidr).collect::<Result<Vec<_>, _>>()?;
    match ranges.as_slice() {
        [_] => Ok(Cidrs(ranges)),
        [one, two] if one.addr().is_ipv4() != two.addr().is_ipv4() => Ok(Cidrs(ranges)),
        _ => Err("expected one CIDR, or one IPv4 and one IPv6 CIDR".to_owned()),
    }
}

fn parse_cidr(text: &str) -> Result<IpNet, String> {
    // At least two host addresses.
    let range = text.parse::<IpNet>().ok().filter(|range| range.max_prefix_len() - range.prefix_len() >= 2);
    range.map(|range| range.trunc()).ok_or_else(|| format!("{text:?} is not a CIDR such as 10.0.0.0/16"))
}

/// `30000-32767`.
pub fn parse_ports(text: &str) -> Result<(u16, u16), String> {
    let bad = || format!("{text:?} is not a port range such as 30000-32767");
    let (first, last) = text.split_once('-').ok_or_else(bad)?;
    let range: (u16, u16) = (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
    if range.0 == 0 || range.0 > range.1 { Err(bad()) } else { Ok(range) }
}

/// `address:port`, `:port` for all addresses, `[v6]:port`.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    full.parse().map_err(|_| format!("{text:?} is not an address and port such as 0.0.0.0:6443"))
}

/// Parses Go's duration format: `1m30s`, `500ms`, `2h`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a duration such as 1m30s");
    if text.is_empty() {
        return Err(bad());
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(unit);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return Err(bad()),
        };
        let number: f64 = number.parse().map_err(|_| bad())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| bad())?;
        total = total.checked_add(part).ok_or_else(bad)?;
        rest = next;
    }
    Ok(total)
}

/// Enforcement of network policies on a node.
#[derive(Args, Clone, Copy, Debug)]
pub struct NetworkPolicyArgs {
    /// Handling of pods whose network policies cannot be enforced: `Fail` does not start them until the policies are
    /// in force, `Ignore` starts them without any policy after 20 seconds.
    #[arg(
        long = "network-policy-failure-policy",
        value_name = "Fail|Ignore",
        default_value = "Fail",
        value_parser = parse_policy_failure,
        help_heading = "Node"
    )]
    pub on_failure: PolicyFailure,
}

fn parse_policy_failure(text: &str) -> Result<PolicyFailure, String> {
    match text {
        "Fail" => Ok(PolicyFailure::Wait),
        "Ignore" => Ok(PolicyFailure::Start),
        _ => Err("expected Fail or Ignore".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_in_go_format_is_parsed() {
        let millis = |n| Some(Duration::from_millis(n));
        let cases = [
            ("1m0s", millis(60_000)),
            ("1m30s", millis(90_000)),
            ("500ms", millis(500)),
            ("1.5s", millis(1500)),
            ("2h", millis(7_200_000)),
            ("", None),
            ("10", None),
            ("s", None),
            ("1d", None),
            ("-1s", None),
            ("1e400s", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_duration(text).ok(), want, "{text:?}");
        }
    }

    #[test]
    fn network_policy_failure_policy_is_parsed() {
        assert_eq!(parse_policy_failure("Fail"), Ok(PolicyFailure::Wait));
        assert_eq!(parse_policy_failure("Ignore"), Ok(PolicyFailure::Start));
        assert!(parse_policy_failure("ignore").is_err());
    }

    #[test]
    fn cidrs_are_parsed() {
        let first = |text| parse_cidrs(text).ok().map(|cidrs| cidrs.first_address().to_string());
        let cases = [
            ("10.0.0.0/16", Some("10.0.0.1")),
            ("10.1.2.3/16", Some("10.1.0.1")),
            ("fd00::/112", Some("fd00::1")),
            ("10.0.0.0/16,fd00::/112", Some("10.0.0.1")),
            ("0.0.0.0/0", Some("0.0.0.1")),
            ("10.0.0.0/31", None),
            ("10.0.0.0/16,10.1.0.0/16", None),
            ("10.0.0.0", None),
            ("", None),
        ];
        for (text, want) in cases {
            assert_eq!(first(text).as_deref(), want, "{text:?}");
        }
    }

    #[test]
    fn cluster_dns_gets_tenth_service_address() {
        let tenth =
            |text| parse_cidrs(text).ok().and_then(|cidrs| cidrs.name_service()).map(|ip| ip.to_string());
        assert_eq!(tenth("10.96.0.0/12").as_deref(), Some("10.96.0.10"));
        assert_eq!(tenth("fd00::/112,10.0.0.0/16").as_deref(), Some("fd00::a"));
        assert_eq!(tenth("10.0.0.0/29"), None);
    }

    #[test]
    fn listen_address_is_parsed() {
        let shown = |text| parse_listen(text).ok().map(|address| address.to_string());
        assert_eq!(shown(":0").as_deref(), Some("0.0.0.0:0"));
        assert_eq!(shown("[::]:6443").as_deref(), Some("[::]:6443"));
        assert_eq!(shown("127.0.0.1"), None);
    }
}
