//! Accepts connections: errors of a single connection are skipped, errors of the process are retried with backoff.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::backoff::Backoff;

/// A listening socket.
pub trait Listener: Sync {
    /// A connection and the address of its client.
    type Connection: Send;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Connection>> + Send;
}

impl Listener for TcpListener {
    type Connection = (TcpStream, std::net::SocketAddr);

    /// IPv4 clients of a socket for both families have their IPv4 addresses.
    async fn accept(&self) -> io::Result<Self::Connection> {
        let (stream, peer) = TcpListener::accept(self).await?;
        Ok((stream, std::net::SocketAddr::new(peer.ip().to_canonical(), peer.port())))
    }
}

impl Listener for UnixListener {
    type Connection = (UnixStream, tokio::net::unix::SocketAddr);

    fn accept(&self) -> impl Future<Output = io::Result<Self::Connection>> + Send {
        UnixListener::accept(self)
    }
}

/// Accept loop of a listener.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use base::accept::Acceptor;
/// use tokio::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0").await?;
/// let client = TcpStream::connect(listener.local_addr()?).await?;
/// let (_connection, peer) = Acceptor::new(&listener).accept().await;
/// assert_eq!(peer, client.local_addr()?);
/// # Ok::<(), std::io::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Acceptor<'a, L> {
    listener: &'a L,
    retry: Backoff,
}

impl<'a, L: Listener> Acceptor<'a, L> {
    #[must_use]
    pub fn new(listener: &'a L) -> Self {
        Self { listener, retry: Backoff::new(Duration::from_millis(5), Duration::from_secs(1)) }
    }

    /// The next connection. The first error in a row is logged as a warning.
    pub async fn accept(&mut self) -> L::Connection {
        loop {
            match self.listener.accept().await {
                Ok(connection) => {
                    self.retry.reset();
                    return connection;
                }
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => {
                    let is_first = self.retry.is_reset();
                    let delay = self.retry.next_delay();
                    if is_first {
                        tracing::warn!(%error, ?delay, "failed to accept connections, retrying");
                    } else {
                        tracing::debug!(%error, ?delay, "failed to accept connections, retrying");
                    }
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }
}

/// Reports whether only the connection being accepted failed, as opposed to the process lacking resources.
fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, TimedOut};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted | TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use tokio::time::Instant;

    /// Returns these errors, then connections.
    struct Failing(Mutex<Vec<io::ErrorKind>>);

    impl Listener for Failing {
        type Connection = ();

        fn accept(&self) -> impl Future<Output = io::Result<()>> + Send {
            let next = self.0.lock().pop();
            std::future::ready(next.map_or(Ok(()), |kind| Err(kind.into())))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn errors_of_one_connection_do_not_delay_the_next() {
        for (kind, delay) in [(io::ErrorKind::ConnectionAborted, 0), (io::ErrorKind::Other, 5 + 10 + 20)] {
            let listener = Failing(Mutex::new(vec![kind; 3]));
            let begun = Instant::now();
            Acceptor::new(&listener).accept().await;
            assert_eq!(begun.elapsed(), Duration::from_millis(delay), "{kind:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn accepted_connection_resets_the_backoff() {
        let listener = Failing(Mutex::new(vec![io::ErrorKind::Other; 2]));
        let mut acceptor = Acceptor::new(&listener);
        acceptor.accept().await;
        listener.0.lock().push(io::ErrorKind::Other);
        let begun = Instant::now();
        acceptor.accept().await;
        assert_eq!(begun.elapsed(), Duration::from_millis(5));
    }
}
