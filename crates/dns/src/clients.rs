//! Admission of DNS clients: pods, services and nodes, and this machine itself.
//!
//! Queries from other addresses are dropped. An open server can be abused for amplification and discloses the names of
//! all services to whoever reaches the machine.

use std::collections::BTreeSet;
use std::net::IpAddr;

use parking_lot::RwLock;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientRange {
    network: IpAddr,
    prefix: u8,
}

/// A text that is no range of addresses.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no range of addresses such as 10.244.0.0/16")]
pub struct RangeError(String);

impl ClientRange {
    /// From `10.244.0.0/16`, or from one address.
    pub fn parse(text: &str) -> Result<Self, RangeError> {
        let wrong = || RangeError(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let network: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if network.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(most);
        if prefix > most {
            return Err(wrong());
        }
        Ok(Self { network, prefix })
    }

    fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                u32::from(network) & mask == u32::from(address) & mask
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                u128::from(network) & mask == u128::from(address) & mask
            }
            _ => false,
        }
    }
}

/// Those who are answered. Ranges can change while the server runs, as nodes come and go.
#[derive(Debug, Default)]
pub struct Clients {
    /// Everybody, if nothing was ever said.
    ranges: RwLock<Option<BTreeSet<ClientRange>>>,
    /// The server's own addresses.
    own: BTreeSet<IpAddr>,
}

impl Clients {
    /// Answers everybody until [`Self::set`] is called, unless there are `ranges`. `own` are the server's addresses.
    #[must_use]
    pub fn new(ranges: &[ClientRange], own: impl IntoIterator<Item = IpAddr>) -> Self {
        let ranges = (!ranges.is_empty()).then(|| ranges.iter().copied().collect());
        Self { ranges: RwLock::new(ranges), own: own.into_iter().collect() }
    }

    /// Replaces the ranges.
    pub fn set(&self, ranges: impl IntoIterator<Item = ClientRange>) {
        *self.ranges.write() = Some(ranges.into_iter().collect());
    }

    /// Whether a client gets an answer.
    #[must_use]
    pub fn admits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        match &*self.ranges.read() {
            None => true,
            Some(ranges) => {
                client.is_loopback()
                    || self.own.contains(&client)
                    || ranges.iter().any(|range| range.contains(client))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> ClientRange {
        ClientRange::parse(text).expect("a range")
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
    fn range_out_of_bounds_is_refused() {
        for text in ["", "10.0.0.0/33", "fd00::/129", "10.0.0.0/x", "10.0.0/8"] {
            assert_eq!(ClientRange::parse(text), Err(RangeError(text.to_owned())));
        }
    }
}
