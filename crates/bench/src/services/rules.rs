//! Programming the kernel: all services from empty, then one endpoint of many.

use super::report::Line;
use crate::ServicesArguments;
use anyhow::{Context, Result};
use proxy::model::{Endpoint, Node, Port, Protocol, Service, ServiceName};
use proxy::nftables::Nftables;
use proxy::plan::plan;
use proxy::state::State;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Endpoint changes that are measured.
const CHANGES: u32 = 200;

/// Service number `number` with `endpoints` endpoints, of which the last one has the address `last`.
pub fn service(number: u32, endpoints: u32, last: u32) -> Service {
    let endpoint = |at: u32| Endpoint {
        address: IpAddr::from((0x0af4_0000_u32 + number * 8 + at).to_be_bytes()),
        port: 8080,
        ready: true,
        serving: true,
        terminating: false,
        local: false,
        zone_hints: Default::default(),
        node_hints: Default::default(),
    };
    let mut all: Vec<Endpoint> = (0..endpoints).map(endpoint).collect();
    if let Some(one) = all.last_mut() {
        one.address = IpAddr::from((0x0b00_0000_u32 + last).to_be_bytes());
    }
    Service {
        name: ServiceName { namespace: "default".into(), name: format!("web-{number}") },
        cluster_ips: vec![cluster_ip(number)],
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        ports: vec![Port {
            name: String::new(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
            endpoints: all,
        }],
        affinity_seconds: None,
        internal_local: false,
        external_local: false,
        health_check_port: None,
    }
}

pub fn cluster_ip(number: u32) -> IpAddr {
    IpAddr::from((0x0a60_0100_u32 + number).to_be_bytes())
}

/// Applies all services; returns the time of planning and of programming.
pub fn program(backend: &Nftables, services: u32, endpoints: u32) -> Result<(State, Duration)> {
    let begun = Instant::now();
    let mut state = State::default();
    for number in 0..services {
        let service = service(number, endpoints, number);
        state.set(&service.name, plan(&service, &Node::default()));
    }
    backend.replace(&state.whole()).context("failed to set all rules")?;
    Ok((state, begun.elapsed()))
}

/// The median time of one endpoint's change.
fn change(backend: &Nftables, state: &mut State, number: u32, endpoints: u32) -> Result<Duration> {
    let mut times = Vec::new();
    for round in 0..CHANGES {
        let service = service(number, endpoints, 1_000_000 + round);
        let begun = Instant::now();
        let difference = state.set(&service.name, plan(&service, &Node::default()));
        backend.apply(&difference).context("failed to change an endpoint")?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

pub fn measure(arguments: &ServicesArguments) -> Result<Vec<Line>> {
    let backend = Nftables::open(Node::default()).context("failed to open nftables")?;
    let (many, endpoints) = (arguments.services, arguments.endpoints);
    let line =
        |name: String, unit, ferry: f64| Line { name, unit, ferry, other: None, more_is_better: false };
    let (mut state, few) = program(&backend, 10, endpoints)?;
    let little = change(&backend, &mut state, 5, endpoints)?;
    let (mut state, all) = program(&backend, many, endpoints)?;
    let much = change(&backend, &mut state, many / 2, endpoints)?;
    backend.remove().context("failed to remove all rules")?;
    Ok(vec![
        line(format!("10 services × {endpoints} endpoints from empty"), "s", few.as_secs_f64()),
        line(format!("{many} services × {endpoints} endpoints from empty"), "s", all.as_secs_f64()),
        line("one endpoint changes, 10 services".into(), "ms", little.as_secs_f64() * 1e3),
        line(format!("one endpoint changes, {many} services"), "ms", much.as_secs_f64() * 1e3),
    ])
}
