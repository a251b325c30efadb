//! Connections: accepted at a front, led to an endpoint, copied both ways with what fits into a small buffer, so that
//! who is slow slows down the other. An end of one direction is passed on and the other goes on.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use base::tasks::TaskGroup;
use rustix::net::sockopt;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::front::OpenFront;
use crate::link::Held;

/// What is on its way in one direction.
const BUFFER: usize = 16 << 10;
/// How many endpoints are tried, and for how long each.
const ATTEMPTS: usize = 4;
const CONNECT: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);
/// How often it is looked whether a client has everything, at first and later, and for how long.
const CONFIRM: (Duration, Duration) = (Duration::from_millis(2), Duration::from_secs(1));
const FAREWELL: Duration = Duration::from_secs(60);

/// What all connections share.
#[derive(Clone)]
pub struct Shared {
    /// Whether an address of a listener for all of them is a service's, where ports of the node are not.
    pub is_virtual: Arc<dyn Fn(IpAddr) -> bool + Send + Sync>,
    pub places: Arc<Semaphore>,
    /// Connections outlive their front.
    pub tasks: TaskGroup,
}

/// Accepts connections for ever.
pub async fn serve(listener: TcpListener, front: Arc<OpenFront>, held: Option<Held>, shared: Shared) {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "accepting a connection to a service");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        // With too many, the others wait in the kernel.
        let Ok(place) = Arc::clone(&shared.places).acquire_owned().await else { return };
        let to_virtual = held.is_none()
            && stream.local_addr().is_ok_and(|local| (shared.is_virtual)(local.ip().to_canonical()));
        if to_virtual {
            reset(&stream);
            continue;
        }
        let connection = Connection { front: Arc::clone(&front), _held: held.clone(), _place: place };
        shared.tasks.spawn(connection.run(stream, peer.ip().to_canonical()));
    }
}

struct Connection {
    front: Arc<OpenFront>,
    /// The service's address stays as long as somebody speaks to it.
    _held: Option<Held>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(self, mut client: TcpStream, address: IpAddr) {
        let Some(mut endpoint) = self.connect(address).await else {
            reset(&client);
            return;
        };
        for stream in [&client, &endpoint] {
            let _ = stream.set_nodelay(true);
            // A peer that is gone without a word is noticed in the end.
            let _ = sockopt::set_socket_keepalive(stream, true);
        }
        let copied = copy_bidirectional_with_sizes(&mut client, &mut endpoint, BUFFER, BUFFER).await;
        match copied {
            Ok(_) => confirmed(&client).await,
            Err(error) => {
                tracing::trace!(%error, "a connection broke");
                reset(&client);
                reset(&endpoint);
            }
        }
    }

    /// Endpoints that do not answer are passed over.
    async fn connect(&self, client: IpAddr) -> Option<TcpStream> {
        let mut in_vain: Vec<SocketAddr> = Vec::new();
        while in_vain.len() < ATTEMPTS {
            let endpoint = self.front.choose(client, &in_vain)?;
            match tokio::time::timeout(CONNECT, TcpStream::connect(endpoint)).await {
                Ok(Ok(stream)) => return Some(stream),
                Ok(Err(error)) => {
                    tracing::debug!(%endpoint, %error, "an endpoint does not take a connection")
                }
                Err(_) => tracing::debug!(%endpoint, "an endpoint does not answer"),
            }
            in_vain.push(endpoint);
        }
        None
    }
}

/// Waits until the client has all that was sent to it: the kernel sends the rest, but not from an address that the
/// machine no longer has. A client that is gone is not waited for long.
async fn confirmed(client: &TcpStream) {
    let waiting = async {
        let mut pause = CONFIRM.0;
        while sys::sockets::unconfirmed(client.as_fd()).is_ok_and(|count| count > 0) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(CONFIRM.1);
        }
    };
    let _ = tokio::time::timeout(FAREWELL, waiting).await;
}

/// Whoever is at the other end learns that this did not end well.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}
