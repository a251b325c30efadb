//! A small HTTPS server with scripted responses: a token issuer, a webhook.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::PrivateKeyDer;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// Name in the certificate besides the address: the service `responder` in the namespace `default`.
const SERVICE: &str = "responder.default.svc";

/// Recorded paths with bodies, and headers.
type RecordedRequests = Arc<Mutex<Vec<(String, Value)>>>;
type RecordedHeaders = Arc<Mutex<Vec<HeaderMap>>>;
/// Numbers of connections, with the paths requested on them.
type RecordedConnections = Arc<Mutex<BTreeSet<(usize, String)>>>;

type Answer = dyn Fn(&str, &Value) -> (u16, Value) + Send + Sync;

/// Member of a response whose items are sent as lines of an endless stream.
const STREAM: &str = "stream";

/// Member of a response whose text is sent unmodified.
const TEXT: &str = "text";

/// The server; it and its connections end when this is dropped.
pub struct Responder {
    pub url: String,
    /// Its self-signed certificate.
    pub certificate: String,
    seen: RecordedRequests,
    headers: RecordedHeaders,
    connections: RecordedConnections,
    running: JoinHandle<()>,
}

impl Responder {
    /// Responds to requests with the result of `answer` for their path and body. `{"stream": […]}` is sent like a
    /// watch: one item per line, without end.
    pub async fn start(
        answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static,
    ) -> Result<Self> {
        let path = |target: &str| target.split('?').next().unwrap_or_default().to_owned();
        Self::start_with(&[], move |target, body| answer(&path(target), body)).await
    }

    /// An API server for clients that need HTTP/2; `answer` receives the query with the path.
    pub async fn start_api_server(
        answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::start_with(&[b"h2"], answer).await
    }

    async fn start_with(
        protocols: &[&[u8]],
        answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static,
    ) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1", SERVICE].map(str::to_owned))?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)?;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("failed to bind a listener")?;
        let url = format!("https://{}", listener.local_addr()?);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let headers = Arc::new(Mutex::new(Vec::new()));
        let connections = RecordedConnections::default();
        let records = (Arc::clone(&seen), Arc::clone(&headers), Arc::clone(&connections));
        let running = tokio::spawn(accept(listener, acceptor, Arc::new(answer), records));
        Ok(Self { url, certificate: made.cert.pem(), seen, headers, connections, running })
    }

    /// The paths and bodies of all requests so far.
    #[must_use]
    pub fn seen(&self) -> Vec<(String, Value)> {
        self.seen.lock().map(|seen| seen.clone()).unwrap_or_default()
    }

    /// The headers of all requests so far.
    #[must_use]
    pub fn headers(&self) -> Vec<HeaderMap> {
        self.headers.lock().map(|headers| headers.clone()).unwrap_or_default()
    }

    /// Number of connections on which this path was requested.
    #[must_use]
    pub fn connections_for(&self, path: &str) -> usize {
        let connections = self.connections.lock();
        connections.map_or(0, |seen| seen.iter().filter(|(_, requested)| requested == path).count())
    }

    /// The port of the listener.
    pub fn port(&self) -> Result<u16> {
        let (_, port) = self.url.rsplit_once(':').context("the URL has no port")?;
        Ok(port.parse()?)
    }

    /// Writes a kubeconfig for this server; returns its path.
    pub fn kubeconfig(&self, directory: &Path, path: &str) -> Result<PathBuf> {
        let authority = directory.join("webhook-ca.pem");
        std::fs::write(&authority, &self.certificate)?;
        let file = directory.join("webhook.kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters:\n- name: c\n  cluster: {{server: '{}{path}', certificate-authority: webhook-ca.pem}}\n\
             contexts:\n- name: c\n  context: {{cluster: c, user: u}}\nusers:\n- name: u\n  user: {{token: t}}\n",
            self.url
        );
        std::fs::write(&file, text)?;
        Ok(file)
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.running.abort();
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    answer: Arc<Answer>,
    (seen, headers, on_connections): (RecordedRequests, RecordedHeaders, RecordedConnections),
) {
    // Dropped with this task, and the connections with it.
    let mut connections = tokio::task::JoinSet::new();
    for number in 0.. {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (acceptor, answer, seen, headers) =
            (acceptor.clone(), Arc::clone(&answer), Arc::clone(&seen), Arc::clone(&headers));
        let on_connections = Arc::clone(&on_connections);
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let respond = service_fn(move |request: Request<Incoming>| {
                let (answer, seen, headers) = (Arc::clone(&answer), Arc::clone(&seen), Arc::clone(&headers));
                let path = request.uri().path().to_owned();
                let target = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
                if let Ok(mut connections) = on_connections.lock() {
                    connections.insert((number, path.clone()));
                }
                async move {
                    if let Ok(mut headers) = headers.lock() {
                        headers.push(request.headers().clone());
                    }
                    let body = request.into_body().collect().await;
                    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
                    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                    let (code, value) = answer(&target, &body);
                    if let Ok(mut seen) = seen.lock() {
                        seen.push((path, body));
                    }
                    let mut reply = Response::new(body_of(&value));
                    *reply.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
                    Ok::<_, Infallible>(reply)
                }
            });
            // A disconnecting client is no failure of the test.
            let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), respond)
                .await;
        });
    }
}

fn body_of(answer: &Value) -> BoxBody<Bytes, Infallible> {
    if let Some(text) = answer.get(TEXT).and_then(Value::as_str) {
        return Full::new(Bytes::from(text.to_owned())).boxed();
    }
    let Some(items) = answer.get(STREAM).and_then(Value::as_array) else {
        return Full::new(Bytes::from(answer.to_string())).boxed();
    };
    let lines: String = items.iter().map(|item| format!("{item}\n")).collect();
    Endless(Some(Bytes::from(lines))).boxed()
}

/// A body that sends some bytes and then waits.
struct Endless(Option<Bytes>);

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}
