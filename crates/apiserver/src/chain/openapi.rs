//! `/openapi/v2` and `/openapi/v3`: documents with tags and hashes, so that clients fetch each once.

use super::Chain;
use crate::context::Context;
use crate::openapi::{Document, OpenApi};
use crate::reply::{self, Reply};
use http::HeaderValue;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_ENCODING, ETAG, EXPIRES, IF_NONE_MATCH, LAST_MODIFIED, LOCATION, VARY,
};
use std::time::{Duration, SystemTime};

/// A document named by its hash never changes.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl Chain {
    pub(super) fn openapi(&self, context: &Context) -> Reply {
        let path = context.path.trim_end_matches('/');
        if path == "/openapi/v2" {
            return match json_accepted(context) {
                true => document(&self.openapi.v2_json(), "application/json", context),
                false => reply::text(406, "Not Acceptable\n"),
            };
        }
        if path == "/openapi/v3" {
            return document(&self.openapi.v3_index(), "text/plain; charset=utf-8", context);
        }
        let Some(name) = path.strip_prefix("/openapi/v3/") else { return reply::page_not_found() };
        let Some(found) = self.openapi.v3_group_version(name) else { return not_found() };
        if !json_accepted(context) {
            return reply::text(406, "Not Acceptable\n");
        }
        match context.query.get("hash").filter(|hash| !hash.is_empty()) {
            Some(hash) if hash != found.hash => {
                let mut reply = reply::text(301, "");
                if let Ok(to) = HeaderValue::from_str(&OpenApi::server_relative_url(name, &found)) {
                    reply.headers_mut().insert(LOCATION, to);
                }
                reply
            }
            hash => {
                let mut reply = document(&found, "application/json", context);
                if hash.is_some() {
                    let headers = reply.headers_mut();
                    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
                    if let Ok(at) = HeaderValue::from_str(&http_date(SystemTime::now() + FOREVER)) {
                        headers.insert(EXPIRES, at);
                    }
                }
                reply
            }
        }
    }
}

/// The one 404 without a media type.
fn not_found() -> Reply {
    let mut reply = reply::text(404, "");
    reply.headers_mut().remove(http::header::CONTENT_TYPE);
    reply
}

fn json_accepted(context: &Context) -> bool {
    let Some(header) = context.headers.get(ACCEPT).and_then(|v| v.to_str().ok()) else { return true };
    header.is_empty()
        || header.split(',').any(|clause| {
            matches!(
                clause.split(';').next().map(str::trim),
                Some("application/json" | "*/*" | "application/*")
            )
        })
}

fn document(document: &Document, media_type: &'static str, context: &Context) -> Reply {
    let known = context.headers.get(IF_NONE_MATCH).and_then(|v| v.to_str().ok());
    let mut reply = if known.is_some_and(|tag| document.matches(tag)) {
        reply::with_type(304, media_type, "")
    } else if context.accepts_gzip {
        let mut reply = reply::with_type(200, media_type, document.gzip.clone());
        reply.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        reply
    } else {
        reply::with_type(200, media_type, document.json())
    };
    let headers = reply.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", document.hash)) {
        headers.insert(ETAG, tag);
    }
    if let Ok(built) = HeaderValue::from_str(&http_date(document.built)) {
        headers.insert(LAST_MODIFIED, built);
    }
    headers.append(VARY, HeaderValue::from_static("Accept"));
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    reply
}

fn http_date(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map(|t| t.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string())
        .unwrap_or_default()
}
