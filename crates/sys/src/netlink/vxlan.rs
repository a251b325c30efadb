//! VXLAN links, and what they know of their peers.

use std::io;
use std::net::IpAddr;

use super::{
    CREATE, EXCLUSIVE, IFLA_ADDRESS, IFLA_IFNAME, IFLA_LINKINFO, IFLA_MTU, Message, NEW_LINK, Netlink,
    REPLACE, family, octets,
};

const NEW_NEIGHBOUR: u16 = 28;
const DELETE_NEIGHBOUR: u16 = 29;
const PERMANENT: u16 = 0x80;
/// The entry is the link's own, not its master's.
const OF_ITSELF: u8 = 2;
const AF_BRIDGE: u8 = 7;

/// A tunnel endpoint of another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Where the machine is.
    pub machine: IpAddr,
    /// The endpoint's address inside the tunnel.
    pub inside: IpAddr,
    pub hardware: [u8; 6],
}

impl Netlink {
    /// Makes a VXLAN link that learns nothing by itself; one that is there is kept.
    pub fn add_vxlan(
        &mut self,
        name: &str,
        network: u32,
        local: IpAddr,
        port: u16,
        mtu: u32,
        hardware: [u8; 6],
    ) -> io::Result<()> {
        const IFLA_INFO_KIND: u16 = 1;
        const IFLA_INFO_DATA: u16 = 2;
        const VXLAN_ID: u16 = 1;
        const VXLAN_LOCAL: u16 = 4;
        const VXLAN_LEARNING: u16 = 7;
        const VXLAN_PORT: u16 = 15;
        const VXLAN_LOCAL6: u16 = 17;
        let from = if local.is_ipv4() { VXLAN_LOCAL } else { VXLAN_LOCAL6 };
        let message = Message::new(NEW_LINK, CREATE | EXCLUSIVE)
            .link(0, 0, 0)
            .text(IFLA_IFNAME, name)
            .number(IFLA_MTU, mtu)
            .attribute(IFLA_ADDRESS, &hardware)
            .nested(IFLA_LINKINFO, |message| {
                message.text(IFLA_INFO_KIND, "vxlan").nested(IFLA_INFO_DATA, |message| {
                    message
                        .number(VXLAN_ID, network)
                        .attribute(from, &octets(local))
                        .attribute(VXLAN_LEARNING, &[0])
                        .attribute(VXLAN_PORT, &port.to_be_bytes())
                })
            });
        match self.ask(message) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map(drop),
        }
    }

    /// Tells a VXLAN link where a peer is.
    pub fn set_peer(&mut self, interface: u32, peer: &Peer) -> io::Result<()> {
        self.ask(neighbour(NEW_NEIGHBOUR, interface, peer))?;
        self.ask(forwarding(NEW_NEIGHBOUR, interface, peer)).map(drop)
    }

    /// Adds a permanent neighbour entry to a link.
    pub(super) fn set_neighbour(&mut self, link: u32, address: IpAddr, hardware: [u8; 6]) -> io::Result<()> {
        let message = message(NEW_NEIGHBOUR, family(address), link, 0)
            .attribute(DESTINATION, &octets(address))
            .attribute(HARDWARE, &hardware);
        self.ask(message).map(drop)
    }

    /// Makes a link forget which hardware address an address has; one it does not know is no error.
    pub fn remove_neighbour(&mut self, link: u32, address: IpAddr) -> io::Result<()> {
        let message =
            message(DELETE_NEIGHBOUR, family(address), link, 0).attribute(DESTINATION, &octets(address));
        match self.ask(message) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map(drop),
        }
    }

    /// Adds a static forwarding entry: the hardware address is behind this port of the bridge only.
    pub(super) fn set_forwarding(&mut self, port: u32, hardware: [u8; 6]) -> io::Result<()> {
        /// The entry is the bridge's.
        const OF_MASTER: u8 = 4;
        /// Neither learned nor aged.
        const NO_ARP: u16 = 0x40;
        let message = Message::new(NEW_NEIGHBOUR, CREATE | REPLACE)
            .raw(&[AF_BRIDGE, 0, 0, 0])
            .raw(&port.to_ne_bytes())
            .raw(&NO_ARP.to_ne_bytes())
            .raw(&[OF_MASTER, 0])
            .attribute(HARDWARE, &hardware);
        self.ask(message).map(drop)
    }

    /// Makes a VXLAN link forget a peer; one it does not know is no error.
    pub fn remove_peer(&mut self, interface: u32, peer: &Peer) -> io::Result<()> {
        for message in
            [neighbour(DELETE_NEIGHBOUR, interface, peer), forwarding(DELETE_NEIGHBOUR, interface, peer)]
        {
            match self.ask(message) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => drop(other?),
            }
        }
        Ok(())
    }
}

const DESTINATION: u16 = 1;
const HARDWARE: u16 = 2;

fn message(kind: u16, family: u8, interface: u32, flags: u8) -> Message {
    let how = if kind == NEW_NEIGHBOUR { CREATE | REPLACE } else { 0 };
    Message::new(kind, how)
        .raw(&[family, 0, 0, 0])
        .raw(&interface.to_ne_bytes())
        .raw(&PERMANENT.to_ne_bytes())
        .raw(&[flags, 0])
}

/// Which hardware address the peer has inside the tunnel.
fn neighbour(kind: u16, interface: u32, peer: &Peer) -> Message {
    message(kind, family(peer.inside), interface, 0)
        .attribute(DESTINATION, &octets(peer.inside))
        .attribute(HARDWARE, &peer.hardware)
}

/// Which machine has that hardware address.
fn forwarding(kind: u16, interface: u32, peer: &Peer) -> Message {
    message(kind, AF_BRIDGE, interface, OF_ITSELF)
        .attribute(HARDWARE, &peer.hardware)
        .attribute(DESTINATION, &octets(peer.machine))
}
