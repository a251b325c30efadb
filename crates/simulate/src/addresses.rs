//! Addresses of simulated nodes and pods: unique while in use, without a machine.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;

/// Pods use 10.128.0.0/9, 256 addresses per node; nodes use 172.16.0.0/12.
const PODS: u32 = 0x0a80_0000;
const NODES: u32 = 0xac10_0000;
const SLOTS: u32 = 254;

pub fn of_node(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(NODES + (u32::try_from(number).unwrap_or(0) & 0x000f_ffff) + 1)
}

/// Loopback addresses of nodes whose kubelets are served: 127.64.0.0/10.
const LOOPBACK: u32 = 0x7f40_0000;

pub fn loopback_of_node(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(LOOPBACK + (u32::try_from(number).unwrap_or(0) & 0x000f_ffff) + 1)
}

/// Index of the node with a loopback address.
pub fn number_of_loopback(address: Ipv4Addr) -> Option<usize> {
    let number = u32::from(address).checked_sub(LOOPBACK + 1)?;
    (number <= 0x000f_ffff).then_some(usize::try_from(number).ok()?)
}

/// Allocated addresses.
#[derive(Debug, Default)]
pub struct Pool {
    used: HashSet<u32>,
    by_uid: HashMap<String, u32>,
}

impl Pool {
    /// Address of a pod, stable during its lifetime.
    pub fn of_pod(&mut self, uid: &str, node: usize) -> Ipv4Addr {
        if let Some(address) = self.by_uid.get(uid) {
            return Ipv4Addr::from(*address);
        }
        let first = PODS + (u32::try_from(node).unwrap_or(0) & 0x7fff) * 256 + 1;
        // A node with more pods than addresses shares the last one: it is a simulation.
        let free = (first..first + SLOTS).find(|address| !self.used.contains(address));
        let address = free.unwrap_or(first + SLOTS);
        self.used.insert(address);
        self.by_uid.insert(uid.to_owned(), address);
        Ipv4Addr::from(address)
    }

    pub fn release(&mut self, uid: &str) {
        if let Some(address) = self.by_uid.remove(uid) {
            self.used.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unique_stable_and_reused() {
        let mut pool = Pool::default();
        let a = pool.of_pod("a", 0);
        assert_eq!(pool.of_pod("a", 0), a);
        let b = pool.of_pod("b", 0);
        assert_ne!(a, b);
        assert_ne!(pool.of_pod("c", 1), b);
        pool.release("a");
        assert_eq!(pool.of_pod("d", 0), a);
        assert_eq!(of_node(0), Ipv4Addr::new(172, 16, 0, 1));
        assert_eq!(number_of_loopback(loopback_of_node(70_000)), Some(70_000));
        assert_eq!(number_of_loopback(Ipv4Addr::LOCALHOST), None);
    }
}
