//! Plans as text: the entries of each type of service.

use super::*;
use crate::model::{Endpoint, ServiceName};

fn endpoint(last: u8, local: bool) -> Endpoint {
    Endpoint {
        address: [10, 1, 0, last].into(),
        port: 8080,
        ready: true,
        serving: true,
        terminating: false,
        local,
        zone_hints: Default::default(),
        node_hints: Default::default(),
    }
}

fn service(endpoints: Vec<Endpoint>) -> Service {
    Service {
        name: ServiceName { namespace: "default".into(), name: "web".into() },
        cluster_ips: vec![[10, 96, 0, 9].into()],
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        ports: vec![Port {
            name: String::new(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
            endpoints,
        }],
        affinity_seconds: None,
        internal_local: false,
        external_local: false,
        health_check_port: None,
    }
}

fn text(service: &Service) -> Vec<String> {
    let front = |front: &Frontend| format!("{}:{}", front.address, front.port);
    let line = |entry: &Entry| match entry {
        Entry::Service { front: at, pick } => {
            format!(
                "{} -> {:?} {}{}",
                front(at),
                pick.source,
                pick.count,
                pick.affinity_seconds.map(|s| format!(" for {s}")).unwrap_or_default()
            )
        }
        Entry::Endpoint { front: at, list, index, address, port } => {
            format!("{} {list:?} {index} = {address}:{port}", front(at))
        }
        Entry::Known { front: at, address, .. } => format!("{} knows {address}", front(at)),
        Entry::Hairpin { address } => format!("hairpin {address}"),
        Entry::Virtual { address } => format!("virtual {address}"),
        Entry::Closed { front: at, verdict } => format!("{} {verdict:?}", front(at)),
        Entry::Guarded { front: at, ranges } => format!("{} guarded by {}", front(at), ranges.len()),
    };
    plan(service, &Node::default()).iter().map(line).filter(|line| !line.starts_with("hairpin")).collect()
}

#[test]
fn cluster_ip_lists_endpoints_with_own_node_first() {
    let got = text(&service(vec![endpoint(2, false), endpoint(1, true)]));
    let want = [
        "virtual 10.96.0.9",
        "10.96.0.9:80 -> Inside 2",
        "10.96.0.9:80 Own 0 = 10.1.0.1:8080",
        "10.96.0.9:80 Own 1 = 10.1.0.2:8080",
    ];
    assert_eq!(got, want);
}

#[test]
fn service_without_endpoints_is_rejected() {
    assert_eq!(text(&service(vec![])), ["virtual 10.96.0.9", "10.96.0.9:80 Reject"]);
    let mut local = service(vec![endpoint(1, false)]);
    local.internal_local = true;
    assert_eq!(text(&local), ["virtual 10.96.0.9", "10.96.0.9:80 Drop"]);
}

#[test]
fn node_port_and_load_balancer_get_source_ranges_and_affinity() {
    let mut balanced = service(vec![endpoint(1, false)]);
    balanced.ports[0].node_port = Some(30080);
    balanced.load_balancer_ips = vec![[192, 0, 2, 1].into()];
    balanced.source_ranges = vec!["198.51.100.0/24".parse().expect("a range")];
    balanced.affinity_seconds = Some(60);
    let got = text(&balanced);
    for line in [
        "192.0.2.1:80 -> Outside 1 for 60",
        "192.0.2.1:80 Own 0 = 10.1.0.1:8080",
        "192.0.2.1:80 knows 10.1.0.1",
        "0.0.0.0:30080 -> Outside 1 for 60",
        "0.0.0.0:30080 Own 0 = 10.1.0.1:8080",
        "192.0.2.1:80 guarded by 1",
    ] {
        assert!(got.iter().any(|got| got == line), "{line} in {got:#?}");
    }
}

#[test]
fn external_traffic_policy_local_uses_local_endpoints() {
    let mut local = service(vec![endpoint(1, true), endpoint(2, false)]);
    local.ports[0].node_port = Some(30080);
    local.external_local = true;
    let got = text(&local);
    for line in [
        "10.96.0.9:80 -> Inside 2",
        "0.0.0.0:30080 -> OutsideLocal { elsewhere: 2 } 1",
        "0.0.0.0:30080 Own 0 = 10.1.0.1:8080",
        "0.0.0.0:30080 Elsewhere 1 = 10.1.0.2:8080",
    ] {
        assert!(got.iter().any(|got| got == line), "{line} in {got:#?}");
    }
    // No local endpoints: external packets are dropped, in-cluster ones are served.
    local.ports[0].endpoints = vec![endpoint(2, false)];
    let got = text(&local);
    for line in [
        "0.0.0.0:30080 Drop",
        "0.0.0.0:30080 -> OutsideLocal { elsewhere: 1 } 0",
        "0.0.0.0:30080 Elsewhere 0 = 10.1.0.2:8080",
    ] {
        assert!(got.iter().any(|got| got == line), "{line} in {got:#?}");
    }
}
