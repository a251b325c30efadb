//! One repository at one server: a registry or a mirror of it.

use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use http::header::{LOCATION, RETRY_AFTER};
use http::{HeaderValue, Method, StatusCode, Uri};
use parking_lot::Mutex;
use serde::Deserialize;

use super::auth::{self, Credentials};
use super::challenge::Challenge;
use super::hosts::{Endpoint, authority};
use super::http::{Call, Connections, HttpError, Origin, StreamingResponse};

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("failed to do request: Get {url:?}: {source}")]
    Exchange { url: String, source: HttpError },
    #[error("not found")]
    NotFound,
    #[error("pull access denied, repository does not exist or may require authorization{0}")]
    Denied(String),
    #[error("failed to authorize: failed to fetch {kind} token: {reason}")]
    Token { kind: &'static str, reason: String },
    #[error("failed to authorize: the registry's token realm {0:?} is not safe for credentials")]
    Realm(String),
    #[error("unexpected status from GET request to {url}: {status}{message}")]
    Status { url: String, status: StatusCode, message: String, retry_after: Option<u64> },
    #[error("too many redirects, or an insecure redirect: {0}")]
    Redirect(String),
    #[error("unexpected commit digest {found}, expected {wanted}: failed precondition")]
    Digest { found: String, wanted: String },
    #[error("unexpected size: the server sends more than the {0} bytes that the manifest names")]
    TooLong(u64),
    #[error("failed to write blob: {0}")]
    Write(std::io::Error),
}

impl RegistryError {
    /// True if a retry may succeed.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Exchange { source, .. } => !matches!(source, HttpError::Url(_) | HttpError::Tls(_)),
            Self::Status { status, .. } => {
                status.is_server_error()
                    || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(status)
            }
            _ => false,
        }
    }

    fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, */*;q=0.1";
const MANIFEST_RETRIES: u32 = 3;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const MAX_REDIRECTS: usize = 10;
/// Size limit of an error response.
const MAX_ERROR_BODY: usize = 64 << 10;

pub struct Source {
    endpoint: Endpoint,
    repository: String,
    credentials: Option<Credentials>,
    connections: Arc<Connections>,
    /// `Authorization` header that the server accepted last.
    authorization: Mutex<Option<HeaderValue>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ErrorBody {
    errors: Vec<ErrorEntry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ErrorEntry {
    code: String,
    message: String,
}

impl Source {
    /// `credentials` are the caller's for the registry itself; a mirror uses only those of its configuration.
    #[must_use]
    pub fn new(
        endpoint: Endpoint,
        repository: &str,
        credentials: Option<&Credentials>,
        connections: &Arc<Connections>,
    ) -> Self {
        let explicit = credentials.filter(|_| endpoint.mirrors.is_none()).cloned();
        let credentials = explicit.or_else(|| endpoint.credentials.clone());
        let authorization = credentials.as_ref().and_then(Credentials::preemptive_header);
        Self {
            endpoint,
            repository: repository.to_owned(),
            credentials,
            connections: Arc::clone(connections),
            authorization: Mutex::new(authorization),
        }
    }

    /// The server in readable form.
    #[must_use]
    pub fn host(&self) -> String {
        self.endpoint.authority()
    }

    /// Delay after this many failures.
    pub(super) fn pause(&self, failures: u32, error: &RegistryError) -> Duration {
        pause(self.connections.timeouts().again, failures, error.retry_after())
    }

    pub(super) fn broken(&self, kind: &str, name: &str, source: HttpError) -> RegistryError {
        RegistryError::Exchange { url: shown(&self.url(kind, name)), source }
    }

    fn url(&self, kind: &str, name: &str) -> String {
        let Endpoint { secure, host, port, prefix, mirrors, .. } = &self.endpoint;
        let scheme = if *secure { "https" } else { "http" };
        let server = authority(*secure, host, *port);
        let on_behalf = mirrors.as_ref().map(|registry| format!("?ns={registry}")).unwrap_or_default();
        format!("{scheme}://{server}{prefix}/v2/{}/{kind}/{name}{on_behalf}", self.repository)
    }

    /// Fetches a manifest by tag or digest. Retries while the server is too busy.
    pub async fn manifest(&self, name: &str, limit: usize) -> Result<Vec<u8>, RegistryError> {
        let url = self.url("manifests", name);
        let mut failures = 0;
        let answer = loop {
            match self.get(&url, Some(MANIFESTS), 0).await {
                Err(error @ RegistryError::Status { .. })
                    if error.is_transient() && failures < MANIFEST_RETRIES =>
                {
                    tokio::time::sleep(self.pause(failures, &error)).await;
                    failures += 1;
                }
                other => break other?,
            }
        };
        answer.bytes(limit).await.map_err(|error| self.broken("manifests", name, error))
    }

    /// Opens a blob from the start, or from an offset if the server supports ranges.
    pub(super) async fn blob(&self, digest: &str, from: u64) -> Result<StreamingResponse, RegistryError> {
        self.get(&self.url("blobs", digest), None, from).await
    }

    async fn get(
        &self,
        url: &str,
        accept: Option<&'static str>,
        from: u64,
    ) -> Result<StreamingResponse, RegistryError> {
        let home = Origin::of(url);
        let (mut server, mut redirects, mut convinced) = (url.to_owned(), 0, false);
        loop {
            let origin = Origin::of(&server);
            // The registry's credentials must not be sent to other servers.
            let at_home = origin == home;
            let authorization = self.authorization.lock().clone().filter(|_| at_home);
            let call =
                Call { method: Method::GET, url: server.clone(), authorization, accept, from, form: None };
            let exchange = |source| RegistryError::Exchange { url: shown(&server), source };
            let answer = self.connections.send(call).await.map_err(exchange)?;
            let status = answer.status();
            if status.is_success() {
                return Ok(answer);
            }
            if status.is_redirection()
                && let Some(to) = answer.header(LOCATION).and_then(|to| join(&server, to))
            {
                redirects += 1;
                let falls = home.as_ref().is_some_and(|home| home.secure)
                    && !Origin::of(&to).is_some_and(|origin| origin.secure);
                if redirects > MAX_REDIRECTS || falls {
                    return Err(RegistryError::Redirect(shown(&to)));
                }
                server = to;
                continue;
            }
            if status == StatusCode::UNAUTHORIZED
                && at_home
                && !convinced
                && let (Some(challenge), Some(origin)) = (Challenge::of(answer.headers()), &home)
            {
                convinced = true;
                let credentials = self.credentials.as_ref();
                let found =
                    auth::answer(&challenge, credentials, &self.repository, origin, &self.connections)
                        .await?;
                if found.is_some() {
                    *self.authorization.lock() = found;
                    server = url.to_owned();
                    continue;
                }
            }
            return Err(response_error(&server, answer).await);
        }
    }
}

/// Grows with every failure, at least the server's `Retry-After`, and bounded.
fn pause(first: Duration, failures: u32, requested: Option<u64>) -> Duration {
    let backoff = Backoff::new(first, first.saturating_mul(64));
    backoff
        .after(failures.saturating_add(1))
        .max(Duration::from_secs(requested.unwrap_or(0)))
        .min(LONGEST_PAUSE)
}

/// A URL without its query, which may contain a signature.
fn shown(url: &str) -> String {
    url.split('?').next().unwrap_or_default().to_owned()
}

/// Target of a redirect, which may be a path only.
fn join(from: &str, to: &str) -> Option<String> {
    if Origin::of(to).is_some() {
        return Some(to.to_owned());
    }
    let base: Uri = from.parse().ok()?;
    let (scheme, server) = (base.scheme_str()?, base.authority()?);
    to.starts_with('/').then(|| format!("{scheme}://{server}{to}"))
}

async fn response_error(url: &str, answer: StreamingResponse) -> RegistryError {
    let status = answer.status();
    let retry_after = answer.header(RETRY_AFTER).and_then(|text| text.trim().parse().ok());
    let body = answer.bytes(MAX_ERROR_BODY).await.unwrap_or_default();
    let parsed: ErrorBody = serde_json::from_slice(&body).unwrap_or_default();
    let message = parsed.errors.first().map(|entry| match entry.message.as_str() {
        "" => entry.code.to_lowercase(),
        message => format!("{}: {message}", entry.code.to_lowercase()),
    });
    match status {
        StatusCode::NOT_FOUND => RegistryError::NotFound,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let message = message.unwrap_or_else(|| "authorization failed".to_owned());
            RegistryError::Denied(format!(": server message: {message}"))
        }
        status => RegistryError::Status {
            url: shown(url),
            status,
            message: message.map(|message| format!(": {message}")).unwrap_or_default(),
            retry_after,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delay_is_bounded() {
        let first = Duration::from_millis(500);
        assert_eq!(pause(first, 0, None), first);
        assert_eq!(pause(first, 2, None), Duration::from_secs(2));
        assert_eq!(pause(first, 1, Some(7)), Duration::from_secs(7));
        assert_eq!(pause(first, 40, Some(u64::MAX)), LONGEST_PAUSE);
    }

    #[test]
    fn redirect_target_is_resolved() {
        for (to, wanted) in [
            ("https://cdn/x?sig=1", Some("https://cdn/x?sig=1")),
            ("/v2/other", Some("http://r:5000/v2/other")),
            ("other", None),
            ("ftp://x", None),
        ] {
            assert_eq!(join("http://r:5000/v2/a", to).as_deref(), wanted, "{to}");
        }
        assert_eq!(shown("https://cdn/x?sig=secret"), "https://cdn/x");
    }
}
