//! The transport over TCP and TLS: HTTP/2 connections, shared by all requests, opened again when they are gone.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

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
use crate::{Body, Call, Kubeconfig, KubeconfigError, Transport, TransportError};

/// Requests and watches at once on one connection; servers allow 100 or more.
const STREAMS: usize = 80;
const CONNECT: Duration = Duration::from_secs(15);
/// A connection on which nothing came for this long is asked for a sign of life.
const QUIET: Duration = Duration::from_secs(30);
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);
/// How long a token read from a file is used.
const TOKEN_LIFE: Duration = Duration::from_secs(60);

/// A connection on which another protocol than HTTP is spoken.
pub type Upgraded = TokioIo<hyper::upgrade::Upgraded>;

/// An API server somewhere on the network.
pub struct Remote {
    config: Kubeconfig,
    host: String,
    port: u16,
    /// What precedes the API's paths, if the server is behind a prefix.
    prefix: String,
    connections: Mutex<Vec<Connection>>,
    token: parking_lot::Mutex<Option<(Instant, HeaderValue)>>,
    /// Credential of the program that the kubeconfig names, while it is valid.
    executed: Mutex<Option<Arc<ExecCredential>>>,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    streams: Arc<AtomicUsize>,
}

impl Remote {
    /// Checks what the kubeconfig says; connects when first used.
    pub fn new(config: Kubeconfig) -> Result<Self, KubeconfigError> {
        let unusable = |reason: String| KubeconfigError::Unusable { what: "the server's address", reason };
        let uri: Uri =
            config.server.parse().map_err(|error: http::uri::InvalidUri| unusable(error.to_string()))?;
        if uri.scheme_str() != Some("https") {
            return Err(unusable(format!("{} is not an https URL", config.server)));
        }
        let host = uri.host().ok_or_else(|| unusable("it names no host".to_owned()))?.to_owned();
        tls(&config, None)?;
        Ok(Self {
            host,
            port: uri.port_u16().unwrap_or(443),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            connections: Mutex::new(Vec::new()),
            token: parking_lot::Mutex::new(None),
            executed: Mutex::new(None),
            config,
        })
    }

    fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The credential of the program that the kubeconfig names, run again when its credential has ended.
    async fn executed(&self) -> Result<Option<Arc<ExecCredential>>, TransportError> {
        let Some(exec) = &self.config.exec else { return Ok(None) };
        let mut known = self.executed.lock().await;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let is_valid = |credential: &ExecCredential| {
            credential.expires.is_none_or(|end| u64::try_from(end).is_ok_and(|end| end > now))
        };
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
            // Connections are of the certificate they were made with.
            self.connections.lock().await.clear();
        }
        Ok(Some(credential))
    }

    /// Forgets credentials that the server has refused.
    async fn refused(&self, used: Option<&Arc<ExecCredential>>) {
        *self.token.lock() = None;
        let mut known = self.executed.lock().await;
        let is_used = |(known, used): (&Arc<ExecCredential>, &Arc<ExecCredential>)| Arc::ptr_eq(known, used);
        if known.as_ref().zip(used).is_some_and(is_used) {
            *known = None;
        }
    }

    /// The `Authorization` header, if there is a token; one from a file is read again after a while.
    fn authorization(
        &self,
        executed: Option<&ExecCredential>,
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
        if let Some(token) = executed.and_then(|credential| credential.token.as_deref()) {
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
            && read.elapsed() < TOKEN_LIFE
        {
            return Ok(Some(value));
        }
        let credentials = |source| TransportError::Credentials { address: self.address(), source };
        let text = token.read().map_err(credentials)?;
        let mut value = HeaderValue::try_from(format!("Bearer {}", text.trim())).map_err(|error| {
            credentials(KubeconfigError::Unusable { what: "the token", reason: error.to_string() })
        })?;
        value.set_sensitive(true);
        *self.token.lock() = Some((Instant::now(), value.clone()));
        Ok(Some(value))
    }

    /// A TLS connection that speaks `protocol`.
    async fn dial(
        &self,
        executed: Option<&ExecCredential>,
        protocol: &[u8],
    ) -> Result<TlsStream<TcpStream>, TransportError> {
        let address = self.address();
        let credentials = |source| TransportError::Credentials { address: address.clone(), source };
        // Files are read anew, so that a renewed certificate is used from the next connection on.
        let mut config = tls(&self.config, executed).map_err(credentials)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = self.config.server_name.as_deref().unwrap_or(&self.host);
        let name = ServerName::try_from(name.trim_matches(['[', ']']).to_owned()).map_err(|error| {
            credentials(KubeconfigError::Unusable { what: "the server's name", reason: error.to_string() })
        })?;
        let connecting = async {
            let stream = TcpStream::connect(&address)
                .await
                .map_err(|source| TransportError::Connect { address: address.clone(), source })?;
            // Only latency would suffer.
            let _ = stream.set_nodelay(true);
            let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
            connecting.await.map_err(|source| TransportError::Handshake { address: address.clone(), source })
        };
        tokio::time::timeout(CONNECT, connecting)
            .await
            .map_err(|_| TransportError::Slow { address: address.clone(), limit: CONNECT })?
    }

    async fn connect(
        &self,
        executed: Option<&ExecCredential>,
    ) -> Result<SendRequest<Full<Bytes>>, TransportError> {
        let address = self.address();
        let connecting = async {
            let stream = self.dial(executed, b"h2").await?;
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(QUIET)
                .keep_alive_timeout(SIGN_OF_LIFE)
                .adaptive_window(true)
                .handshake(TokioIo::new(stream))
                .await
                .map_err(TransportError::Http)?;
            // Ends with the connection, which ends when nobody holds its sender.
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to the API server ended");
                }
            });
            Ok(sender)
        };
        tokio::time::timeout(CONNECT, connecting)
            .await
            .map_err(|_| TransportError::Slow { address: address.clone(), limit: CONNECT })?
    }

    /// A connection with room for another request.
    async fn connection(
        &self,
        executed: Option<&ExecCredential>,
    ) -> Result<(SendRequest<Full<Bytes>>, Stream), TransportError> {
        let mut connections = self.connections.lock().await;
        connections.retain(|connection| !connection.sender.is_closed());
        if let Some(free) =
            connections.iter().find(|connection| connection.streams.load(Ordering::Relaxed) < STREAMS)
        {
            return Ok((free.sender.clone(), Stream::new(&free.streams)));
        }
        let sender = self.connect(executed).await?;
        let streams = Arc::new(AtomicUsize::new(0));
        let stream = Stream::new(&streams);
        connections.push(Connection { sender: sender.clone(), streams });
        Ok((sender, stream))
    }

    /// Sends a request that asks to switch protocols, on a connection of its own. An answer other than 101 comes back
    /// as it is.
    pub async fn upgrade(
        &self,
        request: http::Request<()>,
    ) -> Result<Result<(http::response::Parts, Upgraded), http::Response<Bytes>>, TransportError> {
        let executed = self.executed().await?;
        let (mut head, ()) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri = format!("{}{path}", self.prefix);
        head.uri =
            uri.parse().map_err(|error: http::uri::InvalidUri| TransportError::Request(error.into()))?;
        if let Some(authorization) = self.authorization(executed.as_deref())? {
            head.headers.insert(header::AUTHORIZATION, authorization);
        }
        let host =
            HeaderValue::try_from(self.address()).map_err(|error| TransportError::Request(error.into()))?;
        head.headers.insert(header::HOST, host);
        let stream = self.dial(executed.as_deref(), b"http/1.1").await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(TransportError::Http)?;
        // Ends with the connection.
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to the API server ended");
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
        let executed = self.executed().await?;
        if let Some(authorization) = self.authorization(executed.as_deref())? {
            head.headers.insert(header::AUTHORIZATION, authorization);
        }
        let mut request = http::Request::from_parts(head, Full::new(body));
        let mut again = true;
        loop {
            let (mut sender, stream) = self.connection(executed.as_deref()).await?;
            match sender.try_send_request(request).await {
                Ok(response) => {
                    if response.status() == http::StatusCode::UNAUTHORIZED {
                        self.refused(executed.as_ref()).await;
                    }
                    return Ok(response.map(|body| Counted { body, _stream: stream }.boxed_unsync()));
                }
                Err(mut error) => match error.take_message() {
                    // The connection was gone before the request was on it: another may do.
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
    fn call(&self, request: http::Request<Bytes>) -> Call<'_> {
        Box::pin(self.send(request))
    }
}

/// A request under way on a connection, until its answer has been read or dropped.
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

/// An answer that counts as a request under way.
struct Counted {
    body: Incoming,
    _stream: Stream,
}

impl http_body::Body for Counted {
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

fn tls(config: &Kubeconfig, executed: Option<&ExecCredential>) -> Result<ClientConfig, KubeconfigError> {
    let unusable = |what: &'static str| move |reason: String| KubeconfigError::Unusable { what, reason };
    let mut roots = RootCertStore::empty();
    if let Some(authority) = &config.authority {
        let what = "certificate-authority";
        for certificate in base::pki::certificates_from_pem(&authority.read()?).map_err(unusable(what))? {
            roots.add(certificate).map_err(|error| unusable(what)(error.to_string()))?;
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS")(error.to_string()))?;
    let builder = match config.insecure {
        true => builder.dangerous().with_custom_certificate_verifier(base::tls::Anybody::new()),
        false => builder.with_root_certificates(roots),
    };
    let given = match (executed.and_then(|credential| credential.certificate.as_ref()), &config.certificate) {
        (Some((certificate, key)), _) => Some(format!("{certificate}\n{key}")),
        (None, Some((certificate, key))) => Some(format!("{}\n{}", certificate.read()?, key.read()?)),
        (None, None) => None,
    };
    let mut tls = match given {
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

/// Chain and key of any of the usual forms.
fn identity(text: &str) -> Result<Pair, String> {
    use rustls_pki_types::pem::PemObject;
    let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|error| format!("its key: {error}"))?;
    Ok((base::pki::certificates_from_pem(text)?, key))
}
