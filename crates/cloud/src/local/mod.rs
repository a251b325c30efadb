//! Provider for clusters without a cloud: LoadBalancer services get the addresses of the nodes, or one each from a
//! range that a node announces ([`announce`]). The proxy of every node handles the traffic.

pub mod announce;
mod pool;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use objects::core::v1::{LoadBalancerIngress, LoadBalancerStatus, Node, PortStatus, Service};
use parking_lot::Mutex;
use runtime::{Cache, Informers};

pub use pool::{Pool, PoolError};

use crate::node_addresses::current;
use crate::service::FINALIZER;
use crate::{LoadBalancers, Provider, ProviderError};

/// Address source.
#[derive(Clone, Debug)]
enum Source {
    /// Node addresses; these ports of them are reserved.
    Nodes {
        reserved: BTreeSet<u16>,
    },
    Pool(Pool),
}

/// Port of an address, by protocol.
type AddressPort = (IpAddr, String, i32);

/// Allocation of a service.
#[derive(Clone, Debug, Default)]
struct Allocation {
    owner: String,
    address_ports: BTreeSet<AddressPort>,
}

/// Provider without a cloud.
pub struct Local {
    source: Source,
    /// All services: their status holds the allocations of earlier processes.
    services: OnceLock<Cache<Service>>,
    /// Allocations of this process, by UID.
    allocations: Mutex<BTreeMap<String, Allocation>>,
}

impl Local {
    /// Allocates node addresses; `reserved` ports are in use by the nodes.
    #[must_use]
    pub fn of_nodes(reserved: Vec<u16>) -> Self {
        Self::new(Source::Nodes { reserved: reserved.into_iter().collect() })
    }

    /// Allocates addresses of a pool.
    #[must_use]
    pub fn of_pool(pool: Pool) -> Self {
        Self::new(Source::Pool(pool))
    }

    fn new(source: Source) -> Self {
        Self { source, services: OnceLock::new(), allocations: Mutex::default() }
    }

    /// Allocations of services other than `uid`.
    fn allocated(
        &self,
        uid: &str,
        allocations: &BTreeMap<String, Allocation>,
    ) -> BTreeMap<AddressPort, String> {
        let mut allocated = BTreeMap::new();
        for (_, other) in allocations.iter().filter(|(other, _)| *other != uid) {
            allocated.extend(
                other.address_ports.iter().map(|address_port| (address_port.clone(), other.owner.clone())),
            );
        }
        for service in self.services.get().map(Cache::all).unwrap_or_default() {
            let known = service.metadata.uid.as_deref().unwrap_or_default();
            // Services of other classes are not managed, but their addresses are in use.
            if known != uid && !allocations.contains_key(known) {
                for address_port in address_ports(&service, &status_addresses(&service)) {
                    allocated.entry(address_port).or_insert_with(|| owner(&service));
                }
            }
        }
        allocated
    }

    fn allocate(&self, service: &Service, nodes: &[Arc<Node>]) -> Result<LoadBalancerStatus, ProviderError> {
        let uid = service.metadata.uid.clone().unwrap_or_default();
        let mut allocations = self.allocations.lock();
        let allocated = self.allocated(&uid, &allocations);
        let addresses = match &self.source {
            Source::Nodes { reserved } => {
                for port in service.spec.iter().flat_map(|spec| spec.ports.iter().flatten()) {
                    if u16::try_from(port.port).is_ok_and(|port| reserved.contains(&port)) {
                        return Err(ProviderError::Refused(format!(
                            "port {} is in use by the nodes",
                            port.port
                        )));
                    }
                }
                of_nodes(service, nodes)?
            }
            Source::Pool(pool) => {
                let used: BTreeSet<IpAddr> = allocated.keys().map(|(address, ..)| *address).collect();
                pool.choose(service, &status_addresses(service), &used)
                    .map_err(|error| ProviderError::Refused(error.to_string()))?
            }
        };
        let address_ports = address_ports(service, &addresses);
        if let Some((address_port, other)) = address_ports
            .iter()
            .find_map(|address_port| allocated.get(address_port).map(|owner| (address_port, owner)))
        {
            let (address, protocol, port) = address_port;
            return Err(ProviderError::Refused(format!(
                "port {port}/{protocol} of {address} is allocated to {other}"
            )));
        }
        allocations.insert(uid, Allocation { owner: owner(service), address_ports });
        Ok(status(service, &addresses))
    }
}

impl Provider for Local {
    fn name(&self) -> &str {
        "local"
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(self)
    }

    fn use_informers(&self, informers: &Informers) {
        let _ = self.services.set(informers.of::<Service>());
    }
}

#[async_trait]
impl LoadBalancers for Local {
    async fn get(&self, _: &str, service: &Service) -> Result<Option<LoadBalancerStatus>, ProviderError> {
        let uid = service.metadata.uid.as_deref().unwrap_or_default();
        let ours = service.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER);
        let known =
            self.allocations.lock().contains_key(uid) || (ours && !status_addresses(service).is_empty());
        Ok(known.then(|| status(service, &status_addresses(service))))
    }

    async fn ensure(
        &self,
        _: &str,
        service: &Service,
        nodes: &[Arc<Node>],
    ) -> Result<LoadBalancerStatus, ProviderError> {
        self.allocate(service, nodes)
    }

    async fn update(
        &self,
        _: &str,
        service: &Service,
        nodes: &[Arc<Node>],
    ) -> Result<Option<LoadBalancerStatus>, ProviderError> {
        self.allocate(service, nodes).map(Some)
    }

    async fn delete(&self, _: &str, service: &Service) -> Result<(), ProviderError> {
        self.allocations.lock().remove(service.metadata.uid.as_deref().unwrap_or_default());
        Ok(())
    }
}

fn owner(service: &Service) -> String {
    let (namespace, name) = (&service.metadata.namespace, &service.metadata.name);
    format!("{}/{}", namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default())
}

/// Addresses in a service's status.
pub(crate) fn status_addresses(service: &Service) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    ingress.iter().filter_map(|ingress| ingress.ip.as_deref()?.parse().ok()).collect()
}

fn address_ports(service: &Service, addresses: &[IpAddr]) -> BTreeSet<AddressPort> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let ports: Vec<(String, i32)> =
        ports.map(|port| (port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), port.port)).collect();
    addresses
        .iter()
        .flat_map(|address| ports.iter().map(|(protocol, port)| (*address, protocol.clone(), *port)))
        .collect()
}

fn status(service: &Service, addresses: &[IpAddr]) -> LoadBalancerStatus {
    let ports: Vec<PortStatus> = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten())
        .map(|port| PortStatus {
            port: port.port,
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            error: None,
        })
        .collect();
    let ingress = |address: &IpAddr| LoadBalancerIngress {
        ip: Some(address.to_string()),
        ip_mode: Some("VIP".to_owned()),
        ports: Some(ports.clone()),
        hostname: None,
    };
    LoadBalancerStatus { ingress: Some(addresses.iter().map(ingress).collect()) }
}

/// True if a service has a family; without families it has the first available one.
fn has_family(service: &Service, address: IpAddr) -> bool {
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.as_deref()).unwrap_or_default();
    families.is_empty() || families.iter().any(|family| (family == "IPv4") == address.is_ipv4())
}

/// External addresses of the nodes, or else their internal ones.
fn of_nodes(service: &Service, nodes: &[Arc<Node>]) -> Result<Vec<IpAddr>, ProviderError> {
    let mut all = BTreeSet::new();
    for node in nodes {
        let of = |kind: &str| -> Vec<IpAddr> {
            let addresses = current(node).iter().filter(|address| address.type_ == kind);
            let parsed = addresses.filter_map(|address| address.address.parse().ok());
            parsed.filter(|address| has_family(service, *address)).collect()
        };
        let outside = of("ExternalIP");
        all.extend(if outside.is_empty() { of("InternalIP") } else { outside });
    }
    let wanted = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref());
    let Some(wanted) = wanted.filter(|text| !text.is_empty()) else { return Ok(all.into_iter().collect()) };
    match wanted.parse::<IpAddr>() {
        Ok(wanted) if all.contains(&wanted) => Ok(vec![wanted]),
        _ => Err(ProviderError::Refused(format!("{wanted} is not a node address"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(name: &str, addresses: &[(&str, &str)]) -> Arc<Node> {
        let addresses: Vec<Value> =
            addresses.iter().map(|(kind, address)| json!({ "type": kind, "address": address })).collect();
        let value = json!({ "metadata": { "name": name }, "status": { "addresses": addresses } });
        Arc::new(serde_json::from_value(value).expect("a node"))
    }

    fn service(name: &str, port: u16) -> Service {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "n", "uid": format!("uid-{name}") },
            "spec": { "type": "LoadBalancer", "ports": [{ "port": port }], "ipFamilies": ["IPv4"] },
        }))
        .expect("a service")
    }

    fn texts(status: &LoadBalancerStatus) -> Vec<String> {
        status.ingress.iter().flatten().filter_map(|ingress| ingress.ip.clone()).collect()
    }

    #[test]
    fn services_share_node_addresses_but_not_ports() {
        let local = Local::of_nodes(vec![6443]);
        let nodes = [
            node("a", &[("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1"), ("Hostname", "a")]),
            node("b", &[("InternalIP", "10.0.0.2"), ("ExternalIP", "192.0.2.2")]),
        ];
        let first = local.allocate(&service("web", 80), &nodes).expect("allocated");
        assert_eq!(texts(&first), ["10.0.0.1", "192.0.2.2"]);
        local.allocate(&service("other", 81), &nodes).expect("another port");
        let refused = local.allocate(&service("late", 80), &nodes).expect_err("allocated");
        assert_eq!(refused.to_string(), "port 80/TCP of 10.0.0.1 is allocated to n/web");
        let refused = local.allocate(&service("api", 6443), &nodes).expect_err("reserved");
        assert!(refused.to_string().contains("6443"), "{refused}");
        local.allocate(&service("web", 80), &nodes[..1]).expect("own port allocated again");
        local.allocations.lock().remove("uid-web");
        local.allocate(&service("late", 80), &nodes).expect("free again");
        let mut picky = service("picky", 82);
        picky.spec.get_or_insert_default().load_balancer_ip = Some("10.0.0.1".to_owned());
        assert_eq!(texts(&local.allocate(&picky, &nodes).expect("allocated")), ["10.0.0.1"]);
        picky.spec.get_or_insert_default().load_balancer_ip = Some("10.9.9.9".to_owned());
        assert!(local.allocate(&picky, &nodes).is_err());
        assert!(texts(&local.allocate(&service("nowhere", 83), &[]).expect("allocated")).is_empty());
    }

    #[test]
    fn allocations_are_restored_from_service_status() {
        let local = Local::of_nodes(vec![]);
        let cache = Cache::new();
        let mut old = service("old", 80);
        old.status = Some(
            serde_json::from_value(json!({ "loadBalancer": { "ingress": [{ "ip": "10.0.0.1" }] } }))
                .expect("a status"),
        );
        cache.apply(old.clone());
        assert!(local.services.set(cache).is_ok());
        let nodes = [node("a", &[("InternalIP", "10.0.0.1")])];
        assert!(local.allocate(&service("new", 80), &nodes).is_err(), "allocated to the older service");
        local.allocate(&old, &nodes).expect("own port");
    }
}
