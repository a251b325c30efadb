//! Packet rules of the pod network: ports of the node that lead to pods, and the node's address for what pods send out of
//! the cluster. They are in a table of the bridge's own, replaced whole, and only when it is not as it should be.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use sys::nftables::keys::{self, Part};
use sys::nftables::steps::{address, interface, is_local, protocol_and_port, was_translated, within};
use sys::nftables::{
    Batch, Chain, Element, Expr, Family, Hook, MetaKey, Nat, Register, Set, Side, Socket, Value, Verdict,
};

use crate::addresses::{Range, octets};
use crate::cni::PluginError;
use crate::ports::{Open, Ports};
use crate::sources;

const R0: Register = Register(0);

const PREROUTING: u32 = 0;
const OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;
const BEFORE_CONNECTIONS: i32 = -300;
const DESTINATION: i32 = -100;
const SOURCE: i32 = 100;

const PORTS: &str = "ports";
const PORTS_AT: &str = "ports-at";
const THEMSELVES: &str = "themselves";

/// Grows with every change of what the rules are, so that a new Ferry replaces those of an old one.
const EDITION: u32 = 2;

/// What the rules are made from.
pub struct Rules<'a> {
    pub bridge: &'a str,
    pub subnets: &'a [Range],
    pub cluster: Vec<Range>,
    pub masquerade: bool,
    pub ports: &'a Ports,
    /// The addresses of all pods, with their owners.
    pub pods: &'a [(IpAddr, String)],
}

/// The table of a bridge.
#[must_use]
pub fn table(bridge: &str) -> String {
    format!("ferry-network-{bridge}")
}

impl Rules<'_> {
    fn table(&self) -> String {
        table(self.bridge)
    }

    fn families(&self) -> impl Iterator<Item = Family> {
        let has = |family| self.subnets.iter().any(|range| Family::of(range.base) == family);
        [Family::Ipv4, Family::Ipv6].into_iter().filter(move |family| has(*family))
    }

    /// What a table with these rules is marked with.
    fn mark(&self) -> Vec<u8> {
        let mut hasher = DefaultHasher::new();
        (EDITION, self.bridge, self.masquerade).hash(&mut hasher);
        for range in self.subnets.iter().chain(&self.cluster) {
            (range.base, range.prefix).hash(&mut hasher);
        }
        for open in self.ports.all() {
            (open.protocol, open.at, open.port, open.to, open.to_port).hash(&mut hasher);
        }
        hasher.finish().to_be_bytes().to_vec()
    }

    /// Whether the kernel has them.
    pub fn are_there(&self) -> Result<bool, PluginError> {
        let (socket, wanted) = (Socket::open()?, self.mark());
        for family in self.families() {
            if socket.mark(family, &self.table())? != Some(wanted.clone()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes the kernel's rules these. Addresses change more often than the rest, and are added one pod at a time:
    /// those of `new`.
    pub fn apply(&self, new: Option<&str>) -> Result<(), PluginError> {
        let (socket, wanted) = (Socket::open()?, self.mark());
        for family in self.families() {
            let mut batch = Batch::new(family, &self.table());
            if socket.mark(family, &self.table())? == Some(wanted.clone()) {
                sources::admit(&mut batch, family, self.pods, |owner| new == Some(owner));
            } else {
                batch.replace_table(&wanted);
                self.write(&mut batch, family);
            }
            if !batch.is_empty() {
                socket.apply(batch)?;
            }
        }
        Ok(())
    }

    fn write(&self, batch: &mut Batch, family: Family) {
        let hook = |kind, number, priority| Some(Hook { kind, number, priority });
        sources::write(batch, family, self.bridge);
        sources::admit(batch, family, self.pods, |_| true);
        sets(batch, family);
        let ports: Vec<&Open> = self.ports.all().filter(|open| Family::of(open.to) == family).collect();
        fill(batch, &ports);
        for (name, number) in [("ports-prerouting", PREROUTING), ("ports-output", OUTPUT)] {
            batch.add_chain(&Chain { name, hook: hook("nat", number, DESTINATION) });
            for rule in leads(family) {
                batch.add_rule(name, &rule);
            }
        }
        let name = "nat-postrouting";
        batch.add_chain(&Chain { name, hook: hook("nat", POSTROUTING, SOURCE) });
        // A pod that reaches itself through a port of the node would answer itself.
        let length = family.address_length();
        let mut to_itself = was_translated(R0);
        to_itself.extend([
            address(family, Side::Source, R0),
            address(family, Side::Destination, R0.after(length)),
            Expr::In { set: THEMSELVES.to_owned(), key: R0, inverted: false },
            Expr::Masquerade { random: false },
        ]);
        batch.add_rule(name, &to_itself);
        if family == Family::Ipv4 {
            self.loopback(batch, name);
        }
        if self.masquerade {
            self.outward(batch, family, name);
        }
    }

    /// Programs of the node reach ports on its loopback address, which means nothing to a pod; and pods do not reach
    /// what listens there.
    fn loopback(&self, batch: &mut Batch, postrouting: &str) {
        let range = || (vec![255, 0, 0, 0], vec![127, 0, 0, 0]);
        let mut from = within(Family::Ipv4, Side::Source, range(), true, R0);
        from.extend(interface(MetaKey::OutInterfaceName, self.bridge, true, R0));
        from.push(Expr::Masquerade { random: false });
        batch.add_rule(postrouting, &from);
        let hook = Some(Hook { kind: "filter", number: PREROUTING, priority: BEFORE_CONNECTIONS });
        batch.add_chain(&Chain { name: "guard", hook });
        let mut to = within(Family::Ipv4, Side::Destination, range(), true, R0);
        to.extend(interface(MetaKey::InInterfaceName, self.bridge, true, R0));
        to.push(Expr::Verdict(Verdict::Drop));
        batch.add_rule("guard", &to);
    }

    /// What pods send out of the cluster leaves with the node's address.
    fn outward(&self, batch: &mut Batch, family: Family, name: &str) {
        let multicast = match family {
            Family::Ipv4 => Range { base: IpAddr::from([224, 0, 0, 0]), prefix: 4 },
            Family::Ipv6 => Range { base: IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), prefix: 8 },
        };
        let own = self.subnets.iter().filter(|range| Family::of(range.base) == family);
        for range in own {
            let from = within(family, Side::Source, range.mask_and_network(), true, R0);
            let inside = self.cluster.iter().filter(|range| Family::of(range.base) == family);
            for inside in inside.chain([&multicast]) {
                let to = within(family, Side::Destination, inside.mask_and_network(), true, R0);
                batch.add_rule(name, &[&from[..], &to, &[Expr::Verdict(Verdict::Return)]].concat());
            }
            let out = interface(MetaKey::OutInterfaceName, self.bridge, false, R0);
            batch.add_rule(name, &[&from[..], &out, &[Expr::Masquerade { random: true }]].concat());
        }
    }
}

fn sets(batch: &mut Batch, family: Family) {
    let value = keys::values(family, &[Part::Address, Part::Port]);
    for (name, parts, value) in [
        (PORTS, &[Part::Protocol, Part::Port][..], value),
        (PORTS_AT, &[Part::Address, Part::Protocol, Part::Port], value),
        (THEMSELVES, &[Part::Address, Part::Address], Value::Nothing),
    ] {
        batch.add_set(&Set::plain(name, family, parts, value));
    }
}

fn fill(batch: &mut Batch, ports: &[&Open]) {
    let (mut anywhere, mut somewhere, mut themselves) = (Vec::new(), Vec::new(), Vec::new());
    for open in ports {
        let key = keys::protocol_and_port(open.protocol, open.port).to_vec();
        let mut to = octets(open.to);
        to.extend(open.to_port.to_be_bytes());
        to.extend([0, 0]);
        match open.at {
            None => anywhere.push(Element::Bytes(key, to)),
            Some(at) => somewhere.push(Element::Bytes([octets(at), key].concat(), to)),
        }
        let both = Element::Key([octets(open.to), octets(open.to)].concat());
        if !themselves.contains(&both) {
            themselves.push(both);
        }
    }
    batch.add_elements(PORTS, &anywhere);
    batch.add_elements(PORTS_AT, &somewhere);
    batch.add_elements(THEMSELVES, &themselves);
}

/// The rules that lead from a port to a pod: one that names the node's address goes first.
fn leads(family: Family) -> [Vec<Expr>; 2] {
    let length = family.address_length();
    let to = |register: Register| Expr::Dnat(Nat { family, address: register, port: register.after(length) });
    let port = R0.after(length);
    let found = port.after(8);
    let mut somewhere = vec![address(family, Side::Destination, R0)];
    somewhere.extend(protocol_and_port(port));
    somewhere.extend([Expr::Lookup { map: PORTS_AT.to_owned(), key: R0, to: found }, to(found)]);
    let mut anywhere = is_local(Side::Destination, R0);
    if family == Family::Ipv6 {
        // There is no way from this loopback address to a pod.
        let mut loopback = vec![0; 16];
        loopback[15] = 1;
        anywhere.push(address(family, Side::Destination, R0));
        anywhere.push(Expr::Compare { from: R0, equal: false, value: loopback });
    }
    anywhere.extend(protocol_and_port(R0));
    let found = R0.after(8);
    anywhere.extend([Expr::Lookup { map: PORTS.to_owned(), key: R0, to: found }, to(found)]);
    [somewhere, anywhere]
}
