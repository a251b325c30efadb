//! Netlink requests for network links, addresses and routes, in the network namespace of the calling thread.

mod conntrack;
mod ipvs;
mod notifications;
mod routes;
mod shaping;
mod vxlan;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use ipnet::IpNet;

pub use conntrack::{Conntrack, Flow};
pub use ipvs::{Destination, Ipvs, Step, VirtualService};
pub use notifications::{Changes, notifications};
pub use routes::{Route, RouteOwner, Way};
pub use vxlan::Peer;

const HEADER: usize = 16;
const ACK: u16 = 0x04;
const REQUEST: u16 = 0x01;
const CREATE: u16 = 0x400;
const EXCLUSIVE: u16 = 0x200;
const REPLACE: u16 = 0x100;
const DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub address: Vec<u8>,
    pub up: bool,
    pub master: Option<u32>,
    pub mtu: u32,
}

pub use shaping::Rate;

/// A NETLINK_ROUTE socket.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

/// A message under construction: headers, then attributes, which nest.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST).to_ne_bytes());
        Self(bytes)
    }

    fn link(mut self, index: u32, flags: u32, change: u32) -> Self {
        self.0.extend_from_slice(&[0, 0, 0, 0]);
        for field in [index, flags, change] {
            self.0.extend_from_slice(&field.to_ne_bytes());
        }
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn attribute(mut self, kind: u16, data: &[u8]) -> Self {
        // Lengths are computed by this crate and far below the limit.
        let length = u16::try_from(data.len() + 4).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(data);
        while !self.0.len().is_multiple_of(4) {
            self.0.push(0);
        }
        self
    }

    fn text(self, kind: u16, text: &str) -> Self {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    fn number(self, kind: u16, number: u32) -> Self {
        self.attribute(kind, &number.to_ne_bytes())
    }

    fn nested(mut self, kind: u16, inside: impl FnOnce(Self) -> Self) -> Self {
        const NESTED: u16 = 0x8000;
        let at = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        let mut message = inside(self);
        let length = u16::try_from(message.0.len() - at).unwrap_or(u16::MAX);
        message.0[at..at + 2].copy_from_slice(&length.to_ne_bytes());
        message.0[at + 2..at + 4].copy_from_slice(&(kind | NESTED).to_ne_bytes());
        message
    }
}

/// Attributes in `bytes`; ends at malformed data.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & 0x3fff;
        let data = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, data))
    })
}

fn number(data: &[u8]) -> Option<u32> {
    data.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// An address in network byte order.
#[must_use]
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address_of(data: &[u8]) -> Option<IpAddr> {
    match data.len() {
        4 => data.first_chunk::<4>().map(|bytes| IpAddr::V4(Ipv4Addr::from(*bytes))),
        16 => data.first_chunk::<16>().map(|bytes| IpAddr::V6(Ipv6Addr::from(*bytes))),
        _ => None,
    }
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { 2 } else { 10 }
}

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const SET_LINK: u16 = 19;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_PROTINFO: u16 = 12;

const UP: u32 = 1;

impl Netlink {
    pub fn open() -> io::Result<Self> {
        Self::open_family(libc::NETLINK_ROUTE)
    }

    #[expect(
        unsafe_code,
        reason = "the socket of this family has no address to bind, so no wrapper is needed"
    )]
    fn open_family(family: libc::c_int) -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, family) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor, which has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a message and collects the replies until the final one.
    fn request(&mut self, mut message: Message) -> io::Result<Vec<(u16, Vec<u8>)>> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = u32::try_from(message.0.len()).unwrap_or(u32::MAX);
        message.0[0..4].copy_from_slice(&length.to_ne_bytes());
        message.0[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        let dump = u16::from_ne_bytes([message.0[6], message.0[7]]) & DUMP == DUMP;
        if !dump {
            let flags = u16::from_ne_bytes([message.0[6], message.0[7]]) | ACK;
            message.0[6..8].copy_from_slice(&flags.to_ne_bytes());
        }
        rustix::net::send(&self.socket, &message.0, rustix::net::SendFlags::empty())?;
        let mut found = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let (_, count) = rustix::net::recv(&self.socket, &mut buffer, rustix::net::RecvFlags::empty())?;
            let mut rest = buffer.get(..count).unwrap_or_default();
            while let Some(head) = rest.first_chunk::<HEADER>() {
                let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
                let kind = u16::from_ne_bytes([head[4], head[5]]);
                let sequence = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]);
                let Some(body) = rest.get(HEADER..length) else { break };
                if sequence == self.sequence {
                    match kind {
                        NLMSG_DONE => return Ok(found),
                        NLMSG_ERROR => {
                            let code = body.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
                            return if code == 0 {
                                Ok(found)
                            } else {
                                Err(io::Error::from_raw_os_error(-code))
                            };
                        }
                        _ => found.push((kind, body.to_vec())),
                    }
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }

    /// All interfaces.
    pub fn links(&mut self) -> io::Result<Vec<Link>> {
        let answers = self.request(Message::new(GET_LINK, DUMP).link(0, 0, 0))?;
        Ok(answers.iter().filter(|(kind, _)| *kind == NEW_LINK).filter_map(|(_, body)| link(body)).collect())
    }

    /// The interface of this name.
    pub fn link(&mut self, name: &str) -> io::Result<Option<Link>> {
        let answers = self.request(Message::new(GET_LINK, 0).link(0, 0, 0).text(IFLA_IFNAME, name));
        match answers {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            other => Ok(other?.iter().find_map(|(_, body)| link(body))),
        }
    }

    fn need(&mut self, name: &str) -> io::Result<Link> {
        self.link(name)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no interface {name}")))
    }

    pub fn set_up(&mut self, name: &str) -> io::Result<()> {
        let index = self.need(name)?.index;
        self.request(Message::new(SET_LINK, 0).link(index, UP, UP)).map(drop)
    }

    /// Creates a bridge; an existing one is kept.
    pub fn add_bridge(&mut self, name: &str, mtu: u32) -> io::Result<()> {
        const IFLA_INFO_KIND: u16 = 1;
        let message = Message::new(NEW_LINK, CREATE | EXCLUSIVE)
            .link(0, 0, 0)
            .text(IFLA_IFNAME, name)
            .number(IFLA_MTU, mtu)
            .nested(IFLA_LINKINFO, |message| message.text(IFLA_INFO_KIND, "bridge"));
        match self.request(message) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map(drop),
        }
    }

    /// Passes the frames of a bridge to the packet rules if the kernel has `br_netfilter`, regardless of the global
    /// bridge settings.
    pub fn call_rules_for_bridge(&mut self, name: &str) -> io::Result<()> {
        const IFLA_INFO_KIND: u16 = 1;
        const IFLA_INFO_DATA: u16 = 2;
        const NF_CALL_IPTABLES: u16 = 36;
        const NF_CALL_IP6TABLES: u16 = 37;
        let index = self.need(name)?.index;
        let message = Message::new(NEW_LINK, 0).link(index, 0, 0).nested(IFLA_LINKINFO, |message| {
            message.text(IFLA_INFO_KIND, "bridge").nested(IFLA_INFO_DATA, |message| {
                message.attribute(NF_CALL_IPTABLES, &[1]).attribute(NF_CALL_IP6TABLES, &[1])
            })
        });
        self.request(message).map(drop)
    }

    /// Creates a veth pair: `name` here, `peer` in another network namespace.
    pub fn add_pair(
        &mut self,
        name: &str,
        peer: &str,
        namespace: BorrowedFd<'_>,
        mtu: u32,
    ) -> io::Result<()> {
        self.add_pair_with(name, peer, namespace, mtu, None)
    }

    /// Like [`Self::add_pair`]; the peer gets the MAC address `hardware`, if given.
    pub fn add_pair_with(
        &mut self,
        name: &str,
        peer: &str,
        namespace: BorrowedFd<'_>,
        mtu: u32,
        hardware: Option<[u8; 6]>,
    ) -> io::Result<()> {
        const IFLA_INFO_KIND: u16 = 1;
        const IFLA_INFO_DATA: u16 = 2;
        const VETH_INFO_PEER: u16 = 1;
        let fd = u32::try_from(namespace.as_raw_fd()).unwrap_or(u32::MAX);
        let message = Message::new(NEW_LINK, CREATE | EXCLUSIVE)
            .link(0, 0, 0)
            .text(IFLA_IFNAME, name)
            .number(IFLA_MTU, mtu)
            .nested(IFLA_LINKINFO, |message| {
                message.text(IFLA_INFO_KIND, "veth").nested(IFLA_INFO_DATA, |message| {
                    message.nested(VETH_INFO_PEER, |message| {
                        let message = message
                            .link(0, 0, 0)
                            .text(IFLA_IFNAME, peer)
                            .number(IFLA_MTU, mtu)
                            .number(IFLA_NET_NS_FD, fd);
                        match hardware {
                            Some(hardware) => message.attribute(IFLA_ADDRESS, &hardware),
                            None => message,
                        }
                    })
                })
            });
        self.request(message).map(drop)
    }

    /// Removes an interface; a missing one is no error.
    pub fn remove(&mut self, name: &str) -> io::Result<()> {
        match self.request(Message::new(DELETE_LINK, 0).link(0, 0, 0).text(IFLA_IFNAME, name)) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Attaches an interface to a bridge, in hairpin mode.
    pub fn plug(&mut self, name: &str, bridge: &str) -> io::Result<()> {
        const PORT_MODE: u16 = 4;
        let (port, bridge) = (self.need(name)?.index, self.need(bridge)?.index);
        self.request(Message::new(SET_LINK, 0).link(port, 0, 0).number(IFLA_MASTER, bridge))?;
        self.set_port(port, &[(PORT_MODE, 1)])
    }

    /// Binds a bridge port to one MAC address: frames from others are dropped, and frames for it never go to another
    /// port. `addresses` are its permanent neighbour entries, independent of ARP and neighbour discovery.
    pub fn bind_port(
        &mut self,
        name: &str,
        bridge: &str,
        hardware: [u8; 6],
        addresses: &[IpAddr],
    ) -> io::Result<()> {
        const PORT_LEARNING: u16 = 8;
        const PORT_LOCKED: u16 = 39;
        let (port, bridge) = (self.need(name)?.index, self.need(bridge)?.index);
        self.set_forwarding(port, hardware)?;
        self.set_port(port, &[(PORT_LEARNING, 0), (PORT_LOCKED, 1)])?;
        for address in addresses {
            self.set_neighbour(bridge, *address, hardware)?;
        }
        Ok(())
    }

    /// Isolates a bridge port from other isolated ports: their frames reach only the host.
    pub fn isolate_port(&mut self, port: u32, isolated: bool) -> io::Result<()> {
        const PORT_ISOLATED: u16 = 33;
        self.set_port(port, &[(PORT_ISOLATED, u8::from(isolated))])
    }

    fn set_port(&mut self, port: u32, settings: &[(u16, u8)]) -> io::Result<()> {
        const AF_BRIDGE: u8 = 7;
        let mut message = Message::new(SET_LINK, 0).link(port, 0, 0);
        message.0[HEADER] = AF_BRIDGE;
        let message = message.nested(IFLA_PROTINFO, |message| {
            settings.iter().fold(message, |message, (kind, value)| message.attribute(*kind, &[*value]))
        });
        self.request(message).map(drop)
    }

    /// Adds an address to an interface; an existing one is kept.
    pub fn add_address(&mut self, name: &str, address: IpAddr, prefix: u8) -> io::Result<()> {
        const IFA_ADDRESS: u16 = 1;
        const IFA_LOCAL: u16 = 2;
        const IFA_F_NODAD: u8 = 2;
        let index = self.need(name)?.index;
        let flags = if address.is_ipv6() { IFA_F_NODAD } else { 0 };
        let message = Message::new(NEW_ADDRESS, CREATE | EXCLUSIVE)
            .raw(&[family(address), prefix, flags, 0])
            .raw(&index.to_ne_bytes())
            .attribute(IFA_LOCAL, &octets(address))
            .attribute(IFA_ADDRESS, &octets(address));
        match self.request(message) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map(drop),
        }
    }

    /// Removes an address from an interface; a missing one is no error.
    pub fn remove_address(&mut self, name: &str, address: IpAddr, prefix: u8) -> io::Result<()> {
        const DELETE_ADDRESS: u16 = 21;
        const IFA_LOCAL: u16 = 2;
        let index = self.need(name)?.index;
        let message = Message::new(DELETE_ADDRESS, 0)
            .raw(&[family(address), prefix, 0, 0])
            .raw(&index.to_ne_bytes())
            .attribute(IFA_LOCAL, &octets(address));
        match self.request(message) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(()),
            other => other.map(drop),
        }
    }

    /// Addresses of an interface with prefix lengths.
    pub fn addresses(&mut self, name: &str) -> io::Result<Vec<IpNet>> {
        let index = self.need(name)?.index;
        let all = self.all_addresses()?.into_iter();
        Ok(all.filter(|(of, _)| *of == index).map(|(_, address)| address).collect())
    }

    /// Addresses of all interfaces: interface index, and address with prefix length.
    pub fn all_addresses(&mut self) -> io::Result<Vec<(u32, IpNet)>> {
        let answers = self.request(Message::new(GET_ADDRESS, DUMP).raw(&[0; 8]))?;
        let parse = |body: &[u8]| {
            let head = body.first_chunk::<8>()?;
            let mut found = None;
            for (kind, data) in attributes(body.get(8..)?) {
                let address = address_of(data);
                if kind == 2 || (kind == 1 && found.is_none()) {
                    found = address.or(found);
                }
            }
            Some((number(&head[4..])?, IpNet::new(found?, head[1]).ok()?))
        };
        Ok(answers.iter().filter_map(|(_, body)| parse(body)).collect())
    }

    /// Routes `destination` (the default route if `None`) through a gateway, or directly to an interface.
    pub fn add_route(
        &mut self,
        destination: Option<IpNet>,
        gateway: Option<IpAddr>,
        interface: &str,
    ) -> io::Result<()> {
        const RTA_DST: u16 = 1;
        const RTA_OIF: u16 = 4;
        const RTA_GATEWAY: u16 = 5;
        const MAIN_TABLE: u8 = 254;
        const STATIC: u8 = 4;
        const UNICAST: u8 = 1;
        const EVERYWHERE: u8 = 0;
        const ON_LINK: u8 = 253;
        let index = self.need(interface)?.index;
        let any = gateway.or(destination.map(|range| range.addr()));
        let family = any.map_or(2, family);
        let scope = if gateway.is_some() || family == 10 { EVERYWHERE } else { ON_LINK };
        let prefix = destination.map_or(0, |range| range.prefix_len());
        let mut message = Message::new(NEW_ROUTE, CREATE | REPLACE)
            .raw(&[family, prefix, 0, 0, MAIN_TABLE, STATIC, scope, UNICAST])
            .raw(&0_u32.to_ne_bytes());
        if let Some(range) = destination {
            message = message.attribute(RTA_DST, &octets(range.addr()));
        }
        if let Some(gateway) = gateway {
            message = message.attribute(RTA_GATEWAY, &octets(gateway));
        }
        self.request(message.number(RTA_OIF, index)).map(drop)
    }
}

fn link(body: &[u8]) -> Option<Link> {
    let head = body.first_chunk::<16>()?;
    let mut link = Link { index: number(&head[4..])?, up: number(&head[8..])? & UP != 0, ..Link::default() };
    for (kind, data) in attributes(body.get(16..)?) {
        match kind {
            IFLA_ADDRESS => link.address = data.to_vec(),
            IFLA_IFNAME => link.name = String::from_utf8_lossy(data).trim_end_matches('\0').to_owned(),
            IFLA_MASTER => link.master = number(data),
            IFLA_MTU => link.mtu = number(data).unwrap_or(0),
            _ => {}
        }
    }
    Some(link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{self, Namespace};
    use std::os::fd::AsFd as _;

    /// Uses two network namespaces of this thread, which disappear with it.
    #[test]
    fn bridge_and_veth_pair_are_created() {
        let worker = std::thread::spawn(|| {
            if process::unshare(&[Namespace::Network]).is_err() {
                return println!("skipped: no permission to create network namespaces");
            }
            let outer = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
            process::unshare(&[Namespace::Network]).unwrap();
            let inner = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
            process::enter(outer.as_fd(), Namespace::Network).unwrap();
            let mut netlink = Netlink::open().unwrap();
            netlink.add_bridge("br-test", 1500).unwrap();
            netlink.add_bridge("br-test", 1500).unwrap();
            netlink.add_pair("outer0", "eth0", inner.as_fd(), 1400).unwrap();
            netlink.plug("outer0", "br-test").unwrap();
            for name in ["lo", "br-test", "outer0"] {
                netlink.set_up(name).unwrap();
            }
            let gateway: IpAddr = "10.200.0.1".parse().unwrap();
            netlink.add_address("br-test", gateway, 24).unwrap();
            netlink.add_address("br-test", gateway, 24).unwrap();
            assert_eq!(
                netlink.addresses("br-test").unwrap().first(),
                Some(&IpNet::new(gateway, 24).unwrap())
            );
            let bridge = netlink.link("br-test").unwrap().unwrap();
            assert_eq!(netlink.link("outer0").unwrap().unwrap().master, Some(bridge.index));
            assert_eq!(netlink.links().unwrap().len(), 3);

            process::enter(inner.as_fd(), Namespace::Network).unwrap();
            let mut inside = Netlink::open().unwrap();
            let eth0 = inside.link("eth0").unwrap().unwrap();
            assert_eq!((eth0.mtu, eth0.address.len()), (1400, 6));
            inside.add_address("eth0", "10.200.0.2".parse().unwrap(), 24).unwrap();
            inside.set_up("eth0").unwrap();
            inside.add_route(None, Some(gateway), "eth0").unwrap();
            inside.add_route(None, Some(gateway), "eth0").unwrap();
            let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
            assert!(routes.contains("eth0\t00000000\t0100C80A"), "{routes}");

            netlink.remove("outer0").unwrap();
            netlink.remove("outer0").unwrap();
            assert_eq!(netlink.link("outer0").unwrap(), None);
            assert_eq!(inside.link("eth0").unwrap(), None, "both ends are removed");
        });
        worker.join().unwrap();
    }
}
