//! The endpoint slice mirroring loop. Watches user-managed endpoints of services without a selector; keeps equivalent
//! endpoint slices.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use client::delete_options;
use objects::core::v1::{EndpointAddress, Endpoints, Service};
use objects::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use objects::meta::v1::ObjectMeta;
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use tokio::time::Instant;

use crate::shared::adoption::controller_reference;
use crate::shared::metrics;
use crate::shared::slice_figures::{SliceFigures, SliceFiguresByService};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "endpointslice-mirroring-controller",
    resource: "endpoints",
    identity: "system:serviceaccount:kube-system:endpointslicemirroring-controller",
    workers: 5,
};

const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const LAST_CHANGE: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Mirrored addresses per subset, and endpoints per slice.
const MOST_PER_SUBSET: usize = 1000;
const MOST_PER_SLICE: usize = 1000;

struct Mirroring {
    endpoints: Cache<Endpoints>,
    services: Cache<Service>,
    slices: Cache<EndpointSlice>,
    figures: SliceFiguresByService,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let endpoints = ctx.watch_self::<Endpoints>();
    let services = ctx.watch_self::<Service>();
    let slices = ctx.watch::<EndpointSlice>(|change| {
        let meta = &change.object().metadata;
        let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key));
        let ours = label(MANAGED_BY).is_some_and(|manager| manager == MANAGER);
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        label(SERVICE_NAME).filter(|_| ours).map(|name| Key::new(namespace, name)).into_iter().collect()
    });
    let figures = SliceFiguresByService::default();
    if let Some(metrics) = metrics::of(ctx).map(|metrics| &metrics.mirroring) {
        figures.show(ctx, [&metrics.endpoints, &metrics.slices, &metrics.desired_slices]);
    }
    Box::new(Mirroring { endpoints, services, slices, figures })
}

#[async_trait]
impl Loop for Mirroring {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let started = Instant::now();
        let outcome = self.sync(key, ctx).await;
        if let Some(metrics) = metrics::of(ctx) {
            metrics.mirroring.seconds.observe(started.elapsed().as_secs_f64());
        }
        outcome
    }
}

impl Mirroring {
    async fn sync(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let service = self.services.get_key(key);
        let mirrored = self.endpoints.get_key(key).filter(|endpoints| {
            let selects = service.as_ref().map(|service| {
                let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                selector.is_some_and(|selector| !selector.is_empty())
            });
            selects == Some(false) && wants_mirror(&endpoints.metadata)
        });
        let ours = |slice: &EndpointSlice| {
            let label = |name: &str| slice.metadata.labels.as_ref().and_then(|labels| labels.get(name));
            label(MANAGED_BY).is_some_and(|manager| manager == MANAGER)
                && label(SERVICE_NAME).is_some_and(|name| **name == *key.name)
        };
        let known: Vec<_> =
            self.slices.list(&key.namespace).into_iter().filter(|slice| ours(slice)).collect();
        let is_mirrored = mirrored.is_some();
        let (wanted, skipped) = mirrored.map(|endpoints| mirror(&endpoints)).unwrap_or_default();
        let metrics = metrics::of(ctx).map(|metrics| &metrics.mirroring);
        if let Some(metrics) = metrics.filter(|_| is_mirrored || !known.is_empty()) {
            let moved = moved(&wanted, &known);
            metrics.added.observe(moved.added as f64);
            metrics.updated.observe(moved.updated as f64);
            metrics.removed.observe(moved.removed as f64);
            metrics.skipped.observe(skipped as f64);
        }
        if is_mirrored {
            let endpoints = wanted.iter().map(|slice| slice.endpoints.as_ref().map_or(0, Vec::len)).sum();
            let (slices, desired) = (wanted.len(), wanted.len());
            self.figures.set(key, SliceFigures { endpoints, slices, desired, traffic_distribution: None });
        } else {
            self.figures.forget(key);
        }
        let changed = |operation: &str| {
            if let Some(metrics) = metrics {
                metrics.changes.with_label_values(&[operation]).inc();
            }
        };
        let (create, delete) = difference(wanted, &known);
        for slice in create {
            match ctx.client.create(&key.namespace, &slice).await {
                Err(error) if !error.is_namespace_terminating() => return Err(error.into()),
                _ => changed("create"),
            }
        }
        for slice in delete {
            let options = delete_options(slice.metadata.uid.as_deref(), None);
            let name = slice.metadata.name.as_deref().unwrap_or_default();
            match ctx.client.delete::<EndpointSlice>(&key.namespace, name, &options).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => changed("delete"),
            }
        }
        Ok(Action::Done)
    }
}

fn wants_mirror(meta: &ObjectMeta) -> bool {
    let skipped = meta.labels.as_ref().and_then(|labels| labels.get(SKIP)).is_some_and(|skip| skip == "true");
    let election = meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(LEADER));
    !skipped && !election
}

/// Ports, and the endpoints that have them.
type Group = (Vec<EndpointPort>, Vec<Endpoint>);

/// Numbers of endpoints that change.
#[derive(Debug, Default, PartialEq, Eq)]
struct MovedEndpoints {
    added: usize,
    updated: usize,
    removed: usize,
}

fn moved(wanted: &[EndpointSlice], known: &[Arc<EndpointSlice>]) -> MovedEndpoints {
    fn by_address<'a>(slices: impl Iterator<Item = &'a EndpointSlice>) -> BTreeMap<&'a str, &'a Endpoint> {
        let endpoints = slices.flat_map(|slice| slice.endpoints.iter().flatten());
        endpoints.filter_map(|endpoint| Some((endpoint.addresses.first()?.as_str(), endpoint))).collect()
    }
    let (before, after) = (by_address(known.iter().map(AsRef::as_ref)), by_address(wanted.iter()));
    MovedEndpoints {
        added: after.keys().filter(|address| !before.contains_key(*address)).count(),
        updated: after
            .iter()
            .filter(|(address, endpoint)| before.get(*address).is_some_and(|known| known != *endpoint))
            .count(),
        removed: before.keys().filter(|address| !after.contains_key(*address)).count(),
    }
}

/// Slices equivalent to the endpoints, one family and one set of ports each, and the number of addresses that are
/// skipped.
fn mirror(endpoints: &Endpoints) -> (Vec<EndpointSlice>, usize) {
    let mut skipped = 0_usize;
    let mut groups: BTreeMap<(String, &'static str), Group> = BTreeMap::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ports: Vec<EndpointPort> = subset
            .ports
            .iter()
            .flatten()
            .map(|port| EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(port.port),
                protocol: port.protocol.clone(),
                app_protocol: port.app_protocol.clone(),
            })
            .collect();
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let unready = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        for (index, (address, ready)) in ready.chain(unready).enumerate() {
            let (Ok(ip), true) = (address.ip.parse::<IpAddr>(), index < MOST_PER_SUBSET) else {
                skipped = skipped.saturating_add(1);
                continue;
            };
            let family = if ip.is_ipv6() { "IPv6" } else { "IPv4" };
            let key = serde_json::to_string(&ports).unwrap_or_default();
            let (_, all) = groups.entry((key, family)).or_insert_with(|| (ports.clone(), Vec::new()));
            all.push(endpoint(address, ready));
        }
    }
    let mut slices = Vec::new();
    for ((_, family), (ports, all)) in groups {
        for part in all.chunks(MOST_PER_SLICE) {
            slices.push(EndpointSlice {
                metadata: metadata(endpoints),
                address_type: family.to_owned(),
                endpoints: Some(part.to_vec()),
                ports: Some(ports.clone()),
            });
        }
    }
    (slices, skipped)
}

fn metadata(endpoints: &Endpoints) -> ObjectMeta {
    let meta = &endpoints.metadata;
    let name = meta.name.clone().unwrap_or_default();
    let mut labels = meta.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), name.clone());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    annotations.remove(LAST_CHANGE);
    ObjectMeta {
        generate_name: Some(format!("{name}-")),
        namespace: meta.namespace.clone(),
        labels: Some(labels),
        annotations: Some(annotations).filter(|all| !all.is_empty()),
        owner_references: Some(vec![controller_reference(endpoints)]),
        ..ObjectMeta::default()
    }
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

/// Slices to create and slices to delete. A slice with the desired content stays.
fn difference(
    wanted: Vec<EndpointSlice>,
    known: &[Arc<EndpointSlice>],
) -> (Vec<EndpointSlice>, Vec<Arc<EndpointSlice>>) {
    let mut left: Vec<Arc<EndpointSlice>> = known.to_vec();
    let same = |a: &EndpointSlice, b: &EndpointSlice| {
        a.address_type == b.address_type
            && a.endpoints.clone().unwrap_or_default() == b.endpoints.clone().unwrap_or_default()
            && a.ports.clone().unwrap_or_default() == b.ports.clone().unwrap_or_default()
            && a.metadata.labels == b.metadata.labels
            && a.metadata.annotations.clone().unwrap_or_default()
                == b.metadata.annotations.clone().unwrap_or_default()
    };
    let mut create = Vec::new();
    for slice in wanted {
        match left.iter().position(|known| same(&slice, known)) {
            Some(position) => {
                left.swap_remove(position);
            }
            None => create.push(slice),
        }
    }
    (create, left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn endpoints() -> Endpoints {
        serde_json::from_value(json!({
            "metadata": { "name": "db", "namespace": "ns", "uid": "u", "labels": { "a": "b" } },
            "subsets": [{
                "addresses": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }],
                "notReadyAddresses": [{ "ip": "10.0.0.2" }],
                "ports": [{ "name": "sql", "port": 5432, "protocol": "TCP" }],
            }],
        }))
        .expect("endpoints")
    }

    #[test]
    fn mirrored_slices_are_split_by_family() {
        let (slices, skipped) = mirror(&endpoints());
        assert_eq!(skipped, 0);
        let families: Vec<_> = slices.iter().map(|slice| slice.address_type.as_str()).collect();
        assert_eq!(families, ["IPv4", "IPv6"]);
        let ready: Vec<_> = slices[0]
            .endpoints
            .iter()
            .flatten()
            .map(|e| e.conditions.as_ref().and_then(|c| c.ready))
            .collect();
        assert_eq!(ready, [Some(true), Some(false)]);
        let labels = slices[0].metadata.labels.clone().expect("labels");
        assert_eq!(
            (labels["a"].as_str(), labels[SERVICE_NAME].as_str(), labels[MANAGED_BY].as_str()),
            ("b", "db", MANAGER)
        );
    }

    #[test]
    fn equal_slice_is_not_rewritten() {
        let known: Vec<_> = mirror(&endpoints()).0.into_iter().map(Arc::new).collect();
        let (create, delete) = difference(mirror(&endpoints()).0, &known);
        assert!(create.is_empty() && delete.is_empty());
        let mut changed = endpoints();
        changed.subsets.as_mut().expect("subsets")[0].not_ready_addresses = None;
        let wanted = mirror(&changed).0;
        assert_eq!(moved(&wanted, &known), MovedEndpoints { removed: 1, ..MovedEndpoints::default() });
        let (create, delete) = difference(wanted, &known);
        assert_eq!((create.len(), delete.len()), (1, 1));
        assert_eq!(difference(Vec::new(), &known).1.len(), 2);
    }

    #[test]
    fn leader_election_endpoints_are_not_mirrored() {
        let mut meta = endpoints().metadata;
        assert!(wants_mirror(&meta));
        meta.annotations = Some([(LEADER.to_owned(), "x".to_owned())].into());
        assert!(!wants_mirror(&meta));
    }
}
