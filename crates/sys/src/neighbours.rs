//! Announces the new machine of an address to the neighbours on a link.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with, sockopt};

use crate::netlink::Link;

const ETHERNET: usize = 6;
const ARP: u16 = 0x0806;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Sends a gratuitous ARP request, or an unsolicited neighbour advertisement, from a link of this machine.
pub fn announce(link: &Link, address: IpAddr) -> io::Result<()> {
    let hardware: [u8; ETHERNET] = link
        .address
        .as_slice()
        .try_into()
        .map_err(|_| io::Error::new(io::ErrorKind::Unsupported, "link has no Ethernet address"))?;
    match address {
        IpAddr::V4(address) => broadcast(link.index, &arp(hardware, address)),
        IpAddr::V6(address) => advertise(link.index, &advertisement(hardware, address)),
    }
}

/// ARP request for the own address: it gets no reply, but hosts that cache the address update it.
fn arp(hardware: [u8; ETHERNET], address: Ipv4Addr) -> Vec<u8> {
    // Ethernet, IPv4, both address lengths, operation request.
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
    packet.extend(hardware);
    packet.extend(address.octets());
    packet.extend([0; ETHERNET]);
    packet.extend(address.octets());
    packet
}

#[expect(unsafe_code, reason = "no safe wrapper supports packet socket addresses")]
fn broadcast(index: u32, packet: &[u8]) -> io::Result<()> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved; the returned descriptor has no other owner.
    let socket = unsafe {
        let socket = libc::socket(libc::AF_PACKET, kind, i32::from(ARP.to_be()));
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(socket)
    };
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_protocol = ARP.to_be();
    to.sll_ifindex = index as i32;
    to.sll_halen = ETHERNET as u8;
    to.sll_addr[..ETHERNET].fill(0xff);
    // SAFETY: packet and address outlive the call, and the lengths passed are theirs.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            packet.as_ptr().cast(),
            packet.len(),
            0,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as u32,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The kernel fills in the checksum.
fn advertisement(hardware: [u8; ETHERNET], address: Ipv6Addr) -> Vec<u8> {
    const ADVERTISEMENT: u8 = 136;
    /// Override flag: existing cache entries are updated.
    const OVERRIDE: u8 = 0x20;
    let mut packet = vec![ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    packet.extend(address.octets());
    // Target link-layer address option, one unit of eight bytes.
    packet.extend([2, 1]);
    packet.extend(hardware);
    packet
}

fn advertise(index: u32, packet: &[u8]) -> io::Result<()> {
    let socket =
        socket_with(AddressFamily::INET6, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::ICMPV6))?;
    // Hop limit 255: receivers drop forwarded advertisements.
    sockopt::set_ipv6_multicast_hops(&socket, 255)?;
    sendto(&socket, packet, SendFlags::empty(), &SocketAddrV6::new(ALL_NODES, 0, 0, index))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcement_packets_encode() {
        let arp = arp([1, 2, 3, 4, 5, 6], [192, 0, 2, 7].into());
        assert_eq!(arp.len(), 28);
        assert_eq!(
            (&arp[8..14], &arp[14..18], &arp[24..28]),
            (&[1, 2, 3, 4, 5, 6][..], &[192, 0, 2, 7][..], &[192, 0, 2, 7][..])
        );
        let advertisement = advertisement([1, 2, 3, 4, 5, 6], Ipv6Addr::LOCALHOST);
        assert_eq!((advertisement.len(), advertisement[23], advertisement[24]), (32, 1, 2));
    }

    #[test]
    fn announce_without_ethernet_address_fails() {
        let link = Link { name: "lo".to_owned(), ..Link::default() };
        let error = announce(&link, Ipv4Addr::LOCALHOST.into()).expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
