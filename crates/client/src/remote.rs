//! The transport over TCP and TLS: HTTP/2 connections, shared by all requests, reopened after they close.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use base::clock::Clock;
use base::machine_network::AddressedStream;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Uri, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::exec::ExecCredential;
use crate::{Body, Call, Kubeconfig, KubeconfigError, Servers, Transport, TransportError, read_material};

/// Concurrent requests and watches on one connection; servers allow 100 or more.
const MAX_STREAMS: usize = 80;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for one of several addresses.
const CANDIDATE_TIMEOUT: Duration = Duration::from_secs(4);
/// Idle time after which a ping is sent.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Validity of a token read from a file.
const TOKEN_CACHE_TIME: Duration = Duration::from_secs(60);

/// A connection upgraded to another protocol than HTTP.
pub type Upgraded = TokioIo<hyper::upgrade::Upgraded>;

/// An API server on the network.
pub struct Remote {
    config: Kubeconfig,
    host: String,
    /// `host:port`.
    address: String,
    /// Further addresses of the server.
    servers: Option<Arc<Servers>>,
    /// Path prefix of the server, if any.
    prefix: String,
    connections: Mutex<Vec<Connection>>,
    token: parking_lot::Mutex<Option<(Instant, HeaderValue)>>,
    /// Cached credential of the kubeconfig's exec plugin.
    exec_credential: Mutex<Option<Arc<ExecCredential>>>,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    streams: Arc<AtomicUsize>,
}

impl Remote {
    /// Validates the kubeconfig; connects on first use.
    pub fn new(config: Kubeconfig) -> Result<Self, KubeconfigError> {
        let unusable = |reason: String| KubeconfigError::Unusable { what: "the server's address", reason };
        let uri: Uri =
            config.server.parse().map_err(|error: http::uri::InvalidUri| unusable(error.to_string()))?;
        if uri.scheme_str() != Some("https") {
            return Err(unusable(format!("{} is not an https URL", config.server)));
        }
        let host = uri.host().ok_or_else(|| unusable("it has no host".to_owned()))?.to_owned();
        tls(&config, None)?;
        let port = uri.port_u16().unwrap_or(443);
        Ok(Self {
            address: format!("{host}:{port}"),
            host,
            servers: None,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            connections: Mutex::new(Vec::new()),
            token: parking_lot::Mutex::new(None),
            exec_credential: Mutex::new(None),
            config,
        })
    }

    /// The same server, which may also be reached at other addresses.
    #[must_use]
    pub fn with_servers(self, servers: Arc<Servers>) -> Self {
        Self { servers: Some(servers), ..self }
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    /// The credential of the kubeconfig's exec plugin, which is run again after expiry.
    async fn exec_credential(&self) -> Result<Option<Arc<ExecCredential>>, TransportError> {
        let Some(exec) = &self.config.exec else { return Ok(None) };
        let mut known = self.exec_credential.lock().await;
        let now = Clock::system().now().as_second();
        let is_valid = |credential: &ExecCredential| credential.expires.is_none_or(|end| end > now);
        if let Some(credential) = known.as_ref().filter(|credential| is_valid(credential)) {
            return Ok(Some(Arc::clone(credential)));
        }
        let credential = exec.run().await;
        let credential =
            credential.map_err(|source| TransportError::Credentials { address: self.address(), source })?;
        let credential = Arc::new(credential);
        let changed = known.as_ref().is_some_and(|known| known.certificate != credential.certificate);
        *known = Some(Arc::clone(&credential));
        drop(known);
        if changed {
            // Connections are bound to the certificate they were opened with.
            self.connections.lock().await.clear();
        }
        Ok(Some(credential))
    }

    /// Drops credentials that the server has rejected.
    async fn drop_credentials(&self, used: Option<&Arc<ExecCredential>>) {
        *self.token.lock() = None;
        let mut known = self.exec_credential.lock().await;
        let is_used = |(known, used): (&Arc<ExecCredential>, &Arc<ExecCredential>)| Arc::ptr_eq(known, used);
        if known.as_ref().zip(used).is_some_and(is_used) {
            *known = None;
        }
    }

    /// The `Authorization` header, if there is a token; one from a file is reread periodically.
    fn authorization(
        &self,
        exec_credential: Option<&ExecCredential>,
    ) -> Result<Option<HeaderValue>, TransportError> {
        let secret = |text: String| {
            let value = HeaderValue::try_from(text).map(|mut value| {
                value.set_sensitive(true);
                value
            });
            value.map(Some).map_err(|error| TransportError::Credentials {
                address: self.address(),
                source: KubeconfigError::Unusable { what: "the credentials", reason: error.to_string() },
            })
        };
        if let Some(token) = exec_credential.and_then(|credential| credential.token.as_deref()) {
            return secret(format!("Bearer {token}"));
        }
        let Some(token) = &self.config.token else {
            return match &self.config.basic {
                Some((name, password)) => {
                    secret(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
                }
                None => Ok(None),
            };
        };
        if let Some((read, value)) = self.token.lock().clone()
            && read.elapsed() < TOKEN_CACHE_TIME
        {
            return Ok(Some(value));
        }
        let credentials = |source| TransportError::Credentials { address: self.address(), source };
        let text = read_material(token).map_err(credentials)?;
        let mut value = HeaderValue::try_from(format!("Bearer {}", text.trim())).map_err(|error| {
            credentials(KubeconfigError::Unusable { what: "the token", reason: error.to_string() })
        })?;
        value.set_sensitive(true);
        *self.token.lock() = Some((Instant::now(), value.clone()));
        Ok(Some(value))
    }

    /// Opens a TLS connection for `protocol`, at the first address of the server that presents its certificate.
    async fn dial(
        &self,
        exec_credential: Option<&ExecCredential>,
        protocol: &[u8],
    ) -> Result<TlsStream<AddressedStream>, TransportError> {
        let Some(servers) = &self.servers else { return self.dial_at(None, exec_credential, protocol).await };
        let (candidates, mut first) = (servers.candidates(), None);
        for candidate in &candidates {
            let limit = if candidates.len() > 1 { CANDIDATE_TIMEOUT } else { CONNECT_TIMEOUT };
            let dialing = self.dial_at(*candidate, exec_credential, protocol);
            match tokio::time::timeout(limit, dialing).await {
                Ok(Ok(stream)) => {
                    servers.connected(*candidate);
                    return Ok(stream);
                }
                Ok(Err(error)) => first = first.or(Some(error)),
                Err(_) => first = first.or(Some(TransportError::Slow { address: self.address(), limit })),
            }
        }
        Err(first.unwrap_or_else(|| TransportError::Slow { address: self.address(), limit: CONNECT_TIMEOUT }))
    }

    /// Opens a TLS connection at an address, or at that of the kubeconfig.
    async fn dial_at(
        &self,
        at: Option<SocketAddr>,
        exec_credential: Option<&ExecCredential>,
        protocol: &[u8],
    ) -> Result<TlsStream<AddressedStream>, TransportError> {
        let address = at.map_or_else(|| self.address(), |at| at.to_string());
        let credentials = |source| TransportError::Credentials { address: address.clone(), source };
        // Files are reread, so that a renewed certificate is used from the next connection on.
        let mut config = tls(&self.config, exec_credential).map_err(credentials)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        let host = at.map_or_else(|| self.host.clone(), |at| at.ip().to_string());
        let name = self.config.server_name.as_deref().unwrap_or(&host);
        let name = ServerName::try_from(name.trim_matches(['[', ']']).to_owned()).map_err(|error| {
            credentials(KubeconfigError::Unusable { what: "the server's name", reason: error.to_string() })
        })?;
        let connecting = async {
            let stream = TcpStream::connect(&address)
                .await
                .map_err(|source| TransportError::Connect { address: address.clone(), source })?;
            // A failure affects only latency.
            let _ = stream.set_nodelay(true);
            let connecting = TlsConnector::from(Arc::new(config)).connect(name, AddressedStream::new(stream));
            connecting.await.map_err(|source| TransportError::Handshake { address: address.clone(), source })
        };
        tokio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| TransportError::Slow { address: address.clone(), limit: CONNECT_TIMEOUT })?
    }

    async fn connect(
        &self,
        exec_credential: Option<&ExecCredential>,
    ) -> Result<SendRequest<Full<Bytes>>, TransportError> {
        let address = self.address();
        let connecting = async {
            let stream = self.dial(exec_credential, b"h2").await?;
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT)
                .adaptive_window(true)
                .handshake(TokioIo::new(stream))
                .await
                .map_err(TransportError::Http)?;
            let abandoned = self.servers.as_ref().map(|servers| servers.abandonment());
            // Ends with the connection, which closes when its last sender is dropped.
            base::tasks::spawn_detached(async move {
                let outcome = match abandoned {
                    None => connection.await,
                    Some(abandoned) => tokio::select! {
                        outcome = connection => outcome,
                        () = abandoned => Ok(()),
                    },
                };
                if let Err(error) = outcome {
                    tracing::debug!(%error, "connection to the API server closed");
                }
            });
            Ok(sender)
        };
        tokio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| TransportError::Slow { address: address.clone(), limit: CONNECT_TIMEOUT })?
    }

    /// A connection with capacity for another request.
    async fn connection(
        &self,
        exec_credential: Option<&ExecCredential>,
    ) -> Result<(SendRequest<Full<Bytes>>, Stream), TransportError> {
        let mut connections = self.connections.lock().await;
        connections.retain(|connection| !connection.sender.is_closed());
        if let Some(free) =
            connections.iter().find(|connection| connection.streams.load(Ordering::Relaxed) < MAX_STREAMS)
        {
            return Ok((free.sender.clone(), Stream::new(&free.streams)));
        }
        let sender = self.connect(exec_credential).await?;
        let streams = Arc::new(AtomicUsize::new(0));
        let stream = Stream::new(&streams);
        connections.push(Connection { sender: sender.clone(), streams });
        Ok((sender, stream))
    }

    /// Sends an upgrade request on a connection of its own. A response other than 101 is returned unmodified.
    pub async fn upgrade(
        &self,
        request: http::Request<()>,
    ) -> Result<Result<(http::response::Parts, Upgraded), http::Response<Bytes>>, TransportError> {
        let exec_credential = self.exec_credential().await?;
        let (mut head, ()) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri = format!("{}{path}", self.prefix);
        head.uri =
            uri.parse().map_err(|error: http::uri::InvalidUri| TransportError::Request(error.into()))?;
        if let Some(authorization) = self.authorization(exec_credential.as_deref())? {
            head.headers.insert(header::AUTHORIZATION, authorization);
        }
        let host =
            HeaderValue::try_from(self.address()).map_err(|error| TransportError::Request(error.into()))?;
        head.headers.insert(header::HOST, host);
        let stream = self.dial(exec_credential.as_deref(), b"http/1.1").await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(TransportError::Http)?;
        // Ends with the connection.
        base::tasks::spawn_detached(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "connection to the API server closed");
            }
        });
        let request = http::Request::from_parts(head, Full::new(Bytes::new()));
        let mut response = sender.send_request(request).await.map_err(TransportError::Http)?;
        if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
            let upgraded = hyper::upgrade::on(&mut response).await.map_err(TransportError::Http)?;
            return Ok(Ok((response.into_parts().0, TokioIo::new(upgraded))));
        }
        let (head, body) = response.into_parts();
        let whole = body.collect().await.map_err(|error| TransportError::Broken(Box::new(error)))?;
        Ok(Err(http::Response::from_parts(head, whole.to_bytes())))
    }

    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Body>, TransportError> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri = format!("https://{}{}{path}", self.address(), self.prefix);
        head.uri =
            uri.parse().map_err(|error: http::uri::InvalidUri| TransportError::Request(error.into()))?;
        let exec_credential = self.exec_credential().await?;
        if let Some(authorization) = self.authorization(exec_credential.as_deref())? {
            head.headers.insert(header::AUTHORIZATION, authorization);
        }
        let mut request = http::Request::from_parts(head, Full::new(body));
        let mut again = true;
        loop {
            let (mut sender, stream) = self.connection(exec_credential.as_deref()).await?;
            match sender.try_send_request(request).await {
                Ok(response) => {
                    if response.status() == http::StatusCode::UNAUTHORIZED {
                        self.drop_credentials(exec_credential.as_ref()).await;
                    }
                    return Ok(response.map(|body| CountedBody { body, _stream: stream }.boxed_unsync()));
                }
                Err(mut error) => match error.take_message() {
                    // The connection closed before the request was sent: another one may work.
                    Some(unsent) if again => {
                        again = false;
                        request = unsent;
                    }
                    _ => return Err(TransportError::Http(error.into_error())),
                },
            }
        }
    }
}

impl Transport for Remote {
    fn authority(&self) -> &str {
        &self.address
    }

    fn call(&self, request: http::Request<Bytes>) -> Call<'_> {
        Box::pin(self.send(request))
    }
}

/// A request in progress on a connection, until its response has been read or dropped.
struct Stream(Arc<AtomicUsize>);

impl Stream {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A response body that counts as a request in progress.
struct CountedBody {
    body: Incoming,
    _stream: Stream,
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = TransportError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, TransportError>>> {
        Pin::new(&mut self.body).poll_frame(cx).map_err(|error| TransportError::Broken(Box::new(error)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

fn tls(
    config: &Kubeconfig,
    exec_credential: Option<&ExecCredential>,
) -> Result<ClientConfig, KubeconfigError> {
    let unusable = |what: &'static str| move |reason: String| KubeconfigError::Unusable { what, reason };
    let mut roots = RootCertStore::empty();
    if let Some(authority) = &config.authority {
        let what = "certificate-authority";
        for certificate in
            base::pki::certificates_from_pem(&read_material(authority)?).map_err(unusable(what))?
        {
            roots.add(certificate).map_err(|error| unusable(what)(error.to_string()))?;
        }
    }
    let builder = base::tls::client_builder().map_err(|error| unusable("TLS")(error.to_string()))?;
    let builder = match config.insecure {
        true => builder.dangerous().with_custom_certificate_verifier(base::tls::accept_all()),
        false => builder.with_root_certificates(roots),
    };
    let configured =
        match (exec_credential.and_then(|credential| credential.certificate.as_ref()), &config.certificate) {
            (Some((certificate, key)), _) => Some(format!("{certificate}\n{key}")),
            (None, Some((certificate, key))) => {
                Some(format!("{}\n{}", read_material(certificate)?, read_material(key)?))
            }
            (None, None) => None,
        };
    let mut tls = match configured {
        Some(text) => {
            let (chain, key) = identity(&text).map_err(unusable("client-certificate"))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| unusable("client-certificate")(error.to_string()))?
        }
        None => builder.with_no_client_auth(),
    };
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Ok(tls)
}

type Pair = (Vec<rustls_pki_types::CertificateDer<'static>>, rustls_pki_types::PrivateKeyDer<'static>);

/// Certificate chain and key in any of the usual PEM forms.
fn identity(text: &str) -> Result<Pair, String> {
    use rustls_pki_types::pem::PemObject;
    let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|error| format!("its key: {error}"))?;
    Ok((base::pki::certificates_from_pem(text)?, key))
}
