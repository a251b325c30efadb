//! Requests that the server itself makes: to webhooks, to issuers of tokens.
//!
//! HTTP/1.1 over TLS, connections kept for the next request. Every request has a time limit, every answer a size limit.

mod kubeconfig;
mod target;

pub use kubeconfig::{KubeconfigError, read as read_kubeconfig};
pub use target::{Target, TargetError, Trust};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use machinery::Value;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpStream;

/// The longest answer that is read.
const MAX_ANSWER: usize = 10 << 20;
/// Connections kept while nobody uses them.
const MAX_IDLE: usize = 16;

/// Why a request got no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("connecting to {place}")]
    Connect { place: String, source: std::io::Error },
    #[error("{method} {url}")]
    Exchange { method: Method, url: String, source: hyper::Error },
    #[error("{method} {url}: the answer is longer than {MAX_ANSWER} bytes")]
    TooLong { method: Method, url: String },
    #[error("{method} {url}: no answer within {limit:?}: context deadline exceeded")]
    Timeout { method: Method, url: String, limit: Duration },
    #[error("{method} {url}: the server answered {status}")]
    Refused { method: Method, url: String, status: StatusCode, body: String },
    #[error("{url}: the answer cannot be read: {reason}")]
    Answer { url: String, reason: String },
    #[error("{url} cannot be requested")]
    Request { url: String },
    #[error("reading {}", .path.display())]
    Token { path: PathBuf, source: std::io::Error },
}

impl CallError {
    /// The error with its cause, as messages show it.
    pub fn chain(&self) -> String {
        match std::error::Error::source(self) {
            Some(source) => format!("{self}: {source}"),
            None => self.to_string(),
        }
    }

    /// Whether the same request may do better in a moment.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Exchange { .. } => true,
            Self::Refused { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            _ => false,
        }
    }
}

/// How the server proves who it is.
#[derive(Clone, Default)]
pub enum Credentials {
    /// By its certificate, or not at all.
    #[default]
    None,
    Bearer(String),
    /// Read again for every request: whoever writes the file renews it.
    BearerFile(PathBuf),
    Basic {
        user: String,
        password: String,
    },
}

/// A client of one server.
pub struct Client {
    pub target: Target,
    credentials: Credentials,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Client {
    pub fn new(target: Target) -> Self {
        Self::with_credentials(target, Credentials::None)
    }

    pub fn with_credentials(target: Target, credentials: Credentials) -> Self {
        Self { target, credentials, idle: Mutex::default() }
    }

    /// What is at this path below the target's, as JSON.
    pub async fn get(&self, path: &str, limit: Duration) -> Result<Value, CallError> {
        self.call(Method::GET, path, Bytes::new(), limit).await
    }

    /// Posts JSON to the target's own path.
    pub async fn post(&self, body: &Value, limit: Duration) -> Result<Value, CallError> {
        self.call(Method::POST, "", body.to_string().into(), limit).await
    }

    /// Posts JSON that is encoded already to the target's own path; nobody cares what the answer says.
    pub async fn send(&self, body: Bytes, limit: Duration) -> Result<(), CallError> {
        let url = self.target.url().to_owned();
        self.answered(Method::POST, "", body, &url, limit).await.map(drop)
    }

    /// Replaces what is at this path below the target's.
    pub async fn put(&self, path: &str, body: &Value, limit: Duration) -> Result<Value, CallError> {
        self.call(Method::PUT, path, body.to_string().into(), limit).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Value, CallError> {
        let url = format!("{}{path}", self.target.url());
        let bytes = self.answered(method, path, body, &url, limit).await?;
        let decoded = machinery::codec::json::decode(&bytes);
        decoded
            .map(|decoded| decoded.value)
            .map_err(|error| CallError::Answer { url, reason: error.to_string() })
    }

    /// The body of an answer that says yes.
    async fn answered(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        url: &str,
        limit: Duration,
    ) -> Result<Bytes, CallError> {
        let exchange = self.exchange(method.clone(), path, body, url);
        let Ok(outcome) = tokio::time::timeout(limit, exchange).await else {
            return Err(CallError::Timeout { method, url: url.to_owned(), limit });
        };
        let (status, bytes) = outcome?;
        if !status.is_success() {
            let body = String::from_utf8_lossy(&bytes[..bytes.len().min(1024)]).into_owned();
            return Err(CallError::Refused { method, url: url.to_owned(), status, body });
        }
        Ok(bytes)
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        url: &str,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let failed = |source| CallError::Exchange { method: method.clone(), url: url.to_owned(), source };
        let kept = self.idle.lock().pop().filter(|sender| !sender.is_closed());
        let reused = kept.is_some();
        let mut sender = match kept {
            Some(sender) => sender,
            None => self.connect(url).await?,
        };
        let outcome = match sender.ready().await {
            Ok(()) => sender.send_request(self.request(&method, path, body.clone(), url)?).await,
            Err(error) => Err(error),
        };
        let answer = match outcome {
            // The other side may have closed a kept connection just now.
            Err(_) if reused => {
                sender = self.connect(url).await?;
                sender.send_request(self.request(&method, path, body, url)?).await.map_err(failed)?
            }
            outcome => outcome.map_err(failed)?,
        };
        let outcome = read(answer).await;
        let (status, bytes) = outcome.map_err(|too_long| match too_long {
            None => CallError::TooLong { method: method.clone(), url: url.to_owned() },
            Some(source) => failed(source),
        })?;
        let mut idle = self.idle.lock();
        if !sender.is_closed() && idle.len() < MAX_IDLE {
            idle.push(sender);
        }
        Ok((status, bytes))
    }

    async fn connect(&self, url: &str) -> Result<SendRequest<Full<Bytes>>, CallError> {
        let place = self.target.authority();
        let failed = |source| CallError::Connect { place: place.clone(), source };
        let stream = TcpStream::connect((self.target.host(), self.target.port())).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let exchange = |source| CallError::Exchange { method: Method::CONNECT, url: url.to_owned(), source };
        match self.target.tls() {
            Some((connector, name)) => {
                let stream = connector.connect(name, stream).await.map_err(failed)?;
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(exchange)?;
                tokio::spawn(connection);
                Ok(sender)
            }
            None => {
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(exchange)?;
                tokio::spawn(connection);
                Ok(sender)
            }
        }
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
        url: &str,
    ) -> Result<Request<Full<Bytes>>, CallError> {
        let whole = format!("{}{path}", self.target.path());
        let mut request = Request::builder()
            .method(method.clone())
            .uri(if whole.is_empty() { "/" } else { &whole })
            .header(HOST, self.target.authority())
            .header(USER_AGENT, concat!("ferry/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "application/json");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let bearer = match &self.credentials {
            Credentials::None => None,
            Credentials::Bearer(token) => Some(format!("Bearer {token}")),
            Credentials::BearerFile(path) => {
                let token = std::fs::read_to_string(path)
                    .map_err(|source| CallError::Token { path: path.clone(), source })?;
                Some(format!("Bearer {}", token.trim()))
            }
            Credentials::Basic { user, password } => {
                Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
            }
        };
        if let Some(bearer) = bearer {
            request = request.header(AUTHORIZATION, bearer);
        }
        request.body(Full::new(body)).map_err(|_| CallError::Request { url: url.to_owned() })
    }
}

/// The whole answer; `None`: it is too long.
async fn read(answer: Response<Incoming>) -> Result<(StatusCode, Bytes), Option<hyper::Error>> {
    let status = answer.status();
    match Limited::new(answer.into_body(), MAX_ANSWER).collect().await {
        Ok(collected) => Ok((status, collected.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Err(None),
        Err(error) => Err(error.downcast::<hyper::Error>().ok().map(|error| *error)),
    }
}
