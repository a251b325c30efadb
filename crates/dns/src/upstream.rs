//! Forwards queries to upstream servers: UDP first, TCP if the reply is truncated, the next server after a timeout.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use rand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::cache::CachedReply;
use crate::metrics::DnsMetrics;
use crate::wire::{Query, rcode, rtype};

/// Timeout of one server.
const PATIENCE: Duration = Duration::from_secs(2);
/// Number of servers tried.
const ATTEMPTS: usize = 3;

/// Error of all servers.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("no upstream server configured")]
    NoServers,
    #[error("{server}: no response in time")]
    Silent { server: SocketAddr },
    #[error("query to {server} failed")]
    Io { server: SocketAddr, source: std::io::Error },
    #[error("{server}: response does not match the query")]
    Nonsense { server: SocketAddr },
}

/// Equivalent servers.
#[derive(Debug)]
pub struct Upstream {
    servers: RwLock<Arc<[SocketAddr]>>,
    /// Index of the server to try first: the one after the last that failed.
    first: AtomicUsize,
    max_ttl: u32,
}

impl Upstream {
    #[must_use]
    pub fn new(servers: Vec<SocketAddr>, max_ttl: u32) -> Self {
        Self { servers: RwLock::new(servers.into()), first: AtomicUsize::new(0), max_ttl }
    }

    /// Replaces the servers for later queries.
    pub fn set_servers(&self, servers: Vec<SocketAddr>) {
        *self.servers.write() = servers.into();
        self.first.store(0, Ordering::Relaxed);
    }

    /// Reply of the first server that responds. A failed server is not tried first next time.
    pub async fn resolve(
        &self,
        query: &Query<'_>,
        metrics: &DnsMetrics,
    ) -> Result<CachedReply, UpstreamError> {
        let servers = Arc::clone(&self.servers.read());
        let mut last = UpstreamError::NoServers;
        let first = self.first.load(Ordering::Relaxed);
        for attempt in 0..ATTEMPTS.min(servers.len().max(1) * 2) {
            let Some(&server) = servers.get((first + attempt) % servers.len().max(1)) else {
                break;
            };
            let failed_once = matches!(last, UpstreamError::NoServers);
            let begun = Instant::now();
            let outcome = self.exchange(server, query).await;
            metrics.forwarded(server, outcome.as_ref().ok().map(CachedReply::code), begun);
            match outcome {
                Ok(received) if received.code() != rcode::SERVER_FAILURE || !failed_once => {
                    return Ok(received);
                }
                Ok(received) if servers.len() == 1 => return Ok(received),
                Ok(_) => last = UpstreamError::Nonsense { server },
                Err(error) => last = error,
            }
            let next = (first + attempt + 1) % servers.len().max(1);
            self.first.store(next, Ordering::Relaxed);
        }
        Err(last)
    }

    async fn exchange(&self, server: SocketAddr, query: &Query<'_>) -> Result<CachedReply, UpstreamError> {
        let id: u16 = rand::rng().random();
        let message = request(id, query);
        let io = |source| UpstreamError::Io { server, source };
        let over_udp = timeout(PATIENCE, self.over_udp(server, id, query, &message)).await;
        let received = over_udp.map_err(|_| UpstreamError::Silent { server })?.map_err(io)?;
        if !received.is_truncated() {
            return Ok(received);
        }
        let over_tcp = timeout(PATIENCE, over_tcp(server, &message)).await;
        let reply = over_tcp.map_err(|_| UpstreamError::Silent { server })?.map_err(io)?;
        if reply.get(..2) != Some(&id.to_be_bytes()[..]) {
            return Err(UpstreamError::Nonsense { server });
        }
        CachedReply::read(query, reply, self.max_ttl).ok_or(UpstreamError::Nonsense { server })
    }

    /// A socket per query: its port is as hard to guess as the ID, and replies cannot be confused.
    async fn over_udp(
        &self,
        server: SocketAddr,
        id: u16,
        query: &Query<'_>,
        message: &[u8],
    ) -> std::io::Result<CachedReply> {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(server).await?;
        socket.send(message).await?;
        let mut buffer = vec![0; 4096];
        loop {
            let length = socket.recv(&mut buffer).await?;
            let reply = &buffer[..length];
            // A packet that does not match the query may be spoofed; the real reply may still arrive.
            if reply.get(..2) == Some(&id.to_be_bytes()[..])
                && let Some(received) = CachedReply::read(query, reply.to_vec(), self.max_ttl)
            {
                return Ok(received);
            }
        }
    }
}

async fn over_tcp(server: SocketAddr, message: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let mut framed = Vec::with_capacity(message.len() + 2);
    framed.extend(length.to_be_bytes());
    framed.extend(message);
    stream.write_all(&framed).await?;
    let mut reply = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut reply).await?;
    Ok(reply)
}

/// The upstream query: with recursion and EDNS, regardless of the client's flags.
fn request(id: u16, query: &Query<'_>) -> Vec<u8> {
    let mut message = Vec::with_capacity(query.question.len() + 32);
    message.extend(id.to_be_bytes());
    message.extend((query.flags | crate::wire::flags::RECURSION_DESIRED).to_be_bytes());
    message.extend([0, 1, 0, 0, 0, 0, 0, 1]);
    message.extend(query.question);
    message.push(0);
    message.extend(rtype::OPT.to_be_bytes());
    message.extend(1232_u16.to_be_bytes());
    let dnssec = query.edns.is_some_and(|edns| edns.dnssec);
    message.extend([0, 0, if dnssec { 0x80 } else { 0 }, 0, 0, 0]);
    message
}
