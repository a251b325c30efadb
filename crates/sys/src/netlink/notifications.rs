//! Notifications of changes by any process, in the network namespace of the caller.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// Objects whose changes are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// nftables tables and their content.
    Tables,
    /// Links, addresses and routes.
    Routes,
}

/// Opens a nonblocking socket that becomes readable with every change. The content of the messages is of no use beyond
/// that: the kernel drops messages that do not fit the socket's buffer.
pub fn notifications(of: Changes) -> io::Result<OwnedFd> {
    // Groups are bits: link 1, IPv4 address 5, IPv4 route 7, IPv6 address 9, IPv6 route 11; nftables 7.
    let (protocol, groups) = match of {
        Changes::Tables => (Some(netlink::NETFILTER), 1 << 6),
        // The routing protocol has number 0.
        Changes::Routes => (None, 1 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 10),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}
