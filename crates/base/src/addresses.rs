//! Addresses of this machine, for certificates and messages.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::machine_network::{self, Family};

/// The machine's host name, if it has a usable one.
#[must_use]
pub fn hostname() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?.trim().to_ascii_lowercase();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    (!name.is_empty() && name != "(none)" && name.chars().all(plain)).then_some(name)
}

/// The addresses a listener bound to `listen` can be reached at, loopback included.
#[must_use]
pub fn reachable(listen: SocketAddr) -> BTreeSet<IpAddr> {
    let mut addresses = BTreeSet::from([IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]);
    if !listen.ip().is_unspecified() {
        addresses.insert(listen.ip());
        return addresses;
    }
    match machine_network::current() {
        Some(network) => addresses.extend(&network.external),
        None => addresses.extend(local()),
    }
    addresses
}

/// The address to put into a kubeconfig on this machine for a listener bound to `listen`.
#[must_use]
pub fn for_local_clients(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Address to advertise for a listener bound to `listen`: its own, or the machine's preferred one of the first of these
/// families, or the first one of this machine that is not a loopback.
#[must_use]
pub fn for_other_machines(listen: SocketAddr, families: &[Family]) -> SocketAddr {
    if !listen.ip().is_unspecified() {
        return listen;
    }
    let usable = |ip: &IpAddr| !ip.is_loopback();
    let has_family = |ip: &IpAddr| families.first().is_none_or(|family| Family::of(*ip) == *family);
    let preferred = machine_network::current().map(|network| network.node_ips(families)).unwrap_or_default();
    let all: Vec<IpAddr> = preferred.into_iter().chain(local()).filter(usable).collect();
    let reachable = all.iter().copied().find(has_family).or_else(|| all.first().copied());
    reachable.map_or_else(|| for_local_clients(listen), |ip| SocketAddr::new(ip, listen.port()))
}

/// Reports whether a server may connect to an address on behalf of a caller, as Kubernetes' proxies decide it:
/// unspecified, loopback, multicast and link-local addresses are those of this machine or of its surroundings.
#[must_use]
pub fn is_proxyable(ip: IpAddr) -> bool {
    // An IPv4-mapped IPv6 address reaches the IPv4 address.
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_loopback()
                || ip.is_link_local()
                || ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_broadcast())
        }
        IpAddr::V6(ip) => {
            !(ip.is_loopback() || ip.is_unicast_link_local() || ip.is_unspecified() || ip.is_multicast())
        }
    }
}

/// Every address of every interface, except link-local ones.
#[must_use]
pub fn local() -> Vec<IpAddr> {
    let v4 = fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let v6 = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let v4 = parse_fib_trie(&v4).into_iter().filter(|ip| !ip.is_link_local()).map(IpAddr::V4);
    let v6 = parse_if_inet6(&v6).into_iter().filter(|ip| !ip.is_unicast_link_local()).map(IpAddr::V6);
    v4.chain(v6).collect()
}

/// Local addresses are the leaves of the routing table marked as local.
fn parse_fib_trie(table: &str) -> BTreeSet<Ipv4Addr> {
    let mut leaf: Option<Ipv4Addr> = None;
    let mut addresses = BTreeSet::new();
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line.starts_with("/32 host LOCAL") {
            addresses.extend(leaf);
        }
    }
    addresses
}

fn parse_if_inet6(table: &str) -> BTreeSet<Ipv6Addr> {
    let address = |line: &str| u128::from_str_radix(line.split_ascii_whitespace().next()?, 16).ok();
    table.lines().filter_map(address).map(Ipv6Addr::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_read_from_the_routing_table() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     +-- 10.0.0.0/8\n        |-- 10.1.2.3\n           /32 host LOCAL\n        |-- 10.255.255.255\n           /32 link BROADCAST\n";
        assert_eq!(parse_fib_trie(table), BTreeSet::from([Ipv4Addr::new(10, 1, 2, 3)]));
        let table = "00000000000000000000000000000001 01 80 10 80       lo\nnonsense\n";
        assert_eq!(parse_if_inet6(table), BTreeSet::from([Ipv6Addr::LOCALHOST]));
    }

    #[test]
    fn local_addresses_are_not_proxyable() {
        for (ip, fine) in [
            ("10.1.2.3", true),
            ("fd00::2", true),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::1", false),
            ("fe80::1", false),
            ("::ffff:127.0.0.1", false),
        ] {
            assert_eq!(is_proxyable(ip.parse().expect("an address")), fine, "{ip}");
        }
    }

    #[test]
    fn bound_address_and_loopback_are_reachable() {
        let listen: SocketAddr = "192.0.2.7:6443".parse().expect("an address");
        let got = reachable(listen);
        assert!(got.contains(&listen.ip()) && got.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)), "{got:?}");
        assert_eq!(for_local_clients("0.0.0.0:1".parse().expect("an address")).to_string(), "127.0.0.1:1");
        assert_eq!(for_local_clients(listen), listen);
    }
}
