//! The sockets: UDP and TCP on every address, bounded in every direction.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::tasks::TaskGroup;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::resolver::{Resolver, Step, Transport};

/// Connections at a time, and how long one may be silent.
const MAX_CONNECTIONS: usize = 512;
const IDLE: Duration = Duration::from_secs(10);
/// Questions over UDP that may wait for other servers at a time, per socket.
const MAX_PENDING: usize = 2048;

/// Why the server cannot serve.
#[derive(Debug, thiserror::Error)]
#[error("listening on {address} for {protocol}")]
pub struct ListenError {
    address: SocketAddr,
    protocol: &'static str,
    source: std::io::Error,
}

/// Sockets that are bound and not served yet.
#[derive(Debug)]
pub struct Server {
    sockets: Vec<(UdpSocket, TcpListener)>,
    addresses: Vec<SocketAddr>,
}

impl Server {
    /// Binds every address. Port 0 takes a free one, the same for UDP and TCP.
    pub async fn bind(addresses: &[SocketAddr]) -> Result<Self, ListenError> {
        let mut server = Self { sockets: Vec::new(), addresses: Vec::new() };
        for &address in addresses {
            let tcp = TcpListener::bind(address).await.map_err(|source| ListenError {
                address,
                protocol: "TCP",
                source,
            })?;
            let address =
                tcp.local_addr().map_err(|source| ListenError { address, protocol: "TCP", source })?;
            let udp = UdpSocket::bind(address).await.map_err(|source| ListenError {
                address,
                protocol: "UDP",
                source,
            })?;
            server.sockets.push((udp, tcp));
            server.addresses.push(address);
        }
        Ok(server)
    }

    /// Where it is served; ports are the real ones.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves until `tasks` are told to stop.
    pub fn serve(self, resolver: &Arc<Resolver>, tasks: &TaskGroup) {
        for (udp, tcp) in self.sockets {
            let udp = Arc::new(udp);
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                let (udp, resolver, group) = (Arc::clone(&udp), Arc::clone(resolver), tasks.clone());
                tasks.supervise("dns-udp", move || {
                    let serving = serve_udp(Arc::clone(&udp), Arc::clone(&resolver), group.clone());
                    until_stopped(serving, group.clone())
                });
            }
            let (tcp, resolver, group) = (Arc::new(tcp), Arc::clone(resolver), tasks.clone());
            tasks.supervise("dns-tcp", move || {
                let serving = serve_tcp(Arc::clone(&tcp), Arc::clone(&resolver), group.clone());
                until_stopped(serving, group.clone())
            });
        }
    }
}

async fn until_stopped(serving: impl Future<Output = ()>, tasks: TaskGroup) {
    tokio::select! {
        () = serving => {}
        () = tasks.stopping() => {}
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, resolver: Arc<Resolver>, tasks: TaskGroup) {
    let pending = Arc::new(Semaphore::new(MAX_PENDING));
    let mut message = vec![0; 4096];
    let mut reply = Vec::with_capacity(4096);
    loop {
        let (length, client) = match socket.recv_from(&mut message).await {
            Ok(received) => received,
            // An earlier answer bounced; the socket itself is fine.
            Err(error) => {
                tracing::trace!(%error, "receiving");
                tokio::task::yield_now().await;
                continue;
            }
        };
        if !resolver.clients.admits(client.ip()) {
            continue;
        }
        let message = &message[..length];
        match resolver.begin(message, Transport::Udp, &mut reply) {
            Step::Silence => {}
            Step::Reply => {
                resolver.metrics.answered(&reply);
                // A client that is gone, or a full socket: the client asks again.
                let _ = socket.send_to(&reply, client).await;
            }
            Step::Ask => {
                // When too many wait already this one is dropped, and asked again by a client that still cares.
                let Ok(permit) = Arc::clone(&pending).try_acquire_owned() else { continue };
                let (socket, resolver, message) =
                    (Arc::clone(&socket), Arc::clone(&resolver), message.to_vec());
                tasks.spawn(async move {
                    let mut reply = Vec::with_capacity(512);
                    resolver.finish(&message, Transport::Udp, &mut reply).await;
                    resolver.metrics.answered(&reply);
                    let _ = socket.send_to(&reply, client).await;
                    drop(permit);
                });
            }
        }
    }
}

async fn serve_tcp(listener: Arc<TcpListener>, resolver: Arc<Resolver>, tasks: TaskGroup) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((_, client)) if !resolver.clients.admits(client.ip()) => {}
            Ok((stream, _)) => {
                let (resolver, stopping) = (Arc::clone(&resolver), tasks.stopping());
                tasks.spawn(async move {
                    tokio::select! {
                        _ = converse(stream, &resolver) => {}
                        () = stopping => {}
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "accepting");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Questions and answers, one after the other, until the client is done or silent for too long.
async fn converse(mut stream: TcpStream, resolver: &Resolver) -> std::io::Result<()> {
    let mut reply = Vec::new();
    let mut framed = Vec::new();
    loop {
        let length = timeout(IDLE, stream.read_u16()).await??;
        let mut message = vec![0; usize::from(length)];
        timeout(IDLE, stream.read_exact(&mut message)).await??;
        match resolver.begin(&message, Transport::Tcp, &mut reply) {
            Step::Silence => return Ok(()),
            Step::Reply => {}
            Step::Ask => resolver.finish(&message, Transport::Tcp, &mut reply).await,
        }
        resolver.metrics.answered(&reply);
        framed.clear();
        framed.extend(u16::try_from(reply.len()).unwrap_or(u16::MAX).to_be_bytes());
        framed.extend(&reply);
        timeout(IDLE, stream.write_all(&framed)).await??;
    }
}
