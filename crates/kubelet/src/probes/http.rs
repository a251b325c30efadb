//! HTTP requests of probes and lifecycle hooks.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use base::http::{Authorities, Client, Limits, Origin, OriginError, Trust};
use http_body_util::Full;
use objects::core::v1::HTTPGetAction;

use super::ProbeOutcome;

/// Maximum number of response bytes read.
const MAX_BODY: usize = 10 * 1024;
const MAX_REDIRECTS: usize = 10;
/// Client timeout; a probe's own timeout is shorter.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// Every probe opens its own connection, as in Kubernetes: it checks that the container accepts one.
static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    let (connect, response, silence) = (TIMEOUT, TIMEOUT, TIMEOUT);
    Client::new(Limits { connect, response, silence, max_idle: 0, ..Limits::default() })
});

/// Failure of an HTTP request.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("dial tcp {0}: {1}")]
    Connect(String, #[source] std::io::Error),
    #[error("tls: {0}")]
    Tls(#[source] std::io::Error),
    #[error("invalid request: {0}")]
    Request(#[from] http::Error),
    #[error("{0}")]
    Exchange(#[from] hyper::Error),
    #[error("{0}")]
    Origin(#[from] OriginError),
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout,
    #[error("stopped after 10 redirects")]
    Redirects,
}

/// Sends the request; a status below 400 is a success.
pub async fn get(action: &HTTPGetAction, host: &str, port: u16, limit: Duration) -> ProbeOutcome {
    let scheme = action.scheme.as_deref().unwrap_or("HTTP").to_ascii_lowercase();
    let joined = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let path = action.path.as_deref().unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let url = format!("{scheme}://{joined}{path}");
    match tokio::time::timeout(limit, fetch(action, scheme == "https", host, port, path)).await {
        Ok(Ok(code)) if (200..400).contains(&code) => ProbeOutcome::Success,
        Ok(Ok(code)) => ProbeOutcome::Failure(format!("HTTP probe failed with statuscode: {code}")),
        Ok(Err(error)) => ProbeOutcome::Failure(format!("Get {url:?}: {error}")),
        Err(_) => ProbeOutcome::Failure(format!("Get {url:?}: {}", HttpError::Timeout)),
    }
}

/// Returns the status code of the response; follows redirects within the same host.
async fn fetch(
    action: &HTTPGetAction,
    tls: bool,
    host: &str,
    port: u16,
    mut path: String,
) -> Result<u16, HttpError> {
    for _ in 0..MAX_REDIRECTS {
        let (code, location) = once(action, tls, host, port, &path).await?;
        if !(300..400).contains(&code) {
            return Ok(code);
        }
        match location {
            Some(location) if location.starts_with('/') => path = location,
            // Redirects to other hosts are not followed.
            _ => return Ok(code),
        }
    }
    Err(HttpError::Redirects)
}

async fn once(
    action: &HTTPGetAction,
    tls: bool,
    host: &str,
    port: u16,
    path: &str,
) -> Result<(u16, Option<String>), HttpError> {
    let origin = if tls { unverified(host, port)? } else { Origin::plain(host, port) };
    let mut request = http::Request::builder().uri(path);
    let mut named_host = false;
    let mut named_agent = false;
    for header in action.http_headers.iter().flatten() {
        named_host |= header.name.eq_ignore_ascii_case("host");
        named_agent |= header.name.eq_ignore_ascii_case("user-agent");
        request = request.header(&header.name, &header.value);
    }
    if !named_host {
        request = request.header("Host", origin.authority());
    }
    if !named_agent {
        request = request.header("User-Agent", "kube-probe/1.36");
    }
    let request = request.header("Accept", "*/*").header("Connection", "close").body(Full::default())?;
    let response = CLIENT.send(&origin, request).await.map_err(failure)?;
    let code = response.status.as_u16();
    let location = response.header(http::header::LOCATION).map(str::to_owned);
    // The status decides. The start of the body is read, so that the server can finish the response.
    let _ = response.bytes(MAX_BODY).await;
    Ok((code, location))
}

fn failure(error: base::http::HttpError) -> HttpError {
    use base::http::HttpError as Error;
    match error {
        Error::Connect { address, source } => HttpError::Connect(address, source),
        Error::Tls { source, .. } => HttpError::Tls(source),
        Error::Exchange(source) | Error::Body(source) | Error::Upgrade(source) => HttpError::Exchange(source),
        Error::ConnectTimeout { .. } | Error::NoResponse(_) | Error::Silence(_) | Error::TooLong(_) => {
            HttpError::Timeout
        }
    }
}

/// Skips verification of the server certificate, as in Kubernetes: probes check liveness, not identity.
fn unverified(host: &str, port: u16) -> Result<Origin, OriginError> {
    static CONFIG: std::sync::OnceLock<Arc<rustls::ClientConfig>> = std::sync::OnceLock::new();
    let config = match CONFIG.get() {
        Some(config) => config,
        None => {
            let trust = Trust { authorities: Authorities::Unverified, ..Trust::default() };
            let config = trust.config()?;
            CONFIG.get_or_init(|| config)
        }
    };
    // A host that is no valid server name is still an address to connect to.
    let origin = |name: Option<&str>| Origin::secured(host, port, Arc::clone(config), name);
    origin(None).or_else(|_| origin(Some("127.0.0.1")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::IntOrString;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn answer(text: &'static str) -> u16 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut buffer = [0; 1024];
                let _ = stream.read(&mut buffer).await;
                let _ = stream.write_all(text.as_bytes()).await;
            }
        });
        port
    }

    #[tokio::test]
    async fn http_probe_status_code_decides() {
        let action = HTTPGetAction { port: IntOrString::Int(1), ..HTTPGetAction::default() };
        for (text, want) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", ProbeOutcome::Success),
            (
                "HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n",
                ProbeOutcome::Success,
            ),
            (
                "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n",
                ProbeOutcome::Failure("HTTP probe failed with statuscode: 503".to_owned()),
            ),
        ] {
            let port = answer(text).await;
            assert_eq!(get(&action, "127.0.0.1", port, Duration::from_secs(5)).await, want);
        }
    }
}
