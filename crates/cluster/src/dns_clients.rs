//! Clients that cluster DNS answers: the CIDRs of pods and services, and the addresses and pod CIDRs of all nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use base::tasks::TaskGroup;
use dns::clients::parse_range;
use dns::resolver::Resolver;
use ipnet::IpNet;
use objects::core::v1::Node;
use runtime::{Cache, Informers};
use tokio::sync::Notify;

/// Admits `fixed` CIDRs immediately, and the nodes' while `tasks` run.
pub(crate) fn follow(resolver: &Arc<Resolver>, fixed: Vec<IpNet>, informers: &Informers, tasks: &TaskGroup) {
    let nodes = informers.of::<Node>();
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    nodes.on_event(move |_| notify.notify_one());
    resolver.clients.set(fixed.clone());
    let resolver = Arc::clone(resolver);
    tasks.supervise_until_stopped("dns-clients", move || {
        let (resolver, nodes, changed) = (Arc::clone(&resolver), nodes.clone(), Arc::clone(&changed));
        let fixed = fixed.clone();
        async move { refresh(&resolver, &nodes, &fixed, &changed).await }
    });
}

async fn refresh(resolver: &Resolver, nodes: &Cache<Node>, fixed: &[IpNet], changed: &Notify) {
    loop {
        let all = nodes.all();
        let ranges = all.iter().flat_map(|node| ranges_of(node)).chain(fixed.iter().copied());
        resolver.clients.set(ranges.collect::<BTreeSet<_>>());
        changed.notified().await;
    }
}

/// Addresses and pod CIDRs of a node. Host names are skipped.
fn ranges_of(node: &Node) -> Vec<IpNet> {
    let status = node.status.as_ref();
    let addresses = status.and_then(|status| status.addresses.as_ref()).into_iter().flatten();
    let addresses =
        addresses.map(|address| address.address.as_str()).filter(|text| text.parse::<IpAddr>().is_ok());
    let spec = node.spec.as_ref();
    let pods = spec.and_then(|spec| spec.pod_cidrs.as_ref()).into_iter().flatten();
    let pods = pods.chain(spec.and_then(|spec| spec.pod_cidr.as_ref())).map(String::as_str);
    addresses.chain(pods).filter_map(|text| parse_range(text).ok()).collect()
}

/// Parses CIDRs; invalid ones are logged and skipped.
pub(crate) fn parse(texts: &[String]) -> Vec<IpNet> {
    let parsed = texts.iter().map(|text| parse_range(text));
    parsed
        .filter_map(|range| {
            range.inspect_err(|error| tracing::error!(%error, "ignoring invalid DNS client range")).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::core::v1::{NodeAddress, NodeSpec, NodeStatus};

    #[test]
    fn node_addresses_and_pod_cidrs_are_admitted() {
        let address =
            |type_: &str, address: &str| NodeAddress { type_: type_.to_owned(), address: address.to_owned() };
        let node = Node {
            spec: Some(NodeSpec {
                pod_cidr: Some("10.244.1.0/24".to_owned()),
                pod_cidrs: Some(vec!["10.244.1.0/24".to_owned(), "fd44:0:0:1::/64".to_owned()]),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                addresses: Some(vec![
                    address("InternalIP", "192.0.2.7"),
                    address("InternalIP", "2001:db8::7"),
                    address("Hostname", "n1"),
                ]),
                ..NodeStatus::default()
            }),
            ..Node::default()
        };
        let found: BTreeSet<IpNet> = ranges_of(&node).into_iter().collect();
        let texts = ["192.0.2.7", "2001:db8::7", "10.244.1.0/24", "fd44:0:0:1::/64"];
        assert_eq!(found, parse(&texts.map(str::to_owned)).into_iter().collect());
        assert!(ranges_of(&Node::default()).is_empty());
    }
}
