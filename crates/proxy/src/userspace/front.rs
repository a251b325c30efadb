//! One front as the relay serves it: whom a client is led to, and the sockets where it listens.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::sync::Notify;

use crate::fronts::{Memory, Origin, Served};
use crate::link::all_addresses;
use crate::model::{Node, Protocol};
use crate::plan::Front;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;

/// A front that is open.
#[derive(Debug)]
pub struct OpenFront {
    node: Arc<Node>,
    served: RwLock<Served>,
    memory: Mutex<Memory>,
    /// Told when other endpoints serve.
    pub changed: Notify,
}

impl OpenFront {
    #[must_use]
    pub fn new(node: Arc<Node>, served: Served) -> Self {
        Self { node, served: RwLock::new(served), memory: Mutex::default(), changed: Notify::new() }
    }

    pub fn set(&self, served: Served) {
        *self.served.write() = served;
        self.changed.notify_one();
    }

    /// Whom a client is led to, other than those that were tried in vain.
    #[must_use]
    pub fn choose(&self, client: IpAddr, in_vain: &[SocketAddr]) -> Option<SocketAddr> {
        let served = self.served.read();
        let origin = if served.tells_clients_apart() { self.origin(client) } else { Origin::Outside };
        let mut endpoints = served.endpoints(client, origin);
        endpoints.retain(|endpoint| !in_vain.contains(endpoint));
        self.memory.lock().pick(client, &endpoints, served.affinity_seconds(), Instant::now())
    }

    #[must_use]
    pub fn has(&self, endpoint: SocketAddr) -> bool {
        self.served.read().has(endpoint)
    }

    fn origin(&self, client: IpAddr) -> Origin {
        // A program of this machine that speaks to an address of it does so from that address.
        let here = || all_addresses().is_ok_and(|all| all.contains(&client));
        if self.node.pod_cidrs.iter().any(|range| range.contains(client)) {
            Origin::Pod
        } else if client.is_loopback() || here() {
            Origin::Node
        } else {
            Origin::Outside
        }
    }
}

/// The sockets of a front, in the network namespace of the caller.
#[derive(Debug)]
pub enum Sockets {
    Tcp(Vec<TcpListener>),
    Udp(Vec<UdpSocket>),
}

/// Why a front is not served.
#[derive(Debug, thiserror::Error)]
pub enum Unserved {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("SCTP cannot be relayed")]
    Sctp,
    #[error("its address cannot be had without the right to change links, and IPv6 has no loopback network")]
    NoPlace,
}

impl Sockets {
    /// Listens at the first of `places` that can be had.
    pub fn open(protocol: Protocol, places: &[SocketAddr]) -> Result<(Self, SocketAddr), Unserved> {
        let mut outcome = Err(Unserved::NoPlace);
        for place in places {
            let opened = match protocol {
                Protocol::Tcp => listen(*place).map(|listener| Self::Tcp(vec![listener])),
                Protocol::Udp => receive(*place).map(|socket| Self::Udp(vec![socket])),
                Protocol::Sctp => return Err(Unserved::Sctp),
            };
            match opened {
                Ok(sockets) => return Ok((sockets, *place)),
                Err(error) => outcome = Err(error.into()),
            }
        }
        outcome
    }

    /// Listens at a port of the node: on all its addresses for TCP, on each one for UDP, whose answers have to come from
    /// the address that was asked.
    pub fn open_node_port(front: &Front, own: impl Iterator<Item = IpAddr>) -> Result<Self, Unserved> {
        let place = |address| SocketAddr::new(address, front.port);
        match front.protocol {
            Protocol::Tcp => Ok(Self::Tcp(vec![listen(place(front.address))?])),
            Protocol::Sctp => Err(Unserved::Sctp),
            Protocol::Udp => {
                let loopback: IpAddr = match front.address {
                    IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                    IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
                };
                let own = own.filter(|address| address.is_ipv4() == front.address.is_ipv4());
                let (mut sockets, mut failed) = (Vec::new(), None);
                for address in own.filter(|address| !is_link_local(*address) && !address.is_loopback()) {
                    match receive(place(address)) {
                        Ok(socket) => sockets.push(socket),
                        Err(error) => failed = Some(error),
                    }
                }
                sockets.extend(receive(place(loopback)));
                match failed {
                    Some(error) if sockets.is_empty() => Err(error.into()),
                    _ => Ok(Self::Udp(sockets)),
                }
            }
        }
    }
}

/// Such an address means nothing without its link.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn bound(kind: SocketType, place: SocketAddr) -> io::Result<std::os::fd::OwnedFd> {
    let family = if place.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, kind, flags, None)?;
    if place.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if kind == SocketType::STREAM {
        // Connections of the past do not keep the port.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &place)?;
    Ok(socket)
}

fn listen(place: SocketAddr) -> io::Result<TcpListener> {
    let socket = bound(SocketType::STREAM, place)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn receive(place: SocketAddr) -> io::Result<UdpSocket> {
    Ok(bound(SocketType::DGRAM, place)?.into())
}
