//! Connections to networks that the API server does not reach directly (`EgressSelectorConfiguration`): tunnels through
//! HTTP proxies with the CONNECT method.
//!
//! The proxies are configured per process; connections specify the network they lead to.

use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::http::{Address, Origin};
use crate::machine_network::AddressedStream;

/// Time for the connection to a proxy and for its answer.
const PROXY_LIMIT: Duration = Duration::from_secs(30);
/// Largest response head of a proxy.
const MAX_HEAD: usize = 64 << 10;

/// A network that connections of the API server lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Nodes, pods, services and extension servers.
    Cluster,
    /// Webhooks with URLs, token issuers.
    ControlPlane,
}

/// HTTP proxies by network; networks without one are reached directly.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    pub cluster: Option<Origin>,
    pub control_plane: Option<Origin>,
}

static PROXIES: RwLock<Option<Arc<Proxies>>> = RwLock::new(None);

impl Proxies {
    /// Uses these proxies for connections from now on.
    pub fn install(self) {
        *PROXIES.write() = Some(Arc::new(self));
    }

    fn of(&self, network: Network) -> Option<&Origin> {
        match network {
            Network::Cluster => self.cluster.as_ref(),
            Network::ControlPlane => self.control_plane.as_ref(),
        }
    }
}

/// A connection, direct or through a proxy.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Failure to resolve the name of a server: the inner error of the one that [`connect`] returns.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct LookupError(#[from] Error);

impl LookupError {
    /// True if `error` is of a name that was not resolved.
    #[must_use]
    pub fn is_cause_of(error: &Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

/// Connects to a server; `network` is `None` for servers that are always reached directly.
pub async fn connect(network: Option<Network>, host: &str, port: u16) -> Result<Box<dyn Stream>> {
    let proxies = PROXIES.read().clone();
    let proxy = proxies.as_ref().zip(network).and_then(|(proxies, network)| proxies.of(network));
    if let Some(proxy) = proxy {
        return connect_through(proxy, host, port, PROXY_LIMIT).await;
    }
    let found = tokio::net::lookup_host((host, port)).await;
    let found = found.map_err(|error| Error::new(error.kind(), LookupError(error)))?;
    let stream = TcpStream::connect(found.collect::<Vec<_>>().as_slice()).await?;
    stream.set_nodelay(true)?;
    Ok(Box::new(AddressedStream::new(stream)))
}

/// Connects to a server through a proxy, which also resolves its name.
async fn connect_through(proxy: &Origin, host: &str, port: u16, limit: Duration) -> Result<Box<dyn Stream>> {
    // Host names come from API objects: a line break would inject a request to the proxy.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_plain) {
        return Err(Error::new(ErrorKind::InvalidInput, format!("{host:?} is not a host name")));
    }
    let name = proxy.authority();
    let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let connecting = async {
        let failed =
            |error: Error| Error::new(error.kind(), format!("dialing proxy {name:?} failed: {error}"));
        let stream: Box<dyn Stream> = match &*proxy.address {
            Address::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(failed)?),
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
                stream.set_nodelay(true)?;
                match &proxy.tls {
                    None => Box::new(stream),
                    Some(tls) => {
                        let connector = TlsConnector::from(Arc::clone(&tls.config));
                        Box::new(connector.connect(tls.name.clone(), stream).await.map_err(failed)?)
                    }
                }
            }
        };
        tunnel(stream, &name, &target).await
    };
    let outcome = tokio::time::timeout(limit, connecting).await;
    outcome.unwrap_or_else(|_| {
        let text = format!("no connection to {target} via proxy {name} within {limit:?}");
        Err(Error::new(ErrorKind::TimedOut, text))
    })
}

/// Sends CONNECT for `target` to the proxy on `stream`.
async fn tunnel(mut stream: Box<dyn Stream>, proxy: &str, target: &str) -> Result<Box<dyn Stream>> {
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let failed = |reason: &str| {
        let text =
            format!("reading HTTP response from CONNECT to {target} via proxy {proxy} failed: {reason}");
        Error::new(ErrorKind::InvalidData, text)
    };
    let mut head = Vec::new();
    let end = loop {
        let mut piece = [0; 1024];
        match stream.read(&mut piece).await? {
            0 => return Err(failed("unexpected EOF")),
            count => head.extend_from_slice(&piece[..count]),
        }
        if let Some(at) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if head.len() > MAX_HEAD {
            return Err(failed("response head is too long"));
        }
    };
    let line = String::from_utf8_lossy(&head[..end]);
    let line = line.lines().next().unwrap_or_default();
    let (version, status) = line.split_once(' ').unwrap_or_default();
    let code = status.split(' ').next().and_then(|code| code.parse::<u16>().ok());
    match code {
        Some(200) if version.starts_with("HTTP/1.") => {}
        Some(code) if version.starts_with("HTTP/1.") => {
            let text = format!("proxy error from {proxy} while dialing {target}, code {code}: {status}");
            return Err(Error::new(ErrorKind::ConnectionRefused, text));
        }
        _ => return Err(failed("malformed HTTP response")),
    }
    match head.len() - end {
        0 => Ok(stream),
        rest => {
            let text = format!("unexpected {rest} bytes of buffered data from CONNECT proxy {proxy:?}");
            Err(Error::new(ErrorKind::InvalidData, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, UnixListener};

    /// Answers every connection of a proxy with the same bytes, then echoes.
    async fn answer(mut stream: impl Stream, answer: Vec<u8>) -> String {
        let mut request = vec![0; 4096];
        let count = stream.read(&mut request).await.unwrap_or(0);
        if answer.is_empty() {
            std::future::pending::<()>().await;
        }
        let _ = stream.write_all(&answer).await;
        let mut line = [0; 4];
        if stream.read_exact(&mut line).await.is_ok() {
            let _ = stream.write_all(&line).await;
        }
        String::from_utf8_lossy(&request[..count]).into_owned()
    }

    #[tokio::test]
    async fn unresolved_name_is_distinguished_from_a_refused_connection() {
        let failed = async |host: &str, port: u16| connect(None, host, port).await.err().expect("an error");
        // Empty labels: rejected without a query.
        let unresolved = failed("not..a..name", 80).await;
        assert!(LookupError::is_cause_of(&unresolved), "{unresolved}");
        assert!(unresolved.to_string().contains("lookup address information"), "{unresolved}");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let refused = failed("127.0.0.1", port).await;
        assert!(!LookupError::is_cause_of(&refused), "{refused}");
    }

    #[tokio::test]
    async fn tunnels_lead_through_tcp_and_unix_sockets() {
        const OK: &[u8] = b"HTTP/1.1 200 Connection established\r\nx: y\r\n\r\n";
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("proxy.sock");
        let (unix, tcp) = (
            UnixListener::bind(&path).expect("a socket"),
            TcpListener::bind("127.0.0.1:0").await.expect("a port"),
        );
        let port = tcp.local_addr().expect("an address").port();
        let over_unix =
            tokio::spawn(
                async move { answer(unix.accept().await.expect("a connection").0, OK.to_vec()).await },
            );
        let over_tcp =
            tokio::spawn(
                async move { answer(tcp.accept().await.expect("a connection").0, OK.to_vec()).await },
            );
        let proxies = [Origin::unix(path), Origin::plain("127.0.0.1", port)];
        for (proxy, host) in proxies.iter().zip(["fd00::1", "node-1.example.com"]) {
            let mut stream = connect_through(proxy, host, 10250, PROXY_LIMIT).await.expect("a tunnel");
            stream.write_all(b"ping").await.expect("sent");
            let mut echo = [0; 4];
            stream.read_exact(&mut echo).await.expect("an echo");
            assert_eq!(&echo, b"ping");
        }
        let request = |target: &str| format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        assert_eq!(over_unix.await.expect("no panic"), request("[fd00::1]:10250"));
        assert_eq!(over_tcp.await.expect("no panic"), request("node-1.example.com:10250"));
    }

    #[tokio::test]
    async fn proxies_that_refuse_hang_or_flood_are_errors() {
        let flood = [b"HTTP/1.1 200 OK\r\n".to_vec(), vec![b'x'; 1 << 20]].concat();
        for (reply, want) in [
            (b"HTTP/1.1 403 Forbidden\r\n\r\n".to_vec(), "code 403: 403 Forbidden"),
            (b"nonsense\r\n\r\n".to_vec(), "malformed HTTP response"),
            (b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0".to_vec(), "unexpected 7 bytes of buffered data"),
            (b"HTTP/1.1 200".to_vec(), "within 300ms"),
            (Vec::new(), "within 300ms"),
            (flood, "response head is too long"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let port = listener.local_addr().expect("an address").port();
            tokio::spawn(
                async move { answer(listener.accept().await.expect("a connection").0, reply).await },
            );
            let proxy = Origin::plain("127.0.0.1", port);
            let failed = connect_through(&proxy, "host", 1, Duration::from_millis(300)).await.err();
            let text = failed.expect(want).to_string();
            assert!(text.contains(want), "{text}");
        }
        let nowhere = Origin::unix("/nonexistent");
        for host in ["", "a b", "a\r\nX: y", "ä"] {
            let error = connect_through(&nowhere, host, 1, PROXY_LIMIT).await.err().expect(host);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{host:?}");
        }
    }
}
