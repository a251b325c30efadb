//! Addresses and host name of this machine while the process runs.
//!
//! One task reads them after notifications of the kernel and calls [`publish`]; everything that depends on them
//! subscribes. Without that task nothing is published, and no address is ever reported as removed.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    #[must_use]
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Families of addresses or CIDRs in their order, each once.
    pub fn all_of<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Vec<Self> {
        let mut families = Vec::new();
        for text in texts {
            let family = if text.as_ref().contains(':') { Self::V6 } else { Self::V4 };
            if !families.contains(&family) {
                families.push(family);
            }
        }
        families
    }
}

/// Network identity of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineNetwork {
    /// Every address of every link, except link-local ones.
    pub addresses: BTreeSet<IpAddr>,
    /// Addresses of links that are up, without those of pods and services.
    pub external: BTreeSet<IpAddr>,
    /// Source addresses of the default routes, else the first external address: at most one per family, IPv4 first.
    pub preferred: Vec<IpAddr>,
    pub hostname: Option<String>,
}

impl MachineNetwork {
    /// Addresses of the node: one of each family, or the first one without families or without an address of any.
    #[must_use]
    pub fn node_ips(&self, families: &[Family]) -> Vec<IpAddr> {
        let of = |family: &Family| self.preferred.iter().copied().find(|ip| Family::of(*ip) == *family);
        let wanted: Vec<IpAddr> = families.iter().filter_map(of).collect();
        if wanted.is_empty() { self.preferred.first().copied().into_iter().collect() } else { wanted }
    }

    /// True if the machine has had this address and lost it. Loopback and link-local addresses are not followed.
    fn has_lost(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let followed = match ip {
            IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local() && !ip.is_unspecified(),
        };
        followed && !self.addresses.contains(&ip)
    }
}

type Published = Option<Arc<MachineNetwork>>;

static CURRENT: LazyLock<watch::Sender<Published>> = LazyLock::new(|| watch::Sender::new(None));

/// Replaces the published state; subscribers are notified if it differs. Returns true if it does.
pub fn publish(network: MachineNetwork) -> bool {
    CURRENT.send_if_modified(|current| {
        let differs = current.as_deref() != Some(&network);
        if differs {
            *current = Some(Arc::new(network));
        }
        differs
    })
}

/// Published state, if any.
#[must_use]
pub fn current() -> Option<Arc<MachineNetwork>> {
    CURRENT.borrow().clone()
}

/// Changes of the published state from now on.
#[must_use]
pub fn subscribe() -> Changes {
    Changes(CURRENT.subscribe())
}

/// Changes of the published state.
#[derive(Debug)]
pub struct Changes(watch::Receiver<Published>);

impl Changes {
    /// Waits for the next change and returns the new state.
    pub async fn next(&mut self) -> Arc<MachineNetwork> {
        loop {
            if self.0.changed().await.is_err() {
                return std::future::pending().await;
            }
            if let Some(network) = self.0.borrow_and_update().clone() {
                return network;
            }
        }
    }
}

/// Waits until the machine loses the address.
async fn lost(ip: IpAddr) {
    let mut changes = subscribe();
    if current().is_some_and(|network| network.has_lost(ip)) {
        return;
    }
    while !changes.next().await.has_lost(ip) {}
}

/// A TCP connection that fails once the machine loses its local address: nothing would be received on it, which looks
/// like a slow peer.
pub struct AddressedStream {
    stream: TcpStream,
    lost: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl AddressedStream {
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        let lost: Pin<Box<dyn Future<Output = ()> + Send>> = match stream.local_addr() {
            Ok(local) => Box::pin(lost(local.ip())),
            Err(_) => Box::pin(std::future::pending()),
        };
        Self { stream, lost }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.lost.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => {
                self.lost = Box::pin(std::future::ready(()));
                let text = "this machine no longer has the local address of the connection";
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, text))
            }
        }
    }
}

impl AsyncRead for AddressedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for AddressedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(preferred: &[&str]) -> MachineNetwork {
        let ips: Vec<IpAddr> = preferred.iter().map(|text| text.parse().expect("an address")).collect();
        MachineNetwork {
            addresses: ips.iter().copied().collect(),
            external: ips.iter().copied().collect(),
            preferred: ips,
            hostname: None,
        }
    }

    #[test]
    fn node_addresses_have_families_of_cluster() {
        let both = network(&["192.0.2.1", "2001:db8::1"]);
        let ips =
            |families: &[Family]| both.node_ips(families).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(ips(&[]), ["192.0.2.1"]);
        assert_eq!(ips(&[Family::V6]), ["2001:db8::1"]);
        assert_eq!(ips(&[Family::V6, Family::V4]), ["2001:db8::1", "192.0.2.1"]);
        assert_eq!(network(&["192.0.2.1"]).node_ips(&[Family::V6]), network(&["192.0.2.1"]).preferred);
        assert_eq!(Family::all_of(["10.0.0.0/8", "fd00::/48", "10.1.0.0/16"]), [Family::V4, Family::V6]);
    }

    #[tokio::test]
    async fn address_is_lost_with_a_published_change() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        publish(network(&["192.0.2.1"]));
        let mapped = tokio::spawn(lost(ip("::ffff:192.0.2.1")));
        let loopback = tokio::spawn(lost(ip("127.0.0.1")));
        tokio::task::yield_now().await;
        assert!(!publish(network(&["192.0.2.1"])), "the same state is no change");
        assert!(!mapped.is_finished());
        assert!(publish(network(&["192.0.2.2"])));
        mapped.await.expect("no panic");
        lost(ip("192.0.2.1")).await;
        assert!(!loopback.is_finished());
        loopback.abort();
    }
}
