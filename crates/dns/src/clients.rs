//! Admission of DNS clients: pods, services and nodes, and this machine itself.
//!
//! Queries from other addresses are dropped. An open server can be abused for amplification and discloses the names
//! of all services.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use parking_lot::RwLock;

/// Error of a text that is not an address range.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address range such as 10.244.0.0/16")]
pub struct RangeError(String);

/// Parses `10.244.0.0/16` or one address.
pub fn parse_range(text: &str) -> Result<IpNet, RangeError> {
    let range = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    range.ok_or_else(|| RangeError(text.to_owned()))
}

/// Admitted clients. Ranges change while the server runs, as nodes are added and removed.
#[derive(Debug, Default)]
pub struct Clients {
    /// All clients, until ranges are set.
    ranges: RwLock<Option<BTreeSet<IpNet>>>,
    /// The server's own addresses.
    own: BTreeSet<IpAddr>,
}

impl Clients {
    /// Admits all clients until [`Self::set`] is called, unless there are `ranges`. `own` are the server's addresses.
    #[must_use]
    pub fn new(ranges: &[IpNet], own: impl IntoIterator<Item = IpAddr>) -> Self {
        let ranges = (!ranges.is_empty()).then(|| ranges.iter().copied().collect());
        Self { ranges: RwLock::new(ranges), own: own.into_iter().collect() }
    }

    /// Replaces the ranges.
    pub fn set(&self, ranges: impl IntoIterator<Item = IpNet>) {
        *self.ranges.write() = Some(ranges.into_iter().collect());
    }

    /// True if a client is admitted.
    #[must_use]
    pub fn admits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        match &*self.ranges.read() {
            None => true,
            Some(ranges) => {
                client.is_loopback()
                    || self.own.contains(&client)
                    || ranges.iter().any(|range| range.contains(&client))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> IpNet {
        parse_range(text).expect("a range")
    }

    #[test]
    fn client_outside_of_ranges_is_not_admitted() {
        let own = "203.0.113.7".parse().expect("an address");
        let clients =
            Clients::new(&[range("10.244.0.0/16"), range("fd00:1::/48"), range("192.0.2.9")], [own]);
        for (client, wanted) in [
            ("10.244.255.1", true),
            ("::ffff:10.244.0.1", true),
            ("10.245.0.1", false),
            ("192.0.2.9", true),
            ("192.0.2.10", false),
            ("fd00:1::5", true),
            ("fd00:2::5", false),
            ("127.0.0.1", true),
            ("::1", true),
            ("203.0.113.7", true),
            ("198.51.100.1", false),
        ] {
            assert_eq!(clients.admits(client.parse().expect("an address")), wanted, "{client}");
        }
        clients.set([range("0.0.0.0/0")]);
        assert!(clients.admits([198, 51, 100, 1].into()));
        assert!(Clients::default().admits([198, 51, 100, 1].into()));
    }

    #[test]
    fn range_out_of_bounds_is_rejected() {
        for text in ["", "10.0.0.0/33", "fd00::/129", "10.0.0.0/x", "10.0.0/8"] {
            assert_eq!(parse_range(text), Err(RangeError(text.to_owned())));
        }
    }
}
