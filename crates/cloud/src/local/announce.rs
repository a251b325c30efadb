//! Answers for addresses of a pool: of the nodes that could, one has the address on its link, and the kernel answers
//! ARP and neighbour discovery for it. Every node runs this and comes to the same conclusion by itself.
//!
//! Watches services, nodes and endpoint slices; writes addresses of this machine.

use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::tasks::TaskGroup;
use objects::core::v1::{Node, Service};
use objects::discovery::v1::EndpointSlice;
use runtime::{Change, Informers};
use sys::netlink::{Link, Netlink};
use tokio::sync::Notify;

use super::{Pool, held};
use crate::service::{is_backend, wants};

/// Changes that come within this time are made together.
const GATHER: Duration = Duration::from_millis(20);
const RETRY: Duration = Duration::from_secs(5);
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Keeps the addresses of `node` up to date until `tasks` stop; then takes them away, so that others can have them.
pub fn run(node: String, pool: Pool, informers: Informers, tasks: TaskGroup) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let (services, nodes, slices) =
            (informers.of::<Service>(), informers.of::<Node>(), informers.of::<EndpointSlice>());
        let changed = Arc::new(Notify::new());
        let told = Arc::clone(&changed);
        services.on_event(move |_| told.notify_one());
        let told = Arc::clone(&changed);
        nodes.on_event(move |change| {
            let same = matches!(change, Change::Updated { old, new } if could(old) == could(new));
            if !same {
                told.notify_one();
            }
        });
        let told = Arc::clone(&changed);
        slices.on_event(move |_| told.notify_one());
        let stopping = tasks.stopping();
        tokio::pin!(stopping);
        tokio::select! {
            () = &mut stopping => return,
            () = async { services.synced().await; nodes.synced().await; slices.synced().await } => {}
        }
        loop {
            let wanted = wanted(&node, &pool, &services.all(), &nodes.all(), &slices.all());
            let outcome = settle(&pool, &wanted);
            if let Err(error) = &outcome {
                tracing::warn!(%error, "addresses of load balancers could not be set; trying again");
            }
            let next = async {
                tokio::select! {
                    () = tokio::time::sleep(RETRY), if outcome.is_err() => {}
                    () = changed.notified() => tokio::time::sleep(GATHER).await,
                }
            };
            tokio::select! {
                () = &mut stopping => {
                    let _ = settle(&pool, &BTreeSet::new());
                    return;
                }
                () = next => {}
            }
        }
    })
}

/// Whether a node could answer for an address.
fn could(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    is_backend(node) && conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True")
}

/// The addresses that are `node`'s to answer for.
#[must_use]
pub fn wanted(
    node: &str,
    pool: &Pool,
    services: &[Arc<Service>],
    nodes: &[Arc<Node>],
    slices: &[Arc<EndpointSlice>],
) -> BTreeSet<IpAddr> {
    let able: BTreeSet<&str> =
        nodes.iter().filter(|node| could(node)).filter_map(|node| node.metadata.name.as_deref()).collect();
    let ours = services.iter().filter(|service| wants(service));
    let addresses = ours.flat_map(|service| {
        let local =
            service.spec.as_ref().and_then(|spec| spec.external_traffic_policy.as_deref()) == Some("Local");
        let serving = local.then(|| serving(service, slices));
        let candidates: Vec<&str> = able
            .iter()
            .copied()
            .filter(|name| serving.as_ref().is_none_or(|serving| serving.contains(*name)))
            .collect();
        let mine =
            move |address: &IpAddr| pool.contains(*address) && owner(*address, &candidates) == Some(node);
        held(service).into_iter().filter(mine)
    });
    addresses.collect()
}

/// The nodes with endpoints that serve.
fn serving(service: &Service, slices: &[Arc<EndpointSlice>]) -> BTreeSet<String> {
    let of_service = |slice: &&Arc<EndpointSlice>| {
        let label = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_LABEL));
        slice.metadata.namespace == service.metadata.namespace && label == service.metadata.name.as_ref()
    };
    let endpoints = slices.iter().filter(of_service).flat_map(|slice| slice.endpoints.iter().flatten());
    let ready = endpoints.filter(|endpoint| {
        endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
    });
    ready.filter_map(|endpoint| endpoint.node_name.clone()).collect()
}

/// The node that answers for an address: for each another one, and the fewest change when one comes or goes.
fn owner<'a>(address: IpAddr, candidates: &[&'a str]) -> Option<&'a str> {
    let weight = |name: &&&str| {
        let mut hasher = DefaultHasher::new();
        (address, **name).hash(&mut hasher);
        hasher.finish()
    };
    candidates.iter().max_by_key(weight).copied()
}

/// Gives links the addresses that are wanted and takes away others of the pool.
fn settle(pool: &Pool, wanted: &BTreeSet<IpAddr>) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    let links: Vec<Link> = netlink.links()?;
    let mut present: BTreeMap<IpAddr, (usize, u8)> = BTreeMap::new();
    let mut networks: Vec<(usize, IpAddr, u8)> = Vec::new();
    for (at, link) in links.iter().enumerate() {
        for (address, prefix) in netlink.addresses(&link.name)? {
            // One of the pool with a network around it is the machine's own.
            let single = prefix == if address.is_ipv4() { 32 } else { 128 };
            if pool.contains(address) && single {
                present.insert(address, (at, prefix));
            } else if link.up && !address.is_loopback() {
                networks.push((at, address, prefix));
            }
        }
    }
    for (address, (at, prefix)) in present.iter().filter(|(address, _)| !wanted.contains(address)) {
        netlink.remove_address(&links[*at].name, *address, *prefix)?;
    }
    for address in wanted.iter().filter(|address| !present.contains_key(address)) {
        let Some((at, ..)) = networks.iter().find(|(_, own, prefix)| same_network(*own, *address, *prefix))
        else {
            tracing::warn!(%address, "no link of this node is in the network of a load balancer's address");
            continue;
        };
        let link = &links[*at];
        netlink.add_address(&link.name, *address, if address.is_ipv4() { 32 } else { 128 })?;
        // Those who knew another machine by this address learn of the change at once.
        if let Err(error) = sys::neighbours::announce(link, *address) {
            tracing::warn!(%error, %address, link = link.name, "an address could not be announced");
        }
        tracing::info!(%address, link = link.name, "answers for the address of a load balancer");
    }
    Ok(())
}

fn same_network(own: IpAddr, other: IpAddr, prefix: u8) -> bool {
    match (own, other) {
        (IpAddr::V4(own), IpAddr::V4(other)) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or(0);
            own.to_bits() & mask == other.to_bits() & mask
        }
        (IpAddr::V6(own), IpAddr::V6(other)) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix.into())).unwrap_or(0);
            own.to_bits() & mask == other.to_bits() & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(name: &str, ready: &str) -> Arc<Node> {
        let value = json!({ "metadata": { "name": name }, "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
        Arc::new(serde_json::from_value(value).expect("a node"))
    }

    fn service(last: u8, policy: &str) -> Arc<Service> {
        let value = json!({
            "metadata": { "name": format!("s{last}"), "namespace": "n" },
            "spec": { "type": "LoadBalancer", "externalTrafficPolicy": policy, "ports": [{ "port": 80 }] },
            "status": { "loadBalancer": { "ingress": [{ "ip": format!("192.0.2.{last}") }] } },
        });
        Arc::new(serde_json::from_value(value).expect("a service"))
    }

    fn slice(service: &str, node: &str, ready: Value) -> Arc<EndpointSlice> {
        let value = json!({
            "metadata": { "name": "x", "namespace": "n", "labels": { SERVICE_LABEL: service } }, "addressType": "IPv4",
            "endpoints": [{ "addresses": ["10.0.0.1"], "nodeName": node, "conditions": { "ready": ready } }],
        });
        Arc::new(serde_json::from_value(value).expect("a slice"))
    }

    #[test]
    fn every_address_has_one_node_and_moves_with_it() {
        let pool = Pool::parse(&["192.0.2.1-192.0.2.200".to_owned()]).expect("a pool");
        let services: Vec<Arc<Service>> =
            (1..=60).chain([250]).map(|last| service(last, "Cluster")).collect();
        let mut nodes = vec![node("a", "True"), node("b", "True"), node("c", "True"), node("sick", "False")];
        let of = |name: &str, nodes: &[Arc<Node>]| wanted(name, &pool, &services, nodes, &[]);
        let before: Vec<BTreeSet<IpAddr>> = ["a", "b", "c", "sick"].map(|name| of(name, &nodes)).to_vec();
        assert_eq!(before.iter().map(BTreeSet::len).sum::<usize>(), 60, "those of the pool, once each");
        assert!(before[..3].iter().all(|own| own.len() > 8), "{before:?}");
        assert!(before[3].is_empty());
        // One is lost: only its addresses move.
        nodes[2] = node("c", "Unknown");
        assert!(of("a", &nodes).is_superset(&before[0]) && of("b", &nodes).is_superset(&before[1]));
        assert_eq!(of("a", &nodes).len() + of("b", &nodes).len(), 60);
    }

    #[test]
    fn local_services_are_where_their_pods_are() {
        let pool = Pool::parse(&["192.0.2.0/24".to_owned()]).expect("a pool");
        let (services, nodes) = ([service(1, "Local")], [node("a", "True"), node("b", "True")]);
        for (slices, a, b) in [
            (vec![slice("s1", "b", json!(true))], 0, 1),
            (vec![slice("s1", "a", json!(true))], 1, 0),
            (vec![slice("s1", "a", json!(false))], 0, 0),
            (vec![slice("other", "a", json!(true))], 0, 0),
        ] {
            let of = |name| wanted(name, &pool, &services, &nodes, &slices).len();
            assert_eq!((of("a"), of("b")), (a, b), "{slices:?}");
        }
    }
}
