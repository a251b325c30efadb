//! Real packets through real rules, in network namespaces without external routes: a node with four pods, three of them
//! on a bridge and one on a separate link, and an external client.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::Deref;
use std::process::Command;
use std::time::Duration;

use policy::feed;
use policy::model::{Name, NamedPort, Pod, Protocol};
use policy::nftables::Nftables;
use policy::state::{Entry, State};
use serde_json::{Value, json};
use testbase::{NetworkNamespaces, ip};

/// Timeout of a packet within this machine, and of one retransmission.
const PATIENCE: Duration = Duration::from_secs(20);
/// Dropped packets cause no reply, so the wait is short.
const SILENCE: Duration = Duration::from_millis(400);

/// Pods by name, with the link and the last part of their addresses; `far` is not on the bridge.
const PODS: [(&str, &str, u8); 4] =
    [("web", "br", 2), ("db", "br", 3), ("job", "br", 4), ("far", "cable", 2)];

/// A namespace for each pod, `node` and `out`.
struct World {
    namespaces: NetworkNamespaces,
}

impl Deref for World {
    type Target = NetworkNamespaces;

    fn deref(&self) -> &NetworkNamespaces {
        &self.namespaces
    }
}

fn v4(pod: &str) -> String {
    let (_, link, last) = PODS.iter().find(|(name, ..)| *name == pod).expect("a pod");
    format!("10.1.{}.{last}", u8::from(*link == "cable"))
}

fn v6(pod: &str) -> String {
    let (_, link, last) = PODS.iter().find(|(name, ..)| *name == pod).expect("a pod");
    format!("fd01:{}::{last}", u8::from(*link == "cable"))
}

impl World {
    fn new() -> Option<Self> {
        let names = PODS.iter().map(|(name, ..)| *name).chain(["node", "out"]);
        let world = Self { namespaces: NetworkNamespaces::new("policy", names)? };
        world.ip("node", "link add br0 type bridge");
        world.ip("node", "addr add 10.1.0.1/24 dev br0");
        world.ip("node", "addr add fd01:0::1/64 dev br0 nodad");
        world.ip("node", "link set br0 up");
        for (name, link, last) in PODS {
            let (inner, node) = (world.name(name), world.name("node"));
            ip(&format!("link add v-{name} netns {node} type veth peer name eth0 netns {inner}"));
            let third = u8::from(link == "cable");
            if link == "br" {
                world.ip("node", &format!("link set v-{name} master br0"));
                world.ip("node", &format!("link set v-{name} type bridge_slave hairpin on"));
            } else {
                world.ip("node", &format!("addr add 10.1.{third}.1/24 dev v-{name}"));
                world.ip("node", &format!("addr add fd01:{third}::1/64 dev v-{name} nodad"));
            }
            world.ip("node", &format!("link set v-{name} up"));
            world.ip(name, &format!("addr add 10.1.{third}.{last}/24 dev eth0"));
            world.ip(name, &format!("addr add fd01:{third}::{last}/64 dev eth0 nodad"));
            world.ip(name, "link set eth0 up");
            world.ip(name, &format!("route add default via 10.1.{third}.1"));
            world.ip(name, &format!("-6 route add default via fd01:{third}::1"));
        }
        let (node, out) = (world.name("node"), world.name("out"));
        ip(&format!("link add v-out netns {node} type veth peer name eth0 netns {out}"));
        for (side, link, last) in [("node", "v-out", 1), ("out", "eth0", 2)] {
            world.ip(side, &format!("addr add 192.0.2.{last}/24 dev {link}"));
            world.ip(side, &format!("addr add 192.0.3.{last}/24 dev {link}"));
            world.ip(side, &format!("link set {link} up"));
        }
        world.ip("out", "route add default via 192.0.2.1");
        let sysctls = &[
            "ipv4/ip_forward",
            "ipv6/conf/all/forwarding",
            "bridge/bridge-nf-call-iptables",
            "bridge/bridge-nf-call-ip6tables",
        ];
        world.enable("node", sysctls);
        for (name, ..) in PODS {
            world.serve(name);
        }
        world.serve("out");
        Some(world)
    }

    /// Echo servers of both protocols and families on two ports.
    fn serve(&self, name: &'static str) {
        for port in [8080_u16, 8081] {
            let (tcp, udp) = self.within(name, move || {
                (
                    TcpListener::bind(("::", port)).expect("listening"),
                    UdpSocket::bind(("::", port)).expect("listening"),
                )
            });
            std::thread::spawn(move || {
                for stream in tcp.incoming() {
                    let Ok(mut stream) = stream else { continue };
                    std::thread::spawn(move || {
                        let mut byte = [0];
                        while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
                    });
                }
            });
            std::thread::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok((length, peer)) = udp.recv_from(&mut buffer) {
                    let _ = udp.send_to(&buffer[..length], peer);
                }
            });
        }
    }

    fn connect(&self, from: &str, to: &str, patience: Duration) -> Option<TcpStream> {
        let to: SocketAddr = to.parse().expect("an address");
        self.within(from, move || {
            let stream = TcpStream::connect_timeout(&to, patience).ok()?;
            stream.set_read_timeout(Some(patience)).ok()?;
            Some(stream)
        })
    }

    fn tcp(&self, from: &str, to: &str, expected: bool) {
        let patience = if expected { PATIENCE } else { SILENCE };
        let answered = self.connect(from, to, patience).is_some_and(|mut stream| echo(&mut stream));
        assert_eq!(answered, expected, "TCP from {from} to {to}\n{}", self.rules());
    }

    fn udp(&self, from: &str, to: &str, expected: bool) {
        let to: SocketAddr = to.parse().expect("an address");
        let patience = if expected { PATIENCE } else { SILENCE };
        let answered = self.within(from, move || {
            let socket =
                UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).expect("a socket");
            socket.set_read_timeout(Some(patience)).expect("a timeout");
            socket.send_to(b"x", to).is_ok() && socket.recv(&mut [0; 8]).is_ok()
        });
        assert_eq!(answered, expected, "UDP from {from} to {to}\n{}", self.rules());
    }

    /// The rules as `nft` prints them, if it is installed.
    fn rules(&self) -> String {
        let output =
            Command::new("ip").args(["netns", "exec", &self.name("node"), "nft", "list", "ruleset"]).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
    }

    fn begin(&self) -> Enforced<'_> {
        let backend =
            self.within("node", || Nftables::open(sys::instance::Instance::MAIN).expect("a netlink socket"));
        let mut state = State::default();
        state.set_namespace("n", Some([("name".to_owned(), "n".to_owned())].into()));
        state.set_namespace("m", Some([("name".to_owned(), "m".to_owned())].into()));
        for (name, link, _) in PODS {
            let namespace = if link == "br" { "n" } else { "m" };
            state.set_pod(&Name::new(namespace, name), Some(pod(name)));
        }
        state.commit();
        backend.replace(&state.whole()).expect("an empty table");
        Enforced { world: self, backend, state }
    }
}

fn echo(stream: &mut TcpStream) -> bool {
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut [0]).is_ok()
}

fn pod(name: &str) -> Pod {
    let named = NamedPort { name: "http".to_owned(), protocol: Protocol::Tcp };
    Pod {
        labels: BTreeMap::from([("app".to_owned(), name.to_owned())]),
        addresses: [v4(name), v6(name)].iter().map(|text| text.parse().expect("an address")).collect(),
        ports: [(named, if name == "db" { 8081 } else { 8080 })].into(),
        local: true,
    }
}

struct Enforced<'a> {
    world: &'a World,
    backend: Nftables,
    state: State,
}

impl Enforced<'_> {
    fn policy(&mut self, name: &str, spec: Value) {
        let object = json!({ "metadata": { "namespace": "n", "name": name }, "spec": spec });
        let policy = feed::policy(&serde_json::from_value(object).expect("a policy")).expect("understood");
        self.state.set_policy(&Name::new("n", name), Some(policy));
        self.apply();
    }

    fn remove(&mut self, name: &str) {
        self.state.set_policy(&Name::new("n", name), None);
        self.apply();
    }

    fn apply(&mut self) {
        let difference = self.state.commit();
        self.backend
            .apply(&difference)
            .unwrap_or_else(|error| panic!("{error:?} in {difference:#?}\n{}", self.world.rules()));
    }
}

fn at(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Both families, to the port that all pods serve.
fn both(world: &World, from: &str, pod: &str, expected: bool) {
    world.tcp(from, &at(&v4(pod), 8080), expected);
    world.tcp(from, &at(&v6(pod), 8080), expected);
}

#[test]
fn ingress_policies_are_enforced() {
    let Some(world) = World::new() else { return };
    let mut rules = world.begin();
    both(&world, "web", "db", true);
    rules.policy("deny", json!({ "podSelector": { "matchLabels": { "app": "db" } } }));
    for from in ["web", "far"] {
        both(&world, from, "db", false);
    }
    world.tcp("out", &at(&v4("db"), 8080), false);
    world.udp("web", &at(&v4("db"), 8080), false);
    // The node reaches its pods, the pod reaches others and itself, other pods reach each other.
    both(&world, "node", "db", true);
    both(&world, "db", "web", true);
    both(&world, "db", "db", true);
    both(&world, "job", "web", true);
    world.tcp("db", &at("10.1.0.1", 8080), false); // No listener: refused, not dropped.
    // Policies are additive: another one allows one peer.
    rules.policy(
        "from-web",
        json!({
            "podSelector": { "matchLabels": { "app": "db" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "web" } } }] }],
        }),
    );
    both(&world, "web", "db", true);
    world.udp("web", &at(&v6("db"), 8080), true);
    both(&world, "job", "db", false);
    both(&world, "far", "db", false);
    // The same labels in another namespace do not match.
    let mut relabelled = pod("far");
    relabelled.labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    rules.state.set_pod(&Name::new("m", "far"), Some(relabelled));
    rules.apply();
    both(&world, "far", "db", false);
    rules.policy(
        "from-m",
        json!({
            "podSelector": {},
            "ingress": [{ "from": [{ "namespaceSelector": { "matchLabels": { "name": "m" } } }] }],
        }),
    );
    both(&world, "far", "db", true);
    both(&world, "far", "web", true);
    both(&world, "job", "web", false);
    // The namespace has another name: its pods do not match.
    rules.state.set_namespace("m", Some(BTreeMap::new()));
    rules.apply();
    both(&world, "far", "db", false);
    for policy in ["deny", "from-web", "from-m"] {
        rules.remove(policy);
    }
    assert!(rules.state.is_idle());
    both(&world, "far", "db", true);
    world.tcp("out", &at(&v4("db"), 8080), true);
    rules.backend.remove().expect("removed");
    rules.backend.remove().expect("removing nothing");
}

#[test]
fn egress_policies_are_enforced() {
    let Some(world) = World::new() else { return };
    let mut rules = world.begin();
    rules.policy(
        "out",
        json!({ "podSelector": { "matchLabels": { "app": "web" } }, "policyTypes": ["Egress"] }),
    );
    both(&world, "web", "db", false);
    both(&world, "web", "far", false);
    world.tcp("web", &at("192.0.2.2", 8080), false);
    both(&world, "db", "web", true);
    rules.policy(
        "out",
        json!({
            "podSelector": { "matchLabels": { "app": "web" } }, "policyTypes": ["Egress"],
            "egress": [
                { "to": [{ "podSelector": { "matchLabels": { "app": "db" } } }], "ports": [{ "port": "http" }] },
                { "to": [{ "ipBlock": { "cidr": "192.0.0.0/16", "except": ["192.0.3.0/24"] } }] },
            ],
        }),
    );
    // The name has another number in that pod.
    world.tcp("web", &at(&v4("db"), 8081), true);
    world.tcp("web", &at(&v6("db"), 8081), true);
    world.tcp("web", &at(&v4("db"), 8080), false);
    both(&world, "web", "job", false);
    world.tcp("web", &at("192.0.2.2", 8080), true);
    world.tcp("web", &at("192.0.3.2", 8080), false);
    // Ports that nodes serve themselves are open, on any node.
    rules.state.set_open([Entry::Port([192, 0, 3, 2].into(), Protocol::Udp, 8081)].into());
    rules.apply();
    world.udp("web", &at("192.0.3.2", 8081), true);
    world.udp("web", &at("192.0.3.2", 8080), false);
    // Egress of the source and ingress of the destination must both allow it.
    rules.policy("deny", json!({ "podSelector": { "matchLabels": { "app": "db" } } }));
    world.tcp("web", &at(&v4("db"), 8081), false);
}

#[test]
fn policy_ports_match_by_number_name_and_range() {
    let Some(world) = World::new() else { return };
    let mut rules = world.begin();
    let spec = |ports: Value| {
        json!({ "podSelector": { "matchLabels": { "app": "db" } }, "ingress": [{
            "ports": ports,
            "from": [{ "podSelector": {} }, { "ipBlock": { "cidr": "0.0.0.0/0" } }, { "ipBlock": { "cidr": "::/0" } }],
        }] })
    };
    let check = |tcp: [bool; 2], udp: [bool; 2]| {
        for address in [v4("db"), v6("db")] {
            for (at_port, port) in [8080, 8081].into_iter().enumerate() {
                world.tcp("web", &at(&address, port), tcp[at_port]);
                world.udp("web", &at(&address, port), udp[at_port]);
            }
        }
        world.tcp("out", &at(&v4("db"), 8080), tcp[0]);
    };
    rules.policy("ports", spec(json!([{ "port": 8080 }])));
    check([true, false], [false, false]);
    rules.policy(
        "ports",
        spec(json!([{ "port": 8000, "endPort": 8080 }, { "protocol": "UDP", "port": 8081 }])),
    );
    check([true, false], [false, true]);
    rules.policy("ports", spec(json!([{ "protocol": "UDP" }, { "port": "http" }])));
    check([false, true], [true, true]);
    rules.policy("ports", spec(json!([{ "protocol": "SCTP" }, { "port": "nobody" }])));
    check([false, false], [false, false]);
}

/// A policy affects new connections only.
#[test]
fn established_connections_survive_new_policies() {
    let Some(world) = World::new() else { return };
    let mut rules = world.begin();
    let mut connections: Vec<TcpStream> = [("web", v4("db")), ("far", v6("db"))]
        .into_iter()
        .map(|(from, to)| world.connect(from, &at(&to, 8080), PATIENCE).expect("connected"))
        .collect();
    assert!(connections.iter_mut().all(echo));
    rules.policy("deny", json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }));
    both(&world, "web", "db", false);
    assert!(connections.iter_mut().all(echo), "{}", world.rules());
}

/// Policies apply to the pods behind a service: translation happens before.
#[test]
fn policy_applies_to_pods_behind_a_service() {
    let Some(world) = World::new() else { return };
    let script = "add table ip services; \
         add chain ip services pre { type nat hook prerouting priority -100; }; \
         add rule ip services pre ip daddr 10.96.0.1 tcp dport 80 dnat to 10.1.0.3:8080; \
         add rule ip services pre ip daddr 10.96.0.2 tcp dport 80 dnat to 10.1.0.2:8080; \
         add chain ip services post { type nat hook postrouting priority 100; }; \
         add rule ip services post ct status dnat ip saddr 192.0.2.0/24 masquerade; \
         add rule ip services post ct status dnat ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade";
    let output = Command::new("ip").args(["netns", "exec", &world.name("node"), "nft", script]).output();
    if !output.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: needs the nft command to play the proxy");
        return;
    }
    let mut rules = world.begin();
    world.tcp("web", "10.96.0.1:80", true);
    rules.policy(
        "from-web",
        json!({ "podSelector": { "matchLabels": { "app": "db" } }, "ingress": [{
            "from": [{ "podSelector": { "matchLabels": { "app": "web" } } }], "ports": [{ "port": 8080 }],
        }] }),
    );
    world.tcp("web", "10.96.0.1:80", true);
    world.tcp("far", "10.96.0.1:80", false);
    world.tcp("out", "10.96.0.1:80", false);
    rules.policy(
        "from-outside",
        json!({ "podSelector": { "matchLabels": { "app": "db" } }, "ingress": [{
            "from": [{ "ipBlock": { "cidr": "192.0.2.2/32" } }],
        }] }),
    );
    world.tcp("out", "10.96.0.1:80", true);
    rules.policy(
        "web-out",
        json!({ "podSelector": { "matchLabels": { "app": "web" } }, "egress": [{
        "to": [{ "podSelector": { "matchLabels": { "app": "job" } } }],
    }] }),
    );
    world.tcp("web", "10.96.0.1:80", false);
    // A pod always reaches itself, also through a service.
    world.tcp("web", "10.96.0.2:80", true);
}
