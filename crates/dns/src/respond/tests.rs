//! Replies to whole queries, read back as text.

use super::*;
use crate::records::{Endpoint, Port, Service, Target};
use crate::wire::{CLASS_IN, HEADER, skip_name};

fn port(name: &str, number: u16) -> Port {
    Port { name: name.to_owned(), protocol: "tcp", number }
}

fn zone() -> Zone {
    let zone = Zone::new("cluster.local", 30, vec!["10.96.0.10".parse().expect("v4")]).expect("a zone");
    zone.set_namespace("default");
    let service =
        |name: &str, target| Service { namespace: "default".to_owned(), name: name.to_owned(), target };
    let endpoint = |last: u8, hostname: Option<&str>| Endpoint {
        address: [10, 1, 0, last].into(),
        hostname: hostname.map(str::to_owned),
        ports: vec![port("sql", 5432)],
    };
    let addresses = vec!["10.96.0.9".parse().expect("v4")];
    for service in [
        service("web", Target::ClusterIps { addresses, ports: vec![port("http", 80)] }),
        service("db", Target::Headless { endpoints: vec![endpoint(1, Some("db-0")), endpoint(2, None)] }),
        service("out", Target::External { name: "example.org".to_owned() }),
        service("in", Target::External { name: "web.default.svc.cluster.local".to_owned() }),
        service("loop", Target::External { name: "loop.default.svc.cluster.local".to_owned() }),
        service("none", Target::Headless { endpoints: vec![] }),
    ] {
        zone.set_service(&service).expect("names");
    }
    zone
}

fn query_for(name: &str, kind: u16) -> Vec<u8> {
    let mut message = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    message.extend(Name::parse(name).expect("a name").wire());
    message.extend(kind.to_be_bytes());
    message.extend(CLASS_IN.to_be_bytes());
    message
}

fn name_at(message: &[u8], mut at: usize) -> String {
    let mut out = Vec::new();
    loop {
        match message[at] {
            0 => break,
            high if high >= 0xc0 => at = usize::from(u16::from_be_bytes([high & 0x3f, message[at + 1]])),
            length => {
                out.push(
                    String::from_utf8_lossy(&message[at + 1..at + 1 + usize::from(length)]).into_owned(),
                );
                at += usize::from(length) + 1;
            }
        }
    }
    out.join(".").replace(".svc.cluster.local", "~")
}

/// `CODE` and the records, as text; sections are marked by `!` (authority) and `+` (additional).
fn read(message: &[u8]) -> Vec<String> {
    let field = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
    let mut out = vec![rcode::text((field(2) & 0xf) as u8).to_owned()];
    let mut at = skip_name(message, HEADER).expect("a name") + 4;
    for (mark, count) in [("", field(6)), ("!", field(8)), ("+", field(10))] {
        for _ in 0..count {
            let fixed = skip_name(message, at).expect("a name");
            let (kind, length) = (field(fixed), usize::from(field(fixed + 8)));
            let data = &message[fixed + 10..fixed + 10 + length];
            let value = match kind {
                rtype::A => {
                    std::net::Ipv4Addr::from(<[u8; 4]>::try_from(data).expect("four bytes")).to_string()
                }
                rtype::CNAME | rtype::PTR | rtype::NS => name_at(message, fixed + 10),
                rtype::SRV => {
                    format!("{} {} {}", field(fixed + 12), field(fixed + 14), name_at(message, fixed + 16))
                }
                _ => String::new(),
            };
            out.push(
                format!("{mark}{} {} {value}", name_at(message, at), rtype::text(kind)).trim_end().to_owned(),
            );
            at = fixed + 10 + length;
        }
    }
    assert_eq!(at, message.len(), "nothing behind the records");
    out
}

fn answer(zone: &Zone, name: &str, kind: u16) -> Vec<String> {
    let message = query_for(name, kind);
    let query = Query::parse(&message).expect("a query");
    let mut buffer = Vec::new();
    assert_eq!(respond(zone, &query, 512, None, &mut buffer), ResponseOutcome::Answered, "{name}");
    let mut lines = read(&buffer);
    lines[1..].sort();
    lines
}

#[test]
fn names_follow_the_kubernetes_dns_specification() {
    let zone = zone();
    let soa = "!cluster.local SOA";
    let table: &[(&str, u16, &[&str])] = &[
        ("web.default.svc.cluster.local", rtype::A, &["NOERROR", "web.default~ A 10.96.0.9"]),
        ("web.default.svc.cluster.local", rtype::AAAA, &["NOERROR", soa]),
        ("web.default.svc.cluster.local", rtype::TXT, &["NOERROR", soa]),
        ("nothing.default.svc.cluster.local", rtype::A, &["NXDOMAIN", soa]),
        ("default.svc.cluster.local", rtype::A, &["NOERROR", soa]),
        ("none.default.svc.cluster.local", rtype::A, &["NOERROR", soa]),
        (
            "_http._tcp.web.default.svc.cluster.local",
            rtype::SRV,
            &["NOERROR", "+web.default~ A 10.96.0.9", "_http._tcp.web.default~ SRV 100 80 web.default~"],
        ),
        ("_tcp.web.default.svc.cluster.local", rtype::SRV, &["NOERROR", soa]),
        ("_http._udp.web.default.svc.cluster.local", rtype::SRV, &["NXDOMAIN", soa]),
        (
            "db.default.svc.cluster.local",
            rtype::A,
            &["NOERROR", "db.default~ A 10.1.0.1", "db.default~ A 10.1.0.2"],
        ),
        ("db-0.db.default.svc.cluster.local", rtype::A, &["NOERROR", "db-0.db.default~ A 10.1.0.1"]),
        ("10-1-0-2.db.default.svc.cluster.local", rtype::A, &["NOERROR", "10-1-0-2.db.default~ A 10.1.0.2"]),
        (
            "_sql._tcp.db.default.svc.cluster.local",
            rtype::SRV,
            &[
                "NOERROR",
                "+10-1-0-2.db.default~ A 10.1.0.2",
                "+db-0.db.default~ A 10.1.0.1",
                "_sql._tcp.db.default~ SRV 50 5432 10-1-0-2.db.default~",
                "_sql._tcp.db.default~ SRV 50 5432 db-0.db.default~",
            ],
        ),
        ("9.0.96.10.in-addr.arpa", rtype::PTR, &["NOERROR", "9.0.96.10.in-addr.arpa PTR web.default~"]),
        ("1.0.1.10.in-addr.arpa", rtype::PTR, &["NOERROR", "1.0.1.10.in-addr.arpa PTR db-0.db.default~"]),
        (
            "10-9-8-7.default.pod.cluster.local",
            rtype::A,
            &["NOERROR", "10-9-8-7.default.pod.cluster.local A 10.9.8.7"],
        ),
        ("10-9-8-7.default.pod.cluster.local", rtype::AAAA, &["NOERROR", soa]),
        ("10-9-8-7.nowhere.pod.cluster.local", rtype::A, &["NXDOMAIN", soa]),
        ("out.default.svc.cluster.local", rtype::CNAME, &["NOERROR", "out.default~ CNAME example.org"]),
        (
            "in.default.svc.cluster.local",
            rtype::A,
            &["NOERROR", "in.default~ CNAME web.default~", "web.default~ A 10.96.0.9"],
        ),
        ("dns-version.cluster.local", rtype::TXT, &["NOERROR", "dns-version.cluster.local TXT"]),
        ("cluster.local", rtype::SOA, &["NOERROR", "cluster.local SOA"]),
        (
            "cluster.local",
            rtype::NS,
            &["NOERROR", "+ns.dns.cluster.local A 10.96.0.10", "cluster.local NS ns.dns.cluster.local"],
        ),
        ("cluster.local", rtype::AXFR, &["REFUSED"]),
    ];
    for (name, kind, want) in table {
        assert_eq!(answer(&zone, name, *kind), *want, "{name} {}", rtype::text(*kind));
    }
    assert!(answer(&zone, "loop.default.svc.cluster.local", rtype::A).len() < 12, "a loop of aliases ends");
}

#[test]
fn alias_outside_the_cluster_is_resolved() {
    let zone = zone();
    let message = query_for("out.default.svc.cluster.local", rtype::A);
    let query = Query::parse(&message).expect("a query");
    let mut buffer = Vec::new();
    let target = Name::parse("example.org").expect("a name");
    assert_eq!(
        respond(&zone, &query, 512, None, &mut buffer),
        ResponseOutcome::Alias { target: target.clone() }
    );
    assert_eq!(read(&buffer), ["NOERROR", "out.default~ CNAME example.org"]);
    let records =
        [Foreign { owner: target.wire().to_vec(), kind: rtype::A, ttl: 5, data: vec![192, 0, 2, 1] }];
    assert_eq!(respond(&zone, &query, 512, Some(&records), &mut buffer), ResponseOutcome::Answered);
    assert_eq!(read(&buffer), ["NOERROR", "out.default~ CNAME example.org", "example.org A 192.0.2.1"]);
}

#[test]
fn endpoints_are_rotated() {
    let zone = zone();
    let message = query_for("db.default.svc.cluster.local", rtype::A);
    let query = Query::parse(&message).expect("a query");
    let mut first = std::collections::BTreeSet::new();
    for _ in 0..2 {
        let mut buffer = Vec::new();
        respond(&zone, &query, 512, None, &mut buffer);
        first.insert(read(&buffer)[1].clone());
    }
    assert_eq!(first.len(), 2);
}

#[test]
fn names_outside_the_cluster_are_forwarded() {
    let zone = zone();
    for name in ["example.org", "8.8.8.8.in-addr.arpa", "cluster.localx", "local"] {
        let message = query_for(name, rtype::A);
        let query = Query::parse(&message).expect("a query");
        assert_eq!(respond(&zone, &query, 512, None, &mut Vec::new()), ResponseOutcome::Elsewhere, "{name}");
    }
}

#[test]
fn newer_edns_version_returns_badvers() {
    let zone = zone();
    let mut message = query_for("web.default.svc.cluster.local", rtype::A);
    message[11] = 1;
    message.extend([0, 0, 41, 4, 208, 0, 1, 0, 0, 0, 0]);
    let query = Query::parse(&message).expect("a query");
    let mut buffer = Vec::new();
    respond(&zone, &query, 512, None, &mut buffer);
    assert_eq!(buffer[buffer.len() - 11..], [0, 0, 41, 4, 208, 1, 0, 0, 0, 0, 0]);
}
