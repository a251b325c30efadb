//! Frame rules between ports of the bridge: pods communicate with the node only, so only IP packets, which pass the
//! packet rules, are forwarded between ports. ARP and neighbour discovery between pods, router advertisements,
//! VLAN-tagged frames and other protocols are dropped.
//!
//! Ports cannot be isolated from each other if the kernel has `br_netfilter` (see [`crate::link`]): without these
//! rules a pod could overwrite the neighbour entries of other pods.

use sys::nftables::{
    Base, Batch, Chain, Expr, Hook, MetaKey, NftError, Register, Socket, TableFamily, Verdict,
};

use crate::rules;

const R0: Register = Register(0);
const CHAIN: &str = "frames";
const FORWARD: u32 = 2;
const PRIORITY: i32 = -200;
/// Name prefix of the pods' ports.
pub const PORT_PREFIX: &str = "fe-";
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ICMPV6: u8 = 58;
/// ICMPv6 types from router solicitation to redirect.
const DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;
/// Incremented with every change of the rules.
const RULES_VERSION: [u8; 1] = [1];

/// Installs the rules for a bridge unless they are present.
pub fn apply(bridge: &str) -> Result<(), NftError> {
    let (socket, table) = (Socket::open()?, rules::table(bridge));
    if socket.mark(TableFamily::Bridge, &table)? == Some(RULES_VERSION.to_vec()) {
        return Ok(());
    }
    let mut batch = Batch::new(TableFamily::Bridge, &table);
    batch.replace_table(&RULES_VERSION);
    let hook = Some(Hook { kind: "filter", number: FORWARD, priority: PRIORITY });
    batch.add_chain(&Chain { name: CHAIN, hook });
    let protocol = |equal, value: [u8; 2]| {
        let value = value.to_vec();
        [
            Expr::Payload { base: Base::Link, offset: 12, length: 2, to: R0 },
            Expr::Compare { from: R0, equal, value },
        ]
    };
    let drop = || Expr::Verdict(Verdict::Drop);
    let mut other = from_pod();
    other.extend(protocol(false, IPV4));
    other.extend(protocol(false, IPV6));
    other.push(drop());
    batch.add_rule(CHAIN, &other);
    for kind in DISCOVERY {
        let mut rule = from_pod();
        rule.extend(protocol(true, IPV6));
        rule.extend([
            Expr::Meta { key: MetaKey::L4Protocol, to: R0 },
            Expr::Compare { from: R0, equal: true, value: vec![ICMPV6] },
            Expr::Payload { base: Base::Transport, offset: 0, length: 1, to: R0 },
            Expr::Compare { from: R0, equal: true, value: vec![kind] },
            drop(),
        ]);
        batch.add_rule(CHAIN, &rule);
    }
    socket.apply(batch)
}

fn from_pod() -> Vec<Expr> {
    let value = PORT_PREFIX.as_bytes().to_vec();
    vec![Expr::Meta { key: MetaKey::InInterfaceName, to: R0 }, Expr::Compare { from: R0, equal: true, value }]
}
