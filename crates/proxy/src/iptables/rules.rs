//! The plan's entries as the text that `iptables-restore` reads. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::{Node, Protocol};
use crate::plan::{Closed, Entry, Frontend, List, Pick, Source};

/// Prefix of the chains of the main instance; those of another have its prefix of at most ten characters instead.
pub const PREFIX: &str = "FERRY-";
const SERVICES: &str = "FERRY-SERVICES";
const NODE_PORTS: &str = "FERRY-NODEPORTS";
const POSTROUTING: &str = "FERRY-POSTROUTING";
const MARK: &str = "FERRY-MARK-MASQ";
const CLOSED: &str = "FERRY-CLOSED";
const GUARDED: &str = "FERRY-GUARDED";
const MASQUERADE: &str = "0x4000/0x4000";

/// Kernel chains that jump to Ferry's.
const HOOKS: [(&str, &str, &str); 9] = [
    ("nat", "PREROUTING", SERVICES),
    ("nat", "OUTPUT", SERVICES),
    ("nat", "POSTROUTING", POSTROUTING),
    ("filter", "INPUT", CLOSED),
    ("filter", "FORWARD", CLOSED),
    ("filter", "OUTPUT", CLOSED),
    ("mangle", "PREROUTING", GUARDED),
    ("mangle", "OUTPUT", GUARDED),
    ("mangle", "FORWARD", GUARDED),
];

type Endpoints = BTreeMap<u32, (IpAddr, u16)>;

/// All rules of one frontend.
#[derive(Default)]
struct Of {
    pick: Option<Pick>,
    own: Endpoints,
    elsewhere: Endpoints,
    closed: Option<Closed>,
    guarded: Option<Vec<IpNet>>,
}

fn hash(kind: &str, of: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    // The kernel allows 28 characters, with the longest prefix.
    format!("{PREFIX}{kind}-{:014x}", hasher.finish() >> 8)
}

/// Matches of packets to a frontend.
fn to(front: &Frontend) -> String {
    let name = front.protocol.lower_name();
    if front.is_node_port() {
        return format!("-p {name} -m {name} --dport {}", front.port);
    }
    let bits = if front.address.is_ipv4() { 32 } else { 128 };
    format!("-d {}/{bits} -p {name} -m {name} --dport {}", front.address, front.port)
}

struct Text {
    chains: BTreeMap<&'static str, BTreeSet<String>>,
    rules: BTreeMap<&'static str, String>,
}

impl Text {
    fn chain(&mut self, table: &'static str, name: &str) {
        self.chains.entry(table).or_default().insert(name.to_owned());
    }

    fn rule(&mut self, table: &'static str, chain: &str, rule: impl std::fmt::Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.rules.entry(table).or_default(), "-A {chain} {rule}");
    }
}

/// All rules of a family, replacing the existing ones; `old` are Ferry's chains that exist.
pub fn render(entries: &[Entry], node: &Node, ipv4: bool, old: &[(String, String)]) -> String {
    let mut frontends: BTreeMap<Frontend, Of> = BTreeMap::new();
    let mut virtuals = BTreeSet::new();
    for entry in entries.iter().filter(|entry| entry.is_ipv4() == ipv4) {
        match entry {
            Entry::Service { front, pick } => frontends.entry(*front).or_default().pick = Some(*pick),
            Entry::Endpoint { front, list, index, address, port } => {
                let of = frontends.entry(*front).or_default();
                let list = if *list == List::Own { &mut of.own } else { &mut of.elsewhere };
                list.insert(*index, (*address, *port));
            }
            Entry::Closed { front, verdict } => frontends.entry(*front).or_default().closed = Some(*verdict),
            Entry::Guarded { front, ranges } => {
                frontends.entry(*front).or_default().guarded = Some(ranges.clone());
            }
            Entry::Virtual { address } => {
                virtuals.insert(*address);
            }
            // The endpoint rules handle both.
            Entry::Known { .. } | Entry::Hairpin { .. } => {}
        }
    }
    let mut text = Text { chains: BTreeMap::new(), rules: BTreeMap::new() };
    base(&mut text);
    for (front, of) in &frontends {
        write_front(&mut text, front, of, node, ipv4);
    }
    let loopback = if ipv4 { "! -d 127.0.0.0/8" } else { "! -d ::1/128" };
    text.rule("nat", SERVICES, format!("-m addrtype --dst-type LOCAL {loopback} -j {NODE_PORTS}"));
    for address in virtuals {
        let bits = if ipv4 { 32 } else { 128 };
        text.rule("filter", CLOSED, format!("-d {address}/{bits} -p tcp -j REJECT --reject-with tcp-reset"));
        text.rule("filter", CLOSED, format!("-d {address}/{bits} -j REJECT"));
    }
    finish(&text, old)
}

fn base(text: &mut Text) {
    for (table, _, chain) in HOOKS {
        text.chain(table, chain);
    }
    for chain in [NODE_PORTS, MARK] {
        text.chain("nat", chain);
    }
    text.rule("nat", MARK, "-j MARK --or-mark 0x4000");
    text.rule("nat", POSTROUTING, format!("-m mark ! --mark {MASQUERADE} -j RETURN"));
    text.rule("nat", POSTROUTING, "-j MARK --xor-mark 0x4000");
    text.rule("nat", POSTROUTING, "-j MASQUERADE --random-fully");
    text.rule("filter", CLOSED, "-m conntrack ! --ctstate NEW -j RETURN");
    text.rule("mangle", GUARDED, "-m conntrack ! --ctstate NEW -j RETURN");
}

fn write_front(text: &mut Text, front: &Frontend, of: &Of, node: &Node, ipv4: bool) {
    if let Some(verdict) = of.closed {
        let mut guard = to(front);
        if front.is_node_port() {
            guard.push_str(" -m addrtype --dst-type LOCAL");
        }
        let verdict = match (verdict, front.protocol) {
            (Closed::Drop, _) => "DROP",
            (Closed::Reject, Protocol::Tcp) => "REJECT --reject-with tcp-reset",
            (Closed::Reject, _) => "REJECT",
        };
        text.rule("filter", CLOSED, format!("{guard} -j {verdict}"));
    }
    if let Some(ranges) = &of.guarded {
        let chain = hash("GRD", front);
        text.chain("mangle", &chain);
        text.rule("mangle", GUARDED, format!("{} -j {chain}", to(front)));
        for range in ranges {
            text.rule("mangle", &chain, format!("-s {range} -j RETURN"));
        }
        text.rule("mangle", &chain, "-m addrtype --src-type LOCAL -j RETURN");
        text.rule("mangle", &chain, "-j DROP");
    }
    let Some(pick) = of.pick else { return };
    let chain = hash("SVC", front);
    text.chain("nat", &chain);
    let from = if front.is_node_port() { NODE_PORTS } else { SERVICES };
    text.rule("nat", from, format!("{} -j {chain}", to(front)));
    let pods: Vec<&IpNet> = node.pod_cidrs.iter().filter(|cidr| cidr.addr().is_ipv4() == ipv4).collect();
    match pick.source {
        Source::Inside if node.masquerade_all => text.rule("nat", &chain, format!("-j {MARK}")),
        Source::Inside => {
            // A source in none of the ranges falls through.
            let outside = hash("OUT", front);
            match pods[..] {
                [] => {}
                [one] => text.rule("nat", &chain, format!("! -s {one} -j {MARK}")),
                _ => {
                    text.chain("nat", &outside);
                    text.rule("nat", &chain, format!("-j {outside}"));
                    for cidr in &pods {
                        text.rule("nat", &outside, format!("-s {cidr} -j RETURN"));
                    }
                    text.rule("nat", &outside, format!("-j {MARK}"));
                }
            }
        }
        Source::Outside => text.rule("nat", &chain, format!("-j {MARK}")),
        Source::OutsideLocal { .. } => {
            let everywhere = hash("ALL", front);
            text.chain("nat", &everywhere);
            choose(text, &everywhere, front, &of.elsewhere, pick.affinity_seconds);
            for cidr in pods {
                text.rule("nat", &chain, format!("-s {cidr} -j {everywhere}"));
            }
            text.rule("nat", &chain, format!("-m addrtype --src-type LOCAL -j {MARK}"));
            text.rule("nat", &chain, format!("-m addrtype --src-type LOCAL -j {everywhere}"));
        }
    }
    choose(text, &chain, front, &of.own, pick.affinity_seconds);
}

/// Rules that select one of the endpoints.
fn choose(text: &mut Text, chain: &str, front: &Frontend, endpoints: &Endpoints, affinity: Option<u32>) {
    let ends: Vec<(String, &(IpAddr, u16))> =
        endpoints.values().map(|endpoint| (hash("SEP", (chain, endpoint)), endpoint)).collect();
    if let Some(seconds) = affinity {
        for (end, _) in &ends {
            text.rule(
                "nat",
                chain,
                format!("-m recent --name {end} --rcheck --seconds {seconds} --reap -j {end}"),
            );
        }
    }
    for (at, (end, (address, port))) in ends.iter().enumerate() {
        let left = ends.len() - at;
        let share = match left {
            1 => String::new(),
            _ => format!("-m statistic --mode random --probability {:.10} ", 1.0 / left as f64),
        };
        text.rule("nat", chain, format!("{share}-j {end}"));
        text.chain("nat", end);
        let bits = if address.is_ipv4() { 32 } else { 128 };
        text.rule("nat", end, format!("-s {address}/{bits} -j {MARK}"));
        let name = front.protocol.lower_name();
        let remember =
            if affinity.is_some() { format!("-m recent --name {end} --set ") } else { String::new() };
        let target =
            if address.is_ipv4() { format!("{address}:{port}") } else { format!("[{address}]:{port}") };
        text.rule("nat", end, format!("{remember}-p {name} -j DNAT --to-destination {target}"));
    }
}

fn finish(text: &Text, old: &[(String, String)]) -> String {
    let mut out = String::new();
    for (table, chains) in &text.chains {
        let _ = writeln!(out, "*{table}");
        let gone: Vec<&str> = old
            .iter()
            .filter(|(of, chain)| of == table && !chains.contains(chain))
            .map(|(_, chain)| chain.as_str())
            .collect();
        // Declaring a chain creates or flushes it.
        for chain in chains.iter().map(String::as_str).chain(gone.iter().copied()) {
            let _ = writeln!(out, ":{chain} - [0:0]");
        }
        for (of, hook, chain) in HOOKS.iter().filter(|(of, ..)| of == table) {
            let there = old.iter().any(|(there, one)| there == of && one == chain);
            if !there {
                let _ = writeln!(out, "-I {hook} 1 -j {chain}");
            }
        }
        out.push_str(text.rules.get(table).map_or("", String::as_str));
        for chain in gone {
            let _ = writeln!(out, "-X {chain}");
        }
        out.push_str("COMMIT\n");
    }
    out
}

/// Removes all of Ferry's chains.
pub fn detach(old: &[(String, String)]) -> String {
    let mut out = String::new();
    let tables: BTreeSet<&String> = old.iter().map(|(table, _)| table).collect();
    for table in tables {
        let _ = writeln!(out, "*{table}");
        let chains = || old.iter().filter(|(of, _)| of == table).map(|(_, chain)| chain);
        for chain in chains() {
            let _ = writeln!(out, ":{chain} - [0:0]");
        }
        for (_, hook, chain) in
            HOOKS.iter().filter(|(of, _, chain)| of == table && chains().any(|one| one == chain))
        {
            let _ = writeln!(out, "-D {hook} -j {chain}");
        }
        for chain in chains() {
            let _ = writeln!(out, "-X {chain}");
        }
        out.push_str("COMMIT\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_with_two_endpoints_renders_chains() {
        let front = Frontend { address: [10, 96, 0, 9].into(), protocol: Protocol::Tcp, port: 80 };
        let pick = Pick { source: Source::Inside, node_port: false, count: 2, affinity_seconds: None };
        let endpoint = |index, last| Entry::Endpoint {
            front,
            list: List::Own,
            index,
            address: [10, 244, 0, last].into(),
            port: 8080,
        };
        let entries = [Entry::Service { front, pick }, endpoint(0, 2), endpoint(1, 3)];
        let node = Node { pod_cidrs: "10.244.0.0/16".parse().into_iter().collect(), ..Node::default() };
        let old = [("nat".to_owned(), "FERRY-SVC-gone".to_owned())];
        let text = render(&entries, &node, true, &old);
        for want in [
            "-d 10.96.0.9/32 -p tcp -m tcp --dport 80 -j FERRY-SVC-",
            "! -s 10.244.0.0/16 -j FERRY-MARK-MASQ",
            "--probability 0.5000000000",
            "-j DNAT --to-destination 10.244.0.3:8080",
            "-I PREROUTING 1 -j FERRY-SERVICES",
            "-X FERRY-SVC-gone",
        ] {
            assert!(text.contains(want), "{want} is not in\n{text}");
        }
        assert!(!render(&entries, &node, false, &[]).contains("10.96.0.9"), "the other family");
        let out = detach(&[("nat".to_owned(), SERVICES.to_owned())]);
        assert!(out.contains("-D OUTPUT -j FERRY-SERVICES") && out.contains("-X FERRY-SERVICES"), "{out}");
    }
}
