//! A server on loopback with real sockets: the cluster's names, forwarding to another server, truncation and TCP,
//! and malformed queries.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use dns::config::{Config, StubDomain};
use dns::metrics::DnsMetrics;
use dns::records::{Endpoint, Service, Target};
use dns::resolver::Resolver;
use dns::server::Server;
use dns::wire::{Name, rtype};
use dns::zone::Zone;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

struct Running {
    address: SocketAddr,
    metrics: Metrics,
    tasks: TaskGroup,
}

async fn start(domain: &str, config: Config, endpoints: u8) -> Running {
    let zone = Zone::new(domain, 30, vec![]).expect("a zone");
    zone.set_namespace("default");
    let endpoint = |last| Endpoint { address: [10, 1, 0, last].into(), hostname: None, ports: vec![] };
    let target = Target::Headless { endpoints: (0..endpoints).map(endpoint).collect() };
    zone.set_service(&Service { namespace: "default".into(), name: "db".into(), target }).expect("names");
    let tasks = TaskGroup::new();
    let metrics = Metrics::new(&Clock::system()).expect("metrics");
    let server = Server::bind(&[LOOPBACK]).await.expect("sockets");
    let address = server.addresses()[0];
    let resolver = Resolver::new(Arc::new(zone), &config, DnsMetrics::new(&metrics).expect("metrics"));
    server.serve(&Arc::new(resolver), &tasks);
    Running { address, metrics, tasks }
}

fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut message = vec![0x0a, 0x0b, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    message.extend(Name::parse(name).expect("a name").wire());
    message.extend(kind.to_be_bytes());
    message.extend([0, 1]);
    message
}

async fn over_udp(server: SocketAddr, message: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind(LOOPBACK).await.expect("a socket");
    socket.send_to(message, server).await.expect("sent");
    let mut buffer = vec![0; 4096];
    let received = tokio::time::timeout(Duration::from_secs(20), socket.recv(&mut buffer)).await;
    buffer.truncate(received.expect("an answer in time").expect("an answer"));
    buffer
}

/// Code, answers, truncated.
fn summary(reply: &[u8]) -> (u8, u16, bool) {
    (reply[3] & 0xf, u16::from_be_bytes([reply[6], reply[7]]), reply[2] & 2 != 0)
}

#[tokio::test]
async fn small_replies_use_udp_and_large_ones_tcp() {
    let running = start("cluster.local", Config::default(), 60).await;
    let message = question("db.default.svc.cluster.local", rtype::A);
    let reply = over_udp(running.address, &message).await;
    let (code, answers, truncated) = summary(&reply);
    assert!(code == 0 && truncated && answers < 60 && reply.len() <= 512, "{code} {answers} {truncated}");
    let mut stream = TcpStream::connect(running.address).await.expect("a connection");
    for _ in 0..2 {
        stream.write_u16(message.len() as u16).await.expect("sent");
        stream.write_all(&message).await.expect("sent");
        let mut reply = vec![0; usize::from(stream.read_u16().await.expect("a length"))];
        stream.read_exact(&mut reply).await.expect("an answer");
        assert_eq!(summary(&reply), (0, 60, false));
    }
    running.tasks.drain(Duration::from_secs(5)).await.expect("a clean end");
}

#[tokio::test]
async fn equal_upstream_questions_are_sent_once() {
    let elsewhere = start("example.org", Config::default(), 3).await;
    let stub =
        StubDomain { domain: Name::parse("example.org").expect("a name"), servers: vec![elsewhere.address] };
    let running = start("cluster.local", Config { stub_domains: vec![stub], ..Config::default() }, 1).await;
    for (name, want) in [
        ("db.default.svc.example.org", (0, 3, false)),
        ("db.default.svc.example.org", (0, 3, false)),
        ("no.default.svc.example.org", (3, 0, false)),
        ("no.default.svc.example.org", (3, 0, false)),
        // No upstream.
        ("example.net", (2, 0, false)),
    ] {
        let reply = over_udp(running.address, &question(name, rtype::A)).await;
        assert_eq!(summary(&reply), want, "{name}");
        assert_eq!(reply[..2], [0x0a, 0x0b], "the client's id");
    }
    let page =
        |running: &Running| String::from_utf8(running.metrics.encode().expect("metrics")).expect("text");
    let (text, own) = (page(&elsewhere), page(&running));
    let block = "server=\"dns://:53\"";
    let query = format!(
        "coredns_dns_requests_total{{family=\"1\",proto=\"udp\",{block},type=\"A\",view=\"\",zone=\".\"}} 2\n"
    );
    assert!(text.contains(&query), "{text}");
    let of_zone = format!("plugin=\"kubernetes\",rcode=\"NXDOMAIN\",{block},view=\"\",zone=\".\"}} 1\n");
    assert!(text.contains(&of_zone), "{text}");
    let to = elsewhere.address;
    for row in [
        format!("coredns_cache_hits_total{{{block},type=\"success\",view=\"\",zones=\".\"}} 1\n"),
        format!("coredns_cache_hits_total{{{block},type=\"denial\",view=\"\",zones=\".\"}} 1\n"),
        format!("coredns_cache_misses_total{{{block},view=\"\",zones=\".\"}} 3\n"),
        format!("coredns_cache_entries{{{block},type=\"denial\",view=\"\",zones=\".\"}} 1\n"),
        format!("coredns_forward_requests_total{{to=\"{to}\"}} 2\n"),
        format!("coredns_forward_responses_total{{rcode=\"NXDOMAIN\",to=\"{to}\"}} 1\n"),
        format!("coredns_dns_request_duration_seconds_count{{{block},view=\"\",zone=\".\"}} 5\n"),
        format!("coredns_dns_response_size_bytes_count{{proto=\"udp\",{block},view=\"\",zone=\".\"}} 5\n"),
    ] {
        assert!(own.contains(&row), "{row} in {own}");
    }
}

#[tokio::test]
async fn alias_is_followed_out_of_the_cluster() {
    let elsewhere = start("example.org", Config::default(), 2).await;
    let config = Config { upstreams: vec![elsewhere.address], ..Config::default() };
    let zone = Arc::new(Zone::new("cluster.local", 30, vec![]).expect("a zone"));
    let target = Target::External { name: "db.default.svc.example.org".to_owned() };
    zone.set_service(&Service { namespace: "default".into(), name: "out".into(), target }).expect("names");
    let metrics = Metrics::new(&Clock::system()).expect("metrics");
    let resolver = Resolver::new(zone, &config, DnsMetrics::new(&metrics).expect("metrics"));
    let server = Server::bind(&[LOOPBACK]).await.expect("sockets");
    let (address, tasks) = (server.addresses()[0], TaskGroup::new());
    server.serve(&Arc::new(resolver), &tasks);
    let reply = over_udp(address, &question("out.default.svc.cluster.local", rtype::A)).await;
    assert_eq!(summary(&reply), (0, 3, false));
}

#[tokio::test]
async fn malformed_queries_do_not_disturb_the_server() {
    let running = start("cluster.local", Config::default(), 1).await;
    let socket = UdpSocket::bind(LOOPBACK).await.expect("a socket");
    for noise in [&b""[..], b"x", &[0xff; 12], &[0; 600]] {
        socket.send_to(noise, running.address).await.expect("sent");
    }
    // It still responds, with NOTIMP.
    let mut update = question("db.default.svc.cluster.local", rtype::A);
    update[2] = 0x28;
    assert_eq!(summary(&over_udp(running.address, &update).await).0, 4);
    let mut two = question("db.default.svc.cluster.local", rtype::A);
    two[5] = 2;
    assert_eq!(summary(&over_udp(running.address, &two).await).0, 1);
    // A connection that sends half a question does not block others.
    let mut half = TcpStream::connect(running.address).await.expect("a connection");
    half.write_all(&[0, 40, 1]).await.expect("sent");
    let reply = over_udp(running.address, &question("db.default.svc.cluster.local", rtype::A)).await;
    assert_eq!(summary(&reply), (0, 1, false));
}
