//! Requests passed on to a pod, a service or a node: everything behind `proxy` in the path is theirs.

use super::upstream::Upstream;
use crate::context::Context;
use crate::reply::{self, Reply};
use crate::rest::Rest;
use crate::serve::RequestBody;
use http::{HeaderValue, Method, header};
use machinery::status::Result;

/// Path and query behind `/proxy`, as they were sent.
fn target(context: &Context) -> Option<String> {
    let info = &context.info;
    let marker = format!("/{}/{}/proxy", info.resource, percent(&info.name, &context.path));
    let at = context.path.find(&marker)? + marker.len();
    let rest = &context.path[at..];
    let path = if rest.is_empty() { "/" } else { rest };
    Some(match context.uri.query() {
        Some(query) if !query.is_empty() => format!("{path}?{query}"),
        _ => path.to_owned(),
    })
}

/// The name as it stands in the path, where it may be percent-encoded.
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
        if context.path.ends_with("/proxy") && context.method == Method::GET {
            // Relative links of the page behind would otherwise lead elsewhere.
            let mut moved =
                reply::finish_typed(301, "text/html; charset=utf-8", bytes::Bytes::new(), context);
            let query = context.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
            if let Ok(place) = HeaderValue::from_str(&format!("{}/{query}", context.path)) {
                moved.headers_mut().insert(header::LOCATION, place);
            }
            return Ok(moved);
        }
        let target = target(context).unwrap_or_else(|| "/".to_owned());
        self.pass(context, &upstream, &target, body).await
    }
}
