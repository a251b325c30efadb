//! Real packets between two nodes, in network namespaces that end with the test: on one link, and with a router
//! between.

use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::test_namespaces::NetworkNamespace;

const PATIENCE: Duration = Duration::from_secs(5);

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn view(number: u8, address: &str) -> View {
    let ranges = vec![format!("10.244.{number}.0/24").parse().expect("a range")];
    View { name: format!("node-{number}"), addresses: vec![ip(address)], ranges }
}

const NAMES: Names = Names { instance: Instance::MAIN, network: 1 };

/// A node with a link to `other`, an address, and pods behind a bridge.
fn connect(
    node: &NetworkNamespace,
    other: &NetworkNamespace,
    link: &'static str,
    address: &'static str,
    pods: u8,
) {
    let peer = Arc::clone(&node.0);
    other.within(move |netlink| {
        netlink.add_pair(link, "eth0", peer.as_fd(), 1500).expect("a veth pair");
        netlink.set_up(link).expect("up");
    });
    node.within(move |netlink| {
        netlink.add_address("eth0", ip(address), 24).expect("an address");
        netlink.set_up("eth0").expect("up");
        netlink.add_bridge("pods", 1500).expect("a bridge");
        netlink.add_address("pods", IpAddr::from([10, 244, pods, 1]), 24).expect("an address");
        netlink.set_up("pods").expect("up");
    });
}

/// Returns true if a pod of the second node sees the unchanged address of a pod of the first.
fn reaches(one: &NetworkNamespace, two: &NetworkNamespace) {
    let server = two.within(|_| UdpSocket::bind("10.244.2.1:9000").expect("a server"));
    server.set_read_timeout(Some(PATIENCE)).expect("a limit");
    one.within(|_| {
        let client = UdpSocket::bind("10.244.1.1:0").expect("a client");
        client.send_to(b"hello", "10.244.2.1:9000").expect("sent");
    });
    let (_, from) = server.recv_from(&mut [0; 16]).expect("received");
    assert_eq!(from.ip(), ip("10.244.1.1"));
}

#[test]
fn nodes_on_one_link_get_routes() {
    let (Some(one), Some(two)) = (NetworkNamespace::new(), NetworkNamespace::new()) else {
        return println!("skipped: no permission to create network namespaces");
    };
    connect(&one, &two, "to-one", "172.30.0.1", 1);
    two.within(|netlink| {
        netlink.add_address("to-one", ip("172.30.0.2"), 24).expect("an address");
        netlink.add_bridge("pods", 1500).expect("a bridge");
        netlink.add_address("pods", ip("10.244.2.1"), 24).expect("an address");
        netlink.set_up("pods").expect("up");
    });
    let all = [view(1, "172.30.0.1"), view(2, "172.30.0.2")];
    for (space, number) in [(&one, 0), (&two, 1)] {
        let all = all.clone();
        space.within(move |netlink| {
            let services = ["10.96.0.0/12".parse().expect("a range")];
            let mut peers = BTreeSet::new();
            // Idempotent.
            for _ in 0..2 {
                apply(&all[number], &all, &services, NAMES, &mut peers).expect("routes");
            }
            assert_eq!(netlink.routes(Some(NAMES.owner())).expect("routes").len(), 2, "pods and services");
        });
    }
    reaches(&one, &two);
    one.within(|netlink| {
        remove(Instance::new(7)).expect("another instance's are left");
        assert_eq!(netlink.routes(Some(NAMES.owner())).expect("routes").len(), 2);
        remove(Instance::MAIN).expect("removed");
        assert!(netlink.routes(Some(NAMES.owner())).expect("routes").is_empty());
    });
}

#[test]
fn nodes_behind_a_router_get_a_tunnel() {
    let (Some(one), Some(two), Some(router)) =
        (NetworkNamespace::new(), NetworkNamespace::new(), NetworkNamespace::new())
    else {
        return println!("skipped: no permission to create network namespaces");
    };
    connect(&one, &router, "to-one", "192.168.1.2", 1);
    connect(&two, &router, "to-two", "192.168.2.2", 2);
    router.within(|netlink| {
        netlink.add_address("to-one", ip("192.168.1.1"), 24).expect("an address");
        netlink.add_address("to-two", ip("192.168.2.1"), 24).expect("an address");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forwarding");
    });
    let all = [view(1, "192.168.1.2"), view(2, "192.168.2.2")];
    for (space, number, gateway) in [(&one, 0, "192.168.1.1"), (&two, 1, "192.168.2.1")] {
        let all = all.clone();
        space.within(move |netlink| {
            netlink.add_route(None, Some(ip(gateway)), "eth0").expect("a way out");
            let mut peers = BTreeSet::new();
            for _ in 0..2 {
                apply(&all[number], &all, &[], NAMES, &mut peers).expect("a tunnel");
            }
            assert_eq!(peers.len(), 1);
        });
    }
    reaches(&one, &two);
    // The tunnel is removed with the other node.
    one.within(move |netlink| {
        let mut peers = BTreeSet::from([peer(ip("192.168.2.2"), ip("10.244.2.0"))]);
        apply(&all[0], &all[..1], &[], NAMES, &mut peers).expect("no tunnel");
        assert!(netlink.link(&NAMES.tunnel()).expect("links").is_none());
    });
}
