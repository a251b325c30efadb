//! Real packets through real rules, in network namespaces without external routes: a node between an external client
//! and two pods. One battery, for every backend that this machine can run.

mod sctp;
mod world;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use proxy::backend::{self, Backend, Mode};
use proxy::model::{Endpoint, Node, Port, Protocol, Service, ServiceName};
use proxy::plan::plan;
use proxy::stale::Answers;
use proxy::state::{Difference, State};
use proxy::userspace::Userspace;
use sys::instance::Instance;
use world::{PATIENCE, World};

const PODS: [&str; 2] = ["10.1.0.2", "10.1.1.2"];
const PODS_V6: [&str; 2] = ["fd01::2", "fd01:1::2"];

fn endpoint(address: &str, local: bool) -> Endpoint {
    Endpoint {
        address: address.parse().expect("an address"),
        port: 8080,
        ready: true,
        serving: true,
        terminating: false,
        local,
        zone_hints: Default::default(),
        node_hints: Default::default(),
    }
}

fn service(addresses: &[&str]) -> Service {
    let endpoints = addresses.iter().map(|address| endpoint(address, true)).collect();
    Service {
        name: ServiceName { namespace: "default".into(), name: "web".into() },
        cluster_ips: vec!["10.96.0.9".parse().expect("v4"), "fd96::9".parse().expect("v6")],
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        ports: vec![Port {
            name: String::new(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: Some(30080),
            endpoints,
        }],
        affinity_seconds: None,
        internal_local: false,
        external_local: false,
        health_check_port: None,
    }
}

/// A backend and its services.
struct Serving<'a> {
    world: &'a World,
    backend: Arc<dyn Backend>,
    state: State,
}

impl Serving<'_> {
    /// Applies a service as a difference.
    fn set(&mut self, service: &Service) {
        let difference = self.state.set(&service.name, plan(service, &Node::default()));
        self.apply(difference).unwrap_or_else(|error| panic!("{error:?}"));
    }

    fn remove(&mut self, service: &Service) {
        let difference = self.state.set(&service.name, vec![]);
        self.apply(difference).unwrap_or_else(|error| panic!("{error:?}"));
    }

    fn apply(&self, difference: Difference) -> Result<(), backend::BackendError> {
        let (backend, state) = (Arc::clone(&self.backend), self.state.clone());
        self.world.within("node", move || backend.apply(&difference, &state))
    }

    fn replace(&self) {
        let (backend, state) = (Arc::clone(&self.backend), self.state.clone());
        self.world.within("node", move || backend.replace(&state)).expect("all at once");
    }

    fn is_intact(&self) -> bool {
        let backend = Arc::clone(&self.backend);
        self.world.within("node", move || backend.is_intact()).expect("verified")
    }

    fn clean_up(&self) {
        let backend = Arc::clone(&self.backend);
        self.world.within("node", move || backend.remove()).expect("removed");
    }
}

fn begin(world: &World, mode: Mode) -> Option<Serving<'_>> {
    world.serve("pod0");
    world.serve("pod1");
    let serving = Serving { world, backend: world.backend(mode)?, state: State::default() };
    serving.replace();
    Some(serving)
}

/// Responding endpoints, over many connections.
fn answers(world: &World, from: &str, to: &str) -> std::collections::BTreeSet<String> {
    (0..16).map(|_| world.request(from, to).unwrap_or_else(|error| format!("{error}"))).collect()
}

/// Client address as seen by endpoints: the node's for a relay, preserved by the kernel where possible.
fn seen<'a>(mode: Mode, preserved: &'a str, replaced: &'a str) -> &'a str {
    if mode == Mode::Userspace { replaced } else { preserved }
}

fn texts(all: &[&str]) -> std::collections::BTreeSet<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

fn service_changes_apply_to_cluster_ip_and_node_port(mode: Mode) {
    let Some(world) = World::new() else { return };
    let Some(mut serving) = begin(&world, mode) else { return };
    // No endpoints yet: rejected immediately, not timed out.
    serving.set(&service(&[]));
    assert_eq!(world.request("out", "10.96.0.9:80"), Err(std::io::ErrorKind::ConnectionRefused));
    assert_eq!(world.request("node", "10.96.0.9:80"), Err(std::io::ErrorKind::ConnectionRefused));
    assert_eq!(world.request("out", "192.0.2.1:30080"), Err(std::io::ErrorKind::ConnectionRefused));
    serving.set(&service(&PODS));
    // From outside the pods: with the node's address. From a pod: with its own, except to itself.
    assert_eq!(answers(&world, "out", "10.96.0.9:80"), texts(&["pod0 10.1.0.1", "pod1 10.1.1.1"]));
    assert_eq!(answers(&world, "node", "10.96.0.9:80"), texts(&["pod0 10.1.0.1", "pod1 10.1.1.1"]));
    let from_pod = texts(&[seen(mode, "pod0 10.1.1.2", "pod0 10.1.0.1"), "pod1 10.1.1.1"]);
    assert_eq!(answers(&world, "pod1", "10.96.0.9:80"), from_pod);
    assert_eq!(answers(&world, "out", "192.0.2.1:30080"), texts(&["pod0 10.1.0.1", "pod1 10.1.1.1"]));
    assert_eq!(answers(&world, "pod0", "192.0.2.1:30080"), texts(&["pod0 10.1.0.1", "pod1 10.1.1.1"]));
    // A port that the service does not have.
    assert_eq!(world.request("out", "10.96.0.9:81"), Err(std::io::ErrorKind::ConnectionRefused));
    // One endpoint is removed, then all, then the service.
    serving.set(&service(&PODS[..1]));
    assert_eq!(answers(&world, "out", "10.96.0.9:80"), texts(&["pod0 10.1.0.1"]));
    assert_eq!(
        answers(&world, "pod0", "10.96.0.9:80"),
        texts(&["pod0 10.1.0.1"]),
        "a pod that speaks to itself"
    );
    serving.set(&service(&[]));
    assert_eq!(world.request("pod1", "10.96.0.9:80"), Err(std::io::ErrorKind::ConnectionRefused));
    serving.remove(&service(&[]));
    assert!(serving.state.whole().is_empty());
    serving.clean_up();
    serving.clean_up();
    // Without the rules nothing responds.
    assert_eq!(world.request("out", "192.0.2.1:30080"), Err(std::io::ErrorKind::ConnectionRefused));
}

fn service_serves_ipv6_and_udp(mode: Mode) {
    let Some(world) = World::new() else { return };
    let Some(mut serving) = begin(&world, mode) else { return };
    let mut both = service(&[PODS[0], PODS[1], PODS_V6[0], PODS_V6[1]]);
    let udp = Port { protocol: Protocol::Udp, ..both.ports[0].clone() };
    both.ports.push(udp);
    serving.set(&both);
    assert_eq!(answers(&world, "out", "[fd96::9]:80"), texts(&["pod0 fd01::1", "pod1 fd01:1::1"]));
    let from_pod = texts(&[seen(mode, "pod0 fd01:1::2", "pod0 fd01::1"), "pod1 fd01:1::1"]);
    assert_eq!(answers(&world, "pod1", "[fd96::9]:80"), from_pod);
    assert_eq!(answers(&world, "out", "[fd02::1]:30080"), texts(&["pod0 fd01::1", "pod1 fd01:1::1"]));
    let got: std::collections::BTreeSet<String> =
        (0..16).map(|_| world.request_udp("pod1", "10.96.0.9:80")).collect();
    assert_eq!(got, texts(&[seen(mode, "pod0 10.1.1.2", "pod0 10.1.0.1"), "pod1 10.1.1.1"]));
    let got: std::collections::BTreeSet<String> =
        (0..16).map(|_| world.request_udp("out", "192.0.2.1:30080")).collect();
    assert_eq!(got, texts(&["pod0 10.1.0.1", "pod1 10.1.1.1"]));
}

fn local_traffic_policy_preserves_client_address(mode: Mode) {
    let Some(world) = World::new() else { return };
    let Some(mut serving) = begin(&world, mode) else { return };
    let mut local = service(&PODS);
    local.external_local = true;
    local.external_ips = vec!["198.51.100.7".parse().expect("v4")];
    local.ports[0].endpoints[1].local = false;
    serving.set(&local);
    let from_outside = texts(&[seen(mode, "pod0 192.0.2.2", "pod0 10.1.0.1")]);
    assert_eq!(answers(&world, "out", "192.0.2.1:30080"), from_outside);
    assert_eq!(answers(&world, "out", "198.51.100.7:80"), from_outside);
    // Clients in the cluster are not restricted to the node.
    let from_pod = texts(&[seen(mode, "pod0 10.1.1.2", "pod0 10.1.0.1"), "pod1 10.1.1.1"]);
    assert_eq!(answers(&world, "pod1", "198.51.100.7:80"), from_pod);
    assert_eq!(answers(&world, "node", "198.51.100.7:80"), texts(&["pod0 10.1.0.1", "pod1 10.1.1.1"]));
}

fn session_affinity_returns_client_to_endpoint(mode: Mode) {
    let Some(world) = World::new() else { return };
    let Some(mut serving) = begin(&world, mode) else { return };
    let mut affine = service(&PODS);
    affine.affinity_seconds = Some(60);
    serving.set(&affine);
    let first = answers(&world, "out", "10.96.0.9:80");
    assert_eq!(first.len(), 1, "{first:?}");
    // The affinity endpoint is removed: the client is sent to the other one.
    let gone = if first.contains("pod0 10.1.0.1") { 0 } else { 1 };
    affine.ports[0].endpoints.remove(gone);
    serving.set(&affine);
    let second = answers(&world, "out", "10.96.0.9:80");
    assert_eq!(second.len(), 1, "{second:?}");
    assert!(first.is_disjoint(&second), "{first:?} {second:?}");
    assert_eq!(answers(&world, "out", "192.0.2.1:30080").len(), 1);
}

fn load_balancer_source_ranges_reject_other_clients(mode: Mode) {
    let Some(world) = World::new() else { return };
    let Some(mut serving) = begin(&world, mode) else { return };
    let mut balanced = service(&PODS[..1]);
    balanced.load_balancer_ips = vec!["198.51.100.8".parse::<IpAddr>().expect("v4")];
    balanced.source_ranges = vec!["192.0.2.0/24".parse().expect("a range")];
    serving.set(&balanced);
    assert_eq!(answers(&world, "out", "198.51.100.8:80"), texts(&["pod0 10.1.0.1"]));
    balanced.source_ranges = vec!["203.0.113.0/24".parse().expect("a range")];
    serving.set(&balanced);
    // A relay accepts the connection before it checks the source.
    let refused = if mode == Mode::Userspace {
        std::io::ErrorKind::ConnectionReset
    } else {
        std::io::ErrorKind::TimedOut
    };
    assert_eq!(world.request_briefly("out", "198.51.100.8:80"), Err(refused));
    assert_eq!(answers(&world, "out", "10.96.0.9:80"), texts(&["pod0 10.1.0.1"]));
    serving.remove(&balanced);
}

fn service_change_among_many_is_a_small_difference(mode: Mode) {
    let Some(world) = World::new() else { return };
    let Some(mut serving) = begin(&world, mode) else { return };
    for number in 0..if mode == Mode::Nftables { 2000 } else { 200_u16 } {
        let mut one = service(&PODS);
        one.name.name = format!("web-{number}");
        one.cluster_ips = vec![[10, 97, (number >> 8) as u8, number as u8].into()];
        one.ports[0].node_port = None;
        serving.state.set(&one.name, plan(&one, &Node::default()));
    }
    serving.replace();
    assert_eq!(answers(&world, "out", "10.97.0.199:80").len(), 2);
    let mut one = service(&PODS[..1]);
    one.name.name = "web-199".into();
    one.cluster_ips = vec![[10, 97, 0, 199].into()];
    one.ports[0].node_port = None;
    let difference = serving.state.set(&one.name, plan(&one, &Node::default()));
    assert!(difference.added.len() + difference.removed.len() < 8, "{difference:#?}");
    serving.apply(difference).expect("a small change");
    assert_eq!(answers(&world, "out", "10.97.0.199:80").len(), 1);
}

/// A client with a fixed port reaches a new endpoint as soon as the old one is removed.
fn udp_flow_moves_when_endpoint_is_removed(mode: Mode) {
    let Some(world) = World::new() else { return };
    let Some(mut serving) = begin(&world, mode) else { return };
    let mut udp = service(&PODS);
    udp.ports[0].protocol = Protocol::Udp;
    serving.set(&udp);
    let socket = world.within("pod0", || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket"));
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let to: SocketAddr = "10.96.0.9:80".parse().expect("an address");
    let request = || {
        socket.send_to(b"who", to).expect("sent");
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).ok()?;
        String::from_utf8_lossy(&buffer[..length]).split(' ').next().map(str::to_owned)
    };
    let first = request().expect("an answer");
    assert_eq!(request().as_ref(), Some(&first), "one flow, one endpoint");
    udp.ports[0].endpoints.remove(if first == "pod0" { 0 } else { 1 });
    serving.set(&udp);
    let noted = udp.clone();
    let forgotten = world.within("node", move || {
        let mut answers = Answers::default();
        answers.note(&noted);
        answers.forget_others()
    });
    // The relay manages its flows itself.
    if mode != Mode::Userspace {
        assert_eq!(forgotten.expect("flows are seen"), [1, 0]);
    }
    eventually(|| {
        // Packets to the removed endpoint may be lost.
        match request() {
            Some(now) if now != first => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

/// Retries until it succeeds, for a minute.
fn eventually(mut attempt: impl FnMut() -> Result<(), String>) {
    let begun = std::time::Instant::now();
    while let Err(found) = attempt() {
        assert!(begun.elapsed() < Duration::from_secs(60), "still: {found}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server in a pod that sends a greeting, echoes its input after the client's end of stream, and sends more.
fn serve_echo(world: &World, name: &'static str, port: u16, more: usize) {
    let listener = world.within(name, move || TcpListener::bind(("0.0.0.0", port)).expect("listening"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            std::thread::spawn(move || {
                let mut got = Vec::new();
                if stream.write_all(b"!").is_ok() && stream.read_to_end(&mut got).is_ok() {
                    got.resize(got.len() + more, b'+');
                    let _ = stream.write_all(&got);
                }
            });
        }
    });
}

/// A connection continues when its endpoint or service is removed; the end of one direction is forwarded while the
/// other continues, with more data than any buffer holds.
fn tcp_connection_survives_service_changes(mode: Mode) {
    let Some(world) = World::new() else { return };
    let Some(mut serving) = begin(&world, mode) else { return };
    const MORE: usize = 8 << 20;
    serve_echo(&world, "pod0", 8081, MORE);
    let mut echo = service(&PODS[..1]);
    echo.ports[0].endpoints[0].port = 8081;
    serving.set(&echo);
    let connect = || {
        let mut stream = world.within("out", || TcpStream::connect("10.96.0.9:80").expect("a connection"));
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let mut greeting = [0];
        stream.read_exact(&mut greeting).expect("a greeting");
        stream
    };
    let converse = |mut stream: TcpStream| {
        stream.write_all(b"hello").expect("sent");
        stream.shutdown(std::net::Shutdown::Write).expect("ended");
        let mut got = Vec::new();
        stream.read_to_end(&mut got).expect("an answer");
        assert_eq!((&got[..5], got.len()), (&b"hello"[..], 5 + MORE));
    };
    converse(connect());
    let (endpoint_leaves, service_leaves) = (connect(), connect());
    serving.set(&service(&[]));
    converse(endpoint_leaves);
    serving.remove(&echo);
    converse(service_leaves);
    assert!(world.request_briefly("node", "10.96.0.9:80").is_err());
}

/// Services of two clusters of one machine.
fn instances_in_one_namespace_are_independent(mode: Mode) {
    let Some(world) = World::new() else { return };
    let Some(mut first) = begin(&world, mode) else { return };
    let Some(backend) = world.backend_of(mode, Instance::new(0x1a2b_3c4d)) else { return };
    let mut second = Serving { world: &world, backend, state: State::default() };
    second.replace();
    let mut other = service(&PODS[1..]);
    other.cluster_ips = vec!["10.112.0.9".parse().expect("v4")];
    other.ports[0].node_port = Some(30081);
    first.set(&service(&PODS[..1]));
    second.set(&other);
    let both = |what: &str| {
        assert_eq!(answers(&world, "out", "10.96.0.9:80"), texts(&["pod0 10.1.0.1"]), "{what}");
        assert_eq!(answers(&world, "out", "10.112.0.9:80"), texts(&["pod1 10.1.1.1"]), "{what}");
        assert_eq!(answers(&world, "out", "192.0.2.1:30080"), texts(&["pod0 10.1.0.1"]), "{what}");
        assert_eq!(answers(&world, "out", "192.0.2.1:30081"), texts(&["pod1 10.1.1.1"]), "{what}");
    };
    both("both instances");
    first.replace();
    both("the first was applied again");
    assert!(first.is_intact() && second.is_intact());
    second.clean_up();
    assert!(world.request_briefly("out", "192.0.2.1:30081").is_err());
    assert_eq!(answers(&world, "out", "10.96.0.9:80"), texts(&["pod0 10.1.0.1"]), "the second was removed");
    assert!(first.is_intact() && !second.is_intact());
    second.replace();
    both("the second was applied again");
    assert!(first.is_intact() && second.is_intact());
}

/// The rules of the last run serve until the first plan is applied.
fn opened_backend_leaves_existing_rules(mode: Mode) {
    let Some(world) = World::new() else { return };
    let Some(mut first) = begin(&world, mode) else { return };
    first.set(&service(&PODS));
    assert_eq!(answers(&world, "out", "10.96.0.9:80").len(), 2);
    let Some(backend) = world.backend(mode) else { return };
    assert_eq!(answers(&world, "out", "10.96.0.9:80").len(), 2, "opened");
    let next = Serving { world: &world, backend, state: first.state.clone() };
    next.replace();
    assert_eq!(answers(&world, "out", "10.96.0.9:80").len(), 2, "applied");
}

/// Runs each test with the backends that its row names.
macro_rules! battery {
    ($($backend:ident $mode:ident: $($test:ident),* ;)*) => {
        $(mod $backend {
            $(#[test] fn $test() { super::$test(super::Mode::$mode); })*
        })*
    };
    ($($test:ident),* $(,)?) => {
        battery! {
            nftables Nftables: $($test,)* instances_in_one_namespace_are_independent, opened_backend_leaves_existing_rules;
            iptables Iptables: $($test,)* instances_in_one_namespace_are_independent, opened_backend_leaves_existing_rules;
            ipvs Ipvs: $($test),*;
            userspace Userspace: $($test,)* instances_in_one_namespace_are_independent;
        }
    };
}

// IPVS has one table of virtual services in a network namespace, and its addresses are those of a link, which a new
// backend replaces. Rules of the userspace backend end with its process.
battery!(
    service_changes_apply_to_cluster_ip_and_node_port,
    service_serves_ipv6_and_udp,
    local_traffic_policy_preserves_client_address,
    session_affinity_returns_client_to_endpoint,
    load_balancer_source_ranges_reject_other_clients,
    service_change_among_many_is_a_small_difference,
    udp_flow_moves_when_endpoint_is_removed,
    tcp_connection_survives_service_changes,
);

/// Without privileges, node ports are served, and other ports at loopback addresses; the rest is reported.
#[test]
fn userspace_without_privileges_serves_node_ports_and_loopback() {
    let Some(world) = World::new() else { return };
    world.serve("pod0");
    let mut web = service(&[PODS[0], PODS_V6[0]]);
    web.ports.push(Port {
        protocol: Protocol::Udp,
        node_port: None,
        name: "u".into(),
        ..web.ports[0].clone()
    });
    let served = world.within("node", move || {
        let none = rustix::thread::CapabilitySets {
            effective: rustix::thread::CapabilitySet::empty(),
            permitted: rustix::thread::CapabilitySet::empty(),
            inheritable: rustix::thread::CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, none).expect("given up");
        let backend = Userspace::open(Node::default()).expect("a backend");
        let mut state = State::default();
        state.set(&web.name, plan(&web, &Node::default()));
        backend.replace(&state).expect("what can be served");
        backend
    });
    for (from, to) in [("node", "127.96.0.9:10080"), ("node", "127.0.0.1:30080"), ("out", "192.0.2.1:30080")]
    {
        assert_eq!(world.request(from, to), Ok("pod0 10.1.0.1".to_owned()), "{to}");
    }
    assert_eq!(world.request("out", "[fd02::1]:30080"), Ok("pod0 fd01::1".to_owned()));
    assert_eq!(world.request_udp("node", "127.96.0.9:10080"), "pod0 10.1.0.1");
    let unserved: Vec<String> = served.unserved().iter().map(|(front, _)| front.to_string()).collect();
    assert_eq!(unserved, ["[fd96::9]:80/TCP", "[fd96::9]:80/UDP"]);
    // Its sockets are closed with it.
    drop(served);
    assert_eq!(world.request("out", "192.0.2.1:30080"), Err(std::io::ErrorKind::ConnectionRefused));
}

/// A mode that the kernel does not support is skipped.
#[test]
fn unsupported_mode_falls_back_to_the_next() {
    let Some(world) = World::new() else { return };
    let found =
        world.within("node", || backend::open(Some(Mode::Ipvs), &Node::default()).map(|one| one.mode()));
    let expected = if std::path::Path::new("/proc/net/ip_vs").exists() { Mode::Ipvs } else { Mode::Nftables };
    assert_eq!(found.expect("another"), expected);
}
