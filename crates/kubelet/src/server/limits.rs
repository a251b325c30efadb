//! Limits of the listener: what a client without credentials can hold of it, and for how long.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use parking_lot::Mutex;

/// Time a client has for its handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time a client has to send the head of a request, from the end of the handshake or of the request before. A connection
/// without requests is closed after it.
pub const HEAD: Duration = Duration::from_secs(32);
/// Largest head of a request; more is answered with 431.
const HEAD_BYTES: usize = 1 << 20;
/// Connections at the same time; more wait.
pub const CONNECTIONS: usize = 1024;
/// Connections of one address at the same time; more are closed at once.
pub const CONNECTIONS_PER_ADDRESS: usize = 256;

/// HTTP with the limits above.
pub fn http() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
    builder
}

/// Open connections by address.
#[derive(Debug, Default)]
pub struct Addresses {
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// A connection that is counted until this is dropped.
#[derive(Debug)]
pub struct Counted {
    addresses: Arc<Addresses>,
    address: IpAddr,
}

impl Addresses {
    /// Counts a connection, unless its address has as many as it may.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Counted> {
        let address = address.to_canonical();
        let mut open = self.open.lock();
        let count = open.entry(address).or_default();
        if *count >= CONNECTIONS_PER_ADDRESS {
            return None;
        }
        *count += 1;
        drop(open);
        Some(Counted { addresses: Arc::clone(self), address })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = self.addresses.open.lock();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn address_with_many_connections_is_refused_more() {
        let addresses = Arc::new(Addresses::default());
        let (greedy, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut held: Vec<Counted> =
            (0..CONNECTIONS_PER_ADDRESS).map(|_| addresses.admit(greedy).expect("admitted")).collect();
        let mapped = "::ffff:10.0.0.1".parse().expect("an address");
        assert!(addresses.admit(greedy).is_none() && addresses.admit(mapped).is_none());
        assert!(addresses.admit(other).is_some());
        held.pop();
        assert!(addresses.admit(greedy).is_some());
        held.clear();
        assert!(addresses.open.lock().is_empty(), "what is closed takes no memory");
    }

    /// The answer, and how long the connection lived, when `sent` is all that a client sends.
    async fn lives(sent: &'static [u8]) -> (String, Duration) {
        let (mut client, server) = tokio::io::duplex(4096);
        let handler = service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"answer"))))
        });
        let serving = http().serve_connection(TokioIo::new(server), handler);
        let begin = tokio::time::Instant::now();
        let serving = async move {
            let _ = tokio::time::timeout(Duration::from_secs(3600), serving).await;
            begin.elapsed()
        };
        let asking = async move {
            client.write_all(sent).await.expect("sent");
            let mut text = String::new();
            let _ = client.read_to_string(&mut text).await;
            text
        };
        let (lived, text) = tokio::join!(serving, asking);
        (text, lived)
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_request_is_closed() {
        let most = HEAD + Duration::from_secs(1);
        for sent in [&b""[..], b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"] {
            let (text, lived) = lives(sent).await;
            assert!(lived <= most && !text.contains("answer"), "{lived:?} {text}");
        }
        let (text, lived) = lives(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(text.contains("answer") && lived <= most, "idle after a request: {lived:?} {text}");
    }
}
