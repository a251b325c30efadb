//! The first packet of a flow through a virtual address, with few services and with many: there and back, over UDP, from
//! a new socket each time.

use super::report::Line;
use super::rules::{cluster_ip, program};
use crate::ServicesArguments;
use anyhow::{Context, Result};
use ipnet::IpNet;
use proxy::model::{Endpoint, Node, Port, Protocol, Service, ServiceName};
use proxy::nftables::Nftables;
use proxy::plan::plan;
use proxy::state::State;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use sys::netlink::{Netlink, Route, RouteOwner};

/// Flows per measurement, alternating, so that disturbances affect both.
const FLOWS: usize = 2000;
const TURNS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(5);
const OWN: [u8; 4] = [10, 1, 0, 1];
const FRONT: u32 = 900_000;

pub fn measure(arguments: &ServicesArguments) -> Result<Vec<Line>> {
    let own = IpAddr::from(OWN);
    let mut netlink = Netlink::open()?;
    netlink.set_up("lo")?;
    netlink.add_bridge("pods", 1500)?;
    netlink.add_address("pods", own, 24)?;
    netlink.set_up("pods")?;
    let interface = netlink.link("lo")?.context("no loopback")?.index;
    let destination = IpNet::new(IpAddr::from([10, 96, 0, 0]), 11)?;
    let route = Route { destination, gateway: None, interface, source: Some(own), gateway_on_link: false };
    netlink.set_route(&route, RouteOwner { protocol: 176, metric: None }).context("a route for services")?;
    let server = UdpSocket::bind((own, 8080)).context("an endpoint")?;
    let echo = server.try_clone()?;
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, peer)) = echo.recv_from(&mut buffer) {
            let _ = echo.send_to(&buffer[..length], peer);
        }
    });
    let backend = Nftables::open(Node::default()).context("failed to open nftables")?;
    let (mut few, mut many) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        for (services, times) in [(10, &mut few), (arguments.services, &mut many)] {
            let (mut state, _) = program(&backend, services, arguments.endpoints)?;
            add(&backend, &mut state)?;
            flows(times)?;
        }
    }
    backend.remove().context("failed to remove all rules")?;
    let (few, many) = (median(&mut few), median(&mut many));
    let line =
        |name: String, unit, ferry: f64| Line { name, unit, ferry, other: None, more_is_better: false };
    Ok(vec![
        line("first packet there and back, 10 services, p50".into(), "µs", few),
        line(format!("the same, {} services", arguments.services), "µs", many),
        line("ratio".into(), "×", many / few),
    ])
}

/// The service that is measured.
fn add(backend: &Nftables, state: &mut State) -> Result<()> {
    let endpoint = Endpoint {
        address: OWN.into(),
        port: 8080,
        ready: true,
        serving: true,
        terminating: false,
        local: true,
        zone_hints: Default::default(),
        node_hints: Default::default(),
    };
    let service = Service {
        name: ServiceName { namespace: "default".into(), name: "echo".into() },
        cluster_ips: vec![cluster_ip(FRONT)],
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        ports: vec![Port {
            name: String::new(),
            protocol: Protocol::Udp,
            port: 53,
            node_port: None,
            endpoints: vec![endpoint],
        }],
        affinity_seconds: None,
        internal_local: false,
        external_local: false,
        health_check_port: None,
    };
    let difference = state.set(&service.name, plan(&service, &Node::default()));
    backend.apply(&difference).context("the service to measure")
}

fn flows(times: &mut Vec<Duration>) -> Result<()> {
    let to = SocketAddr::new(cluster_ip(FRONT), 53);
    let mut buffer = [0; 64];
    for flow in 0..FLOWS {
        let socket = UdpSocket::bind((IpAddr::from(OWN), 0))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect(to)?;
        let begun = Instant::now();
        socket.send(b"first")?;
        socket.recv(&mut buffer).context("no answer through the service")?;
        // Warm-up.
        if flow >= FLOWS / 10 {
            times.push(begun.elapsed());
        }
    }
    Ok(())
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}
