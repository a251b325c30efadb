//! Packet rules of the pod network: host ports, and masquerade of traffic that leaves the cluster. They are in a
//! table per bridge, replaced as a whole, and only when outdated.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sys::netlink::octets;
use sys::nftables::keys::{self, Part};
use sys::nftables::steps::{address, interface, is_local, protocol_and_port, was_translated, within};
use sys::nftables::{
    Batch, Chain, Element, Expr, Family, Hook, MetaKey, Nat, Register, Set, Side, Socket, Value, Verdict,
};

use crate::addresses::PodRange;
use crate::cni::PluginError;
use crate::ports::{Open, Ports};
use crate::sources;

const R0: Register = Register(0);

const LOOPBACK: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8));
const MULTICAST_IPV4: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4));
const MULTICAST_IPV6: IpNet = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8));

const PREROUTING: u32 = 0;
const OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;
const BEFORE_CONNECTIONS: i32 = -300;
const DESTINATION: i32 = -100;
const SOURCE: i32 = 100;

const PORTS: &str = "ports";
const PORTS_AT: &str = "ports-at";
const HAIRPIN: &str = "themselves";

/// Incremented with every change of the rules, so that a new Ferry replaces those of an old one.
const RULES_VERSION: u32 = 2;

/// Inputs of the rules.
pub struct Rules<'a> {
    pub bridge: &'a str,
    pub subnets: &'a [PodRange],
    pub cluster: Vec<IpNet>,
    pub masquerade: bool,
    pub ports: &'a Ports,
    /// Addresses of all pods, with their owners.
    pub pods: &'a [(IpAddr, String)],
}

/// Table name of a bridge.
#[must_use]
pub fn table(bridge: &str) -> String {
    format!("ferry-network-{bridge}")
}

impl Rules<'_> {
    fn table(&self) -> String {
        table(self.bridge)
    }

    fn families(&self) -> impl Iterator<Item = Family> {
        let has = |family| self.subnets.iter().any(|range| Family::of(range.cidr().addr()) == family);
        [Family::Ipv4, Family::Ipv6].into_iter().filter(move |family| has(*family))
    }

    /// Mark of a table with these rules.
    fn mark(&self) -> Vec<u8> {
        let mut hasher = DefaultHasher::new();
        (RULES_VERSION, self.bridge, self.masquerade).hash(&mut hasher);
        for range in self.subnets.iter().map(PodRange::cidr).chain(self.cluster.iter().copied()) {
            (range.addr(), range.prefix_len()).hash(&mut hasher);
        }
        for open in self.ports.all() {
            (open.protocol, open.at, open.port, open.to, open.to_port).hash(&mut hasher);
        }
        hasher.finish().to_be_bytes().to_vec()
    }

    /// Returns true if the kernel has these rules.
    pub fn is_applied(&self) -> Result<bool, PluginError> {
        let (socket, wanted) = (Socket::open()?, self.mark());
        for family in self.families() {
            if socket.mark(family, &self.table())? != Some(wanted.clone()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Installs these rules. Addresses change more often than the rest, and are added one pod at a time: those of
    /// `new`.
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
            for rule in port_rules(family) {
                batch.add_rule(name, &rule);
            }
        }
        let name = "nat-postrouting";
        batch.add_chain(&Chain { name, hook: hook("nat", POSTROUTING, SOURCE) });
        // Hairpin: a pod that reaches itself through a host port would otherwise reply to itself directly.
        let length = family.address_length();
        let mut to_itself = was_translated(R0);
        to_itself.extend([
            address(family, Side::Source, R0),
            address(family, Side::Destination, R0.after(length)),
            Expr::In { set: HAIRPIN.to_owned(), key: R0, inverted: false },
            Expr::Masquerade { random: false },
        ]);
        batch.add_rule(name, &to_itself);
        if family == Family::Ipv4 {
            self.loopback(batch, name);
        }
        if self.masquerade {
            self.masquerade_egress(batch, family, name);
        }
    }

    /// Masquerades connections of the node to host ports on loopback, an address invalid in pods; and keeps pods from
    /// services that listen there.
    fn loopback(&self, batch: &mut Batch, postrouting: &str) {
        let mut from = within(Family::Ipv4, Side::Source, &LOOPBACK, true, R0);
        from.extend(interface(MetaKey::OutInterfaceName, self.bridge, true, R0));
        from.push(Expr::Masquerade { random: false });
        batch.add_rule(postrouting, &from);
        let hook = Some(Hook { kind: "filter", number: PREROUTING, priority: BEFORE_CONNECTIONS });
        batch.add_chain(&Chain { name: "guard", hook });
        let mut to = within(Family::Ipv4, Side::Destination, &LOOPBACK, true, R0);
        to.extend(interface(MetaKey::InInterfaceName, self.bridge, true, R0));
        to.push(Expr::Verdict(Verdict::Drop));
        batch.add_rule("guard", &to);
    }

    /// Masquerades traffic of pods that leaves the cluster.
    fn masquerade_egress(&self, batch: &mut Batch, family: Family, name: &str) {
        let multicast = match family {
            Family::Ipv4 => MULTICAST_IPV4,
            Family::Ipv6 => MULTICAST_IPV6,
        };
        let own = self.subnets.iter().map(PodRange::cidr).filter(|range| Family::of(range.addr()) == family);
        for range in own {
            let from = within(family, Side::Source, &range, true, R0);
            let inside = self.cluster.iter().filter(|range| Family::of(range.addr()) == family);
            for inside in inside.chain([&multicast]) {
                let to = within(family, Side::Destination, inside, true, R0);
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
        (HAIRPIN, &[Part::Address, Part::Address], Value::Nothing),
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
    batch.add_elements(HAIRPIN, &themselves);
}

/// Rules from a host port to a pod: those with a host address come first.
fn port_rules(family: Family) -> [Vec<Expr>; 2] {
    let length = family.address_length();
    let to = |register: Register| Expr::Dnat(Nat { family, address: register, port: register.after(length) });
    let port = R0.after(length);
    let found = port.after(8);
    let mut somewhere = vec![address(family, Side::Destination, R0)];
    somewhere.extend(protocol_and_port(port));
    somewhere.extend([Expr::Lookup { map: PORTS_AT.to_owned(), key: R0, to: found }, to(found)]);
    let mut anywhere = is_local(Side::Destination, R0);
    if family == Family::Ipv6 {
        // Loopback IPv6 addresses cannot be routed to pods.
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
