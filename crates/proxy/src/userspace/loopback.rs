//! Loopback addresses of services for machines without `CAP_NET_ADMIN`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Offset of privileged ports.
const UNPRIVILEGED: u16 = 10_000;
const FIRST_FREE_PORT: u16 = 1024;

/// Loopback addresses and ports of a service for local programs, best first. IPv6 has no such network.
#[must_use]
pub fn on_loopback(address: IpAddr, port: u16) -> Vec<SocketAddr> {
    let IpAddr::V4(address) = address else { return Vec::new() };
    let [_, b, c, d] = address.octets();
    let address = Ipv4Addr::new(127, b, c, d);
    let mut ports = vec![port];
    ports.extend((port < FIRST_FREE_PORT).then_some(port + UNPRIVILEGED));
    ports.into_iter().map(|port| SocketAddr::from((address, port))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_address_maps_to_loopback() {
        let candidates = |text: &str, port| -> Vec<String> {
            let found = on_loopback(text.parse().expect("an address"), port);
            found.iter().map(ToString::to_string).collect()
        };
        assert_eq!(candidates("10.96.0.9", 80), ["127.96.0.9:80", "127.96.0.9:10080"]);
        assert_eq!(candidates("10.96.0.9", 8080), ["127.96.0.9:8080"]);
        assert!(candidates("fd96::9", 80).is_empty());
    }
}
