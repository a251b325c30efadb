//! A small HTTP client for tests: JSON requests and responses, without retries or defaults.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A client certificate with its key.
#[derive(Debug)]
pub struct Identity {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl From<base::pki::Identity> for Identity {
    fn from(identity: base::pki::Identity) -> Self {
        Self { key: identity.key(), chain: identity.chain }
    }
}

/// A complete response.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub bytes: Bytes,
    /// The body as JSON; null if it is not JSON.
    pub body: Value,
}

enum Sender {
    H1(http1::SendRequest<Full<Bytes>>),
    H2(http2::SendRequest<Full<Bytes>>),
}

/// A client of one server with one identity. It reuses a connection and reconnects after it closes.
pub struct Client {
    address: SocketAddr,
    connector: TlsConnector,
    h2: bool,
    sender: Mutex<Option<Sender>>,
}

impl Client {
    /// A client that trusts `authority` and presents `identity`, if any.
    pub fn new(
        address: SocketAddr,
        authority: &CertificateDer<'static>,
        identity: Option<Identity>,
    ) -> Result<Self> {
        Self::with_protocol(address, authority, identity, true)
    }

    /// As [`Client::new`], with HTTP/1.1 only.
    pub fn http1(
        address: SocketAddr,
        authority: &CertificateDer<'static>,
        identity: Option<Identity>,
    ) -> Result<Self> {
        Self::with_protocol(address, authority, identity, false)
    }

    fn with_protocol(
        address: SocketAddr,
        authority: &CertificateDer<'static>,
        identity: Option<Identity>,
        h2: bool,
    ) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone())?;
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match identity {
            Some(identity) => builder.with_client_auth_cert(identity.chain, identity.key)?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![if h2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        Ok(Self { address, connector: TlsConnector::from(Arc::new(config)), h2, sender: Mutex::new(None) })
    }

    /// The certificate that the server presents on a new connection.
    pub async fn server_certificate(&self) -> Result<CertificateDer<'static>> {
        self.certificate_for(ServerName::from(self.address.ip())).await
    }

    /// The certificate that the server presents on a new connection for a host name (SNI).
    pub async fn server_certificate_for(&self, host: &str) -> Result<CertificateDer<'static>> {
        self.certificate_for(ServerName::try_from(host.to_owned())?).await
    }

    async fn certificate_for(&self, name: ServerName<'static>) -> Result<CertificateDer<'static>> {
        let io = self.handshake_for(name).await?;
        let shown = io.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        Ok(shown.context("server sent no certificate")?.clone().into_owned())
    }

    /// A new connection after its handshake, for raw requests.
    pub async fn handshake(&self) -> Result<TlsStream<TcpStream>> {
        self.handshake_for(ServerName::from(self.address.ip())).await
    }

    async fn handshake_for(&self, name: ServerName<'static>) -> Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address)
            .await
            .with_context(|| format!("failed to connect to {}", self.address))?;
        stream.set_nodelay(true)?;
        self.connector.connect(name, stream).await.context("TLS handshake failed")
    }

    async fn connect(&self) -> Result<Sender> {
        let io = TokioIo::new(self.handshake().await?);
        if self.h2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            tokio::spawn(connection);
            return Ok(Sender::H2(sender));
        }
        let (sender, connection) = http1::handshake(io).await?;
        tokio::spawn(connection.with_upgrades());
        Ok(Sender::H1(sender))
    }

    /// Reports whether the connection of earlier requests is reusable.
    pub async fn is_connected(&self) -> bool {
        match &*self.sender.lock().await {
            Some(Sender::H1(sender)) => !sender.is_closed(),
            Some(Sender::H2(sender)) => !sender.is_closed(),
            None => false,
        }
    }

    /// Sends a request and returns the response's head and streaming body.
    pub async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        if !self.h2 {
            let host = self.address.to_string();
            request.headers_mut().entry(http::header::HOST).or_insert(host.parse()?);
        } else if request.uri().authority().is_none() {
            let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
            *request.uri_mut() = format!("https://{}{path}", self.address).parse()?;
        }
        let mut slot = self.sender.lock().await;
        let usable = match &mut *slot {
            Some(Sender::H1(sender)) => sender.ready().await.is_ok(),
            Some(Sender::H2(sender)) => sender.ready().await.is_ok(),
            None => false,
        };
        if !usable {
            *slot = Some(self.connect().await?);
        }
        match slot.as_mut().context("no connection")? {
            Sender::H1(sender) => {
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
            Sender::H2(sender) => {
                let mut sender = sender.clone();
                drop(slot);
                Ok(sender.send_request(request).await?)
            }
        }
    }

    /// Sends a request and reads the whole response. An empty `content_type` sends no such header.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: impl Into<Bytes>,
    ) -> Result<Reply> {
        let mut request = Request::builder().method(method).uri(path);
        if !content_type.is_empty() {
            request = request.header(http::header::CONTENT_TYPE, content_type);
        }
        self.exchange(request.body(Full::new(body.into()))?).await
    }

    /// Sends any request and reads the whole response.
    pub async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Reply> {
        let (head, body) = self.send(request).await?.into_parts();
        let bytes = body.collect().await.context("failed to read the response")?.to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Ok(Reply { status: head.status, headers: head.headers, bytes, body })
    }

    pub async fn get(&self, path: &str) -> Result<Reply> {
        self.request(Method::GET, path, "", Bytes::new()).await
    }

    pub async fn post(&self, path: &str, object: &Value) -> Result<Reply> {
        self.request(Method::POST, path, "application/json", serde_json::to_vec(object)?).await
    }

    pub async fn put(&self, path: &str, object: &Value) -> Result<Reply> {
        self.request(Method::PUT, path, "application/json", serde_json::to_vec(object)?).await
    }

    pub async fn delete(&self, path: &str) -> Result<Reply> {
        self.request(Method::DELETE, path, "", Bytes::new()).await
    }

    /// Opens a stream of JSON lines, such as a watch.
    pub async fn stream(&self, path: &str) -> Result<Streaming> {
        let request = Request::builder().uri(path).body(Full::default())?;
        let (head, body) = self.send(request).await?.into_parts();
        Ok(Streaming { status: head.status, headers: head.headers, body, pending: Vec::new() })
    }
}

/// A streaming response: JSON documents, one per line.
#[derive(Debug)]
pub struct Streaming {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    pending: Vec<u8>,
}

impl Streaming {
    /// The next document; `None` at the orderly end of the stream.
    pub async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            match self.body.frame().await {
                Some(frame) => self.pending.extend_from_slice(&frame?.into_data().unwrap_or_default()),
                None => return Ok(None),
            }
        }
    }
}
