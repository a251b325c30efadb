//! Where services are found without any right: every one has a place on the loopback network, which is anybody's.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Added to ports that only root may open.
const UNPRIVILEGED: u16 = 10_000;
const FIRST_FREE_PORT: u16 = 1024;

/// Where on the loopback network a service's address and port are found by programs of this machine, best first. There
/// is no such network for IPv6.
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
    fn places_on_the_loopback_network() {
        let places = |text: &str, port| -> Vec<String> {
            let found = on_loopback(text.parse().expect("an address"), port);
            found.iter().map(ToString::to_string).collect()
        };
        assert_eq!(places("10.96.0.9", 80), ["127.96.0.9:80", "127.96.0.9:10080"]);
        assert_eq!(places("10.96.0.9", 8080), ["127.96.0.9:8080"]);
        assert!(places("fd96::9", 80).is_empty());
    }
}
