//! Chains: the two that every forwarded packet passes, the groups of pods, and the rules of policies.

use sys::nftables::{Base, Batch, Chain, CtKey, Expr, Family, Hook, MetaKey, Register, Verdict};

use super::sets;
use crate::model::{Direction, Name, Protocol};
use crate::state::{Group, Id, PeerSet, PolicyChain, PortMatch, Step};

const R0: Register = Register(0);
const FORWARD: u32 = 2;
/// After the translation of services; egress is checked before ingress.
const EGRESS: i32 = 10;
const INGRESS: i32 = 11;
/// Packets of established connections, and errors about them.
const STATE_ESTABLISHED_OR_RELATED: u32 = 2 | 4;
const ICMP_V6: u8 = 58;
/// Router and neighbour discovery, which pods on one bridge need regardless of policies.
const DISCOVERY: (u8, u8) = (133, 137);
/// Length of a policy's name within the name of its chain.
const LONGEST_LABEL: usize = 80;

fn base_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}

/// Base chains.
pub fn add_base(batch: &mut Batch, family: Family) {
    for (direction, priority) in [(Direction::Egress, EGRESS), (Direction::Ingress, INGRESS)] {
        let name = base_name(direction);
        let hook = Hook { kind: "filter", number: FORWARD, priority };
        batch.add_chain(&Chain { name, hook: Some(hook) });
        let accept = Expr::Verdict(Verdict::Accept);
        let known = [
            Expr::Ct { key: CtKey::State, to: R0 },
            Expr::Bitwise {
                from: R0,
                to: R0,
                mask: STATE_ESTABLISHED_OR_RELATED.to_ne_bytes().to_vec(),
                xor: vec![0; 4],
            },
            Expr::Compare { from: R0, equal: false, value: vec![0; 4] },
            accept.clone(),
        ];
        batch.add_rule(name, &known);
        if family == Family::Ipv6 {
            let discovery = [
                Expr::Meta { key: MetaKey::L4Protocol, to: R0 },
                Expr::Compare { from: R0, equal: true, value: vec![ICMP_V6] },
                Expr::Payload { base: Base::Transport, offset: 0, length: 1, to: R0 },
                Expr::Range { from: R0, first: vec![DISCOVERY.0], last: vec![DISCOVERY.1] },
                accept.clone(),
            ];
            batch.add_rule(name, &discovery);
        }
        let own = R0.after(family.address_length());
        let itself = [
            address(family, Direction::Ingress, R0),
            address(family, Direction::Egress, own),
            Expr::In { set: sets::SELVES.to_owned(), key: R0, inverted: false },
            accept.clone(),
        ];
        batch.add_rule(name, &itself);
        if direction == Direction::Egress {
            let open = [destination_and_port(family, sets::OPEN.to_owned()), vec![accept]].concat();
            batch.add_rule(name, &open);
        }
        // The selected pod is at the opposite end of its peers.
        let pod = match direction {
            Direction::Ingress => Direction::Egress,
            Direction::Egress => Direction::Ingress,
        };
        let map = sets::dispatch_map(direction).to_owned();
        batch.add_rule(name, &[address(family, pod, R0), Expr::VerdictOf { map, key: R0 }]);
    }
}

/// Address of the peer: source or destination of a packet.
fn address(family: Family, direction: Direction, to: Register) -> Expr {
    let offset = match (family, direction) {
        (Family::Ipv4, Direction::Ingress) => 12,
        (Family::Ipv4, Direction::Egress) => 16,
        (Family::Ipv6, Direction::Ingress) => 8,
        (Family::Ipv6, Direction::Egress) => 24,
    };
    Expr::Payload { base: Base::Network, offset, length: family.address_length() as u32, to }
}

#[must_use]
pub fn group_name(direction: Direction, id: Id) -> String {
    format!("{}-group-{id}", base_name(direction))
}

/// Chain name that identifies the policy for humans.
fn policy_name(direction: Direction, policy: &Name, id: Id) -> String {
    let label = format!("{}/{}", policy.namespace, policy.name);
    let label: String = label.chars().take(LONGEST_LABEL).collect();
    format!("{}-{label}-{id}", base_name(direction))
}

fn ports_chain(policy: &str, at: usize) -> String {
    format!("{policy}-ports-{at}")
}

/// Drops packets that no policy of the group allows.
pub fn add_group(batch: &mut Batch, group: &Group) {
    let name = group_name(group.direction, group.id);
    batch.add_chain(&Chain { name: &name, hook: None });
    for (id, policy) in &group.policies {
        let chain = policy_name(group.direction, policy, *id);
        batch.add_rule(&name, &[Expr::Verdict(Verdict::Jump(chain))]);
    }
    batch.add_rule(&name, &[Expr::Verdict(Verdict::Drop)]);
}

pub fn remove_group(batch: &mut Batch, group: &Group) {
    let name = group_name(group.direction, group.id);
    batch.flush_chain(&name);
    batch.remove_chain(&name);
}

/// True if the ports of a step get a separate chain: several peers with several ports.
fn has_ports_chain(step: &Step) -> bool {
    let several = |count: Option<usize>| count.is_some_and(|count| count > 1);
    several(step.peers.as_ref().map(Vec::len)) && several(step.ports.as_ref().map(Vec::len))
}

/// Allow rules of a policy.
pub fn add_policy(batch: &mut Batch, family: Family, chain: &PolicyChain) {
    let name = policy_name(chain.direction, &chain.policy, chain.id);
    batch.add_chain(&Chain { name: &name, hook: None });
    for (at, step) in chain.steps.iter().enumerate() {
        let accept = vec![Expr::Verdict(Verdict::Accept)];
        let mut ends: Vec<Vec<Expr>> = match &step.ports {
            None => vec![accept],
            Some(ports) => {
                ports.iter().map(|port| [port_match(family, port), accept.clone()].concat()).collect()
            }
        };
        if has_ports_chain(step) {
            let ports = ports_chain(&name, at);
            batch.add_chain(&Chain { name: &ports, hook: None });
            for end in &ends {
                batch.add_rule(&ports, end);
            }
            ends = vec![vec![Expr::Verdict(Verdict::Jump(ports))]];
        }
        let begins: Vec<Vec<Expr>> = match &step.peers {
            None => vec![Vec::new()],
            Some(peers) => {
                peers.iter().filter_map(|peer| peer_match(family, chain.direction, *peer)).collect()
            }
        };
        for begin in &begins {
            for end in &ends {
                batch.add_rule(&name, &[begin.as_slice(), end].concat());
            }
        }
    }
}

pub fn remove_policy(batch: &mut Batch, chain: &PolicyChain) {
    let name = policy_name(chain.direction, &chain.policy, chain.id);
    batch.flush_chain(&name);
    batch.remove_chain(&name);
    for (at, _) in chain.steps.iter().enumerate().filter(|(_, step)| has_ports_chain(step)) {
        let ports = ports_chain(&name, at);
        batch.flush_chain(&ports);
        batch.remove_chain(&ports);
    }
}

fn peer_match(family: Family, direction: Direction, peer: PeerSet) -> Option<Vec<Expr>> {
    let set = match peer {
        PeerSet::Pods(id) => sets::pods_name(id),
        PeerSet::Block { id, v6 } => {
            if v6 != (family == Family::Ipv6) {
                return None;
            }
            sets::block_name(id)
        }
    };
    Some(vec![address(family, direction, R0), Expr::In { set, key: R0, inverted: false }])
}

fn port_match(family: Family, port: &PortMatch) -> Vec<Expr> {
    let is = |protocol: Protocol| {
        [
            Expr::Meta { key: MetaKey::L4Protocol, to: R0 },
            Expr::Compare { from: R0, equal: true, value: vec![protocol as u8] },
        ]
    };
    match port {
        PortMatch::Any(protocol) => is(*protocol).to_vec(),
        PortMatch::Numbers(protocol, first, last) => {
            let mut out = is(*protocol).to_vec();
            out.push(Expr::Payload { base: Base::Transport, offset: 2, length: 2, to: R0 });
            let (first, last) = (first.to_be_bytes().to_vec(), last.to_be_bytes().to_vec());
            out.push(if first == last {
                Expr::Compare { from: R0, equal: true, value: first }
            } else {
                Expr::Range { from: R0, first, last }
            });
            out
        }
        // Ports are the destination's, in both directions.
        PortMatch::Named(id) => destination_and_port(family, sets::ports_name(*id)),
    }
}

/// Address, protocol and port of the destination are in a set.
fn destination_and_port(family: Family, set: String) -> Vec<Expr> {
    let protocol = R0.after(family.address_length());
    vec![
        address(family, Direction::Egress, R0),
        Expr::Meta { key: MetaKey::L4Protocol, to: protocol },
        Expr::Payload { base: Base::Transport, offset: 2, length: 2, to: protocol.after(4) },
        Expr::In { set, key: R0, inverted: false },
    ]
}
