//! Connections: accepted at a frontend, forwarded to an endpoint, copied both ways through a small buffer, so that a
//! slow side slows the other. The end of one direction is forwarded while the other continues.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use base::accept::Acceptor;
use base::backoff::Backoff;
use base::tasks::TaskGroup;
use rustix::net::sockopt;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::frontend::OpenFrontend;
use crate::link::Held;

/// Buffer of one direction.
const BUFFER: usize = 16 << 10;
/// Number of endpoints to try, and the time limit of each.
const ATTEMPTS: usize = 4;
const CONNECT: Duration = Duration::from_secs(5);
/// First and later intervals of the check for unacknowledged data, and its time limit.
const CONFIRM: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_secs(1));
const FAREWELL: Duration = Duration::from_secs(60);

/// State shared by all connections.
#[derive(Clone)]
pub struct Shared {
    /// True if a local address of a wildcard listener belongs to a service, where node ports are not served.
    pub is_virtual: Arc<dyn Fn(IpAddr) -> bool + Send + Sync>,
    pub permits: Arc<Semaphore>,
    /// Connections outlive their frontend.
    pub tasks: TaskGroup,
}

/// Accepts connections until the task is dropped.
pub async fn serve(listener: TcpListener, front: Arc<OpenFrontend>, held: Option<Held>, shared: Shared) {
    let mut acceptor = Acceptor::new(&listener);
    loop {
        let (stream, peer) = acceptor.accept().await;
        // Beyond the limit, connections wait in the kernel's backlog.
        let Ok(permit) = Arc::clone(&shared.permits).acquire_owned().await else { return };
        let to_virtual = held.is_none()
            && stream.local_addr().is_ok_and(|local| (shared.is_virtual)(local.ip().to_canonical()));
        if to_virtual {
            reset(&stream);
            continue;
        }
        let connection = Connection { front: Arc::clone(&front), _held: held.clone(), _permit: permit };
        shared.tasks.spawn(connection.run(stream, peer.ip().to_canonical()));
    }
}

struct Connection {
    front: Arc<OpenFrontend>,
    /// The service's address is retained as long as a connection uses it.
    _held: Option<Held>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(self, mut client: TcpStream, address: IpAddr) {
        let Some(mut endpoint) = self.connect(address).await else {
            reset(&client);
            return;
        };
        for stream in [&client, &endpoint] {
            let _ = stream.set_nodelay(true);
            // Keep-alive detects a vanished peer.
            let _ = sockopt::set_socket_keepalive(stream, true);
        }
        let copied = copy_bidirectional_with_sizes(&mut client, &mut endpoint, BUFFER, BUFFER).await;
        match copied {
            Ok(_) => confirmed(&client).await,
            Err(error) => {
                tracing::trace!(%error, "connection failed");
                reset(&client);
                reset(&endpoint);
            }
        }
    }

    /// Endpoints that do not respond are skipped.
    async fn connect(&self, client: IpAddr) -> Option<TcpStream> {
        let mut in_vain: Vec<SocketAddr> = Vec::new();
        while in_vain.len() < ATTEMPTS {
            let endpoint = self.front.choose(client, &in_vain)?;
            match tokio::time::timeout(CONNECT, TcpStream::connect(endpoint)).await {
                Ok(Ok(stream)) => return Some(stream),
                Ok(Err(error)) => {
                    tracing::debug!(%endpoint, %error, "failed to connect to endpoint")
                }
                Err(_) => tracing::debug!(%endpoint, "connection to endpoint timed out"),
            }
            in_vain.push(endpoint);
        }
        None
    }
}

/// Waits until the client has acknowledged all data: the kernel cannot send the rest from an address that has been
/// removed. The wait for a vanished client is short.
async fn confirmed(client: &TcpStream) {
    let waiting = async {
        let mut poll = CONFIRM;
        while sys::sockets::unconfirmed(client.as_fd()).is_ok_and(|count| count > 0) {
            poll.wait().await;
        }
    };
    let _ = tokio::time::timeout(FAREWELL, waiting).await;
}

/// A reset signals the abnormal end to the peer.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}
