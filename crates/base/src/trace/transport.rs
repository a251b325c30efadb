//! Sends encoded batches to a collector: unary gRPC over HTTP/2, or a POST of HTTP/1.1.

use super::endpoint::Endpoint;
use super::otlp::ExportTraceServiceResponse;
use super::span::prefix;
use crate::egress;
use crate::http::{Address, Client, HttpError, Limits, Origin, OriginError};
use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::TokioIo;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const AGENT: &str = concat!("ferry/", env!("CARGO_PKG_VERSION"));
/// Longest response of a collector.
const MAX_RESPONSE: usize = 64 << 10;
/// Longest error message of a collector that is logged.
const MAX_MESSAGE: usize = 512;
/// Status codes of gRPC that the OTLP specification declares retryable.
const RETRYABLE: [&str; 7] = ["1", "4", "8", "10", "11", "14", "15"];

/// Reason why a batch was not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("failed to connect")]
    Connect(#[source] std::io::Error),
    #[error("HTTP/2 exchange failed")]
    Exchange(#[source] hyper::Error),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("collector returned HTTP status {0}")]
    Status(StatusCode),
    #[error("collector returned gRPC status {code}: {message}")]
    Grpc { code: String, message: String },
    #[error("response is longer than {MAX_RESPONSE} bytes")]
    TooLong,
    #[error("no response within {0:?}")]
    Timeout(Duration),
    #[error("request is malformed")]
    Request(#[source] http::Error),
}

impl SendError {
    /// Reports whether a later attempt may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Exchange(_) | Self::Http(_) | Self::Timeout(_) => true,
            Self::Status(status) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            Self::Grpc { code, .. } => RETRYABLE.contains(&code.as_str()),
            Self::TooLong | Self::Request(_) => false,
        }
    }
}

/// Connection to a collector.
pub(super) enum Transport {
    Grpc { origin: Origin, connection: Option<SendRequest<Full<Bytes>>> },
    Http { origin: Origin, path: String, client: Client },
}

impl Transport {
    pub fn new(endpoint: &Endpoint, limit: Duration) -> Result<Self, OriginError> {
        let origin = endpoint.origin()?;
        Ok(match endpoint.path() {
            None => Self::Grpc { origin: with_http2(origin), connection: None },
            Some(path) => {
                let limits = Limits {
                    connect: limit,
                    response: limit,
                    silence: limit,
                    max_idle: 1,
                    ..Limits::default()
                };
                Self::Http { origin, path: path.to_owned(), client: Client::new(limits) }
            }
        })
    }

    /// Sends a batch within `limit`. Returns the number of spans that the collector rejected.
    pub async fn send(&mut self, message: Bytes, limit: Duration) -> Result<u64, SendError> {
        let sending = async {
            match self {
                Self::Grpc { origin, connection } => send_grpc(origin, connection, &message).await,
                Self::Http { origin, path, client } => send_http(origin, path, client, message).await,
            }
        };
        let outcome = tokio::time::timeout(limit, sending).await;
        let outcome = outcome.unwrap_or(Err(SendError::Timeout(limit)));
        if let (Err(_), Self::Grpc { connection, .. }) = (&outcome, self) {
            *connection = None;
        }
        let response = ExportTraceServiceResponse::decode(outcome?).unwrap_or_default();
        let rejected = response.partial_success.map_or(0, |partial| partial.rejected_spans);
        Ok(u64::try_from(rejected).unwrap_or(0))
    }
}

/// The same origin, whose TLS handshake offers HTTP/2.
fn with_http2(mut origin: Origin) -> Origin {
    if let Some(tls) = &mut origin.tls {
        let mut config = (*tls.config).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        tls.config = Arc::new(config);
    }
    origin
}

async fn send_http(origin: &Origin, path: &str, client: &Client, message: Bytes) -> Result<Bytes, SendError> {
    let request = Request::post(path)
        .header(CONTENT_TYPE, "application/x-protobuf")
        .header(USER_AGENT, AGENT)
        .body(Full::new(message))
        .map_err(SendError::Request)?;
    let response = client.send(origin, request).await?;
    let status = response.status;
    let body = response.bytes(MAX_RESPONSE).await?;
    if status.is_success() { Ok(body) } else { Err(SendError::Status(status)) }
}

async fn send_grpc(
    origin: &Origin,
    connection: &mut Option<SendRequest<Full<Bytes>>>,
    message: &Bytes,
) -> Result<Bytes, SendError> {
    let sender = match connection {
        Some(sender) if !sender.is_closed() => sender,
        other => other.insert(connect(origin).await?),
    };
    let scheme = if origin.is_secure() { "https" } else { "http" };
    let authority = match origin.address() {
        Address::Tcp { .. } => origin.authority(),
        Address::Unix(_) => "localhost".to_owned(),
    };
    // One uncompressed message with its length.
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    let request = Request::post(format!("{scheme}://{authority}{EXPORT}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, AGENT)
        .body(Full::new(frame.freeze()))
        .map_err(SendError::Request)?;
    sender.ready().await.map_err(SendError::Exchange)?;
    let response = sender.send_request(request).await.map_err(SendError::Exchange)?;
    let (head, mut body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(SendError::Status(head.status));
    }
    let mut status = head.headers;
    let mut received = BytesMut::new();
    while let Some(frame) = body.frame().await {
        match frame.map_err(SendError::Exchange)?.into_data() {
            Ok(data) if received.len() + data.len() > MAX_RESPONSE => return Err(SendError::TooLong),
            Ok(data) => received.extend_from_slice(&data),
            Err(frame) => status.extend(frame.into_trailers().unwrap_or_default()),
        }
    }
    let text = |name: &str, headers: &HeaderMap| {
        let value = headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        prefix(&value.unwrap_or_default(), MAX_MESSAGE).to_owned()
    };
    match text("grpc-status", &status) {
        // A compressed response was not offered; its details are not needed.
        code if code == "0" => Ok(received.split_off(received.len().min(5)).freeze()),
        code => Err(SendError::Grpc { code, message: text("grpc-message", &status) }),
    }
}

async fn connect(origin: &Origin) -> Result<SendRequest<Full<Bytes>>, SendError> {
    match origin.address() {
        Address::Unix(path) => handshake(UnixStream::connect(path).await.map_err(SendError::Connect)?).await,
        Address::Tcp { host, port } => {
            let network = Some(egress::Network::ControlPlane);
            let stream = egress::connect(network, host, *port).await.map_err(SendError::Connect)?;
            let Some(tls) = &origin.tls else { return handshake(stream).await };
            let connector = TlsConnector::from(Arc::clone(&tls.config));
            let stream = connector.connect(tls.name.clone(), stream).await.map_err(SendError::Connect)?;
            handshake(stream).await
        }
    }
}

/// Runs the tasks of HTTP/2 streams.
#[derive(Clone)]
struct Detached;

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Detached {
    fn execute(&self, task: F) {
        crate::tasks::spawn_detached(task);
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, SendError> {
    let (sender, connection) =
        http2::handshake(Detached, TokioIo::new(stream)).await.map_err(SendError::Exchange)?;
    // Ends with the connection, which ends when its sender is dropped.
    crate::tasks::spawn_detached(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to the trace collector failed");
        }
    });
    Ok(sender)
}
