//! Listener limits for unauthenticated clients.

use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;

/// Handshake timeout.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// Timeout of a request head, from the end of the handshake or of the previous request. Idle connections are closed
/// after it.
pub const HEAD: Duration = Duration::from_secs(32);
/// Maximum size of a request head; larger ones get 431.
const HEAD_BYTES: usize = 1 << 20;
/// Maximum number of concurrent connections; more wait.
pub const CONNECTIONS: usize = 1024;
/// Maximum number of concurrent connections per address; more are closed immediately.
pub const CONNECTIONS_PER_ADDRESS: usize = 256;

/// HTTP with the limits above.
pub fn http() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
    builder
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

    /// Returns the response and the connection's lifetime for a client that sends only `sent`.
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
        let requests = async move {
            client.write_all(sent).await.expect("sent");
            let mut text = String::new();
            let _ = client.read_to_string(&mut text).await;
            text
        };
        let (lived, text) = tokio::join!(serving, requests);
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
