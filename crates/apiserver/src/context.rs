//! What travels with a request through the chain.

use crate::chain::audit::Record;
use crate::query::Query;
use crate::registry::{Catalogue, Warnings};
use crate::request_info::{RequestInfo, Verb};
use crate::user::UserInfo;
use api::resources::STREAMING;
use http::header::{ACCEPT_ENCODING, HOST, USER_AGENT};
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use std::sync::{Arc, LazyLock};

/// Everybody, until it is known who it is.
static ANONYMOUS: LazyLock<Arc<UserInfo>> = LazyLock::new(|| Arc::new(UserInfo::anonymous()));

pub struct Context {
    pub method: Method,
    pub uri: http::Uri,
    pub path: Arc<str>,
    pub query: Query,
    pub headers: HeaderMap,
    pub info: Arc<RequestInfo>,
    /// Everything that was served when the request began.
    pub catalogue: Arc<Catalogue>,
    pub user: Arc<UserInfo>,
    pub warnings: Warnings,
    pub accepts_gzip: bool,
    /// What is recorded about the request, if anything is.
    pub audit: Option<Box<Record>>,
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
            warnings: Warnings::default(),
            accepts_gzip,
            audit: None,
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

    /// The name that managedFields records: the one given, or the client's own.
    pub fn manager(&self, given: &str) -> String {
        let agent = self.headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
        machinery::apply::manager_name(given, agent)
    }

    /// What the client calls this server.
    pub fn host(&self) -> Option<&str> {
        let named = self.headers.get(HOST).and_then(|host| host.to_str().ok());
        named.or_else(|| self.uri.authority().map(http::uri::Authority::as_str))
    }

    /// Watches and streams last as long as their client wants.
    pub fn is_long_running(&self) -> bool {
        self.info.verb == Verb::Watch || STREAMING.contains(&self.info.subresource.as_str())
    }
}
