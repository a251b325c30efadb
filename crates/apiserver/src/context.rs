//! Request context, passed through the chain.

use crate::chain::audit::Record;
use crate::chain::{LongRunning, Termination};
use crate::registry::{Catalogue, WriteRecord};
use crate::request_info::{RequestInfo, Verb};
use crate::user::UserInfo;
use crate::wire::query::Query;
use api::subresources::is_streaming;
use base::trace::Span;
use http::header::{ACCEPT_ENCODING, HOST, USER_AGENT};
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use std::sync::{Arc, LazyLock};

/// User of requests before authentication.
static ANONYMOUS: LazyLock<Arc<UserInfo>> = LazyLock::new(|| Arc::new(UserInfo::anonymous()));

pub struct Context {
    pub method: Method,
    pub uri: http::Uri,
    pub path: Arc<str>,
    pub query: Query,
    pub headers: HeaderMap,
    pub info: Arc<RequestInfo>,
    /// The catalogue at the start of the request.
    pub catalogue: Arc<Catalogue>,
    pub user: Arc<UserInfo>,
    pub record: WriteRecord,
    pub accepts_gzip: bool,
    /// Audit record, if the request is audited.
    pub audit: Option<Box<Record>>,
    /// Span of the request, once its user is authenticated.
    pub span: Span,
    /// Set if the server rejected the request to protect itself.
    pub termination: Mutex<Option<Termination>>,
    /// Counts a watch or a stream; taken by the task that serves it.
    pub long_running: Mutex<Option<LongRunning>>,
    /// The connection itself, once it has switched protocols.
    pub upgrade: Mutex<Option<hyper::upgrade::OnUpgrade>>,
}

impl Context {
    pub fn new(mut parts: http::request::Parts, catalogue: Arc<Catalogue>) -> Self {
        let upgrade = Mutex::new(parts.extensions.remove());
        let path: Arc<str> = parts.uri.path().into();
        let query = Query::parse(parts.uri.query());
        let info = RequestInfo::new(&parts.method, &path, &query);
        let accepts_gzip = parts
            .headers
            .get(ACCEPT_ENCODING)
            .and_then(|v| v.to_str().ok())
            .is_some_and(|v| v.split(',').any(|coding| coding.trim().split(';').next() == Some("gzip")));
        Self {
            method: parts.method,
            path,
            query,
            headers: parts.headers,
            info: Arc::new(info),
            catalogue,
            user: ANONYMOUS.clone(),
            record: WriteRecord::default(),
            accepts_gzip,
            audit: None,
            span: Span::off(),
            termination: Mutex::default(),
            long_running: Mutex::default(),
            uri: parts.uri,
            upgrade,
        }
    }

    /// A request to a server that serves nothing.
    #[cfg(test)]
    pub fn of_test(parts: http::request::Parts) -> Self {
        Self::new(
            parts,
            crate::registry::Catalogues::new(
                &[],
                String::new(),
                &api::runtime_config::RuntimeConfig::default(),
            )
            .load(),
        )
    }

    /// Field manager of the request: `given`, or derived from the user agent.
    pub fn manager(&self, given: &str) -> String {
        let agent = self.headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
        machinery::apply::manager_name(given, agent)
    }

    /// Host that the client addressed.
    pub fn host(&self) -> Option<&str> {
        let named = self.headers.get(HOST).and_then(|host| host.to_str().ok());
        named.or_else(|| self.uri.authority().map(http::uri::Authority::as_str))
    }

    /// Reports whether the request is a watch, a stream or a profile, which take as long as their client chooses.
    pub fn is_long_running(&self) -> bool {
        let info = &self.info;
        info.verb == Verb::Watch
            || is_streaming(&info.subresource)
            || (!info.is_resource && self.path.starts_with("/debug/pprof/"))
    }
}
