//! UDP flows to endpoints that no longer serve. UDP has no connection end: the client would keep sending to a removed
//! endpoint until the flow times out.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;

use sys::netlink::{Conntrack, Flow};

use crate::model::{Protocol, Service};

type Endpoints = HashSet<(IpAddr, u16)>;

/// Valid endpoints by frontend, of the services that changed.
#[derive(Debug, Default)]
pub struct Answers {
    by_address: HashMap<(IpAddr, u16), Endpoints>,
    by_node_port: HashMap<u16, Endpoints>,
}

impl Answers {
    /// Records a changed service. Without endpoints there is no better target, and policies do not end existing
    /// flows.
    pub fn note(&mut self, service: &Service) {
        for port in service.ports.iter().filter(|port| port.protocol == Protocol::Udp) {
            let serving = port.endpoints.iter().filter(|endpoint| endpoint.serving);
            let serving: Endpoints = serving.map(|endpoint| (endpoint.address, endpoint.port)).collect();
            if serving.is_empty() {
                continue;
            }
            let addresses =
                service.cluster_ips.iter().chain(&service.external_ips).chain(&service.load_balancer_ips);
            for address in addresses {
                self.by_address.insert((*address, port.port), serving.clone());
            }
            if let Some(node_port) = port.node_port {
                self.by_node_port.insert(node_port, serving);
            }
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty() && self.by_node_port.is_empty()
    }

    fn is_stale(&self, flow: &Flow) -> bool {
        let wanted = self.by_address.get(&flow.destination);
        let wanted = wanted.or_else(|| self.by_node_port.get(&flow.destination.1));
        wanted.is_some_and(|endpoints| {
            let same_family =
                endpoints.iter().any(|(address, _)| address.is_ipv4() == flow.answers.0.is_ipv4());
            same_family && !endpoints.contains(&flow.answers)
        })
    }

    /// Deletes flows to other endpoints from connection tracking; returns their number.
    pub fn forget_others(&self) -> io::Result<usize> {
        let mut conntrack = Conntrack::open()?;
        let mut forgotten = 0;
        for ipv4 in [true, false] {
            for flow in conntrack.udp_flows(ipv4)?.iter().filter(|flow| self.is_stale(flow)) {
                conntrack.forget(flow)?;
                forgotten += 1;
            }
        }
        Ok(forgotten)
    }
}
