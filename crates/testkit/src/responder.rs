//! A little HTTPS server that answers as the test says: an issuer of tokens, a webhook.

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
use hyper_util::rt::TokioIo;
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
type Seen = Arc<Mutex<Vec<(String, Value)>>>;
type SeenHeaders = Arc<Mutex<Vec<HeaderMap>>>;

type Answer = dyn Fn(&str, &Value) -> (u16, Value) + Send + Sync;

/// Member of an answer whose items are sent as lines of a stream that does not end.
const STREAM: &str = "stream";

/// Member of an answer whose text is sent as it is.
const TEXT: &str = "text";

/// The server; it and its connections end when this is dropped.
pub struct Responder {
    pub url: String,
    /// Its certificate, which vouches for itself.
    pub certificate: String,
    seen: Seen,
    headers: SeenHeaders,
    running: JoinHandle<()>,
}

impl Responder {
    /// Answers requests with what `answer` makes of their path and body. `{"stream": […]}` is sent as a watch is: one item
    /// on each line, and no end.
    pub async fn start(
        answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static,
    ) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1", SERVICE].map(str::to_owned))?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("a listener")?;
        let url = format!("https://{}", listener.local_addr()?);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let headers = Arc::new(Mutex::new(Vec::new()));
        let records = (Arc::clone(&seen), Arc::clone(&headers));
        let running = tokio::spawn(accept(listener, acceptor, Arc::new(answer), records));
        Ok(Self { url, certificate: made.cert.pem(), seen, headers, running })
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

    /// The port that it listens on.
    pub fn port(&self) -> Result<u16> {
        let (_, port) = self.url.rsplit_once(':').context("a port")?;
        Ok(port.parse()?)
    }

    /// Writes a kubeconfig that leads here; returns its path.
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
    (seen, headers): (Seen, SeenHeaders),
) {
    // Dropped with this task, and the connections with it.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, answer, seen, headers) =
            (acceptor.clone(), Arc::clone(&answer), Arc::clone(&seen), Arc::clone(&headers));
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let respond = service_fn(move |request: Request<Incoming>| {
                let (answer, seen, headers) = (Arc::clone(&answer), Arc::clone(&seen), Arc::clone(&headers));
                async move {
                    let path = request.uri().path().to_owned();
                    if let Ok(mut headers) = headers.lock() {
                        headers.push(request.headers().clone());
                    }
                    let body = request.into_body().collect().await;
                    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
                    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                    let (code, value) = answer(&path, &body);
                    if let Ok(mut seen) = seen.lock() {
                        seen.push((path, body));
                    }
                    let mut reply = Response::new(body_of(&value));
                    *reply.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
                    Ok::<_, Infallible>(reply)
                }
            });
            // A client that goes away is no error of the test's.
            let _ = hyper::server::conn::http1::Builder::new()
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
