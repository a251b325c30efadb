//! Real packets of pods with spoofed sources, in network namespaces that end with the test: a node and two pods.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use crate::addresses::PodRange;
use crate::cni::{Bandwidth, Configuration};
use crate::link;
use crate::ports::Ports;
use crate::rules::Rules;
use crate::test_namespaces::NetworkNamespace;

/// Time in which a forged announcement would arrive; nothing shows that it was dropped.
const SILENCE: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(5);
const A: &str = "10.223.0.2";
const B: &str = "10.223.0.3";
const NODE: &str = "10.223.0.1";
const PORT: u16 = 7000;

impl NetworkNamespace {
    fn receiver(&self) -> UdpSocket {
        self.within(|_| UdpSocket::bind(("0.0.0.0", PORT)).expect("a socket"))
    }

    /// Sends from an address; true if `receiver` got it.
    fn reaches(&self, from: &'static str, to: &'static str, receiver: &UdpSocket, expected: bool) -> bool {
        receiver.set_read_timeout(Some(if expected { PATIENCE } else { SILENCE })).expect("a timeout");
        self.within(move |_| {
            let socket = UdpSocket::bind((from, 0)).expect("a socket");
            // A removed route is a valid result too.
            let _ = socket.send_to(b"x", (to, PORT));
        });
        receiver.recv(&mut [0; 8]).is_ok()
    }
}

/// The node with its bridge, and the pods A and B, in IPv4.
fn world() -> Option<(NetworkNamespace, NetworkNamespace, NetworkNamespace)> {
    world_of("10.223.0.0/24", [A, B])
}

/// The node with its bridge, and two pods with these addresses.
fn world_of(
    range: &'static str,
    [first, second]: [&'static str; 2],
) -> Option<(NetworkNamespace, NetworkNamespace, NetworkNamespace)> {
    let root = rustix::process::geteuid().is_root();
    if !root || Command::new("ip").arg("-V").output().is_err() {
        println!("skipped: needs root and the ip command");
        return None;
    }
    let (node, a, b) = (NetworkNamespace::new()?, NetworkNamespace::new()?, NetworkNamespace::new()?);
    node.within(|_| {
        // Independent of the machine's global bridge settings.
        for name in ["iptables", "ip6tables"] {
            let _ = std::fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{name}"), "0");
        }
    });
    let pods = [("a", first, a.clone()), ("b", second, b.clone())];
    node.within(move |netlink| {
        let configuration: Configuration =
            serde_json::from_str(r#"{"dataDir": "/nonexistent", "bridge": "br-test"}"#).expect("valid");
        let range: PodRange = range.parse().expect("a range");
        link::bridge(netlink, &configuration, std::slice::from_ref(&range)).expect("a bridge");
        let all: Vec<(IpAddr, String)> = pods
            .iter()
            .map(|(name, address, _)| (address.parse().expect("valid"), (*name).to_owned()))
            .collect();
        let directory = tempfile::tempdir().expect("a directory");
        let ports = Ports::read(directory.path()).expect("no ports");
        for (name, address, space) in &pods {
            let rules = Rules {
                bridge: "br-test",
                subnets: std::slice::from_ref(&range),
                cluster: vec![range.around()],
                masquerade: true,
                ports: &ports,
                pods: &all[..1 + usize::from(*name == "b")],
            };
            rules.apply(Some(name)).expect("rules");
            rules.apply(Some(name)).expect("idempotent");
            let pod = link::Pod {
                container: name,
                interface: "eth0",
                namespace: &space.0,
                bandwidth: Bandwidth::default(),
            };
            let addresses = [(address.parse().expect("an address"), &range)];
            link::connect(netlink, &configuration, &pod, &addresses).expect("connected");
        }
    });
    Some((node, a, b))
}

fn arp_table(node: &NetworkNamespace) -> String {
    node.within(|_| std::fs::read_to_string("/proc/thread-self/net/arp").expect("the table"))
}

#[test]
fn pods_with_own_addresses_reach_each_other() {
    let Some((node, a, b)) = world() else { return };
    let (at_b, at_node) = (b.receiver(), node.receiver());
    assert!(a.reaches(A, B, &at_b, true));
    assert!(a.reaches(A, NODE, &at_node, true));
    // Repeatedly through the node, also after its cache would have expired.
    node.ip("neigh flush dev br-test nud reachable");
    assert!(a.reaches(A, B, &at_b, true));
}

#[test]
fn frame_sent_straight_to_neighbour_of_isolated_port_is_dropped() {
    let Some((node, a, b)) = world() else { return };
    let at_b = b.receiver();
    // Simulates a machine where bridged frames bypass the rules.
    node.within(|netlink| {
        for name in ["fe-a", "fe-b"] {
            let port = netlink.link(name).expect("netlink").expect("the port");
            netlink.isolate_port(port.index, true).expect("isolated");
        }
    });
    assert!(a.reaches(A, B, &at_b, true), "through the node");
    a.ip(&format!("neigh replace {B} lladdr 0a:58:0a:df:00:03 dev eth0 nud permanent"));
    a.ip(&format!("route replace {B}/32 dev eth0"));
    assert!(!a.reaches(A, B, &at_b, false), "the frame bypasses the node");
    drop(node);
}

#[test]
fn spoofed_source_address_is_dropped() {
    let Some((node, a, _b)) = world() else { return };
    let at_node = node.receiver();
    for unused in ["10.223.0.77", B, "192.0.2.1"] {
        a.ip(&format!("addr add {unused}/32 dev eth0"));
    }
    for unused in ["10.223.0.77", B, "192.0.2.1"] {
        assert!(!a.reaches(unused, NODE, &at_node, false), "{unused}");
    }
    assert!(a.reaches(A, NODE, &at_node, true), "its own address");
}

#[test]
fn spoofed_hardware_address_is_dropped() {
    let Some((node, a, b)) = world() else { return };
    let at_node = node.receiver();
    for forged in ["0a:58:0a:df:00:03", "02:00:00:00:00:01"] {
        a.ip("link set eth0 down");
        a.ip(&format!("link set eth0 address {forged}"));
        a.ip("link set eth0 up");
        a.ip(&format!("route replace {NODE}/32 dev eth0"));
        assert!(!a.reaches(A, NODE, &at_node, false), "{forged}");
        // Traffic for B still reaches B.
        b.ip(&format!("route replace {NODE}/32 dev eth0"));
        assert!(b.reaches(B, NODE, &at_node, true), "{forged}");
    }
}

#[test]
fn arp_announcement_of_other_pod_does_not_take_over_its_address() {
    let Some((node, a, _b)) = world() else { return };
    let of_b = |table: &str| table.lines().find(|line| line.starts_with(B)).map(str::to_owned);
    let before = of_b(&arp_table(&node)).expect("an entry");
    assert!(before.contains("0a:58:0a:df:00:03"), "{before}");
    a.within(|netlink| {
        let eth0 = netlink.link("eth0").expect("netlink").expect("the interface");
        for _ in 0..5 {
            sys::neighbours::announce(&eth0, B.parse().expect("an address")).expect("announced");
        }
    });
    std::thread::sleep(SILENCE);
    assert_eq!(of_b(&arp_table(&node)), Some(before));
}

#[test]
fn spoofed_packet_sent_straight_to_neighbour_is_dropped() {
    let Some((node, a, b)) = world() else { return };
    let at_b = b.receiver();
    a.ip("addr add 10.223.0.77/32 dev eth0");
    a.ip(&format!("neigh replace {B} lladdr 0a:58:0a:df:00:03 dev eth0 nud permanent"));
    a.ip(&format!("route replace {B}/32 dev eth0"));
    assert!(!a.reaches("10.223.0.77", B, &at_b, false));
    drop(node);
}

/// MAC address of the gateway in a pod's neighbour table.
fn gateway(pod: &NetworkNamespace, address: &str) -> String {
    pod.ip(&format!("neigh show {address} dev eth0"))
        .split_whitespace()
        .skip_while(|field| *field != "lladdr")
        .nth(1)
        .unwrap_or_default()
        .to_owned()
}

/// Announces another pod's address from a pod.
fn announce(pod: &NetworkNamespace, address: &'static str) {
    pod.within(move |netlink| {
        let eth0 = netlink.link("eth0").expect("netlink").expect("the interface");
        for _ in 0..5 {
            sys::neighbours::announce(&eth0, address.parse().expect("an address")).expect("announced");
        }
    });
}

#[test]
fn arp_announcement_does_not_reach_caches_of_neighbours() {
    let Some((node, a, b)) = world() else { return };
    let at_node = node.receiver();
    assert!(b.reaches(B, NODE, &at_node, true));
    let before = gateway(&b, NODE);
    assert!(!before.is_empty(), "an entry of the gateway");
    announce(&a, NODE);
    std::thread::sleep(SILENCE);
    assert_eq!(gateway(&b, NODE), before, "the gateway entry is unchanged");
    assert!(b.reaches(B, NODE, &at_node, true));
}

const A6: &str = "fd00:223::2";
const B6: &str = "fd00:223::3";
const NODE6: &str = "fd00:223::1";

#[test]
fn neighbour_advertisement_does_not_reach_caches_of_neighbours() {
    let Some((node, a, b)) = world_of("fd00:223::/64", [A6, B6]) else { return };
    let at_node = node.within(|_| UdpSocket::bind(("::", PORT)).expect("a socket"));
    assert!(b.reaches(B6, NODE6, &at_node, true));
    let before = gateway(&b, NODE6);
    assert!(!before.is_empty(), "an entry of the gateway");
    announce(&a, NODE6);
    std::thread::sleep(SILENCE);
    assert_eq!(gateway(&b, NODE6), before, "the gateway entry is unchanged");
}

/// A raw socket of ICMPv6 in a pod.
fn icmp(pod: &NetworkNamespace) -> std::os::fd::OwnedFd {
    use rustix::net::{AddressFamily, SocketType, ipproto, socket, sockopt};
    pod.within(|_| {
        let socket = socket(AddressFamily::INET6, SocketType::RAW, Some(ipproto::ICMPV6)).expect("a socket");
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(SILENCE)).expect("a timeout");
        socket
    })
}

/// Types of the messages received by a socket until a timeout.
fn received(socket: &std::os::fd::OwnedFd) -> Vec<u8> {
    let mut types = Vec::new();
    let mut buffer = [0; 256];
    while let Ok((_, length)) = rustix::net::recv(socket, &mut buffer, rustix::net::RecvFlags::empty()) {
        types.extend(buffer[..length].first());
    }
    types
}

#[test]
fn router_advertisement_reaches_no_pod() {
    use rustix::net::{SendFlags, sendto};
    let Some((node, a, b)) = world_of("fd00:223::/64", [A6, B6]) else { return };
    let (at_a, at_b) = (icmp(&a), icmp(&b));
    // Router advertisement with maximum lifetime and a prefix; the receiver checks the hop limit.
    let mut advertisement = vec![134, 0, 0, 0, 64, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
    advertisement.extend([3, 4, 64, 0xc0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    advertisement.extend("fd00:bad::".parse::<Ipv6Addr>().expect("an address").octets());
    let all_nodes: Ipv6Addr = "ff02::1".parse().expect("an address");
    let index = a.within(|netlink| netlink.link("eth0").expect("netlink").expect("the interface").index);
    let to = std::net::SocketAddrV6::new(all_nodes, 0, 0, index);
    let echo = [128, 0, 0, 0, 0, 1, 0, 1];
    let straight = std::net::SocketAddrV6::new(B6.parse().expect("an address"), 0, 0, 0);
    sendto(&at_a, &advertisement, SendFlags::empty(), &to).expect("sent");
    sendto(&at_a, &echo, SendFlags::empty(), &straight).expect("sent");
    let types = received(&at_b);
    assert!(types.contains(&128), "allowed packets arrive: {types:?}");
    assert!(!types.contains(&134), "{types:?}");
    drop(node);
}

#[test]
fn ipv6_spoofed_source_address_is_dropped() {
    let Some((node, a, _b)) = world_of("fd00:223::/64", [A6, B6]) else { return };
    a.ip("addr add fd00:223::77/128 dev eth0 nodad");
    let receiver = node.within(|_| UdpSocket::bind(("::", PORT)).expect("a socket"));
    assert!(a.reaches(A6, NODE6, &receiver, true), "its own address");
    assert!(!a.reaches("fd00:223::77", NODE6, &receiver, false), "another one");
}
