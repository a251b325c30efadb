//! Counts the open connections of each client address, for listeners that limit them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Bits of an IPv6 address that a single client can choose.
const HOST_BITS: u32 = 64;

/// The connections of all clients.
///
/// ```
/// let peers = base::peers::Peers::new(1);
/// let address = "192.0.2.7".parse()?;
/// let slot = peers.enter(address).expect("the first connection");
/// assert!(peers.enter(address).is_none());
/// drop(slot);
/// assert!(peers.enter(address).is_some());
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Debug)]
pub struct Peers {
    open: Mutex<HashMap<IpAddr, usize>>,
    limit: usize,
}

/// One connection of a client, until it is dropped.
#[derive(Debug)]
pub struct PeerSlot {
    peers: Arc<Peers>,
    key: IpAddr,
}

impl Peers {
    /// Allows each address `limit` connections, and at least one.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), limit: limit.max(1) })
    }

    /// A slot for a connection of this address; `None` at the limit.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Option<PeerSlot> {
        let key = key(address);
        let mut open = self.open.lock();
        let count = open.entry(key).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(PeerSlot { peers: Arc::clone(self), key })
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        let mut open = self.peers.open.lock();
        if let Some(count) = open.get_mut(&self.key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&self.key);
            }
        }
    }
}

/// Key of one client: an IPv4 address, or the network of an IPv6 address.
fn key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> HOST_BITS << HOST_BITS;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn address_at_its_limit_gets_no_slot_until_one_is_free() {
        let peers = Peers::new(2);
        let first = peers.enter(ip("192.0.2.1")).expect("a slot");
        let _second = peers.enter(ip("::ffff:192.0.2.1")).expect("a slot");
        assert!(peers.enter(ip("192.0.2.1")).is_none());
        let _other = peers.enter(ip("192.0.2.2")).expect("another address");
        drop(first);
        assert!(peers.enter(ip("192.0.2.1")).is_some());
    }

    #[test]
    fn ipv6_addresses_of_one_network_share_the_limit() {
        let peers = Peers::new(1);
        let slot = peers.enter(ip("2001:db8::1")).expect("a slot");
        assert!(peers.enter(ip("2001:db8::2")).is_none());
        assert!(peers.enter(ip("2001:db8:0:1::1")).is_some());
        drop(slot);
        assert!(peers.open.lock().is_empty(), "closed connections leave nothing behind");
    }
}
