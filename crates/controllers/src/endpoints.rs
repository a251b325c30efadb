//! The endpoints loop. Watches services, pods and endpoints; writes endpoints, for clients without support for
//! slices.
//!
//! Invariant: the endpoints of a service list the addresses of the pods it selects, ready and not.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use jiff::Timestamp;
use objects::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};

use crate::shared::trigger_times::{self, TriggerTimes};
use crate::shared::{pod_facts, services};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "endpoints-controller",
    resource: "services",
    identity: "system:serviceaccount:kube-system:endpoint-controller",
    workers: 5,
};

const MANAGED_BY: (&str, &str) = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// Maximum number of addresses.
const CAPACITY: usize = 1000;

struct EndpointsOfServices {
    services: Cache<Service>,
    pods: Cache<Pod>,
    endpoints: Cache<Endpoints>,
    times: TriggerTimes,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let services = ctx.watch_self::<Service>();
    let known = services.clone();
    let pods = ctx.watch::<Pod>(move |change| services::of_pod(change, &known));
    let endpoints = watch_endpoints(ctx, services.clone());
    Box::new(EndpointsOfServices { services, pods, endpoints, times: TriggerTimes::default() })
}

/// Watches endpoints. Those that exist at the start are leftovers if their service is deleted, leader election
/// records aside; later, endpoints without a service are left alone.
fn watch_endpoints(ctx: &Context, services: Cache<Service>) -> Cache<Endpoints> {
    let known = ctx.cache::<Endpoints>();
    let registering = Arc::new(AtomicBool::new(true));
    let registers = Arc::clone(&registering);
    let endpoints = ctx.watch::<Endpoints>(move |change| {
        let key = Key::of(&**change.object());
        let at_start = registers.load(Ordering::Relaxed) || !known.is_synced();
        let due = if at_start { !is_election(change.object()) } else { services.get_key(&key).is_some() };
        if due { vec![key] } else { Vec::new() }
    });
    registering.store(false, Ordering::Relaxed);
    endpoints
}

#[async_trait]
impl Loop for EndpointsOfServices {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(service) = self.services.get_key(key) else {
            self.times.forget(key);
            // User-managed endpoints of a service without a selector are deleted with it, too.
            let options = client::DeleteOptions::default();
            match ctx.client.delete::<Endpoints>(&key.namespace, &key.name, &options).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
            return Ok(Action::Done);
        };
        if !services::selects(&service) {
            return Ok(Action::Done);
        }
        let current = self.endpoints.get_key(key);
        let pods = services::pods_of(&service, &self.pods);
        let since = self.times.observe(key, &service, &pods);
        let Some(new) = plan(&service, &pods, current.as_deref(), since) else { return Ok(Action::Done) };
        let outcome = match current {
            None => ctx.client.create(&key.namespace, &new).await,
            Some(_) => ctx.client.update(&new).await,
        };
        match outcome {
            Err(error) if error.is_namespace_terminating() => Ok(Action::Done),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(Action::Done),
        }
    }
}

fn is_election(endpoints: &Endpoints) -> bool {
    endpoints.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(LEADER))
}

/// Desired endpoints; `None` if they are up to date. `since` is the trigger time of the change.
fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    current: Option<&Endpoints>,
    since: Option<Timestamp>,
) -> Option<Endpoints> {
    let mut subsets = subsets(service, pods);
    let cut = truncate(&mut subsets);
    let mut new = current.cloned().unwrap_or_default();
    new.metadata.name.clone_from(&service.metadata.name);
    new.metadata.namespace.clone_from(&service.metadata.namespace);
    let mut labels = services::labels(service);
    labels.insert(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
    new.metadata.labels = Some(labels);
    let annotations = new.metadata.annotations.get_or_insert_default();
    if cut {
        annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned());
    } else {
        annotations.remove(OVER_CAPACITY);
    }
    let over_capacity = |endpoints: &Endpoints| {
        endpoints
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|annotations| annotations.contains_key(OVER_CAPACITY))
    };
    new.subsets = Some(subsets).filter(|subsets| !subsets.is_empty());
    let same = current.is_some_and(|current| {
        current.subsets.as_deref().unwrap_or_default() == new.subsets.as_deref().unwrap_or_default()
            && current.metadata.labels == new.metadata.labels
            && over_capacity(current) == cut
    });
    if same {
        return None;
    }
    trigger_times::stamp(&mut new.metadata, since);
    Some(new)
}

/// Groups addresses with the same ports, in a fixed order.
fn subsets(service: &Service, pods: &[Arc<Pod>]) -> Vec<EndpointSubset> {
    type Addresses = BTreeMap<IpAddr, (EndpointAddress, bool)>;
    let mut groups: BTreeMap<Vec<services::Port>, Addresses> = BTreeMap::new();
    let portless = service.spec.as_ref().and_then(|spec| spec.ports.as_ref()).is_none_or(Vec::is_empty);
    let unready = services::publishes_unready(service);
    for pod in pods.iter().filter(|pod| services::is_reachable(pod, unready)) {
        let Some(address) = address_of(service, pod) else { continue };
        let mut ports = services::ports(pod, service);
        ports.sort();
        if ports.is_empty() && !(portless && services::is_headless(service)) {
            continue;
        }
        let endpoint = EndpointAddress {
            ip: address.to_string(),
            hostname: services::hostname(pod, service).map(str::to_owned),
            node_name: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            target_ref: Some(services::target(pod)),
        };
        let ready = unready || pod_facts::is_ready(pod);
        groups.entry(ports).or_default().insert(address, (endpoint, ready));
    }
    let some = |addresses: Vec<EndpointAddress>| Some(addresses).filter(|addresses| !addresses.is_empty());
    groups
        .into_iter()
        .map(|(ports, addresses)| {
            let (ready, not): (Vec<_>, Vec<_>) = addresses.into_values().partition(|(_, ready)| *ready);
            let ports: Vec<EndpointPort> = ports
                .into_iter()
                .map(|port| EndpointPort {
                    name: Some(port.name).filter(|name| !name.is_empty()),
                    port: port.number,
                    protocol: Some(port.protocol),
                    app_protocol: port.app_protocol,
                })
                .collect();
            EndpointSubset {
                addresses: some(ready.into_iter().map(|(address, _)| address).collect()),
                not_ready_addresses: some(not.into_iter().map(|(address, _)| address).collect()),
                ports: Some(ports).filter(|ports| !ports.is_empty()),
            }
        })
        .collect()
}

/// Address of the service's first IP family.
fn address_of(service: &Service, pod: &Pod) -> Option<IpAddr> {
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.as_ref());
    let wants_v6 = families.and_then(|families| families.first()).is_some_and(|family| family == "IPv6");
    services::addresses(pod).into_iter().find(|address| address.is_ipv6() == wants_v6)
}

/// Truncates to the maximum number of addresses, ready ones first; returns true if some were dropped.
fn truncate(subsets: &mut [EndpointSubset]) -> bool {
    let total = |subsets: &[EndpointSubset]| -> usize {
        let count = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
        subsets.iter().map(|subset| count(&subset.addresses) + count(&subset.not_ready_addresses)).sum()
    };
    if total(subsets) <= CAPACITY {
        return false;
    }
    let mut room = CAPACITY;
    let mut take = |list: &mut Option<Vec<EndpointAddress>>| {
        if let Some(addresses) = list {
            addresses.truncate(room);
            room -= addresses.len();
        }
        if list.as_ref().is_some_and(Vec::is_empty) {
            *list = None;
        }
    };
    subsets.iter_mut().for_each(|subset| take(&mut subset.addresses));
    subsets.iter_mut().for_each(|subset| take(&mut subset.not_ready_addresses));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{meta, pod, ready_at, time};
    use objects::core::v1::{PodIP, ServicePort, ServiceSpec};

    fn service() -> Service {
        Service {
            metadata: meta("web"),
            spec: Some(ServiceSpec {
                cluster_ip: Some("10.0.0.9".to_owned()),
                ports: Some(vec![ServicePort { port: 80, ..ServicePort::default() }]),
                ..ServiceSpec::default()
            }),
            status: None,
        }
    }

    fn with_ip(mut pod: Pod, ip: &str) -> Arc<Pod> {
        pod.status.get_or_insert_default().pod_ips = Some(vec![PodIP { ip: ip.to_owned() }]);
        Arc::new(pod)
    }

    #[test]
    fn addresses_are_split_by_readiness() {
        let pods = [
            with_ip(ready_at(pod("b", "Running"), 1), "10.1.0.2"),
            with_ip(ready_at(pod("a", "Running"), 1), "10.1.0.1"),
            with_ip(pod("c", "Running"), "10.1.0.3"),
            with_ip(pod("d", "Failed"), "10.1.0.4"),
            Arc::new(pod("e", "Pending")),
        ];
        let new = plan(&service(), &pods, None, Some(time(5).0)).expect("new");
        assert_eq!(new.metadata.annotations.as_ref().expect("annotations").len(), 1);
        let subset = &new.subsets.as_ref().expect("some")[0];
        let ips = |list: &Option<Vec<EndpointAddress>>| -> Vec<String> {
            list.iter().flatten().map(|address| address.ip.clone()).collect()
        };
        assert_eq!(ips(&subset.addresses), ["10.1.0.1", "10.1.0.2"]);
        assert_eq!(ips(&subset.not_ready_addresses), ["10.1.0.3"]);
        assert_eq!(subset.ports.as_ref().expect("one")[0].port, 80);
        assert_eq!(new.metadata.labels.as_ref().expect("labels")[MANAGED_BY.0], MANAGED_BY.1);
        assert!(plan(&service(), &pods, Some(&new), Some(time(9).0)).is_none());
        let emptied = plan(&service(), &[], Some(&new), None).expect("a change");
        assert!(emptied.subsets.is_none() && emptied.metadata.annotations.is_none());
    }

    #[test]
    fn addresses_over_capacity_are_truncated_and_annotated() {
        let many: Vec<Arc<Pod>> = (0..1200)
            .map(|n| {
                let base = pod(&format!("p{n}"), "Running");
                let base = if n < 900 { base } else { ready_at(base, 1) };
                with_ip(base, &format!("10.1.{}.{}", n / 250, n % 250 + 1))
            })
            .collect();
        let new = plan(&service(), &many, None, None).expect("new");
        assert_eq!(new.metadata.annotations.as_ref().expect("annotations")[OVER_CAPACITY], "truncated");
        let subset = &new.subsets.as_ref().expect("some")[0];
        let count = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
        assert_eq!((count(&subset.addresses), count(&subset.not_ready_addresses)), (300, 700));
    }
}
