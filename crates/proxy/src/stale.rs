//! UDP flows to endpoints that no longer serve. UDP has no connection end: the client would keep sending to a removed
//! endpoint until the flow times out.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;

use sys::netlink::Conntrack;

use crate::model::{Port, Protocol, Service};

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

    /// Records a removed service: no endpoint is valid.
    pub fn note_removed(&mut self, service: &Service) {
        for port in service.ports.iter().filter(|port| port.protocol == Protocol::Udp) {
            let addresses =
                service.cluster_ips.iter().chain(&service.external_ips).chain(&service.load_balancer_ips);
            for address in addresses {
                self.by_address.entry((*address, port.port)).or_default();
            }
            if let Some(node_port) = port.node_port {
                self.by_node_port.entry(node_port).or_default();
            }
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty() && self.by_node_port.is_empty()
    }

    /// Records the ports that a changed service no longer has.
    pub fn note_removed_ports(&mut self, old: &Service, new: &Service) {
        let has =
            |port: &Port| new.ports.iter().any(|one| (one.protocol, one.port) == (port.protocol, port.port));
        let ports: Vec<Port> = old.ports.iter().filter(|port| !has(port)).cloned().collect();
        self.note_removed(&Service { ports, ..old.clone() });
    }

    /// True if the flow to `destination` must not go on to the endpoint `answers`.
    fn is_stale(&self, destination: (IpAddr, u16), answers: (IpAddr, u16)) -> bool {
        let wanted = self.by_address.get(&destination);
        let wanted = wanted.or_else(|| self.by_node_port.get(&destination.1));
        wanted.is_some_and(|endpoints| {
            // Flows of a removed service are those that were translated.
            if endpoints.is_empty() {
                return answers != destination;
            }
            let same_family = endpoints.iter().any(|(address, _)| address.is_ipv4() == answers.0.is_ipv4());
            same_family && !endpoints.contains(&answers)
        })
    }

    /// Deletes flows to other endpoints from connection tracking; returns their numbers: IPv4, then IPv6.
    pub fn forget_others(&self) -> io::Result<[usize; 2]> {
        let mut conntrack = Conntrack::open()?;
        let mut forgotten = [0; 2];
        for (ipv4, forgotten) in [true, false].into_iter().zip(&mut forgotten) {
            for flow in
                conntrack.udp_flows(ipv4)?.iter().filter(|flow| self.is_stale(flow.destination, flow.answers))
            {
                conntrack.forget(flow)?;
                *forgotten += 1;
            }
        }
        Ok(forgotten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::view;
    use serde_json::{from_value, json};
    use std::sync::Arc;

    const POD: (IpAddr, u16) = (IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 1)), 5353);

    fn service(ports: &[u16], endpoint: serde_json::Value) -> Service {
        let port = |port: &u16| json!({"name": port.to_string(), "protocol": "UDP", "port": port, "nodePort": 30_000 + port});
        let ports: Vec<_> = ports.iter().map(port).collect();
        let object = json!({"metadata": {"name": "dns"}, "spec": {"clusterIP": "10.96.0.9", "ports": ports}});
        let slice = json!({
            "addressType": "IPv4",
            "metadata": {"labels": {crate::feed::SERVICE_LABEL: "dns"}},
            "ports": [{"name": "53", "port": 5353, "protocol": "UDP"}],
            "endpoints": [endpoint],
        });
        let slice = Arc::new(from_value(slice).expect("a slice"));
        view(&from_value(object).expect("a service"), &[slice], "here").expect("a view")
    }

    fn flow(port: u16) -> (IpAddr, u16) {
        ("10.96.0.9".parse().expect("an address"), port)
    }

    #[test]
    fn flows_to_removed_endpoints_services_and_ports_are_stale() {
        let gone = json!({"addresses": ["10.1.0.2"], "conditions": {"ready": true}});
        let mut answers = Answers::default();
        answers.note(&service(&[53], gone.clone()));
        assert!(answers.is_stale(flow(53), POD), "another endpoint serves");
        assert!(answers.is_stale(("192.0.2.1".parse().expect("an address"), 30_053), POD), "node port");
        assert!(!answers.is_stale(flow(54), POD), "another service");

        let mut answers = Answers::default();
        answers.note_removed(&service(&[53], gone.clone()));
        assert!(answers.is_stale(flow(53), POD), "the service was removed");
        assert!(!answers.is_stale(flow(53), flow(53)), "a flow that was not translated");

        let mut answers = Answers::default();
        let (old, new) = (service(&[53, 54], gone.clone()), service(&[53], gone));
        answers.note_removed_ports(&old, &new);
        assert!(answers.is_stale(flow(54), POD) && !answers.is_stale(flow(53), POD));
        // A new service with the address of a removed one has valid endpoints.
        answers.note(&service(&[53, 54], json!({"addresses": ["10.1.0.1"], "conditions": {"ready": true}})));
        assert!(!answers.is_stale(flow(53), POD));
    }

    #[test]
    fn flows_of_services_without_endpoints_go_on() {
        let mut answers = Answers::default();
        let waiting = json!({"addresses": ["10.1.0.1"], "conditions": {"ready": false, "serving": false}});
        answers.note(&service(&[53], waiting));
        assert!(!answers.is_stale(flow(53), POD));
    }
}
