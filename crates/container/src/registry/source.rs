//! One repository at one server: a registry or a mirror of it.

use std::sync::Arc;
use std::time::Duration;

use http::header::{LOCATION, RETRY_AFTER};
use http::{HeaderValue, Method, StatusCode, Uri};
use parking_lot::Mutex;
use serde::Deserialize;

use super::auth::{self, Credentials};
use super::challenge::Challenge;
use super::hosts::{Endpoint, authority};
use super::http::{Answer, Call, Connections, HttpError, Origin};

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
    #[error("failed to authorize: the registry sends us to {0:?}, which is no safe place for credentials")]
    Realm(String),
    #[error("unexpected status from GET request to {url}: {status}{message}")]
    Status { url: String, status: StatusCode, message: String, retry_after: Option<u64> },
    #[error("too many redirects, or one to a place that is not safe: {0}")]
    Redirect(String),
    #[error("unexpected commit digest {found}, expected {wanted}: failed precondition")]
    Digest { found: String, wanted: String },
    #[error("unexpected size: the server sends more than the {0} bytes that the manifest names")]
    TooLong(u64),
    #[error("write the blob: {0}")]
    Write(std::io::Error),
}

impl RegistryError {
    /// Whether asking again may help.
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
/// What a server says about a refusal.
const LARGEST_REFUSAL: usize = 64 << 10;

pub struct Source {
    endpoint: Endpoint,
    repository: String,
    credentials: Option<Credentials>,
    connections: Arc<Connections>,
    /// What convinced the server last.
    authorization: Mutex<Option<HeaderValue>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Refusals {
    errors: Vec<Refusal>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Refusal {
    code: String,
    message: String,
}

impl Source {
    /// `credentials` are the caller's for the registry itself; a mirror has those of its configuration only.
    #[must_use]
    pub fn new(
        endpoint: Endpoint,
        repository: &str,
        credentials: Option<&Credentials>,
        connections: &Arc<Connections>,
    ) -> Self {
        let given = credentials.filter(|_| endpoint.mirrors.is_none()).cloned();
        let credentials = given.or_else(|| endpoint.credentials.clone());
        let authorization = credentials.as_ref().and_then(Credentials::at_first);
        Self {
            endpoint,
            repository: repository.to_owned(),
            credentials,
            connections: Arc::clone(connections),
            authorization: Mutex::new(authorization),
        }
    }

    /// The server, as people write it.
    #[must_use]
    pub fn host(&self) -> String {
        self.endpoint.authority()
    }

    /// How long to wait after so many failures.
    pub(super) fn pause(&self, failures: u32, error: &RegistryError) -> Duration {
        pause(self.connections.patience().again, failures, error.retry_after())
    }

    pub(super) fn broken(&self, kind: &str, name: &str, source: HttpError) -> RegistryError {
        RegistryError::Exchange { url: shown(&self.url(kind, name)), source }
    }

    fn url(&self, kind: &str, name: &str) -> String {
        let Endpoint { secure, host, port, prefix, mirrors, .. } = &self.endpoint;
        let scheme = if *secure { "https" } else { "http" };
        let place = authority(*secure, host, *port);
        let on_behalf = mirrors.as_ref().map(|registry| format!("?ns={registry}")).unwrap_or_default();
        format!("{scheme}://{place}{prefix}/v2/{}/{kind}/{name}{on_behalf}", self.repository)
    }

    /// A manifest's bytes, by tag or digest. A server that is too busy is asked again.
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

    /// The beginning of a blob, or its rest from a position on if the server can do that.
    pub(super) async fn blob(&self, digest: &str, from: u64) -> Result<Answer, RegistryError> {
        self.get(&self.url("blobs", digest), None, from).await
    }

    async fn get(&self, url: &str, accept: Option<&'static str>, from: u64) -> Result<Answer, RegistryError> {
        let home = Origin::of(url);
        let (mut place, mut redirects, mut convinced) = (url.to_owned(), 0, false);
        loop {
            let origin = Origin::of(&place);
            // What convinces the registry is nobody else's business.
            let at_home = origin == home;
            let authorization = self.authorization.lock().clone().filter(|_| at_home);
            let call =
                Call { method: Method::GET, url: place.clone(), authorization, accept, from, form: None };
            let exchange = |source| RegistryError::Exchange { url: shown(&place), source };
            let answer = self.connections.send(call).await.map_err(exchange)?;
            let status = answer.status();
            if status.is_success() {
                return Ok(answer);
            }
            if status.is_redirection()
                && let Some(to) = answer.header(LOCATION).and_then(|to| join(&place, to))
            {
                redirects += 1;
                let falls = home.as_ref().is_some_and(|home| home.secure)
                    && !Origin::of(&to).is_some_and(|origin| origin.secure);
                if redirects > MAX_REDIRECTS || falls {
                    return Err(RegistryError::Redirect(shown(&to)));
                }
                place = to;
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
                    place = url.to_owned();
                    continue;
                }
            }
            return Err(refusal(&place, answer).await);
        }
    }
}

/// Longer after every failure, never shorter than the server asks, and bounded.
fn pause(first: Duration, failures: u32, asked: Option<u64>) -> Duration {
    let longer = first.saturating_mul(1 << failures.min(6));
    longer.max(Duration::from_secs(asked.unwrap_or(0))).min(LONGEST_PAUSE)
}

/// An address without what a server may have signed into it.
fn shown(url: &str) -> String {
    url.split('?').next().unwrap_or_default().to_owned()
}

/// Where a redirect leads: it may name a path only.
fn join(from: &str, to: &str) -> Option<String> {
    if Origin::of(to).is_some() {
        return Some(to.to_owned());
    }
    let base: Uri = from.parse().ok()?;
    let (scheme, place) = (base.scheme_str()?, base.authority()?);
    to.starts_with('/').then(|| format!("{scheme}://{place}{to}"))
}

async fn refusal(url: &str, answer: Answer) -> RegistryError {
    let status = answer.status();
    let retry_after = answer.header(RETRY_AFTER).and_then(|text| text.trim().parse().ok());
    let body = answer.bytes(LARGEST_REFUSAL).await.unwrap_or_default();
    let said: Refusals = serde_json::from_slice(&body).unwrap_or_default();
    let message = said.errors.first().map(|refusal| match refusal.message.as_str() {
        "" => refusal.code.to_lowercase(),
        message => format!("{}: {message}", refusal.code.to_lowercase()),
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
    fn pauses_are_bounded() {
        let first = Duration::from_millis(500);
        assert_eq!(pause(first, 0, None), first);
        assert_eq!(pause(first, 2, None), Duration::from_secs(2));
        assert_eq!(pause(first, 1, Some(7)), Duration::from_secs(7));
        assert_eq!(pause(first, 40, Some(u64::MAX)), LONGEST_PAUSE);
    }

    #[test]
    fn redirects() {
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
