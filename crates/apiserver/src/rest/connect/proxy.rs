//! Proxied requests to a pod, a service or a node: everything behind `proxy` in the path is forwarded.

use super::links::Links;
use super::upstream::{BackendRequest, Upstream};
use crate::context::Context;
use crate::rest::Rest;
use crate::serve::RequestBody;
use crate::wire::reply::{self, Reply};
use http::{HeaderValue, Method, header};
use machinery::status::Result;

/// Path up to `/proxy`, and the rest behind it, unmodified.
pub(super) fn split(context: &Context) -> (&str, &str) {
    let info = &context.info;
    let marker = format!("/{}/{}/proxy", info.resource, percent(&info.name, &context.path));
    let end = context.path.find(&marker).map_or(context.path.len(), |at| at + marker.len());
    context.path.split_at(end)
}

/// Name as in the path, where it may be percent-encoded.
fn percent(name: &str, path: &str) -> String {
    if path.contains(name) { name.to_owned() } else { name.replace(':', "%3A") }
}

impl Rest {
    pub(super) async fn proxy(
        &self,
        context: &Context,
        upstream: Upstream,
        body: RequestBody,
    ) -> Result<Reply> {
        let query = context.uri.query().filter(|query| !query.is_empty());
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        let (prefix, path) = split(context);
        let upgrade = context.headers.contains_key(header::UPGRADE);
        if path.is_empty() && !upgrade && matches!(context.method, Method::GET | Method::HEAD) {
            // Without the slash, relative links of the page would resolve wrongly.
            let mut moved =
                reply::finish_typed(301, "text/html; charset=utf-8", bytes::Bytes::new(), context);
            if let Ok(place) = HeaderValue::from_str(&format!("{prefix}/{query}")) {
                moved.headers_mut().insert(header::LOCATION, place);
            }
            return Ok(moved);
        }
        let links = Links {
            prefix: prefix.to_owned(),
            address: upstream.address(),
            host: context.host().unwrap_or_default().to_owned(),
        };
        let path = if path.is_empty() { "/" } else { path };
        let passage = BackendRequest { target: format!("{path}{query}"), links: Some(links) };
        self.pass(context, &upstream, passage, body).await
    }
}
