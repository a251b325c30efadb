//! The accept loop: limits connections, survives descriptor exhaustion, drains.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::accept::Acceptor;
use base::peers::Peers;
use base::tasks::TaskGroup;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::metrics;

use super::driver::drive;
use super::stream::GuardedStream;
use super::{Connection, Peer, ServerConfig, Service, Tls};

/// TCP keep-alive of accepted connections, as Kubernetes sets it.
const KEEP_ALIVE: Duration = Duration::from_secs(180);
/// Time for connections accepted during the drain to read their 429.
const LATE_GRACE: Duration = Duration::from_secs(1);
/// Delays after failures to accept connections.
/// Plaintext that TLS buffers before the socket must accept some: four full records per write.
const TLS_BUFFER: usize = 64 * 1024;

/// Error of starting the listener.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("failed to listen on {address}")]
    Bind { address: SocketAddr, source: io::Error },
}

/// Listens on `address`; port 0 selects a free one. Returns the address with its port.
pub fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServeError> {
    base::listen::listen(address).map_err(|source| ServeError::Bind { address, source })
}

/// Serves until `group` stops, then waits for the requests in flight, up to the configured grace. Returns whether
/// every request finished in time.
pub async fn serve<S: Service>(
    listener: TcpListener,
    tls: Arc<Tls>,
    service: Arc<S>,
    config: ServerConfig,
    group: TaskGroup,
) -> bool {
    let connections = group.child();
    let config = Arc::new(config);
    let slots = Arc::new(Semaphore::new(config.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
    let peers = Peers::new(config.max_connections_per_address);
    let accepting = accept(&listener, &tls, &service, &config, &slots, &peers, &connections);
    group.until_stopped(accepting).await;
    if !config.accept_while_draining {
        drop(listener);
        return connections.drain(config.drain_grace).await.is_ok();
    }
    // Connections accepted now stay open until their requests are rejected.
    let late = group.separate();
    let accepting = accept(&listener, &tls, &service, &config, &slots, &peers, &late);
    let draining = connections.drain(config.drain_grace);
    let mut draining = std::pin::pin!(draining);
    let drained = tokio::select! {
        drained = &mut draining => drained,
        () = accepting => draining.await,
    };
    drop(listener);
    // Their requests have been rejected already.
    let _ = late.drain(LATE_GRACE).await;
    drained.is_ok()
}

async fn accept<S: Service>(
    listener: &TcpListener,
    tls: &Arc<Tls>,
    service: &Arc<S>,
    config: &Arc<ServerConfig>,
    slots: &Arc<Semaphore>,
    peers: &Arc<Peers>,
    connections: &TaskGroup,
) {
    let mut acceptor = Acceptor::new(listener);
    loop {
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else { return };
        let (stream, peer) = acceptor.accept().await;
        let Some(peer_slot) = peers.enter(peer.ip()) else {
            tracing::debug!(%peer, "connection closed: too many connections from this address");
            continue;
        };
        let (tls, service, config) = (Arc::clone(tls), Arc::clone(service), Arc::clone(config));
        let group = connections.clone();
        connections.spawn(async move {
            let _slots = (slot, peer_slot);
            connect(stream, peer, &tls, service, &config, &group).await;
        });
    }
}

async fn connect<S: Service>(
    stream: TcpStream,
    peer: SocketAddr,
    tls: &Tls,
    service: Arc<S>,
    config: &ServerConfig,
    group: &TaskGroup,
) {
    if let Err(error) = prepare(&stream) {
        tracing::debug!(%peer, %error, "failed to set socket options");
    }
    let settings = tls.current();
    let guarded = GuardedStream::new(stream, config.write_timeout);
    let handshake = TlsAcceptor::from(Arc::clone(&settings.config)).accept_with(guarded, |session| {
        session.set_buffer_limit(Some(TLS_BUFFER));
    });
    let mut io = match timeout(config.handshake_timeout, handshake).await {
        Ok(Ok(io)) => io,
        Ok(Err(error)) => {
            count_handshake_error();
            return tracing::debug!(%peer, %error, "TLS handshake error");
        }
        Err(_) => {
            count_handshake_error();
            return tracing::debug!(%peer, "TLS handshake timed out");
        }
    };
    let (guarded, session) = io.get_mut();
    let certificates = session
        .peer_certificates()
        .map(|chain| settings.trust.verify(chain.iter().map(|c| c.clone().into_owned()).collect()));
    let connection = Arc::new(Connection::new(Peer::Remote(peer), certificates));
    guarded.observe(Arc::clone(&connection));
    drive(io, connection, service, config, group).await;
}

fn count_handshake_error() {
    if let Some(metrics) = metrics::process() {
        metrics.handshake_errors.inc();
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE)?;
    Ok(())
}
