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
    #[error("dial tcp {address}: connect: {reason}", address = .0, reason = base::errors::system(.1))]
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

/// Target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    tls: bool,
    host: String,
    port: u16,
    path: String,
}

impl Address {
    /// Target of a redirect; `None` if it is another host, or not a valid URL.
    fn redirected(&self, location: &str) -> Option<Self> {
        let (tls, rest) = match location.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, Some(rest)),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, Some(rest)),
            Some((scheme, _)) if !scheme.contains(['/', '?', '#']) => return None,
            _ => (self.tls, location.strip_prefix("//")),
        };
        let Some(rest) = rest else {
            // A relative path replaces the last segment.
            let own = self.path.split(['?', '#']).next().unwrap_or_default();
            let parent = own.rfind('/').and_then(|at| own.get(..=at)).unwrap_or("/");
            let path =
                if location.starts_with('/') { location.to_owned() } else { format!("{parent}{location}") };
            return Some(Self { path: without_fragment(&path), ..self.clone() });
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let authority: http::uri::Authority = authority.parse().ok()?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if !host.eq_ignore_ascii_case(&self.host) {
            return None;
        }
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = without_fragment(path);
        let path = if path.starts_with('/') { path } else { format!("/{path}") };
        Some(Self { tls, host: self.host.clone(), port, path })
    }
}

fn without_fragment(path: &str) -> String {
    path.split('#').next().unwrap_or_default().to_owned()
}

/// Sends the request; a status below 400 is a success, a redirect to another host one with a warning.
pub async fn get(action: &HTTPGetAction, host: &str, port: u16, limit: Duration) -> ProbeOutcome {
    let scheme = action.scheme.as_deref().unwrap_or("HTTP").to_ascii_lowercase();
    let joined = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let path = action.path.as_deref().unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let url = format!("{scheme}://{joined}{path}");
    let address = Address { tls: scheme == "https", host: host.to_owned(), port, path };
    match tokio::time::timeout(limit, fetch(action, address)).await {
        Ok(Ok((code, _))) if (200..300).contains(&code) => ProbeOutcome::Success,
        Ok(Ok((code, body))) if (300..400).contains(&code) => {
            ProbeOutcome::Warning(format!("Probe terminated redirects, Response body: {body}"))
        }
        Ok(Ok((code, _))) => ProbeOutcome::Failure(format!("HTTP probe failed with statuscode: {code}")),
        Ok(Err(error)) => ProbeOutcome::Failure(format!("Get {url:?}: {error}")),
        Err(_) => ProbeOutcome::Failure(format!("Get {url:?}: {}", HttpError::Timeout)),
    }
}

/// Returns status code and body of the response; follows redirects within the same host.
async fn fetch(action: &HTTPGetAction, mut address: Address) -> Result<(u16, String), HttpError> {
    for _ in 0..MAX_REDIRECTS {
        let (code, location, body) =
            once(action, address.tls, &address.host, address.port, &address.path).await?;
        let is_redirect = matches!(code, 301 | 302 | 303 | 307 | 308);
        match location.filter(|_| is_redirect).and_then(|location| address.redirected(&location)) {
            Some(next) => address = next,
            // Redirects to other hosts are not followed.
            None => return Ok((code, body)),
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
) -> Result<(u16, Option<String>, String), HttpError> {
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
    let body = response.bytes(MAX_BODY).await.unwrap_or_default();
    Ok((code, location, String::from_utf8_lossy(&body).into_owned()))
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
                "HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\ncontent-length: 4\r\n\r\nbody",
                ProbeOutcome::Warning("Probe terminated redirects, Response body: body".to_owned()),
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

    #[test]
    fn redirects_stay_on_the_host_of_the_probe() {
        let from = Address { tls: false, host: "10.1.0.2".into(), port: 8080, path: "/a/b?q=1".into() };
        let to = |tls: bool, port: u16, path: &str| {
            Some(Address { tls, host: "10.1.0.2".into(), port, path: path.into() })
        };
        for (location, want) in [
            ("/other", to(false, 8080, "/other")),
            ("other?x=1#part", to(false, 8080, "/a/other?x=1")),
            ("http://10.1.0.2:9090/x", to(false, 9090, "/x")),
            ("https://10.1.0.2", to(true, 443, "/")),
            ("//10.1.0.2/y", to(false, 80, "/y")),
            ("http://10.1.0.2?q", to(false, 80, "/?q")),
            ("http://10.1.0.3/x", None),
            ("//elsewhere/x", None),
            ("ftp://10.1.0.2/x", None),
            ("http://[/x", None),
        ] {
            assert_eq!(from.redirected(location), want, "{location}");
        }
    }

    #[tokio::test]
    async fn http_probe_redirect_to_the_same_host_is_followed() {
        let end = answer("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n").await;
        let text =
            format!("HTTP/1.1 301 Moved\r\nlocation: http://127.0.0.1:{end}/\r\ncontent-length: 0\r\n\r\n");
        let begin = answer(text.leak()).await;
        let action = HTTPGetAction { port: IntOrString::Int(1), ..HTTPGetAction::default() };
        let outcome = get(&action, "127.0.0.1", begin, Duration::from_secs(5)).await;
        assert_eq!(outcome, ProbeOutcome::Failure("HTTP probe failed with statuscode: 500".to_owned()));
        let again = answer("HTTP/1.1 302 Found\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n").await;
        let outcome = get(&action, "127.0.0.1", again, Duration::from_secs(5)).await;
        assert!(
            matches!(&outcome, ProbeOutcome::Failure(text) if text.ends_with("stopped after 10 redirects")),
            "{outcome:?}"
        );
    }
}
