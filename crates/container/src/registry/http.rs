//! Requests to registries, over [`base::http`], with the errors that pulls report.

use std::collections::BTreeMap;
use std::time::Duration;

use base::egress::LookupError;
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

/// Timeouts of requests.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    pub connect: Duration,
    pub answer: Duration,
    /// Between two chunks of a response.
    pub silence: Duration,
    /// Delay before the first retry; later ones are longer.
    pub again: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            answer: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            again: Duration::from_millis(500),
        }
    }
}

/// Idle connections that are retained.
const MAX_IDLE: usize = 8;

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("{0:?} is not a valid URL")]
    Url(String),
    #[error("dial tcp: lookup {0}: no such host")]
    Lookup(String),
    #[error("dial tcp {address}: connect: {reason}")]
    Connect { address: String, reason: String },
    #[error("dial tcp {0}: i/o timeout")]
    ConnectTimeout(String),
    #[error("{0}")]
    Tls(String),
    #[error("net/http: timeout awaiting response headers")]
    NoResponse,
    #[error("response interrupted: {0}")]
    Interrupted(String),
    #[error("no data for {0:?}")]
    Silence(Duration),
    #[error("the response is longer than {0} bytes")]
    TooLong(usize),
}

/// A server: settings shared by requests to it.
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

/// Request to a server.
#[derive(Clone, Default)]
pub struct Call {
    pub method: Method,
    pub url: String,
    pub authorization: Option<HeaderValue>,
    pub accept: Option<&'static str>,
    /// First byte of the requested range.
    pub from: u64,
    pub form: Option<String>,
}

/// Open connections to registries and the servers that they redirect to.
pub struct Connections {
    timeouts: Timeouts,
    trust: BTreeMap<String, Tls>,
    client: Client,
    /// Servers by authority: their TLS configuration is read from files once.
    servers: Mutex<BTreeMap<String, Server>>,
}

/// A response with a streaming body.
pub struct StreamingResponse {
    response: Response,
}

impl Connections {
    /// `trust` is by host, with its port if it is not the default.
    pub fn new(timeouts: Timeouts, trust: BTreeMap<String, Tls>) -> Self {
        let limits = Limits {
            connect: timeouts.connect,
            response: timeouts.answer,
            silence: timeouts.silence,
            max_idle: MAX_IDLE,
            ..Limits::default()
        };
        Self { timeouts, trust, client: Client::new(limits), servers: Mutex::default() }
    }

    pub fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// Sends a request; the caller handles redirects and error statuses.
    pub async fn send(&self, call: Call) -> Result<StreamingResponse, HttpError> {
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
        // Compressed transfers would not match the digest.
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
        Ok(StreamingResponse { response: response.map_err(|error| explain(&origin, error))? })
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

/// Converts a request's error to the text that pulls report.
fn explain(origin: &Origin, error: base::http::HttpError) -> HttpError {
    use base::http::HttpError as Error;
    let address = || format!("{}:{}", origin.host, origin.port);
    match error {
        Error::Connect { source, .. } => unreachable(origin.bare_host(), &address(), &source),
        Error::ConnectTimeout { .. } => HttpError::ConnectTimeout(address()),
        Error::Tls { source, .. } => HttpError::Tls(tls::explain(&source)),
        Error::Exchange(source) => HttpError::Interrupted(source.to_string()),
        Error::NoResponse(_) => HttpError::NoResponse,
        other => of_body(other),
    }
}

fn unreachable(host: &str, address: &str, error: &std::io::Error) -> HttpError {
    if LookupError::is_cause_of(error) {
        return HttpError::Lookup(host.to_owned());
    }
    HttpError::Connect { address: address.to_owned(), reason: base::errors::system(error) }
}

impl StreamingResponse {
    pub fn status(&self) -> StatusCode {
        self.response.status
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.response.headers
    }

    pub fn header(&self, name: HeaderName) -> Option<&str> {
        self.response.header(name)
    }

    /// The next chunk; `None` at the end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, HttpError> {
        self.response.piece().await.map_err(of_body)
    }

    /// The whole body, if it is not longer than `limit`.
    pub async fn bytes(self, limit: usize) -> Result<Vec<u8>, HttpError> {
        self.response.bytes(limit).await.map(Vec::from).map_err(of_body)
    }
}

fn of_body(error: base::http::HttpError) -> HttpError {
    use base::http::HttpError as Error;
    match error {
        Error::Body(source) => HttpError::Interrupted(broken(&source)),
        Error::Silence(limit) => HttpError::Silence(limit),
        Error::TooLong(limit) => HttpError::TooLong(limit),
        other => HttpError::Interrupted(other.to_string()),
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
