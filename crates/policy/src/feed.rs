//! Converts API objects to the planner's model.

use std::collections::BTreeSet;
use std::net::IpAddr;

use objects::IntOrString;
use objects::core::v1 as core;
use objects::discovery::v1::EndpointSlice;
use objects::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec};

use crate::model::{NamedPort, Peer, Pod, PodPeer, Policy, Port, Protocol, Rule, Scope};
use crate::ranges::Ranges;
use crate::selector::Selector;
use crate::state::Entry;

/// Addresses of a pod's status.
#[must_use]
pub fn addresses(pod: &core::Pod) -> BTreeSet<IpAddr> {
    let Some(status) = &pod.status else { return BTreeSet::new() };
    let all = status.pod_ips.iter().flatten().map(|address| &address.ip).chain(&status.pod_ip);
    all.filter_map(|text| text.parse().ok()).collect()
}

/// Planner's view of a pod from `node`, with the `early` addresses or those of its status. `None` for a pod without
/// its own address: host network, not yet assigned, or finished, after which another pod may have the address.
#[must_use]
pub fn pod(pod: &core::Pod, node: &str, early: Option<BTreeSet<IpAddr>>) -> Option<Pod> {
    let spec = pod.spec.as_ref()?;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let ended = matches!(phase, Some("Succeeded" | "Failed"));
    if spec.host_network == Some(true) || ended {
        return None;
    }
    let addresses = early.unwrap_or_else(|| self::addresses(pod));
    if addresses.is_empty() {
        return None;
    }
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    let ports = ports.filter_map(|port| {
        let named = NamedPort { name: port.name.clone()?, protocol: protocol(port.protocol.as_deref())? };
        Some((named, u16::try_from(port.container_port).ok()?))
    });
    Some(Pod {
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        addresses,
        ports: ports.collect(),
        local: spec.node_name.as_deref() == Some(node),
    })
}

/// Planner's view of a policy. Parts of a rule that cannot be parsed match nothing.
#[must_use]
pub fn policy(policy: &NetworkPolicy) -> Option<Policy> {
    let namespace = policy.metadata.namespace.as_deref()?;
    let spec = policy.spec.as_ref()?;
    let rules = |applies: bool, rules: Vec<Rule>| applies.then_some(rules);
    let rule = |peers: &Option<Vec<NetworkPolicyPeer>>, ports: &Option<Vec<NetworkPolicyPort>>| Rule {
        peers: peers.as_deref().filter(|peers| !peers.is_empty()).map(|all| self::peers(all, namespace)),
        ports: ports
            .as_deref()
            .filter(|ports| !ports.is_empty())
            .map(|all| sorted(all.iter().filter_map(port))),
    };
    let ingress = spec.ingress.iter().flatten().map(|one| rule(&one.from, &one.ports)).collect();
    let egress = spec.egress.iter().flatten().map(|one| rule(&one.to, &one.ports)).collect();
    Some(Policy {
        selector: spec.pod_selector.as_ref().map(Selector::new).unwrap_or_default(),
        ingress: rules(applies(spec, "Ingress"), ingress),
        egress: rules(applies(spec, "Egress"), egress),
    })
}

/// Without types, a policy applies to ingress, and to egress if it has egress rules.
fn applies(spec: &NetworkPolicySpec, direction: &str) -> bool {
    match spec.policy_types.as_deref() {
        Some(types) if !types.is_empty() => types.iter().any(|one| one == direction),
        _ => direction == "Ingress" || spec.egress.as_ref().is_some_and(|rules| !rules.is_empty()),
    }
}

fn sorted<T: Ord>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Selectors one by one, address blocks together.
fn peers(all: &[NetworkPolicyPeer], namespace: &str) -> Vec<Peer> {
    let blocks = all.iter().filter_map(|peer| peer.ip_block.as_ref());
    let blocks = blocks
        .filter_map(|block| Ranges::new(&block.cidr, block.except.as_deref().unwrap_or_default()))
        .collect();
    let pods = all.iter().filter(|peer| peer.ip_block.is_none());
    let pods = pods.filter_map(|one| pod_peer(one, namespace)).map(Peer::Pods);
    sorted(pods.chain(Ranges::union(blocks).into_iter().map(Peer::Block)))
}

fn pod_peer(peer: &NetworkPolicyPeer, namespace: &str) -> Option<PodPeer> {
    let scope = match (&peer.namespace_selector, &peer.pod_selector) {
        (Some(selector), _) => Scope::Namespaces(Selector::new(selector)),
        (None, Some(_)) => Scope::Namespace(namespace.to_owned()),
        (None, None) => return None,
    };
    let selector = peer.pod_selector.as_ref().map(Selector::new).unwrap_or_default();
    Some(PodPeer { scope, selector })
}

fn port(port: &NetworkPolicyPort) -> Option<Port> {
    let protocol = protocol(port.protocol.as_deref())?;
    Some(match &port.port {
        None => Port::Any(protocol),
        Some(IntOrString::Int(first)) => {
            let last = port.end_port.unwrap_or(*first);
            Port::Numbers(protocol, u16::try_from(*first).ok()?, u16::try_from(last).ok()?)
        }
        Some(IntOrString::String(name)) => Port::Named(NamedPort { name: name.clone(), protocol }),
    })
}

/// Ports of the cluster DNS service that are not served by pods but by Ferry itself, on any node. They are treated like
/// a DNS server on the pod's own node, which it may always reach.
#[must_use]
pub fn name_service<'a>(slices: impl Iterator<Item = &'a EndpointSlice>) -> BTreeSet<Entry> {
    let mut open = BTreeSet::new();
    for slice in slices {
        let ports =
            slice.ports.iter().flatten().filter_map(|port| {
                Some((protocol(port.protocol.as_deref())?, u16::try_from(port.port?).ok()?))
            });
        for (protocol, port) in ports {
            let own = slice.endpoints.iter().flatten().filter(|endpoint| endpoint.target_ref.is_none());
            let addresses = own.flat_map(|endpoint| &endpoint.addresses);
            open.extend(
                addresses
                    .filter_map(|text| text.parse().ok())
                    .map(|address| Entry::Port(address, protocol, port)),
            );
        }
    }
    open
}

fn protocol(name: Option<&str>) -> Option<Protocol> {
    name.map_or(Some(Protocol::Tcp), Protocol::from_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(spec: Value) -> Policy {
        let object = json!({ "metadata": { "namespace": "n", "name": "p" }, "spec": spec });
        policy(&serde_json::from_value(object).expect("a policy")).expect("understood")
    }

    #[test]
    fn policy_without_types_has_ingress_and_egress_if_rules_exist() {
        let none = read(json!({ "podSelector": {} }));
        assert_eq!((none.ingress, none.egress), (Some(vec![]), None));
        let both = read(json!({ "podSelector": {}, "egress": [{}] }));
        let everything = Rule { peers: None, ports: None };
        assert_eq!((both.ingress, both.egress), (Some(vec![]), Some(vec![everything])));
        let out = read(json!({ "podSelector": {}, "policyTypes": ["Egress"] }));
        assert_eq!((out.ingress, out.egress), (None, Some(vec![])));
    }

    #[test]
    fn policy_peers_and_ports_are_converted() {
        let policy = read(json!({ "podSelector": {}, "ingress": [{
            "from": [
                { "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"] } },
                { "podSelector": {} },
                { "namespaceSelector": { "matchLabels": { "a": "b" } } },
                { "ipBlock": { "cidr": "nonsense" } },
                {},
            ],
            "ports": [
                { "port": 80 }, { "protocol": "UDP", "port": 1000, "endPort": 2000 }, { "protocol": "SCTP" },
                { "port": "http" }, { "port": 70000 }, { "protocol": "ICMP" },
            ],
        }] }));
        let rule = &policy.ingress.expect("rules")[0];
        assert_eq!(rule.peers.as_ref().map(Vec::len), Some(3));
        let named = NamedPort { name: "http".to_owned(), protocol: Protocol::Tcp };
        assert_eq!(
            rule.ports.as_deref(),
            Some(
                &[
                    Port::Any(Protocol::Sctp),
                    Port::Numbers(Protocol::Tcp, 80, 80),
                    Port::Numbers(Protocol::Udp, 1000, 2000),
                    Port::Named(named)
                ][..]
            )
        );
        // A non-empty list never becomes "all peers".
        let strange =
            read(json!({ "podSelector": {}, "ingress": [{ "from": [{}], "ports": [{ "port": -1 }] }] }));
        assert_eq!(strange.ingress, Some(vec![Rule { peers: Some(vec![]), ports: Some(vec![]) }]));
    }

    #[test]
    fn finished_pods_have_no_address() {
        for (phase, finished) in vectors::PHASES {
            let object = json!({"spec": {"containers": []}, "status": {"phase": phase, "podIP": "10.0.0.1"}});
            let read = pod(&serde_json::from_value(object).expect("a pod"), "n", None);
            assert_eq!(read.is_none(), finished, "{phase}");
        }
    }

    #[test]
    fn dns_servers_are_pods_or_nodes() {
        let slice = |target: Value| -> EndpointSlice {
            serde_json::from_value(json!({
                "metadata": { "name": "s" }, "addressType": "IPv4",
                "endpoints": [{ "addresses": ["192.0.2.1"], "targetRef": target }],
                "ports": [{ "protocol": "UDP", "port": 10053 }, { "protocol": "TCP", "port": 10053 }],
            }))
            .expect("a slice")
        };
        assert_eq!(name_service([slice(Value::Null)].iter()).len(), 2);
        assert!(name_service([slice(json!({ "kind": "Pod", "name": "coredns" }))].iter()).is_empty());
    }

    #[test]
    fn pod_on_host_network_or_without_address_is_skipped() {
        let mut object = json!({
            "metadata": { "name": "p", "labels": { "a": "b" } },
            "spec": { "nodeName": "here", "containers": [{ "name": "c", "ports": [
                { "name": "http", "containerPort": 8080 }, { "containerPort": 9 },
            ] }] },
            "status": { "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }] },
        });
        let seen =
            |object: &Value| pod(&serde_json::from_value(object.clone()).expect("a pod"), "here", None);
        let one = seen(&object).expect("a pod of the network");
        assert_eq!((one.addresses.len(), one.ports.len(), one.local), (2, 1, true));
        object["spec"]["nodeName"] = json!("there");
        assert!(!seen(&object).expect("a pod").local);
        object["status"]["phase"] = json!("Succeeded");
        assert_eq!(seen(&object), None, "its address may be another's");
        object["status"]["phase"] = json!("Running");
        object["spec"]["hostNetwork"] = json!(true);
        assert_eq!(seen(&object), None, "its address is the node's");
        object["spec"]["hostNetwork"] = json!(false);
        object["status"] = json!({});
        assert_eq!(seen(&object), None, "no address yet");
    }
}
