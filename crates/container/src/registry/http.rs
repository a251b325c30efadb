//! Requests to registries, over [`base::http`], with the errors that pulls report.

use std::collections::BTreeMap;
use std::time::Duration;

use base::http::{Client, Limits, Origin as Server, Response};
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, RANGE, USER_AGENT,
};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use parking_lot::Mutex;

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

/// Open connections to registries and the servers that they redirect to.
pub struct Connections {
    patience: Patience,
    trust: BTreeMap<String, Tls>,
    client: Client,
    /// Servers by their authority: their TLS configuration is read from files once.
    servers: Mutex<BTreeMap<String, Server>>,
}

/// A response whose body comes piece by piece.
pub struct Answer {
    response: Response,
}

impl Connections {
    /// `trust` is by host, with its port if it is not the usual one.
    pub fn new(patience: Patience, trust: BTreeMap<String, Tls>) -> Self {
        let limits = Limits {
            connect: patience.connect,
            response: patience.answer,
            silence: patience.silence,
            max_idle: MAX_IDLE,
            ..Limits::default()
        };
        Self { patience, trust, client: Client::new(limits), servers: Mutex::default() }
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
        let request = request.body(body).map_err(|_| bad())?;
        let response = self.client.send(&self.server(&origin)?, request).await;
        Ok(Answer { response: response.map_err(|error| explain(&origin, error))? })
    }

    fn server(&self, origin: &Origin) -> Result<Server, HttpError> {
        if !origin.secure {
            return Ok(Server::plain(&origin.host, origin.port));
        }
        let authority = hosts::authority(origin.secure, &origin.host, origin.port);
        if let Some(known) = self.servers.lock().get(&authority) {
            return Ok(known.clone());
        }
        let settings = self.trust.get(&authority).cloned().unwrap_or_default();
        let config = tls::config(&settings).map_err(HttpError::Tls)?;
        let server = Server::secured(&origin.host, origin.port, config, None);
        let server = server.map_err(|_| HttpError::Url(origin.host.clone()))?;
        self.servers.lock().insert(authority, server.clone());
        Ok(server)
    }
}

/// The error of a request in the words that pulls report.
fn explain(origin: &Origin, error: base::http::HttpError) -> HttpError {
    use base::http::HttpError as Error;
    let address = || format!("{}:{}", origin.host, origin.port);
    match error {
        Error::Connect { source, .. } => unreachable(origin.bare_host(), &address(), &source),
        Error::ConnectTimeout { .. } => HttpError::Slow(address()),
        Error::Tls { source, .. } => HttpError::Tls(tls::explain(&source)),
        Error::Exchange(source) => HttpError::Broken(source.to_string()),
        Error::NoResponse(_) => HttpError::NoAnswer,
        other => of_body(other),
    }
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
        self.response.status
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.response.headers
    }

    pub fn header(&self, name: HeaderName) -> Option<&str> {
        self.response.header(name)
    }

    /// The next piece; `None` at the end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, HttpError> {
        self.response.piece().await.map_err(of_body)
    }

    /// All of it, if it is not longer than `limit`.
    pub async fn bytes(self, limit: usize) -> Result<Vec<u8>, HttpError> {
        self.response.bytes(limit).await.map(Vec::from).map_err(of_body)
    }
}

fn of_body(error: base::http::HttpError) -> HttpError {
    use base::http::HttpError as Error;
    match error {
        Error::Body(source) => HttpError::Broken(broken(&source)),
        Error::Silence(limit) => HttpError::Silence(limit),
        Error::TooLong(limit) => HttpError::TooLong(limit),
        other => HttpError::Broken(other.to_string()),
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
