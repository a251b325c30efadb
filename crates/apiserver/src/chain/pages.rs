//! `/statusz` and `/flagz`: the state of the process and its flags.

use super::Chain;
use crate::context::Context;
use crate::discovery;
use crate::wire::reply::{self, Reply};
use base::zpages::{self, documents};
use http::HeaderValue;
use http::header::{ACCEPT, WARNING};
use machinery::Value;

const COMPONENT: &str = "kube-apiserver";
/// Folders at `/` that are not for debugging.
const OTHER_FOLDERS: [&str; 5] = ["/apis", "/api", "/openid", "/openapi", "/.well-known"];

/// A page of the process as a response.
pub(super) fn response(page: zpages::Page) -> Reply {
    let mut reply = reply::with_type(page.status, page.content_type, page.body);
    let headers = reply.headers_mut();
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    if let Some(warning) = page.warning.and_then(|text| HeaderValue::from_str(&text).ok()) {
        headers.insert(WARNING, warning);
    }
    reply
}

impl Chain {
    /// Serves a page; `None` for any other path.
    pub(super) fn page(&self, context: &Context) -> Option<Reply> {
        let accept = context.headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let page = match &*context.path {
            "/statusz" => {
                let paths = debugging_paths(&self.rest.registry.catalogue().discovery);
                let (started, now) = (self.started, self.clock.now());
                documents::Status { component: COMPONENT, started, now, paths: &paths }.page(accept)
            }
            "/flagz" => documents::flagz(COMPONENT, &zpages::flags(), accept),
            _ => return None,
        };
        Some(response(page))
    }
}

/// Folders of the root paths that are for debugging, sorted.
fn debugging_paths(discovery: &discovery::Discovery) -> Vec<String> {
    let listed = discovery.root_paths();
    let paths = listed["paths"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let folders = paths.filter_map(|path| {
        let folder = path.strip_prefix('/')?.split('/').next()?;
        (!folder.is_empty()).then(|| format!("/{folder}"))
    });
    let mut folders: Vec<String> =
        folders.filter(|folder| !OTHER_FOLDERS.contains(&folder.as_str())).collect();
    folders.sort();
    folders.dedup();
    folders
}
