//! HTTP to an extender, over TLS if configured. Connections are reused.

use std::io;
use std::time::Duration;

use base::http::{Authorities, Client, HttpError, Limits, Origin, Trust};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::Full;

use crate::config::{ConfigError, ExtenderConfig, TlsConfig};

/// Size limit of a response.
const MAX_RESPONSE: usize = 64 << 20;
/// Maximum number of idle connections.
const MAX_IDLE: usize = 4;
/// Upper bound; the extender's configured timeout is shorter.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

type Failure = Box<dyn std::error::Error + Send + Sync>;

pub struct Transport {
    origin: Origin,
    path: String,
    client: Client,
}

impl Transport {
    pub fn new(config: &ExtenderConfig) -> Result<Self, ConfigError> {
        let problem = |problem: String| ConfigError::Field { field: "extenders.urlPrefix", problem };
        let uri: Uri = config.url_prefix.parse().map_err(|error| problem(format!("{error}")))?;
        let secure = match uri.scheme_str() {
            Some("http") => config.enable_https,
            Some("https") => true,
            _ => return Err(problem(format!("{:?} is neither an http nor an https URL", config.url_prefix))),
        };
        let host = uri.host().ok_or_else(|| problem(format!("{:?} has no host", config.url_prefix)))?;
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let origin = if secure {
            let problem = |error: String| ConfigError::Field { field: "extenders.tlsConfig", problem: error };
            let trust = trust(&config.tls_config)?;
            let tls = trust.config().map_err(|error| problem(error.to_string()))?;
            let origin = Origin::secured(host, port, tls, trust.server_name.as_deref());
            origin.map_err(|error| problem(error.to_string()))?
        } else {
            Origin::plain(host, port)
        };
        let limits =
            Limits { response: LONGEST_WAIT, silence: LONGEST_WAIT, max_idle: MAX_IDLE, ..Limits::default() };
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { origin, path, client: Client::new(limits) })
    }

    /// Posts `body` to a verb. Returns status code and body of the response.
    pub async fn call(&self, verb: &str, body: Vec<u8>) -> Result<(u16, Bytes), Failure> {
        let request = Request::post(format!("{}/{verb}", self.path))
            .header(header::HOST, self.origin.authority())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let response = self.client.send(&self.origin, request).await.map_err(cause)?;
        let code = response.status.as_u16();
        Ok((code, response.bytes(MAX_RESPONSE).await.map_err(cause)?))
    }
}

/// Underlying error of the connection, which callers display.
fn cause(error: HttpError) -> Failure {
    match error {
        HttpError::Connect { source, .. } | HttpError::Tls { source, .. } => source.into(),
        HttpError::Exchange(source) | HttpError::Body(source) => source.into(),
        other => other.into(),
    }
}

fn trust(config: &TlsConfig) -> Result<Trust, ConfigError> {
    let problem = |problem: String| ConfigError::Field { field: "extenders.tlsConfig", problem };
    if config.insecure {
        return Err(problem("insecure is not supported, set caFile to the extender's CA".to_owned()));
    }
    let read = |file: &str, data: &str| -> Result<Vec<u8>, ConfigError> {
        if data.is_empty() {
            let named = |error: io::Error| problem(format!("failed to read {file:?}: {error}"));
            return if file.is_empty() { Ok(Vec::new()) } else { std::fs::read(file).map_err(named) };
        }
        STANDARD.decode(data).map_err(|error| problem(error.to_string()))
    };
    let authority = read(&config.ca_file, &config.ca_data)?;
    if authority.is_empty() {
        return Err(problem("one of caFile and caData is required".to_owned()));
    }
    let certificate = read(&config.cert_file, &config.cert_data)?;
    let identity = if certificate.is_empty() {
        None
    } else {
        Some((certificate, read(&config.key_file, &config.key_data)?))
    };
    let server_name = Some(config.server_name.clone()).filter(|name| !name.is_empty());
    Ok(Trust { authorities: Authorities::Pem(authority), identity, server_name })
}
