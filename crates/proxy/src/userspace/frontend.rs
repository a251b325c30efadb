//! A frontend of the relay: endpoint selection and listening sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::sync::Notify;

use crate::frontends::{FrontEndpoints, Memory, Origin};
use crate::link::all_addresses;
use crate::model::{Node, Protocol};
use crate::plan::Frontend;

/// Backlog of pending connections.
const BACKLOG: i32 = 1024;

/// An open frontend.
#[derive(Debug)]
pub struct OpenFrontend {
    node: Arc<Node>,
    served: RwLock<FrontEndpoints>,
    memory: Mutex<Memory>,
    /// Notified when the endpoints change.
    pub changed: Notify,
}

impl OpenFrontend {
    #[must_use]
    pub fn new(node: Arc<Node>, served: FrontEndpoints) -> Self {
        Self { node, served: RwLock::new(served), memory: Mutex::default(), changed: Notify::new() }
    }

    pub fn set(&self, served: FrontEndpoints) {
        *self.served.write() = served;
        self.changed.notify_one();
    }

    /// Endpoint for a client, other than those that failed.
    #[must_use]
    pub fn choose(&self, client: IpAddr, in_vain: &[SocketAddr]) -> Option<SocketAddr> {
        let served = self.served.read();
        let origin = if served.depends_on_origin() { self.origin(client) } else { Origin::Outside };
        let mut endpoints = served.endpoints(client, origin);
        endpoints.retain(|endpoint| !in_vain.contains(endpoint));
        self.memory.lock().pick(client, &endpoints, served.affinity_seconds(), Instant::now())
    }

    #[must_use]
    pub fn has(&self, endpoint: SocketAddr) -> bool {
        self.served.read().has(endpoint)
    }

    fn origin(&self, client: IpAddr) -> Origin {
        // A local program that connects to an address of this machine uses that address as its source.
        let here = || all_addresses().is_ok_and(|all| all.contains(&client));
        if self.node.pod_cidrs.iter().any(|range| range.contains(&client)) {
            Origin::Pod
        } else if client.is_loopback() || here() {
            Origin::Node
        } else {
            Origin::Outside
        }
    }
}

/// The sockets of a frontend, in the network namespace of the caller.
#[derive(Debug)]
pub enum Sockets {
    Tcp(Vec<TcpListener>),
    Udp(Vec<UdpSocket>),
}

/// Reason for which a frontend is not served.
#[derive(Debug, thiserror::Error)]
pub enum Unserved {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("SCTP is not supported by the userspace proxy")]
    Sctp,
    #[error("cannot add the service address without CAP_NET_ADMIN, and IPv6 has no loopback range")]
    NoAddress,
}

impl Sockets {
    /// Listens at the first available of `addresses`.
    pub fn open(protocol: Protocol, addresses: &[SocketAddr]) -> Result<(Self, SocketAddr), Unserved> {
        let mut outcome = Err(Unserved::NoAddress);
        for candidate in addresses {
            let opened = match protocol {
                Protocol::Tcp => listen(*candidate).map(|listener| Self::Tcp(vec![listener])),
                Protocol::Udp => receive(*candidate).map(|socket| Self::Udp(vec![socket])),
                Protocol::Sctp => return Err(Unserved::Sctp),
            };
            match opened {
                Ok(sockets) => return Ok((sockets, *candidate)),
                Err(error) => outcome = Err(error.into()),
            }
        }
        outcome
    }

    /// Listens at a node port: on all addresses for TCP, on each address for UDP, whose replies must have the address
    /// that the client used.
    pub fn open_node_port(front: &Frontend, own: impl Iterator<Item = IpAddr>) -> Result<Self, Unserved> {
        let candidate = |address| SocketAddr::new(address, front.port);
        match front.protocol {
            Protocol::Tcp => Ok(Self::Tcp(vec![listen(candidate(front.address))?])),
            Protocol::Sctp => Err(Unserved::Sctp),
            Protocol::Udp => {
                let loopback: IpAddr = match front.address {
                    IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                    IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
                };
                let own = own.filter(|address| address.is_ipv4() == front.address.is_ipv4());
                let (mut sockets, mut failed) = (Vec::new(), None);
                for address in own.filter(|address| !is_link_local(*address) && !address.is_loopback()) {
                    match receive(candidate(address)) {
                        Ok(socket) => sockets.push(socket),
                        Err(error) => failed = Some(error),
                    }
                }
                sockets.extend(receive(candidate(loopback)));
                match failed {
                    Some(error) if sockets.is_empty() => Err(error.into()),
                    _ => Ok(Self::Udp(sockets)),
                }
            }
        }
    }
}

/// A link-local address is only valid with its link.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn bound(kind: SocketType, candidate: SocketAddr) -> io::Result<std::os::fd::OwnedFd> {
    let family = if candidate.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, kind, flags, None)?;
    if candidate.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if kind == SocketType::STREAM {
        // Connections in TIME_WAIT must not block the port.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &candidate)?;
    Ok(socket)
}

fn listen(candidate: SocketAddr) -> io::Result<TcpListener> {
    let socket = bound(SocketType::STREAM, candidate)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn receive(candidate: SocketAddr) -> io::Result<UdpSocket> {
    Ok(bound(SocketType::DGRAM, candidate)?.into())
}
