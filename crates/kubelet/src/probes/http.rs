//! HTTP questions: probes and lifecycle hooks.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use base::http::{Authorities, Client, Limits, Origin, OriginError, Trust};
use http_body_util::Full;
use objects::core::v1::HTTPGetAction;

use super::Outcome;

/// How much of an answer is read.
const MAX_BODY: usize = 10 * 1024;
const MAX_REDIRECTS: usize = 10;
/// A probe's own limit is shorter.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Every question has a connection of its own, as in Kubernetes: a probe asks whether the container accepts one.
static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    let (connect, response, silence) = (LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT);
    Client::new(Limits { connect, response, silence, max_idle: 0, ..Limits::default() })
});

/// Why there was no answer.
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

/// Asks; an answer below 400 is good.
pub async fn get(action: &HTTPGetAction, host: &str, port: u16, limit: Duration) -> Outcome {
    let scheme = action.scheme.as_deref().unwrap_or("HTTP").to_ascii_lowercase();
    let joined = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let path = action.path.as_deref().unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let asked = format!("{scheme}://{joined}{path}");
    match tokio::time::timeout(limit, fetch(action, scheme == "https", host, port, path)).await {
        Ok(Ok(code)) if (200..400).contains(&code) => Outcome::Success,
        Ok(Ok(code)) => Outcome::Failure(format!("HTTP probe failed with statuscode: {code}")),
        Ok(Err(error)) => Outcome::Failure(format!("Get {asked:?}: {error}")),
        Err(_) => Outcome::Failure(format!("Get {asked:?}: {}", HttpError::Timeout)),
    }
}

/// The status code of the answer; redirects within the same host are followed.
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
            // Elsewhere: not this container's business any more.
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
        Error::Exchange(source) | Error::Body(source) => HttpError::Exchange(source),
        Error::ConnectTimeout { .. } | Error::NoResponse(_) | Error::Silence(_) | Error::TooLong(_) => {
            HttpError::Timeout
        }
    }
}

/// A server whose certificate is not verified, as in Kubernetes: probes ask whether a server answers, not which.
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
    // A host that is no server name is still an address to connect to.
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
    async fn codes_decide() {
        let action = HTTPGetAction { port: IntOrString::Int(1), ..HTTPGetAction::default() };
        for (text, want) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", Outcome::Success),
            (
                "HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n",
                Outcome::Success,
            ),
            (
                "HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n",
                Outcome::Failure("HTTP probe failed with statuscode: 503".to_owned()),
            ),
        ] {
            let port = answer(text).await;
            assert_eq!(get(&action, "127.0.0.1", port, Duration::from_secs(5)).await, want);
        }
    }
}
