//! Sends payloads.

use super::config::{SinkConfig, SinkKind};
use super::protobuf::rejected_points;
use base::errors::chain;
use base::http::{Authorities, Client, Limits, Origin, Trust};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UdpSocket};

/// Time for one payload: less than a cycle, so that payloads do not pile up behind it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Length of a datagram, at most.
const DATAGRAM: usize = 1400;
/// Size at which a file is renamed.
const ROTATE: u64 = 64 << 20;

/// The longest delay that a server may demand with `Retry-After`.
const LONGEST_RETRY_AFTER: u64 = 300;

/// Reason why a payload was not accepted.
#[derive(Debug, PartialEq, Eq)]
pub enum SendError {
    /// It may be accepted later: after this time, if the server names one.
    Later(String, Duration),
    /// It never will be.
    Never(String),
}

/// Extent to which a server accepted a payload.
#[derive(Debug, PartialEq, Eq)]
pub enum Accepted {
    Whole,
    /// A part was rejected, with this message.
    Part(String),
}

/// A way to a server.
pub trait Deliver: Send + Sync + 'static {
    fn send(&self, payload: &[u8]) -> impl Future<Output = Result<Accepted, SendError>> + Send;
}

/// Sends to one sink.
pub struct Transport {
    config: SinkConfig,
    http: Client,
}

impl Transport {
    pub fn new(config: SinkConfig) -> Self {
        let limits = Limits {
            connect: TIMEOUT,
            response: TIMEOUT,
            silence: TIMEOUT,
            max_idle: 1,
            ..Limits::default()
        };
        Self { config, http: Client::new(limits) }
    }

    async fn datagrams(&self, payload: &[u8]) -> io::Result<()> {
        let mut addresses = tokio::net::lookup_host(&self.config.address).await?;
        let address = addresses.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let local = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(local).await?;
        socket.connect(address).await?;
        let mut datagram = Vec::new();
        for line in payload.split_inclusive(|byte| *byte == b'\n') {
            if !datagram.is_empty() && datagram.len().saturating_add(line.len()) > DATAGRAM {
                socket.send(&datagram).await?;
                datagram.clear();
            }
            datagram.extend_from_slice(line);
        }
        if !datagram.is_empty() {
            socket.send(&datagram).await?;
        }
        Ok(())
    }

    async fn stream(&self, payload: &[u8]) -> io::Result<()> {
        let mut stream = TcpStream::connect(&self.config.address).await?;
        stream.write_all(payload).await?;
        stream.shutdown().await
    }

    /// Path and query of the request.
    fn target(&self, uri: &Uri) -> String {
        let escape = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let base = uri.path().trim_end_matches('/');
        match &self.config.kind {
            SinkKind::InfluxV1 { database } => format!("{base}/write?db={}&precision=ms", escape(database)),
            SinkKind::InfluxV2 { org, bucket } => {
                format!("{base}/api/v2/write?org={}&bucket={}&precision=ms", escape(org), escape(bucket))
            }
            SinkKind::Otlp if base.is_empty() => "/v1/metrics".to_owned(),
            SinkKind::RemoteWriteV1 | SinkKind::RemoteWriteV2 if base.is_empty() => {
                "/api/v1/write".to_owned()
            }
            _ => base.to_owned(),
        }
    }

    fn authorization(&self) -> Result<Option<String>, SendError> {
        use base64::Engine as _;
        if let Some(file) = &self.config.token_file {
            let token = std::fs::read_to_string(file);
            let token = token.map_err(|error| later(format!("{}: {error}", file.display())))?;
            let scheme =
                if matches!(self.config.kind, SinkKind::InfluxV2 { .. }) { "Token" } else { "Bearer" };
            return Ok(Some(format!("{scheme} {}", token.trim())));
        }
        let encode = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
        Ok(self
            .config
            .basic
            .as_ref()
            .map(|(user, password)| format!("Basic {}", encode(format!("{user}:{password}")))))
    }

    async fn post(&self, payload: &[u8]) -> Result<Accepted, SendError> {
        let never = |error: &dyn std::error::Error| SendError::Never(chain(error));
        let authorities = if self.config.insecure { Authorities::Unverified } else { Authorities::System };
        let trust = Trust { authorities, ..Trust::default() };
        let origin = Origin::of_url(&self.config.url, &trust).map_err(|error| later(chain(&error)))?;
        let uri: Uri = self.config.url.parse().map_err(|error: http::uri::InvalidUri| never(&error))?;
        let mut request = Request::post(self.target(&uri));
        for (name, value) in self.headers() {
            request = request.header(name, value);
        }
        if let Some(value) = self.authorization()? {
            request = request.header(AUTHORIZATION, value);
        }
        let request =
            request.body(Full::new(Bytes::copy_from_slice(payload))).map_err(|error| never(&error))?;
        let response = self.http.send(&origin, request).await.map_err(|error| later(chain(&error)))?;
        let status = response.status;
        if status.is_success() {
            let body = response.bytes(64 << 10).await.unwrap_or_default();
            let is_otlp = matches!(self.config.kind, SinkKind::Otlp);
            return Ok(match rejected_points(&body).filter(|_| is_otlp) {
                Some((number, text)) => {
                    let text: String = text.chars().take(300).collect();
                    Accepted::Part(format!("{number} data points rejected: {text}"))
                }
                None => Accepted::Whole,
            });
        }
        let after = response.header(RETRY_AFTER).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
        let after = Duration::from_secs(after.min(LONGEST_RETRY_AFTER));
        let text = response.bytes(64 << 10).await.unwrap_or_default();
        let text = String::from_utf8_lossy(&text).chars().take(300).collect::<String>();
        let message = format!("status {status}: {text}");
        let is_final = status.is_client_error()
            && !matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::REQUEST_TIMEOUT
                    | StatusCode::UNAUTHORIZED
                    | StatusCode::FORBIDDEN
                    | StatusCode::NOT_FOUND
            );
        Err(if is_final { SendError::Never(message) } else { SendError::Later(message, after) })
    }

    fn headers(&self) -> Vec<(http::HeaderName, &'static str)> {
        let version = http::HeaderName::from_static("x-prometheus-remote-write-version");
        match self.config.kind {
            SinkKind::RemoteWriteV1 => vec![
                (CONTENT_TYPE, "application/x-protobuf"),
                (CONTENT_ENCODING, "snappy"),
                (version, "0.1.0"),
            ],
            SinkKind::RemoteWriteV2 => vec![
                (CONTENT_TYPE, "application/x-protobuf;proto=io.prometheus.write.v2.Request"),
                (CONTENT_ENCODING, "snappy"),
                (version, "2.0.0"),
            ],
            SinkKind::Otlp => vec![(CONTENT_TYPE, "application/x-protobuf")],
            _ => vec![(CONTENT_TYPE, "text/plain; charset=utf-8")],
        }
    }
}

impl Deliver for Transport {
    async fn send(&self, payload: &[u8]) -> Result<Accepted, SendError> {
        let whole = |outcome: io::Result<()>| match outcome {
            Ok(()) => Ok(Accepted::Whole),
            Err(error) => Err(later(error.to_string())),
        };
        let sending = async {
            match self.config.kind {
                SinkKind::File => whole(append(&self.config.path, payload)),
                SinkKind::StatsD => whole(self.datagrams(payload).await),
                SinkKind::Graphite => whole(self.stream(payload).await),
                _ => self.post(payload).await,
            }
        };
        match tokio::time::timeout(TIMEOUT, sending).await {
            Ok(outcome) => outcome,
            Err(_) => Err(later(format!("not accepted within {TIMEOUT:?}"))),
        }
    }
}

fn later(reason: String) -> SendError {
    SendError::Later(reason, Duration::ZERO)
}

/// Appends to a file; a large one is renamed first, over the one renamed before.
fn append(path: &Path, payload: &[u8]) -> io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|file| file.len() > ROTATE) {
        let mut old = path.as_os_str().to_owned();
        old.push(".1");
        std::fs::rename(path, old)?;
    }
    let mut file = std::fs::OpenOptions::new().create(true).append(true).mode(0o640).open(path)?;
    file.write_all(payload)
}
