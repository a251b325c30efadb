//! Desired slices of a service, given its existing ones, with as few writes as possible.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use objects::core::v1::{Node, Pod, Service};
use objects::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use objects::meta::v1::ObjectMeta;

use super::hints::{self, NoHints, Shares};
use crate::shared::adoption::controller_reference;
use crate::shared::{pod_facts, services, trigger_times};

pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub const MANAGER: &str = "endpointslice-controller.k8s.io";
const ZONE: &str = "topology.kubernetes.io/zone";

pub struct ObservedEndpoints<'a> {
    pub service: &'a Service,
    pub pods: &'a [(Arc<Pod>, Option<Arc<Node>>)],
    pub existing: &'a [Arc<EndpointSlice>],
    /// Capacity of zones, for a service with topology-aware hints.
    pub shares: Option<&'a Result<Shares, NoHints>>,
    /// Trigger time of the change.
    pub since: Option<Timestamp>,
    /// Maximum number of endpoints in a slice.
    pub full: usize,
}

/// Change of topology-aware hints, by address family.
#[derive(Debug, PartialEq, Eq)]
pub enum Sharing {
    Enabled { family: &'static str },
    Disabled { family: &'static str, why: NoHints },
}

#[derive(Debug, Default)]
pub struct EndpointSlicePlan {
    pub create: Vec<EndpointSlice>,
    pub update: Vec<EndpointSlice>,
    pub delete: Vec<Arc<EndpointSlice>>,
    pub sharing: Vec<Sharing>,
    /// Endpoints added and removed, by address family.
    pub moved: Vec<(usize, usize)>,
    /// Endpoints, and slices that they would need with perfect allocation.
    pub endpoints: usize,
    pub desired: usize,
}

pub fn zone(node: &Node) -> Option<&String> {
    node.metadata.labels.as_ref()?.get(ZONE).filter(|zone| !zone.is_empty())
}

#[must_use]
pub fn plan(observed: &ObservedEndpoints<'_>) -> EndpointSlicePlan {
    let mut plan = EndpointSlicePlan::default();
    let families = families(observed.service);
    for slice in observed.existing {
        if !families.contains(&slice.address_type.as_str()) {
            plan.delete.push(Arc::clone(slice));
        }
    }
    for family in families {
        plan_family(observed, family, &mut plan);
    }
    for slice in plan.create.iter_mut().chain(&mut plan.update) {
        trigger_times::stamp(&mut slice.metadata, observed.since);
    }
    plan
}

/// Sets the hints of endpoints; returns the newly enabled or the impossible topology-aware hints.
fn hint(
    observed: &ObservedEndpoints<'_>,
    family: &'static str,
    own: &[&Arc<EndpointSlice>],
    wanted: &mut BTreeMap<String, (Vec<EndpointPort>, Vec<Endpoint>)>,
) -> Option<Sharing> {
    let known = || own.iter().flat_map(|slice| endpoints_of(slice));
    let were_hinted = known().any(|endpoint| endpoint.hints.is_some());
    let Some(shares) = observed.shares else {
        for endpoint in wanted.values_mut().flat_map(|(_, endpoints)| endpoints) {
            endpoint.hints = hints::near(observed.service, endpoint);
        }
        return None;
    };
    let mut before: BTreeMap<String, Endpoint> =
        known().map(|endpoint| (identity(endpoint), endpoint.clone())).collect();
    // Hints are computed for the whole family, whatever the ports; then split by port set again.
    let mut all: Vec<Endpoint> = Vec::new();
    for endpoint in wanted.values_mut().flat_map(|(_, endpoints)| std::mem::take(endpoints)) {
        let hints = before.remove(&identity(&endpoint)).and_then(|known| known.hints);
        all.push(Endpoint { hints, ..endpoint });
    }
    let outcome = hints::share_out(&mut all, shares);
    let mut by_identity: BTreeMap<String, Endpoint> =
        all.into_iter().map(|endpoint| (identity(&endpoint), endpoint)).collect();
    for (pod, node) in observed.pods {
        let Some(plain) = endpoint(pod, node.as_deref(), observed.service, family) else { continue };
        let Some(hinted) = by_identity.remove(&identity(&plain)) else { continue };
        if let Some((_, endpoints)) = wanted.get_mut(&ports_key(&ports(pod, observed.service))) {
            endpoints.push(hinted);
        }
    }
    match outcome {
        Err(why) => Some(Sharing::Disabled { family, why }),
        Ok(()) => (!were_hinted).then_some(Sharing::Enabled { family }),
    }
}

fn families(service: &Service) -> Vec<&'static str> {
    let spec = service.spec.as_ref();
    let named = spec.and_then(|spec| spec.ip_families.as_deref()).unwrap_or_default();
    let known = |name: &String| match name.as_str() {
        "IPv4" => Some("IPv4"),
        "IPv6" => Some("IPv6"),
        _ => None,
    };
    let families: Vec<&'static str> = named.iter().filter_map(known).collect();
    if families.is_empty() { vec!["IPv4"] } else { families }
}

fn plan_family(observed: &ObservedEndpoints<'_>, family: &'static str, plan: &mut EndpointSlicePlan) {
    let service = observed.service;
    let uid = service.metadata.uid.as_deref();
    let of_family = observed.existing.iter().filter(|slice| slice.address_type == family);
    let (own, foreign): (Vec<_>, Vec<_>) = of_family.partition(|slice| {
        slice.metadata.owner_references.iter().flatten().any(|owner| Some(owner.uid.as_str()) == uid)
    });
    let mut doomed: Vec<Arc<EndpointSlice>> = foreign.into_iter().cloned().collect();
    let mut by_ports: BTreeMap<String, (Vec<EndpointPort>, Vec<Arc<EndpointSlice>>)> = BTreeMap::new();
    for slice in own.iter().copied() {
        let ports = slice.ports.clone().unwrap_or_default();
        by_ports.entry(ports_key(&ports)).or_insert_with(|| (ports, Vec::new())).1.push(Arc::clone(slice));
    }
    let mut wanted: BTreeMap<String, (Vec<EndpointPort>, Vec<Endpoint>)> = BTreeMap::new();
    for (pod, node) in observed.pods {
        let Some(endpoint) = endpoint(pod, node.as_deref(), service, family) else { continue };
        let ports = ports(pod, service);
        wanted.entry(ports_key(&ports)).or_insert_with(|| (ports, Vec::new())).1.push(endpoint);
    }
    plan.sharing.extend(hint(observed, family, &own, &mut wanted));
    count(&by_ports, &wanted, observed.full, plan);
    let (mut create, mut kept) = (Vec::new(), 0);
    for (key, (ports, endpoints)) in wanted {
        let slices = by_ports.remove(&key).map(|(_, slices)| slices).unwrap_or_default();
        let packed = pack(service, slices, endpoints, observed.full);
        kept += packed.kept;
        doomed.extend(packed.delete);
        plan.update.extend(packed.update);
        create.extend(
            packed.create.into_iter().map(|endpoints| slice(service, family, ports.clone(), endpoints)),
        );
    }
    doomed.extend(by_ports.into_values().flat_map(|(_, slices)| slices));
    // At least one slice exists, so that clients can distinguish a service without endpoints from an unprocessed one.
    if kept == 0 && create.is_empty() {
        let empty = slice(service, family, Vec::new(), Vec::new());
        let is_it = |known: &Arc<EndpointSlice>| {
            endpoints_of(known).is_empty()
                && known.ports.as_ref().is_none_or(Vec::is_empty)
                && known.metadata.labels == empty.metadata.labels
                && known.metadata.owner_references == empty.metadata.owner_references
        };
        match doomed.iter().position(is_it) {
            Some(at) => {
                doomed.remove(at);
            }
            None => create.push(empty),
        }
    }
    plan.create.extend(create);
    plan.delete.extend(doomed);
}

/// Adds the numbers of a family to the plan.
fn count(
    known: &BTreeMap<String, (Vec<EndpointPort>, Vec<Arc<EndpointSlice>>)>,
    wanted: &BTreeMap<String, (Vec<EndpointPort>, Vec<Endpoint>)>,
    full: usize,
    plan: &mut EndpointSlicePlan,
) {
    let before: BTreeSet<_> = known
        .iter()
        .flat_map(|(ports, (_, slices))| {
            slices
                .iter()
                .flat_map(|slice| endpoints_of(slice))
                .map(move |endpoint| (ports, identity(endpoint)))
        })
        .collect();
    let after: BTreeSet<_> = wanted
        .iter()
        .flat_map(|(ports, (_, endpoints))| endpoints.iter().map(move |endpoint| (ports, identity(endpoint))))
        .collect();
    plan.moved.push((after.difference(&before).count(), before.difference(&after).count()));
    plan.endpoints += after.len();
    let slices: usize = wanted.values().map(|(_, endpoints)| endpoints.len().div_ceil(full)).sum();
    plan.desired += slices.max(1);
}

#[derive(Default)]
struct Packed {
    kept: usize,
    create: Vec<Vec<Endpoint>>,
    update: Vec<EndpointSlice>,
    delete: Vec<Arc<EndpointSlice>>,
}

/// Fills endpoints into existing slices, changing as few as possible, and the rest into new ones.
fn pack(service: &Service, slices: Vec<Arc<EndpointSlice>>, endpoints: Vec<Endpoint>, full: usize) -> Packed {
    let mut missing: BTreeMap<String, Endpoint> =
        endpoints.into_iter().map(|endpoint| (identity(&endpoint), endpoint)).collect();
    let labels = labels(service);
    let mut packed = Packed::default();
    let mut changed: Vec<EndpointSlice> = Vec::new();
    let mut same: Vec<Arc<EndpointSlice>> = Vec::new();
    for slice in slices {
        let kept: Vec<Endpoint> =
            endpoints_of(&slice).iter().filter_map(|endpoint| missing.remove(&identity(endpoint))).collect();
        if kept.is_empty() {
            packed.delete.push(slice);
        } else if kept == endpoints_of(&slice) && slice.metadata.labels.as_ref() == Some(&labels) {
            same.push(slice);
        } else {
            let mut new = (*slice).clone();
            new.endpoints = Some(kept);
            new.metadata.labels = Some(labels.clone());
            changed.push(new);
        }
    }
    let mut missing: Vec<Endpoint> = missing.into_values().collect();
    for slice in &mut changed {
        let room = full.saturating_sub(endpoints_of(slice).len()).min(missing.len());
        slice.endpoints.get_or_insert_default().extend(missing.drain(..room));
    }
    // The remainder goes into the fullest slice with enough space.
    if !missing.is_empty() {
        let rest = missing.len().checked_rem(full).unwrap_or(0);
        let fits = |slice: &Arc<EndpointSlice>| endpoints_of(slice).len() + rest <= full && rest > 0;
        let best =
            (0..same.len()).filter(|at| fits(&same[*at])).max_by_key(|at| endpoints_of(&same[*at]).len());
        if let Some(at) = best {
            let mut slice = (*same.remove(at)).clone();
            slice.endpoints.get_or_insert_default().extend(missing.drain(..rest));
            changed.push(slice);
        }
    }
    while !missing.is_empty() {
        // An emptied slice is reused instead of creating one.
        let chunk: Vec<Endpoint> = missing.drain(..full.clamp(1, missing.len())).collect();
        match packed.delete.pop() {
            Some(slice) => {
                let mut slice = (*slice).clone();
                slice.endpoints = Some(chunk);
                slice.metadata.labels = Some(labels.clone());
                changed.push(slice);
            }
            None => packed.create.push(chunk),
        }
    }
    packed.kept = changed.len() + same.len();
    packed.update = changed;
    packed
}

fn endpoints_of(slice: &EndpointSlice) -> &[Endpoint] {
    slice.endpoints.as_deref().unwrap_or_default()
}

/// Identity of an endpoint.
fn identity(endpoint: &Endpoint) -> String {
    let uid = endpoint.target_ref.as_ref().and_then(|target| target.uid.as_deref()).unwrap_or_default();
    format!("{uid} {}", endpoint.addresses.join(","))
}

fn ports_key(ports: &[EndpointPort]) -> String {
    let mut texts: Vec<String> = ports
        .iter()
        .map(|port| {
            let text = |value: &Option<String>| value.clone().unwrap_or_default();
            let (name, protocol, app) = (text(&port.name), text(&port.protocol), text(&port.app_protocol));
            format!("{name} {} {protocol} {app}", port.port.unwrap_or(0))
        })
        .collect();
    texts.sort();
    texts.join(",")
}

fn ports(pod: &Pod, service: &Service) -> Vec<EndpointPort> {
    let port = |port: services::Port| EndpointPort {
        name: Some(port.name),
        port: Some(port.number),
        protocol: Some(port.protocol),
        app_protocol: port.app_protocol,
    };
    services::ports(pod, service).into_iter().map(port).collect()
}

fn endpoint(pod: &Pod, node: Option<&Node>, service: &Service, family: &str) -> Option<Endpoint> {
    let addresses =
        services::addresses(pod).into_iter().filter(|address| address.is_ipv6() == (family == "IPv6"));
    let addresses: Vec<String> = addresses.map(|address| address.to_string()).collect();
    if addresses.is_empty() {
        return None;
    }
    let (serving, terminating) = (pod_facts::is_ready(pod), pod_facts::is_deleting(pod));
    let ready = services::publishes_unready(service) || (serving && !terminating);
    let node_name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|name| !name.is_empty());
    let zone = node.and_then(zone).cloned();
    Some(Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: services::hostname(pod, service).map(str::to_owned),
        node_name,
        target_ref: Some(services::target(pod)),
        zone,
        ..Endpoint::default()
    })
}

/// Labels of the service, and those that identify the slice's owner.
fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = services::labels(service);
    labels.insert(SERVICE_NAME.to_owned(), service.metadata.name.clone().unwrap_or_default());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    labels
}

fn slice(
    service: &Service,
    family: &str,
    ports: Vec<EndpointPort>,
    endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    let name = service.metadata.name.as_deref().unwrap_or_default();
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{name}-")),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels(service)),
            owner_references: Some(vec![controller_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: family.to_owned(),
        endpoints: Some(endpoints),
        ports: Some(ports),
    }
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

    fn pods(count: usize) -> Vec<(Arc<Pod>, Option<Arc<Node>>)> {
        (0..count)
            .map(|number| {
                let mut pod = ready_at(pod(&format!("p{number:03}"), "Running"), 1);
                let ip = format!("10.1.{}.{}", number / 200, number % 200 + 1);
                pod.status.get_or_insert_default().pod_ips = Some(vec![PodIP { ip }]);
                (Arc::new(pod), None)
            })
            .collect()
    }

    fn planned(
        service: &Service,
        pods: &[(Arc<Pod>, Option<Arc<Node>>)],
        existing: &[Arc<EndpointSlice>],
    ) -> EndpointSlicePlan {
        plan(&ObservedEndpoints { service, pods, existing, shares: None, since: None, full: 100 })
    }

    /// Slices after applying a plan.
    fn after(existing: &[Arc<EndpointSlice>], plan: EndpointSlicePlan) -> Vec<Arc<EndpointSlice>> {
        let mut slices: Vec<Arc<EndpointSlice>> = existing.to_vec();
        slices.retain(|slice| !plan.delete.iter().any(|gone| gone.metadata.uid == slice.metadata.uid));
        for new in plan.update {
            let known =
                slices.iter_mut().find(|slice| slice.metadata.uid == new.metadata.uid).expect("known");
            *known = Arc::new(new);
        }
        for mut new in plan.create {
            new.metadata.uid = Some(format!("uid-{}", slices.len()));
            slices.push(Arc::new(new));
        }
        slices
    }

    #[test]
    fn service_without_pods_has_one_empty_slice() {
        let slices = after(&[], planned(&service(), &[], &[]));
        assert_eq!(slices.len(), 1);
        assert!(endpoints_of(&slices[0]).is_empty());
        let again = planned(&service(), &[], &slices);
        assert!(again.create.is_empty() && again.update.is_empty() && again.delete.is_empty());
    }

    #[test]
    fn slices_are_filled_with_few_writes() {
        let all = pods(250);
        let slices = after(&[], planned(&service(), &all, &[]));
        let sizes: Vec<usize> = slices.iter().map(|slice| endpoints_of(slice).len()).collect();
        assert_eq!(sizes, [100, 100, 50]);
        let quiet = planned(&service(), &all, &slices);
        assert!(quiet.create.is_empty() && quiet.update.is_empty() && quiet.delete.is_empty());
        assert_eq!((&*quiet.moved, quiet.endpoints, quiet.desired), (&[(0, 0)][..], 250, 3));
        let more = pods(260);
        let grown = planned(&service(), &more, &slices);
        assert_eq!((grown.create.len(), grown.update.len()), (0, 1));
        assert_eq!((&*grown.moved, grown.endpoints), (&[(10, 0)][..], 260));
        let slices = after(&slices, grown);
        let fewer = planned(&service(), &more[..100], &slices);
        assert_eq!((fewer.create.len(), fewer.update.len(), fewer.delete.len()), (0, 0, 2));
        assert_eq!((&*fewer.moved, fewer.endpoints, fewer.desired), (&[(0, 160)][..], 100, 1));
        let slices = after(&slices, fewer);
        let none = after(&slices, planned(&service(), &[], &slices));
        assert_eq!((none.len(), endpoints_of(&none[0]).len()), (1, 0));
    }

    #[test]
    fn maximum_of_endpoints_limits_new_slices_and_keeps_existing_ones() {
        let (service, all) = (service(), pods(25));
        let planned = |existing: &[Arc<EndpointSlice>], full| {
            let pods = &all;
            plan(&ObservedEndpoints { service: &service, pods, existing, shares: None, since: None, full })
        };
        let slices = after(&[], planned(&[], 10));
        let sizes: Vec<usize> = slices.iter().map(|slice| endpoints_of(slice).len()).collect();
        assert_eq!(sizes, [10, 10, 5]);
        let smaller = planned(&slices, 4);
        assert!(smaller.create.is_empty() && smaller.update.is_empty() && smaller.delete.is_empty());
    }

    #[test]
    fn pod_readiness_determines_endpoint_conditions() {
        let mut service = service();
        let mut leaving = (*pods(1)[0].0).clone();
        leaving.metadata.deletion_timestamp = Some(time(1));
        let mut node = Node { metadata: meta("n"), ..Node::default() };
        node.metadata.labels = Some([(ZONE.to_owned(), "z".to_owned())].into());
        let conditions = |service: &Service, pod: &Pod| {
            let endpoint = endpoint(pod, Some(&node), service, "IPv4").expect("an address");
            let conditions = endpoint.conditions.clone().expect("conditions");
            ((conditions.ready, conditions.serving, conditions.terminating), endpoint)
        };
        assert_eq!(conditions(&service, &leaving).0, (Some(false), Some(true), Some(true)));
        assert!(endpoint(&leaving, None, &service, "IPv6").is_none());
        let spec = service.spec.get_or_insert_default();
        spec.publish_not_ready_addresses = Some(true);
        let (state, endpoint) = conditions(&service, &leaving);
        assert_eq!(state, (Some(true), Some(true), Some(true)));
        assert_eq!(endpoint.zone.as_deref(), Some("z"));
    }

    #[test]
    fn slices_have_hints_and_trigger_time() {
        let mut all = pods(4);
        for (at, (_, node)) in all.iter_mut().enumerate() {
            let mut known = Node { metadata: meta("n"), ..Node::default() };
            let zone = if at < 3 { "a" } else { "b" };
            known.metadata.labels = Some([(ZONE.to_owned(), zone.to_owned())].into());
            *node = Some(Arc::new(known));
        }
        let shares = Ok([("a".to_owned(), 0.5), ("b".to_owned(), 0.5)].into());
        let service = service();
        let observe = |existing: &[Arc<EndpointSlice>], shares: &Result<Shares, NoHints>, since: i64| {
            let since = Some(time(since).0);
            plan(&ObservedEndpoints {
                service: &service,
                pods: &all,
                existing,
                shares: Some(shares),
                since,
                full: 100,
            })
        };
        let first = observe(&[], &shares, 7);
        assert_eq!(first.sharing, [Sharing::Enabled { family: "IPv4" }]);
        let slices = after(&[], first);
        let zones = |slices: &[Arc<EndpointSlice>]| -> Vec<String> {
            let hints =
                slices.iter().flat_map(|slice| endpoints_of(slice)).filter_map(|one| one.hints.as_ref());
            hints.flat_map(|hints| hints.for_zones.iter().flatten()).map(|zone| zone.name.clone()).collect()
        };
        assert_eq!(zones(&slices), ["b", "a", "a", "b"]);
        assert_eq!(slices[0].metadata.annotations.as_ref().expect("annotations").len(), 1);
        let quiet = observe(&slices, &shares, 9);
        assert!(quiet.create.is_empty() && quiet.update.is_empty() && quiet.sharing.is_empty());
        let broken = observe(&slices, &Err(NoHints::Nodes), 9);
        let disabled = Sharing::Disabled { family: "IPv4", why: NoHints::Nodes };
        assert_eq!(broken.sharing, [disabled]);
        assert!(zones(&after(&slices, broken)).is_empty());
    }

    #[test]
    fn pods_with_different_ports_get_separate_slices() {
        use objects::IntOrString;
        use objects::core::v1::{Container, ContainerPort};
        let mut service = service();
        service.spec.get_or_insert_default().ports.get_or_insert_default()[0].target_port =
            Some(IntOrString::String("http".to_owned()));
        let mut all = pods(3);
        for (number, (pod, _)) in all.iter_mut().enumerate().take(2) {
            let port = ContainerPort {
                name: Some("http".to_owned()),
                container_port: 8000 + i32::try_from(number).expect("small"),
                ..ContainerPort::default()
            };
            let container = Container { ports: Some(vec![port]), ..Container::default() };
            Arc::make_mut(pod).spec.get_or_insert_default().containers = vec![container];
        }
        let slices = after(&[], planned(&service, &all, &[]));
        let mut ports: Vec<Option<i32>> = slices
            .iter()
            .map(|slice| slice.ports.as_ref().and_then(|ports| ports.first()).and_then(|port| port.port))
            .collect();
        ports.sort();
        assert_eq!(ports, [None, Some(8000), Some(8001)]);
    }
}
