//! Announces addresses of a pool: one of the eligible nodes has the address on its link, and the kernel answers ARP
//! and neighbour discovery for it. Every node computes the same assignment independently.
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
use ipnet::IpNet;
use objects::core::v1::{Node, Service};
use objects::discovery::v1::EndpointSlice;
use runtime::{Change, Informers};
use sys::netlink::{Link, Netlink};
use tokio::sync::Notify;

use super::{Pool, status_addresses};
use crate::service::{is_backend, needs_load_balancer};

/// Changes within this time are applied together.
const DEBOUNCE: Duration = Duration::from_millis(20);
const RETRY: Duration = Duration::from_secs(5);
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Reconciles the addresses of `node` until `tasks` stop; then removes them, so that other nodes can announce them.
pub fn run(node: String, pool: Pool, informers: Informers, tasks: TaskGroup) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let (services, nodes, slices) =
            (informers.of::<Service>(), informers.of::<Node>(), informers.of::<EndpointSlice>());
        let changed = Arc::new(Notify::new());
        let notify = Arc::clone(&changed);
        services.on_event(move |_| notify.notify_one());
        let notify = Arc::clone(&changed);
        nodes.on_event(move |change| {
            let same = matches!(change, Change::Updated { old, new } if is_eligible(old) == is_eligible(new));
            if !same {
                notify.notify_one();
            }
        });
        let notify = Arc::clone(&changed);
        slices.on_event(move |_| notify.notify_one());
        let synced = async {
            services.synced().await;
            nodes.synced().await;
            slices.synced().await;
        };
        if tasks.until_stopped(synced).await.is_none() {
            return;
        }
        loop {
            let wanted = wanted(&node, &pool, &services.all(), &nodes.all(), &slices.all());
            let outcome = apply_addresses(&pool, &wanted);
            if let Err(error) = &outcome {
                tracing::warn!(%error, "failed to configure load balancer addresses, retrying");
            }
            let next = async {
                tokio::select! {
                    () = tokio::time::sleep(RETRY), if outcome.is_err() => {}
                    () = changed.notified() => tokio::time::sleep(DEBOUNCE).await,
                }
            };
            if tasks.until_stopped(next).await.is_none() {
                let _ = apply_addresses(&pool, &BTreeSet::new());
                return;
            }
        }
    })
}

/// True if a node is eligible to announce addresses.
fn is_eligible(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    is_backend(node) && conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True")
}

/// Addresses that `node` announces.
#[must_use]
pub fn wanted(
    node: &str,
    pool: &Pool,
    services: &[Arc<Service>],
    nodes: &[Arc<Node>],
    slices: &[Arc<EndpointSlice>],
) -> BTreeSet<IpAddr> {
    let able: BTreeSet<&str> = nodes
        .iter()
        .filter(|node| is_eligible(node))
        .filter_map(|node| node.metadata.name.as_deref())
        .collect();
    let ours = services.iter().filter(|service| needs_load_balancer(service));
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
        status_addresses(service).into_iter().filter(mine)
    });
    addresses.collect()
}

/// Nodes with serving endpoints.
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

/// Node that announces an address, by rendezvous hashing: addresses are spread, and few move when a node is added or
/// removed.
fn owner<'a>(address: IpAddr, candidates: &[&'a str]) -> Option<&'a str> {
    let weight = |name: &&&str| {
        let mut hasher = DefaultHasher::new();
        (address, **name).hash(&mut hasher);
        hasher.finish()
    };
    candidates.iter().max_by_key(weight).copied()
}

/// Adds the desired addresses to links and removes others of the pool.
fn apply_addresses(pool: &Pool, wanted: &BTreeSet<IpAddr>) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    let links: Vec<Link> = netlink.links()?;
    let mut present: BTreeMap<IpAddr, (usize, u8)> = BTreeMap::new();
    let mut networks: Vec<(usize, IpNet)> = Vec::new();
    for (at, link) in links.iter().enumerate() {
        for own in netlink.addresses(&link.name)? {
            let address = own.addr();
            // A pool address with a network prefix is the machine's own.
            if pool.contains(address) && own.prefix_len() == own.max_prefix_len() {
                present.insert(address, (at, own.prefix_len()));
            } else if link.up && !address.is_loopback() {
                networks.push((at, own));
            }
        }
    }
    for (address, (at, prefix)) in present.iter().filter(|(address, _)| !wanted.contains(address)) {
        netlink.remove_address(&links[*at].name, *address, *prefix)?;
    }
    for address in wanted.iter().filter(|address| !present.contains_key(address)) {
        let Some((at, _)) = networks.iter().find(|(_, own)| own.contains(address)) else {
            tracing::warn!(%address, "load balancer address is in no network of this node's links, not announced");
            continue;
        };
        let link = &links[*at];
        netlink.add_address(&link.name, *address, if address.is_ipv4() { 32 } else { 128 })?;
        // Clients with an outdated neighbour entry are notified immediately.
        if let Err(error) = sys::neighbours::announce(link, *address) {
            tracing::warn!(%error, %address, link = link.name, "failed to announce load balancer address");
        }
        tracing::info!(%address, link = link.name, "announced load balancer address");
    }
    Ok(())
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
    fn address_is_announced_by_one_node_and_moves_on_loss() {
        let pool = Pool::parse(&["192.0.2.1-192.0.2.200".to_owned()]).expect("a pool");
        let services: Vec<Arc<Service>> =
            (1..=60).chain([250]).map(|last| service(last, "Cluster")).collect();
        let mut nodes = vec![node("a", "True"), node("b", "True"), node("c", "True"), node("sick", "False")];
        let of = |name: &str, nodes: &[Arc<Node>]| wanted(name, &pool, &services, nodes, &[]);
        let before: Vec<BTreeSet<IpAddr>> = ["a", "b", "c", "sick"].map(|name| of(name, &nodes)).to_vec();
        assert_eq!(before.iter().map(BTreeSet::len).sum::<usize>(), 60, "each pool address once");
        assert!(before[..3].iter().all(|own| own.len() > 8), "{before:?}");
        assert!(before[3].is_empty());
        // Only addresses of the lost node move.
        nodes[2] = node("c", "Unknown");
        assert!(of("a", &nodes).is_superset(&before[0]) && of("b", &nodes).is_superset(&before[1]));
        assert_eq!(of("a", &nodes).len() + of("b", &nodes).len(), 60);
    }

    #[test]
    fn local_traffic_policy_announces_on_nodes_with_endpoints() {
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
