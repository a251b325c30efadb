//! Listening sockets. As with Kubernetes' components, an unspecified address of either family (`0.0.0.0`, `::`) means all
//! addresses of both families.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket};

/// Maximum number of connections that wait to be accepted, in the kernel.
const BACKLOG: u32 = 4096;

/// Listens on `address`; port 0 selects a free one. Returns the address with its port. On a machine without IPv6,
/// `0.0.0.0` has IPv4 only. [`crate::accept::Acceptor`] reports IPv4 clients by their IPv4 addresses.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let (listener, address) = base::listen::listen("127.0.0.1:0".parse().unwrap())?;
/// assert_eq!(listener.local_addr()?, address);
/// # Ok::<(), std::io::Error>(()) }).unwrap();
/// ```
pub fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = if address.ip().is_unspecified() {
        match open(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port())) {
            Err(error) if address.is_ipv4() && is_without_ipv6(&error) => open(address)?,
            opened => opened?,
        }
    } else {
        open(address)?
    };
    let port = listener.local_addr()?.port();
    Ok((listener, SocketAddr::new(address.ip(), port)))
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn is_without_ipv6(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio::net::TcpStream;

    use super::*;
    use crate::accept::Acceptor;

    #[tokio::test]
    async fn unspecified_address_serves_both_families() {
        for wildcard in ["0.0.0.0:0", "[::]:0"] {
            let wanted: SocketAddr = wildcard.parse().expect("an address");
            let (listener, address) = listen(wanted).expect("listens");
            assert_eq!(address.ip(), wanted.ip());
            for client in ["127.0.0.1", "::1"] {
                let ip: IpAddr = client.parse().expect("an address");
                let connected = match TcpStream::connect((ip, address.port())).await {
                    Ok(connected) => connected,
                    Err(error) if is_without_ipv6(&error) && ip.is_ipv6() => continue,
                    Err(error) => panic!("{wildcard} {client}: {error}"),
                };
                let (_stream, peer) = Acceptor::new(&listener).accept().await;
                assert_eq!(peer, connected.local_addr().expect("an address"), "{wildcard} {client}");
            }
        }
    }

    #[tokio::test]
    async fn port_of_another_listener_is_in_use() {
        let (_listener, address) = listen("0.0.0.0:0".parse().expect("an address")).expect("listens");
        for other in ["0.0.0.0", "127.0.0.1", "::"] {
            let other = SocketAddr::new(other.parse().expect("an address"), address.port());
            let error = listen(other).map(|_| ()).expect_err("in use");
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{other}");
        }
    }
}
