//! The sockets: UDP and TCP on every address, with limits on connections, queries and idle time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::accept::Acceptor;
use base::tasks::TaskGroup;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::metrics::Exchange;
use crate::resolver::{Resolver, Source, Step, Transport};

/// Limit of connections, and their idle timeout.
const MAX_CONNECTIONS: usize = 512;
const IDLE: Duration = Duration::from_secs(10);
/// Limit of UDP queries that wait for upstream, per socket.
const MAX_PENDING: usize = 2048;

/// Error of listening.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address} for {protocol}")]
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
    /// Binds every address. Port 0 selects a free port, the same for UDP and TCP.
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

    /// Bound addresses, with actual ports.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves until `tasks` stop.
    pub fn serve(self, resolver: &Arc<Resolver>, tasks: &TaskGroup) {
        for (udp, tcp) in self.sockets {
            let udp = Arc::new(udp);
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                let (udp, resolver, group) = (Arc::clone(&udp), Arc::clone(resolver), tasks.clone());
                tasks.supervise_until_stopped("dns-udp", move || {
                    serve_udp(Arc::clone(&udp), Arc::clone(&resolver), group.clone())
                });
            }
            let (tcp, resolver, group) = (Arc::new(tcp), Arc::clone(resolver), tasks.clone());
            tasks.supervise_until_stopped("dns-tcp", move || {
                serve_tcp(Arc::clone(&tcp), Arc::clone(&resolver), group.clone())
            });
        }
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, resolver: Arc<Resolver>, tasks: TaskGroup) {
    let _panics = resolver.metrics.panic_counter();
    let pending = Arc::new(Semaphore::new(MAX_PENDING));
    let mut message = vec![0; 4096];
    let mut reply = Vec::with_capacity(4096);
    loop {
        let (length, client) = match socket.recv_from(&mut message).await {
            Ok(received) => received,
            // ICMP error for an earlier reply; the socket itself is fine.
            Err(error) => {
                tracing::trace!(%error, "failed to receive a query");
                tokio::task::yield_now().await;
                continue;
            }
        };
        if !resolver.clients.admits(client.ip()) {
            continue;
        }
        let message = &message[..length];
        let exchange = Exchange::new(Transport::Udp, client.ip());
        match resolver.begin(message, &exchange, &mut reply) {
            Step::Silence => {}
            Step::Reply(source) => {
                resolver.metrics.answered(&exchange, source, &reply);
                // The client vanished or the socket is full: clients retry.
                let _ = socket.send_to(&reply, client).await;
            }
            Step::Forward => {
                // Beyond the limit the query is dropped; the client retries.
                let Ok(permit) = Arc::clone(&pending).try_acquire_owned() else { continue };
                let (socket, resolver, message) =
                    (Arc::clone(&socket), Arc::clone(&resolver), message.to_vec());
                tasks.spawn(async move {
                    let _panics = resolver.metrics.panic_counter();
                    let mut reply = Vec::with_capacity(512);
                    resolver.finish(&message, Transport::Udp, &mut reply).await;
                    resolver.metrics.answered(&exchange, Source::Upstream, &reply);
                    let _ = socket.send_to(&reply, client).await;
                    drop(permit);
                });
            }
        }
    }
}

async fn serve_tcp(listener: Arc<TcpListener>, resolver: Arc<Resolver>, tasks: TaskGroup) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut acceptor = Acceptor::new(&*listener);
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let (stream, client) = acceptor.accept().await;
        if !resolver.clients.admits(client.ip()) {
            continue;
        }
        let resolver = Arc::clone(&resolver);
        tasks.spawn_until_stopped(async move {
            let _guards = (permit, resolver.metrics.panic_counter());
            let _ = converse(stream, client, &resolver).await;
        });
    }
}

/// Serves queries sequentially until the client closes the connection or the idle timeout expires.
async fn converse(mut stream: TcpStream, client: SocketAddr, resolver: &Resolver) -> std::io::Result<()> {
    let mut reply = Vec::new();
    let mut framed = Vec::new();
    loop {
        let length = timeout(IDLE, stream.read_u16()).await??;
        let mut message = vec![0; usize::from(length)];
        timeout(IDLE, stream.read_exact(&mut message)).await??;
        let exchange = Exchange::new(Transport::Tcp, client.ip());
        let source = match resolver.begin(&message, &exchange, &mut reply) {
            Step::Silence => return Ok(()),
            Step::Reply(source) => source,
            Step::Forward => {
                resolver.finish(&message, Transport::Tcp, &mut reply).await;
                Source::Upstream
            }
        };
        resolver.metrics.answered(&exchange, source, &reply);
        framed.clear();
        framed.extend(u16::try_from(reply.len()).unwrap_or(u16::MAX).to_be_bytes());
        framed.extend(&reply);
        timeout(IDLE, stream.write_all(&framed)).await??;
    }
}
