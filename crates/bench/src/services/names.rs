//! DNS: queries per second, CPU per query, and latency at a steady load. The server is a separate process, which
//! separates its CPU from the client's.

use super::report::Line;
use crate::ServicesArguments;
use crate::process::Processes;
use anyhow::{Context, Result};
use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use dns::config::Config;
use dns::metrics::DnsMetrics;
use dns::records::{Port, Service, Target};
use dns::resolver::Resolver;
use dns::server::Server;
use dns::wire::{Name, rtype};
use dns::zone::Zone;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ADDRESS: &str = "127.0.0.1:10053";
const LOAD: Duration = Duration::from_secs(5);
/// Sockets of the client, and pending queries of each.
const CLIENTS: u32 = 4;
const WINDOW: usize = 32;
/// Queries per second: the figure that CoreDNS publishes for two cores.
const STEADY: f64 = 33_669.0;
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves the names of `services` services until the end of its input.
pub fn serve(address: SocketAddr, services: u32) -> Result<()> {
    let zone = Zone::new("cluster.local", 30, vec![])?;
    zone.set_namespace("default");
    for number in 0..services {
        let port = Port { name: "http".into(), protocol: "tcp", number: 80 };
        let addresses = vec![super::rules::cluster_ip(number)];
        let target = Target::ClusterIps { addresses, ports: vec![port] };
        zone.set_service(&Service { namespace: "default".into(), name: format!("web-{number}"), target })?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let metrics = Metrics::new(&Clock::system())?;
        let resolver = Resolver::new(Arc::new(zone), &Config::default(), DnsMetrics::new(&metrics)?);
        let tasks = TaskGroup::new();
        Server::bind(&[address]).await?.serve(&Arc::new(resolver), &tasks);
        let ended = tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin()));
        let _ = ended.await;
        anyhow::Ok(())
    })
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn question(number: u32, id: u16) -> Result<Vec<u8>> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    message.extend(Name::parse(&format!("web-{number}.default.svc.cluster.local"))?.wire());
    message.extend(rtype::A.to_be_bytes());
    message.extend([0, 1]);
    Ok(message)
}

pub fn measure(arguments: &ServicesArguments) -> Result<Vec<Line>> {
    let program = std::env::current_exe()?;
    let child = Command::new(program)
        .args(["services", "--serve-names", ADDRESS, "--services", &arguments.services.to_string()])
        .stdin(Stdio::piped())
        .spawn()
        .context("failed to start the server")?;
    let server = Running(child);
    let processes = Processes::of(vec![server.0.id()]);
    wait()?;
    let (cpu, begun) = (processes.cpu(), Instant::now());
    let threads: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let services = arguments.services;
            std::thread::spawn(move || closed_loop(client, services))
        })
        .collect();
    let mut answered = 0;
    for thread in threads {
        answered += thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
    }
    let (elapsed, cpu) = (begun.elapsed().as_secs_f64(), processes.cpu().saturating_sub(cpu).as_secs_f64());
    let mut latencies = steady(arguments.services)?;
    latencies.sort_unstable();
    let at = |share: f64| {
        let one = latencies.get((latencies.len() as f64 * share) as usize);
        one.map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    let line = |name: String, unit, ferry: f64, more_is_better| Line {
        name,
        unit,
        ferry,
        other: None,
        more_is_better,
    };
    Ok(vec![
        line(
            "names: queries per second, client on the same cores".into(),
            "1/s",
            answered as f64 / elapsed,
            true,
        ),
        line("names: CPU per query".into(), "µs", cpu * 1e6 / answered.max(1) as f64, false),
        line(
            "names: queries per second of two cores".into(),
            "1/s",
            2.0 * answered as f64 / cpu.max(1e-9),
            true,
        ),
        line(format!("names: p50 at {STEADY:.0} queries per second"), "ms", at(0.5), false),
        line("names: p99 at that load".into(), "ms", at(0.99), false),
        line(
            "names: responses per query at that load".into(),
            "%",
            latencies.len() as f64 * 100.0 / (STEADY * LOAD.as_secs_f64()),
            true,
        ),
    ])
}

fn wait() -> Result<()> {
    let begun = Instant::now();
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    while begun.elapsed() < PATIENCE {
        // A missing listener is a socket error, too.
        let _ = socket.send_to(&question(0, 1)?, ADDRESS);
        if socket.recv(&mut [0; 512]).is_ok() {
            return Ok(());
        }
    }
    anyhow::bail!("the server did not come up")
}

/// Measures the maximum rate of queries.
fn closed_loop(client: u32, services: u32) -> Result<u64> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(ADDRESS)?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    let questions: Vec<Vec<u8>> = (0..1024)
        .map(|at| question((client * 7919 + at * 31) % services, at as u16))
        .collect::<Result<_>>()?;
    let (begun, mut answered, mut next) = (Instant::now(), 0, 0);
    let mut buffer = [0; 512];
    let mut query = || {
        next = (next + 1) % questions.len();
        socket.send(&questions[next])
    };
    for _ in 0..WINDOW {
        query()?;
    }
    while begun.elapsed() < LOAD {
        match socket.recv(&mut buffer) {
            Ok(_) => {
                answered += 1;
                query()?;
            }
            // Lost under load: retried.
            Err(_) => drop(query()?),
        }
    }
    Ok(answered)
}

/// Latency of queries sent at a steady pace, independent of earlier replies.
fn steady(services: u32) -> Result<Vec<Duration>> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(ADDRESS)?;
    socket.set_nonblocking(true)?;
    let questions: Vec<Vec<u8>> =
        (0..=u16::MAX).map(|id| question(u32::from(id) * 31 % services, id)).collect::<Result<_>>()?;
    let mut sent: Vec<Option<Instant>> = vec![None; questions.len()];
    let (begun, mut number, mut latencies) = (Instant::now(), 0_u64, Vec::new());
    let mut buffer = [0; 512];
    while begun.elapsed() < LOAD {
        let due = (begun.elapsed().as_secs_f64() * STEADY) as u64;
        while number < due {
            let id = (number % questions.len() as u64) as usize;
            if socket.send(&questions[id]).is_ok() {
                sent[id] = Some(Instant::now());
            }
            number += 1;
        }
        let mut idle = true;
        while let Ok(length) = socket.recv(&mut buffer) {
            idle = false;
            let id = buffer[..length].first_chunk::<2>().map(|id| usize::from(u16::from_be_bytes(*id)));
            if let Some(at) = id.and_then(|id| sent[id].take()) {
                latencies.push(at.elapsed());
            }
        }
        if idle {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    Ok(latencies)
}
