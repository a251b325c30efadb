//! Chains: the base chains, and those that select an endpoint.

use std::hash::{DefaultHasher, Hash, Hasher};

use ipnet::IpNet;
use sys::nftables::steps::{self, bits, not_zero, protocol_and_port};
use sys::nftables::{Batch, Chain, CtKey, Expr, Family, Hook, MetaKey, Nat, Register, Reject, Side, Verdict};

use super::entries::{
    AFFINITY, CLOSED, CLOSED_PORTS, ELSEWHERE, ENDPOINTS, GUARDED, HAIRPINS, KNOWN, NODE_PORTS, SERVICES,
    VIRTUAL,
};
use super::of;
use crate::model::{Node, Protocol};
use crate::plan::{Entry, Frontend, Pick, Source};
use crate::state::Difference;

pub const REJECT: &str = "reject";

/// Mark of packets to masquerade.
const MASQUERADE: u32 = 0x4000;
const STATE_NEW: u32 = 8;

pub const R0: Register = Register(0);

const PREROUTING: u32 = 0;
const INPUT: u32 = 1;
const FORWARD: u32 = 2;
const OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;
const BEFORE_TRANSLATION: i32 = -110;
const DESTINATION: i32 = -100;
const SOURCE: i32 = 100;

/// Base chains.
pub fn add_base(batch: &mut Batch, family: Family) {
    batch.add_chain(&Chain { name: REJECT, hook: None });
    // Clients accept a TCP reset immediately; a local client accepts an unreachable port only on the second attempt.
    let tcp = [
        Expr::Meta { key: MetaKey::L4Protocol, to: R0 },
        Expr::Compare { from: R0, equal: true, value: vec![Protocol::Tcp as u8] },
        Expr::Reject(Reject::TcpReset),
    ];
    batch.add_rule(REJECT, &tcp);
    batch.add_rule(REJECT, &[Expr::Reject(Reject::Unreachable(family))]);
    let hook = |kind, number, priority| Some(Hook { kind, number, priority });
    add_guards(batch, family);
    for (name, number) in [("nat-prerouting", PREROUTING), ("nat-output", OUTPUT)] {
        batch.add_chain(&Chain { name, hook: hook("nat", number, DESTINATION) });
        batch.add_rule(name, &chain_of(&[&front(family, R0), &[verdict_of(SERVICES)]]));
        batch.add_rule(
            name,
            &chain_of(&[&to_this_machine(family), &protocol_and_port(R0), &[verdict_of(NODE_PORTS)]]),
        );
    }
    for (name, number) in [("filter-input", INPUT), ("filter-forward", FORWARD), ("filter-output", OUTPUT)] {
        batch.add_chain(&Chain { name, hook: hook("filter", number, BEFORE_TRANSLATION) });
        batch.add_rule(name, &chain_of(&[&new_only(), &front(family, R0), &[verdict_of(CLOSED)]]));
    }
    batch.add_rule(
        "filter-input",
        &chain_of(&[
            &new_only(),
            &to_this_machine(family),
            &protocol_and_port(R0),
            &[verdict_of(CLOSED_PORTS)],
        ]),
    );
    // After translation no packet has a service address, unless its port is not one of the service's.
    for (name, number) in [("late-forward", FORWARD), ("late-output", OUTPUT)] {
        batch.add_chain(&Chain { name, hook: hook("filter", number, 0) });
        let known = Expr::In { set: VIRTUAL.to_owned(), key: R0, inverted: false };
        let steps = [destination(family, R0), known, Expr::Verdict(Verdict::Goto(REJECT.to_owned()))];
        batch.add_rule(name, &chain_of(&[&new_only(), &steps]));
    }
    add_postrouting(batch, family, &steps::was_translated(R0));
}

/// Chains that check sources before translation.
pub fn add_guards(batch: &mut Batch, family: Family) {
    for (name, hook) in early("guard-prerouting", "guard-output") {
        batch.add_chain(&Chain { name, hook });
        batch.add_rule(name, &chain_of(&[&new_only(), &front(family, R0), &[verdict_of(GUARDED)]]));
    }
}

/// Hooks for forwarded and local packets before translation.
pub fn early(others: &'static str, own: &'static str) -> [(&'static str, Option<Hook>); 2] {
    let hook = |number| Some(Hook { kind: "filter", number, priority: BEFORE_TRANSLATION });
    [(others, hook(PREROUTING)), (own, hook(OUTPUT))]
}

/// Masquerading: marked packets, and hairpin connections by the set `themselves`.
pub fn add_postrouting(batch: &mut Batch, family: Family, themselves: &[Expr]) {
    let name = "nat-postrouting";
    batch.add_chain(&Chain { name, hook: Some(Hook { kind: "nat", number: POSTROUTING, priority: SOURCE }) });
    let marked = [Expr::Meta { key: MetaKey::Mark, to: R0 }, bits(R0, MASQUERADE), not_zero(R0)];
    let unmark = [
        Expr::Meta { key: MetaKey::Mark, to: R0 },
        Expr::Bitwise { from: R0, to: R0, mask: (!MASQUERADE).to_ne_bytes().to_vec(), xor: vec![0; 4] },
        Expr::SetMark { from: R0 },
        Expr::Masquerade { random: true },
    ];
    batch.add_rule(name, &chain_of(&[&marked, &unmark]));
    let to_itself = [
        source(family, R0),
        destination(family, R0.after(family.address_length())),
        Expr::In { set: HAIRPINS.to_owned(), key: R0, inverted: false },
        Expr::Masquerade { random: false },
    ];
    batch.add_rule(name, &chain_of(&[themselves, &to_itself]));
}

#[must_use]
pub fn pick_name(pick: &Pick) -> String {
    let source = match pick.source {
        Source::Inside => "inside".to_owned(),
        Source::Outside => "outside".to_owned(),
        Source::OutsideLocal { elsewhere } => format!("local-of-{elsewhere}"),
    };
    let port = if pick.node_port { "-port" } else { "" };
    let affinity = pick.affinity_seconds.map(|seconds| format!("-for-{seconds}")).unwrap_or_default();
    format!("{source}{port}-{}{affinity}", pick.count)
}

/// The chain of an endpoint selection.
pub fn add_pick(batch: &mut Batch, family: Family, pick: &Pick, node: &Node) {
    let name = pick_name(pick);
    batch.add_chain(&Chain { name: &name, hook: None });
    match pick.source {
        Source::Inside => {
            if let Some(outside_pods) = outside_pods(family, node) {
                batch.add_rule(&name, &chain_of(&[&outside_pods, &mark()]));
            }
            pick_from(batch, family, &name, pick, ENDPOINTS, pick.count);
        }
        Source::Outside => {
            batch.add_rule(&name, &mark());
            pick_from(batch, family, &name, pick, ENDPOINTS, pick.count);
        }
        Source::OutsideLocal { elsewhere } => {
            let cluster = format!("{name}-cluster");
            batch.add_chain(&Chain { name: &cluster, hook: None });
            pick_from(batch, family, &cluster, pick, ELSEWHERE, elsewhere);
            let go = Expr::Verdict(Verdict::Goto(cluster));
            for cidr in pods(family, node) {
                batch.add_rule(&name, &chain_of(&[&within(family, cidr, true), std::slice::from_ref(&go)]));
            }
            let from_here = steps::is_local(Side::Source, R0);
            batch.add_rule(&name, &chain_of(&[&from_here, &mark(), &[go]]));
            pick_from(batch, family, &name, pick, ENDPOINTS, pick.count);
        }
    }
}

fn pods(family: Family, node: &Node) -> impl Iterator<Item = &IpNet> {
    node.pod_cidrs.iter().filter(move |cidr| Family::of(cidr.addr()) == family)
}

/// Masquerade check of packets to a service; none if none is masqueraded.
pub fn outside_pods(family: Family, node: &Node) -> Option<Vec<Expr>> {
    if node.masquerade_all {
        return Some(Vec::new());
    }
    // All conditions of one rule must match: with several ranges a client outside one may be inside another.
    let outside: Vec<Expr> = pods(family, node).flat_map(|cidr| within(family, cidr, false)).collect();
    (!outside.is_empty()).then_some(outside)
}

/// Deletes an unreferenced chain, and the chain it jumps to.
pub fn remove_chain(batch: &mut Batch, name: &str) {
    batch.flush_chain(name);
    if name.starts_with("local-of-") {
        let cluster = format!("{name}-cluster");
        batch.flush_chain(&cluster);
        batch.remove_chain(&cluster);
    }
    batch.remove_chain(name);
}

/// Rules that select one of `count` endpoints of the frontend from `map`.
fn pick_from(batch: &mut Batch, family: Family, chain: &str, pick: &Pick, map: &str, count: u32) {
    if count == 0 {
        return;
    }
    let length = family.address_length();
    // Key: the client and the frontend; value: the number of the endpoint or the endpoint itself.
    let client = R0;
    let own = if pick.affinity_seconds.is_some() { client.after(length) } else { R0 };
    let chosen = own.after(length + 8);
    let to = Expr::Dnat(Nat { family, address: chosen, port: chosen.after(length) });
    let key = if pick.node_port { node_port(family, own) } else { front(family, own) };
    let number = [
        Expr::Random { to: chosen, modulus: count },
        Expr::Lookup { map: map.to_owned(), key: own, to: chosen },
    ];
    let Some(seconds) = pick.affinity_seconds else {
        batch.add_rule(chain, &chain_of(&[&key, &number, &[to]]));
        return;
    };
    let remember =
        Expr::Remember { map: AFFINITY.to_owned(), key: client, value: chosen, seconds: u64::from(seconds) };
    let remembered = [
        Expr::Lookup { map: AFFINITY.to_owned(), key: client, to: chosen },
        Expr::In { set: KNOWN.to_owned(), key: own, inverted: false },
    ];
    let who = [source(family, client)];
    batch.add_rule(chain, &chain_of(&[&who, &key, &remembered, &[remember.clone(), to.clone()]]));
    batch.add_rule(chain, &chain_of(&[&who, &key, &number, &[remember, to]]));
}

#[must_use]
pub fn guard_name(front: &Frontend, ranges: &[IpNet]) -> String {
    let mut hasher = DefaultHasher::new();
    (front, ranges).hash(&mut hasher);
    format!("guard-{:016x}", hasher.finish())
}

/// A chain that accepts certain sources only.
fn add_guard(batch: &mut Batch, family: Family, name: &str, ranges: &[IpNet]) {
    batch.add_chain(&Chain { name, hook: None });
    for range in ranges {
        batch.add_rule(name, &chain_of(&[&within(family, range, true), &[Expr::Verdict(Verdict::Return)]]));
    }
    // The node itself is always accepted: a load balancer's address may be one of its own.
    let from_here = steps::is_local(Side::Source, R0);
    batch.add_rule(name, &chain_of(&[&from_here, &[Expr::Verdict(Verdict::Return)]]));
    batch.add_rule(name, &[Expr::Verdict(Verdict::Drop)]);
}

/// Guard chains of a difference.
pub fn new_guards(batch: &mut Batch, family: Family, difference: &Difference) {
    for entry in difference.added.iter().filter(|entry| of(family, entry)) {
        if let Entry::Guarded { front, ranges } = entry {
            add_guard(batch, family, &guard_name(front, ranges), ranges);
        }
    }
}

/// Deletes the guard chains of removed entries, once they are unreferenced.
pub fn old_guards(batch: &mut Batch, family: Family, difference: &Difference) {
    for entry in difference.removed.iter().filter(|entry| of(family, entry)) {
        if let Entry::Guarded { front, ranges } = entry {
            remove_chain(batch, &guard_name(front, ranges));
        }
    }
}

fn chain_of(parts: &[&[Expr]]) -> Vec<Expr> {
    parts.concat()
}

fn source(family: Family, to: Register) -> Expr {
    steps::address(family, Side::Source, to)
}

fn destination(family: Family, to: Register) -> Expr {
    steps::address(family, Side::Destination, to)
}

/// Destination, protocol and port: the key of a service.
pub fn front(family: Family, to: Register) -> Vec<Expr> {
    let mut out = vec![destination(family, to)];
    out.extend(protocol_and_port(to.after(family.address_length())));
    out
}

/// The same for a node port, whose address is zero.
fn node_port(family: Family, to: Register) -> Vec<Expr> {
    let mut out = vec![Expr::Load { to, value: vec![0; family.address_length()] }];
    out.extend(protocol_and_port(to.after(family.address_length())));
    out
}

fn verdict_of(map: &str) -> Expr {
    Expr::VerdictOf { map: map.to_owned(), key: R0 }
}

fn new_only() -> Vec<Expr> {
    vec![Expr::Ct { key: CtKey::State, to: R0 }, bits(R0, STATE_NEW), not_zero(R0)]
}

/// Destination is an address of this machine other than loopback, which cannot be translated to another machine.
pub fn to_this_machine(family: Family) -> Vec<Expr> {
    let mut out = steps::is_local(Side::Destination, R0);
    out.push(destination(family, R0));
    match family {
        Family::Ipv4 => {
            let mask = vec![255, 0, 0, 0];
            out.push(Expr::Bitwise { from: R0, to: R0, mask, xor: vec![0; 4] });
            out.push(Expr::Compare { from: R0, equal: false, value: vec![127, 0, 0, 0] });
        }
        Family::Ipv6 => {
            let mut loopback = vec![0; 16];
            loopback[15] = 1;
            out.push(Expr::Compare { from: R0, equal: false, value: loopback });
        }
    }
    out
}

/// The source is in the range, or is not.
fn within(family: Family, cidr: &IpNet, inside: bool) -> Vec<Expr> {
    steps::within(family, Side::Source, cidr, inside, R0)
}

pub fn mark() -> Vec<Expr> {
    let (mask, xor) = ((!MASQUERADE).to_ne_bytes().to_vec(), MASQUERADE.to_ne_bytes().to_vec());
    vec![
        Expr::Meta { key: MetaKey::Mark, to: R0 },
        Expr::Bitwise { from: R0, to: R0, mask, xor },
        Expr::SetMark { from: R0 },
    ]
}
