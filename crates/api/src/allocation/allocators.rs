//! The cluster's service addresses and node ports, and their allocation to services.

use super::ip::{Family, IpAllocator, IpRange};
use super::port::{PortAllocator, PortRange};
use crate::validation::service::{needs_health_check, ports, service_type};
use crate::value::{Fields, texts};
use machinery::{Value, names};
use std::net::IpAddr;

/// The cluster's service addresses and node ports.
#[derive(Clone, Debug)]
pub struct Allocators {
    /// One per family, the default family first.
    families: Vec<(Family, IpAllocator)>,
    pub node_ports: PortAllocator,
}

/// Addresses and ports that are allocated and released together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    pub ips: Vec<IpAddr>,
    pub ports: Vec<i64>,
}

impl Allocators {
    /// One or two ranges (the first one's family is the default) and the range of node ports.
    pub fn new(ranges: Vec<IpRange>, ports: PortRange, seed: u64) -> Self {
        let mut allocators = Self { families: Vec::new(), node_ports: PortAllocator::new(ports, seed) };
        allocators.set_ranges(ranges, seed);
        allocators
    }

    /// Replaces the service CIDRs; families keep their order and allocations.
    pub fn set_ranges(&mut self, ranges: Vec<IpRange>, seed: u64) {
        for (family, allocator) in &mut self.families {
            allocator.set_ranges(ranges.iter().filter(|range| range.family() == *family).cloned().collect());
        }
        for range in &ranges {
            let family = range.family();
            if self.of(family).is_none() {
                let own = ranges.iter().filter(|range| range.family() == family).cloned().collect();
                self.families.push((family, IpAllocator::new(own, seed ^ family as u64)));
            }
        }
    }

    pub fn of(&self, family: Family) -> Option<&IpAllocator> {
        self.families.iter().find(|(each, _)| *each == family).map(|(_, allocator)| allocator)
    }

    /// Service CIDRs with their numbers of allocated and of usable addresses.
    pub fn usage(&self) -> Vec<(&IpRange, usize, u128)> {
        self.families.iter().flat_map(|(_, allocator)| allocator.usage()).collect()
    }

    pub(super) fn of_mut(&mut self, family: Family) -> Option<&mut IpAllocator> {
        self.families.iter_mut().find(|(each, _)| *each == family).map(|(_, allocator)| allocator)
    }

    /// Number of families of the cluster.
    pub(super) fn families(&self) -> usize {
        self.families.len()
    }

    pub(super) fn default_family(&self) -> Family {
        self.families.first().map_or(Family::V4, |(family, _)| *family)
    }

    /// Allocates the addresses and ports of a stored service, at start. Returns those already allocated or out of
    /// range.
    pub fn adopt(&mut self, service: &Value) -> Holdings {
        let mut lost = Holdings::default();
        let holdings = holdings(service);
        for ip in holdings.ips {
            if self.of_mut(Family::of(ip)).is_none_or(|allocator| allocator.allocate(ip).is_err()) {
                lost.ips.push(ip);
            }
        }
        for port in holdings.ports {
            if self.node_ports.allocate(port).is_err() {
                lost.ports.push(port);
            }
        }
        lost
    }

    /// Releases addresses and ports.
    pub fn release(&mut self, holdings: &Holdings) {
        for ip in &holdings.ips {
            if let Some(allocator) = self.of_mut(Family::of(*ip)) {
                allocator.release(*ip);
            }
        }
        for port in &holdings.ports {
            self.node_ports.release(*port);
        }
    }
}

/// All allocations of a service, for release on deletion.
pub fn holdings(service: &Value) -> Holdings {
    let spec = service.field("spec");
    let mut holdings = Holdings { ips: cluster_ips(service), ports: node_ports(service) };
    if service_type(service) == "ExternalName" {
        holdings.ips.clear();
    }
    if needs_health_check(service) && spec.int("healthCheckNodePort") > 0 {
        holdings.ports.push(spec.int("healthCheckNodePort"));
    }
    holdings.ports.sort_unstable();
    holdings.ports.dedup();
    holdings
}

pub(super) fn node_ports(service: &Value) -> Vec<i64> {
    ports(service).iter().map(|port| port.int("nodePort")).filter(|port| *port != 0).collect()
}

pub(super) fn cluster_ips(service: &Value) -> Vec<IpAddr> {
    texts(service.field("spec").items("clusterIPs")).filter_map(names::parse_ip_sloppy).collect()
}
