//! VXLAN links and their peers.

use std::io;
use std::net::IpAddr;

use super::{
    CREATE, EXCLUSIVE, IFLA_ADDRESS, IFLA_IFNAME, IFLA_LINKINFO, IFLA_MTU, Message, NEW_LINK, Netlink,
    REPLACE, family, octets,
};

const NEW_NEIGHBOUR: u16 = 28;
const DELETE_NEIGHBOUR: u16 = 29;
const PERMANENT: u16 = 0x80;
/// NTF_SELF: the entry belongs to the link, not to its master.
const OF_ITSELF: u8 = 2;
const AF_BRIDGE: u8 = 7;

/// A tunnel endpoint of another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Underlay address of the machine.
    pub machine: IpAddr,
    /// Overlay address of the endpoint.
    pub inside: IpAddr,
    pub hardware: [u8; 6],
}

impl Netlink {
    /// Creates a VXLAN link without learning; an existing one is kept.
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
        match self.request(message) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map(drop),
        }
    }

    /// Adds a peer to a VXLAN link.
    pub fn set_peer(&mut self, interface: u32, peer: &Peer) -> io::Result<()> {
        self.request(neighbour(NEW_NEIGHBOUR, interface, peer))?;
        self.request(forwarding(NEW_NEIGHBOUR, interface, peer)).map(drop)
    }

    /// Adds a permanent neighbour entry to a link.
    pub(super) fn set_neighbour(&mut self, link: u32, address: IpAddr, hardware: [u8; 6]) -> io::Result<()> {
        let message = message(NEW_NEIGHBOUR, family(address), link, 0)
            .attribute(DESTINATION, &octets(address))
            .attribute(HARDWARE, &hardware);
        self.request(message).map(drop)
    }

    /// Removes a neighbour entry from a link; a missing one is no error.
    pub fn remove_neighbour(&mut self, link: u32, address: IpAddr) -> io::Result<()> {
        let message =
            message(DELETE_NEIGHBOUR, family(address), link, 0).attribute(DESTINATION, &octets(address));
        match self.request(message) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map(drop),
        }
    }

    /// Adds a static forwarding entry: the MAC address is behind this bridge port only.
    pub(super) fn set_forwarding(&mut self, port: u32, hardware: [u8; 6]) -> io::Result<()> {
        /// NTF_MASTER: the entry belongs to the bridge.
        const OF_MASTER: u8 = 4;
        /// Neither learned nor aged.
        const NO_ARP: u16 = 0x40;
        let message = Message::new(NEW_NEIGHBOUR, CREATE | REPLACE)
            .raw(&[AF_BRIDGE, 0, 0, 0])
            .raw(&port.to_ne_bytes())
            .raw(&NO_ARP.to_ne_bytes())
            .raw(&[OF_MASTER, 0])
            .attribute(HARDWARE, &hardware);
        self.request(message).map(drop)
    }

    /// Removes a peer from a VXLAN link; a missing one is no error.
    pub fn remove_peer(&mut self, interface: u32, peer: &Peer) -> io::Result<()> {
        for message in
            [neighbour(DELETE_NEIGHBOUR, interface, peer), forwarding(DELETE_NEIGHBOUR, interface, peer)]
        {
            match self.request(message) {
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

/// Neighbour entry: MAC address of the peer inside the tunnel.
fn neighbour(kind: u16, interface: u32, peer: &Peer) -> Message {
    message(kind, family(peer.inside), interface, 0)
        .attribute(DESTINATION, &octets(peer.inside))
        .attribute(HARDWARE, &peer.hardware)
}

/// Forwarding entry: machine of that MAC address.
fn forwarding(kind: u16, interface: u32, peer: &Peer) -> Message {
    message(kind, AF_BRIDGE, interface, OF_ITSELF)
        .attribute(HARDWARE, &peer.hardware)
        .attribute(DESTINATION, &octets(peer.machine))
}
