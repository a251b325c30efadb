//! Real packets of pods that pretend to be others, in network namespaces that end with the test: a node and two pods.

use std::fs::File;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use sys::netlink::Netlink;
use sys::process::{Namespace, enter, unshare};

use crate::addresses::Range;
use crate::cni::{Bandwidth, Configuration};
use crate::link;
use crate::ports::Ports;
use crate::rules::Rules;

const SILENCE: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(5);
const A: &str = "10.223.0.2";
const B: &str = "10.223.0.3";
const NODE: &str = "10.223.0.1";
const PORT: u16 = 7000;

/// A network namespace that lives as long as a descriptor of it is open.
#[derive(Clone)]
struct Space(Arc<File>);

impl Space {
    fn new() -> Option<Self> {
        let made = std::thread::spawn(|| {
            unshare(&[Namespace::Network]).ok()?;
            Netlink::open().ok()?.set_up("lo").ok()?;
            File::open("/proc/thread-self/ns/net").ok()
        });
        made.join().ok()?.map(|file| Self(Arc::new(file)))
    }

    fn within<T: Send + 'static>(&self, body: impl FnOnce(&mut Netlink) -> T + Send + 'static) -> T {
        let file = Arc::clone(&self.0);
        let inside = std::thread::spawn(move || {
            enter(file.as_fd(), Namespace::Network).expect("entering the namespace");
            body(&mut Netlink::open().expect("netlink"))
        });
        inside.join().expect("the thread")
    }

    /// Runs the `ip` command inside.
    fn ip(&self, arguments: &str) {
        let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        self.within(move |_| {
            let output = Command::new("ip").args(&arguments).output().expect("the ip command");
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        });
    }

    fn receiver(&self) -> UdpSocket {
        self.within(|_| UdpSocket::bind(("0.0.0.0", PORT)).expect("a socket"))
    }

    /// Sends from an address and says whether `receiver` got it.
    fn reaches(&self, from: &'static str, to: &'static str, receiver: &UdpSocket, expected: bool) -> bool {
        receiver.set_read_timeout(Some(if expected { PATIENCE } else { SILENCE })).expect("a timeout");
        self.within(move |_| {
            let socket = UdpSocket::bind((from, 0)).expect("a socket");
            // A route that does not exist any more is an answer too.
            let _ = socket.send_to(b"x", (to, PORT));
        });
        receiver.recv(&mut [0; 8]).is_ok()
    }
}

/// The node with its bridge, and the pods A and B.
fn world() -> Option<(Space, Space, Space)> {
    let root = rustix::process::geteuid().is_root();
    if !root || Command::new("ip").arg("-V").output().is_err() {
        println!("skipped: needs root and the ip command");
        return None;
    }
    let (node, a, b) = (Space::new()?, Space::new()?, Space::new()?);
    let pods = [("a", A, a.clone()), ("b", B, b.clone())];
    node.within(move |netlink| {
        let configuration: Configuration =
            serde_json::from_str(r#"{"dataDir": "/nonexistent", "bridge": "br-test"}"#).expect("valid");
        let range: Range = "10.223.0.0/24".parse().expect("a range");
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

fn arp_table(node: &Space) -> String {
    node.within(|_| std::fs::read_to_string("/proc/thread-self/net/arp").expect("the table"))
}

#[test]
fn pods_with_own_addresses_reach_each_other() {
    let Some((node, a, b)) = world() else { return };
    let (at_b, at_node) = (b.receiver(), node.receiver());
    assert!(a.reaches(A, B, &at_b, true));
    assert!(a.reaches(A, NODE, &at_node, true));
    // Through the node again and again, also after its cache would have aged.
    node.ip("neigh flush dev br-test nud reachable");
    assert!(a.reaches(A, B, &at_b, true));
}

#[test]
fn frame_sent_straight_to_neighbour_of_isolated_port_is_dropped() {
    let Some((node, a, b)) = world() else { return };
    let at_b = b.receiver();
    // As it is where bridged frames do not pass the rules.
    node.within(|netlink| {
        for name in ["fe-a", "fe-b"] {
            let port = netlink.link(name).expect("netlink").expect("the port");
            netlink.isolate_port(port.index, true).expect("isolated");
        }
    });
    assert!(a.reaches(A, B, &at_b, true), "through the node");
    a.ip(&format!("neigh replace {B} lladdr 0a:58:0a:df:00:03 dev eth0 nud permanent"));
    a.ip(&format!("route replace {B}/32 dev eth0"));
    assert!(!a.reaches(A, B, &at_b, false), "the frame did not pass the node");
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
        // What is meant for B still goes to B.
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
fn ipv6_spoofed_source_address_is_dropped() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let (Some(node), Some(a)) = (Space::new(), Space::new()) else { return };
    let pod = a.clone();
    node.within(move |netlink| {
        let configuration: Configuration =
            serde_json::from_str(r#"{"dataDir": "/nonexistent", "bridge": "br-test"}"#).expect("valid");
        let range: Range = "fd00:223::/64".parse().expect("a range");
        link::bridge(netlink, &configuration, std::slice::from_ref(&range)).expect("a bridge");
        let address: IpAddr = "fd00:223::2".parse().expect("an address");
        let directory = tempfile::tempdir().expect("a directory");
        let rules = Rules {
            bridge: "br-test",
            subnets: std::slice::from_ref(&range),
            cluster: vec![range.around()],
            masquerade: true,
            ports: &Ports::read(directory.path()).expect("no ports"),
            pods: &[(address, "a".to_owned())],
        };
        rules.apply(Some("a")).expect("rules");
        rules.apply(Some("a")).expect("the same again");
        let pod = link::Pod {
            container: "a",
            interface: "eth0",
            namespace: &pod.0,
            bandwidth: Bandwidth::default(),
        };
        link::connect(netlink, &configuration, &pod, &[(address, &range)]).expect("connected");
    });
    a.ip("addr add fd00:223::77/128 dev eth0 nodad");
    let receiver = node.within(|_| UdpSocket::bind(("::", PORT)).expect("a socket"));
    assert!(a.reaches("fd00:223::2", "fd00:223::1", &receiver, true), "its own address");
    assert!(!a.reaches("fd00:223::77", "fd00:223::1", &receiver, false), "another one");
}
