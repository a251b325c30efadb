//! Outbound requests of the server: to webhooks and token issuers.
//!
//! JSON over [`base::http`]. Every request has a time limit, every response a size limit.

mod kubeconfig;
mod target;
mod users;

pub use base::http::{OriginError as TargetError, Trust};
pub use kubeconfig::{KubeconfigError, ServerCredentials, read as read_kubeconfig};
pub use target::Target;
pub use users::Users;

use base::http::{HttpError, Limits};
use base::version::user_agent;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use machinery::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Size limit of a response.
const MAX_RESPONSE: usize = 10 << 20;
/// Upper bound; callers pass shorter time limits.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// Failure of a request.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("failed to connect to {place}")]
    Connect { place: String, source: std::io::Error },
    #[error("{method} {url}")]
    Exchange { method: Method, url: String, source: HttpError },
    #[error("{method} {url}: response is longer than {MAX_RESPONSE} bytes")]
    TooLong { method: Method, url: String },
    #[error("{method} {url}: no response within {limit:?}: context deadline exceeded")]
    Timeout { method: Method, url: String, limit: Duration },
    #[error("{method} {url}: server returned {status}")]
    Refused { method: Method, url: String, status: StatusCode, body: String },
    #[error("{url}: failed to decode response: {reason}")]
    Answer { url: String, reason: String },
    #[error("failed to build request for {url}")]
    Request { url: String },
    #[error("failed to read {}", .path.display())]
    Token { path: PathBuf, source: std::io::Error },
}

impl CallError {
    /// The error with its causes, for messages.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            text.push_str(&format!(": {error}"));
            source = error.source();
        }
        text
    }

    /// Reports whether a retry may succeed.
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

/// Credentials of the server.
#[derive(Clone, Default)]
pub enum Credentials {
    /// A client certificate, or none.
    #[default]
    None,
    Bearer(String),
    /// Read again for every request, since the file may be rotated.
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
    user_agent: String,
    http: base::http::Client,
}

impl Client {
    pub fn new(target: Target) -> Self {
        Self::with_credentials(target, Credentials::None)
    }

    pub fn with_credentials(target: Target, credentials: Credentials) -> Self {
        let limits = Limits { response: MAX_WAIT, silence: MAX_WAIT, ..Limits::default() };
        let user_agent = user_agent("kube-apiserver");
        Self { target, credentials, user_agent, http: base::http::Client::new(limits) }
    }

    /// The same client with the User-Agent that admission and conversion webhooks see in Kubernetes.
    #[must_use]
    pub fn for_webhook(self) -> Self {
        Self { user_agent: "kube-apiserver-admission".to_owned(), ..self }
    }

    /// Gets JSON from this path below the target's.
    pub async fn get(&self, path: &str, limit: Duration) -> Result<Value, CallError> {
        self.call(Method::GET, path, Bytes::new(), limit).await
    }

    /// Gets the bytes at this path below the target's.
    pub async fn get_bytes(&self, path: &str, limit: Duration) -> Result<Bytes, CallError> {
        let url = format!("{}{path}", self.target.url());
        self.answered(Method::GET, path, Bytes::new(), &url, limit).await
    }

    /// Posts JSON to the target's own path.
    pub async fn post(&self, body: &Value, limit: Duration) -> Result<Value, CallError> {
        self.call(Method::POST, "", body.to_string().into(), limit).await
    }

    /// Posts encoded JSON to the target's own path; the response body is ignored.
    pub async fn send(&self, body: Bytes, limit: Duration) -> Result<(), CallError> {
        let url = self.target.url().to_owned();
        self.answered(Method::POST, "", body, &url, limit).await.map(drop)
    }

    /// Puts to this path below the target's.
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

    /// Body of a successful response.
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
        let failed = |error| match error {
            HttpError::Connect { address, source } | HttpError::Tls { address, source } => {
                CallError::Connect { place: address, source }
            }
            HttpError::TooLong(_) => CallError::TooLong { method: method.clone(), url: url.to_owned() },
            source => CallError::Exchange { method: method.clone(), url: url.to_owned(), source },
        };
        let mut request = self.request(&method, path, body, url)?;
        base::trace::inject(request.headers_mut());
        let response = self.http.send(self.target.origin(), request).await.map_err(failed)?;
        let status = response.status;
        Ok((status, response.bytes(MAX_RESPONSE).await.map_err(failed)?))
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
            .header(USER_AGENT, &self.user_agent)
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;

    /// Responds to the first request of every connection, and closes after reading the second.
    async fn server(seen: Arc<AtomicUsize>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut reader = BufReader::new(&mut stream);
                for number in 0..2 {
                    let (mut length, mut line) = (0, String::new());
                    while line != "\r\n" {
                        line.clear();
                        reader.read_line(&mut line).await.expect("a line");
                        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                            length = value.trim().parse().expect("a length");
                        }
                    }
                    reader.read_exact(&mut vec![0; length]).await.expect("a body");
                    seen.fetch_add(1, Ordering::SeqCst);
                    if number == 0 {
                        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
                        reader.write_all(response).await.expect("writes");
                    }
                }
            }
        });
        port
    }

    /// A webhook with side effects must not be called twice for one request.
    #[tokio::test]
    async fn request_read_by_server_is_not_retried() {
        let seen = Arc::new(AtomicUsize::new(0));
        let port = server(Arc::clone(&seen)).await;
        let target =
            Target::new(&format!("http://127.0.0.1:{port}/hook"), &Trust::default()).expect("a target");
        let client = Client::new(target);
        let limit = Duration::from_secs(20);
        assert_eq!(client.post(&json!({}), limit).await.expect("an answer"), json!({}));
        let failed = client.post(&json!({}), limit).await;
        assert!(matches!(failed, Err(CallError::Exchange { .. })), "{failed:?}");
        assert_eq!(seen.load(Ordering::SeqCst), 2);
    }
}
