//! Requests over HTTP/1.1: connections that are kept for the next request, and a limit to every wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, RANGE, USER_AGENT,
};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::hosts::{self, Tls};
use super::tls;

/// How long to wait for what.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub connect: Duration,
    pub answer: Duration,
    /// Between two pieces of an answer.
    pub silence: Duration,
    /// Before the first repetition of what failed; later ones wait longer.
    pub again: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            answer: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            again: Duration::from_millis(500),
        }
    }
}

/// Connections kept while nobody uses them.
const MAX_IDLE: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("{0:?} is no address")]
    Url(String),
    #[error("dial tcp: lookup {0}: no such host")]
    Lookup(String),
    #[error("dial tcp {address}: connect: {reason}")]
    Connect { address: String, reason: String },
    #[error("dial tcp {0}: i/o timeout")]
    Slow(String),
    #[error("{0}")]
    Tls(String),
    #[error("net/http: timeout awaiting response headers")]
    NoAnswer,
    #[error("the answer broke off: {0}")]
    Broken(String),
    #[error("no data for {0:?}")]
    Silence(Duration),
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}

/// A server: what requests to the same one have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    pub secure: bool,
    pub host: String,
    pub port: u16,
}

impl Origin {
    pub fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let secure = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let host = uri.host()?.to_owned();
        Some(Self { secure, host, port: uri.port_u16().unwrap_or(if secure { 443 } else { 80 }) })
    }

    fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// What to ask.
#[derive(Clone, Default)]
pub struct Call {
    pub method: Method,
    pub url: String,
    pub authorization: Option<HeaderValue>,
    pub accept: Option<&'static str>,
    /// The first byte that is wanted.
    pub from: u64,
    pub form: Option<String>,
}

/// Open connections to registries and whoever else they name.
pub struct Connections {
    patience: Patience,
    trust: BTreeMap<String, Tls>,
    idle: Arc<Mutex<Vec<Idle>>>,
}

struct Idle {
    origin: Origin,
    sender: SendRequest<Full<Bytes>>,
}

/// An answer whose body comes piece by piece.
pub struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Incoming,
    silence: Duration,
    /// Goes back to the others when the body has been read.
    connection: Option<(Idle, Arc<Mutex<Vec<Idle>>>)>,
}

impl Connections {
    /// `trust` is by host, with its port if it is not the usual one.
    pub fn new(patience: Patience, trust: BTreeMap<String, Tls>) -> Self {
        Self { patience, trust, idle: Arc::default() }
    }

    pub fn patience(&self) -> Patience {
        self.patience
    }

    /// Sends a request; redirects and refusals are the caller's.
    pub async fn send(&self, call: Call) -> Result<Answer, HttpError> {
        let bad = || HttpError::Url(call.url.clone());
        let origin = Origin::of(&call.url).ok_or_else(bad)?;
        let uri: Uri = call.url.parse().map_err(|_| bad())?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::builder().method(call.method.clone()).uri(path);
        let mut header = |name: HeaderName, value: Result<HeaderValue, _>| {
            if let (Some(headers), Ok(value)) = (request.headers_mut(), value) {
                headers.insert(name, value);
            }
        };
        header(HOST, HeaderValue::try_from(hosts::authority(origin.secure, &origin.host, origin.port)));
        header(USER_AGENT, Ok(HeaderValue::from_static(concat!("ferry/", env!("CARGO_PKG_VERSION")))));
        // What is compressed on the way would not have the digest that it should have.
        header(ACCEPT_ENCODING, Ok(HeaderValue::from_static("identity")));
        header(ACCEPT, Ok(HeaderValue::from_static(call.accept.unwrap_or("*/*"))));
        if let Some(authorization) = call.authorization.clone() {
            header(AUTHORIZATION, Ok(authorization));
        }
        if call.from > 0 {
            header(RANGE, HeaderValue::try_from(format!("bytes={}-", call.from)));
        }
        if call.form.is_some() {
            header(CONTENT_TYPE, Ok(HeaderValue::from_static("application/x-www-form-urlencoded")));
        }
        let body = Full::new(Bytes::from(call.form.clone().unwrap_or_default()));
        let mut request = request.body(body).map_err(|_| bad())?;
        // A kept connection may have been closed meanwhile; a new one has not.
        while let Some(mut kept) = self.take(&origin) {
            if kept.sender.ready().await.is_err() {
                continue;
            }
            match tokio::time::timeout(self.patience.answer, kept.sender.try_send_request(request)).await {
                Err(_) => return Err(HttpError::NoAnswer),
                Ok(Ok(response)) => return Ok(self.answer(response, kept)),
                Ok(Err(mut error)) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(HttpError::Broken(error.into_error().to_string())),
                },
            }
        }
        let sender = self.connect(&origin).await?;
        let mut fresh = Idle { origin, sender };
        let sent = tokio::time::timeout(self.patience.answer, fresh.sender.send_request(request)).await;
        match sent {
            Err(_) => Err(HttpError::NoAnswer),
            Ok(Ok(response)) => Ok(self.answer(response, fresh)),
            Ok(Err(error)) => Err(HttpError::Broken(error.to_string())),
        }
    }

    fn take(&self, origin: &Origin) -> Option<Idle> {
        let mut idle = self.idle.lock();
        idle.retain(|kept| !kept.sender.is_closed());
        let at = idle.iter().position(|kept| kept.origin == *origin)?;
        Some(idle.swap_remove(at))
    }

    fn answer(&self, response: http::Response<Incoming>, used: Idle) -> Answer {
        let (head, body) = response.into_parts();
        Answer {
            status: head.status,
            headers: head.headers,
            body,
            silence: self.patience.silence,
            connection: Some((used, Arc::clone(&self.idle))),
        }
    }

    async fn connect(&self, origin: &Origin) -> Result<SendRequest<Full<Bytes>>, HttpError> {
        let address = format!("{}:{}", origin.host, origin.port);
        let connecting = async {
            let stream = TcpStream::connect((origin.bare_host(), origin.port)).await;
            let stream = stream.map_err(|error| unreachable(origin.bare_host(), &address, &error))?;
            // Only latency would suffer.
            let _ = stream.set_nodelay(true);
            if !origin.secure {
                return handshake(stream).await;
            }
            let authority = hosts::authority(origin.secure, &origin.host, origin.port);
            let settings = self.trust.get(&authority).cloned().unwrap_or_default();
            let config = tls::config(&settings).map_err(HttpError::Tls)?;
            let name = ServerName::try_from(origin.bare_host().to_owned())
                .map_err(|_| HttpError::Url(origin.host.clone()))?;
            let stream = TlsConnector::from(config).connect(name, stream).await;
            handshake(stream.map_err(|error| HttpError::Tls(tls::explain(&error)))?).await
        };
        match tokio::time::timeout(self.patience.connect, connecting).await {
            Ok(outcome) => outcome,
            Err(_) => Err(HttpError::Slow(address)),
        }
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, HttpError> {
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| HttpError::Broken(error.to_string()))?;
    // Ends with the connection, which ends when nobody holds its sender.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a registry ended");
        }
    });
    Ok(sender)
}

fn unreachable(host: &str, address: &str, error: &std::io::Error) -> HttpError {
    let text = error.to_string();
    if text.contains("lookup address information") {
        return HttpError::Lookup(host.to_owned());
    }
    let reason = text.split(" (os error").next().unwrap_or_default().to_lowercase();
    HttpError::Connect { address: address.to_owned(), reason }
}

impl Answer {
    pub fn status(&self) -> StatusCode {
        self.status
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    pub fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The next piece; `None` at the end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, HttpError> {
        loop {
            let frame = tokio::time::timeout(self.silence, self.body.frame()).await;
            match frame.map_err(|_| HttpError::Silence(self.silence))? {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Ok(Some(data)),
                    Err(_) => {}
                },
                Some(Err(error)) => return Err(HttpError::Broken(broken(&error))),
                None => {
                    if let Some((used, idle)) = self.connection.take() {
                        let mut idle = idle.lock();
                        if idle.len() < MAX_IDLE {
                            idle.push(used);
                        }
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// All of it, if it is not longer than `limit`.
    pub async fn bytes(mut self, limit: usize) -> Result<Vec<u8>, HttpError> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.piece().await? {
            if bytes.len() + piece.len() > limit {
                return Err(HttpError::TooLong(limit));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }
}

fn broken(error: &hyper::Error) -> String {
    if error.is_incomplete_message() || error.is_body_write_aborted() {
        return "unexpected EOF".to_owned();
    }
    match std::error::Error::source(error) {
        Some(source)
            if source
                .downcast_ref::<std::io::Error>()
                .is_some_and(|error| error.kind() == std::io::ErrorKind::UnexpectedEof) =>
        {
            "unexpected EOF".to_owned()
        }
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
