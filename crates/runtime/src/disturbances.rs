//! Waits for changes of external state by other processes, through a socket that becomes readable with them.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::time::Duration;

use tokio::net::UnixDatagram;

/// Changes within this time are reported as one, so that another process's frequent changes cost little.
const WINDOW: Duration = Duration::from_secs(1);

/// Changes by other processes. The address family of the socket is of no importance: it is only read.
#[derive(Debug)]
pub struct Disturbances(Option<UnixDatagram>);

impl Disturbances {
    /// Reads a nonblocking datagram socket; without one, no change is ever reported and the resync finds them all.
    #[must_use]
    pub fn new(descriptor: std::io::Result<OwnedFd>) -> Self {
        let opened = descriptor.and_then(|descriptor| UnixDatagram::from_std(StdDatagram::from(descriptor)));
        let opened =
            opened.inspect_err(|error| tracing::debug!(%error, "no notifications of changes by others"));
        Self(opened.ok())
    }

    /// Completes some time after a change.
    pub async fn next(&mut self) {
        let Some(socket) = &self.0 else { return std::future::pending().await };
        if socket.readable().await.is_err() {
            return std::future::pending().await;
        }
        tokio::time::sleep(WINDOW).await;
        let mut buffer = [0; 16 << 10];
        loop {
            match socket.try_recv(&mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // Messages were lost; the reader looks at the state itself.
                Ok(_) | Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_are_reported_once() {
        let (one, two) = StdDatagram::pair().expect("a pair");
        two.set_nonblocking(true).expect("nonblocking");
        let mut disturbances = Disturbances::new(Ok(two.into()));
        one.send(b"some").expect("sent");
        one.send(b"changes").expect("sent");
        disturbances.next().await;
        let again = tokio::time::timeout(Duration::from_millis(50), disturbances.next()).await;
        assert!(again.is_err(), "reported twice");
    }
}
