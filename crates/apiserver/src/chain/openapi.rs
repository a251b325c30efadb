//! `/openapi/v2` and `/openapi/v3`: documents with ETags and hashes, so that clients can cache them.

use super::Chain;
use crate::aggregate::Backend;
use crate::context::Context;
use crate::openapi::{Document, OpenApi, V2_PROTOBUF, V2_PROTOBUF_OLD, V3_PROTOBUF, V3_PROTOBUF_OLD};
use crate::serve::RequestBody;
use crate::wire::reply::{self, Reply};
use base::clock::Clock;
use http::HeaderValue;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, EXPIRES, IF_NONE_MATCH, LAST_MODIFIED,
    LOCATION, VARY,
};
use machinery::status::Status;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A document addressed by its hash is immutable.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The two encodings of a document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestedEncoding {
    Json,
    Protobuf,
}

impl Chain {
    pub(super) async fn openapi(&self, context: &Context) -> Reply {
        let path = context.path.trim_end_matches('/');
        if path == "/openapi/v2" {
            let Some(wanted) = wanted(context, [V2_PROTOBUF, V2_PROTOBUF_OLD]) else { return bare(406) };
            return match wanted {
                RequestedEncoding::Json => {
                    let found = build(context, |openapi| Some(openapi.v2_json())).await;
                    answer(found, "application/json", context)
                }
                RequestedEncoding::Protobuf => {
                    let found = build(context, |openapi| Some(openapi.v2_protobuf())).await;
                    answer(found, V2_PROTOBUF, context)
                }
            };
        }
        if path == "/openapi/v3" {
            let found = build(context, |openapi| Some(openapi.v3_index())).await;
            return answer(found, "text/plain; charset=utf-8", context);
        }
        let Some(name) = path.strip_prefix("/openapi/v3/") else { return reply::page_not_found() };
        if let Some(backend) = backend_of(context, name) {
            return self.rest.delegate(context, backend, RequestBody::default()).await;
        }
        let Some(wanted) = wanted(context, [V3_PROTOBUF, V3_PROTOBUF_OLD]) else { return bare(406) };
        let key = name.to_owned();
        let found = match wanted {
            RequestedEncoding::Json => build(context, move |openapi| openapi.v3_group_version(&key)).await,
            RequestedEncoding::Protobuf => build(context, move |openapi| openapi.v3_protobuf(&key)).await,
        };
        let media_type = if wanted == RequestedEncoding::Json { "application/json" } else { V3_PROTOBUF };
        let Ok(Some(document)) = &found else { return answer(found, media_type, context) };
        match context.query.get("hash").filter(|hash| !hash.is_empty()) {
            Some(hash) if hash != document.hash => {
                let mut reply = bare(301);
                if let Ok(to) = HeaderValue::from_str(&OpenApi::server_relative_url(name, document)) {
                    reply.headers_mut().insert(LOCATION, to);
                }
                reply
            }
            None => show(document, media_type, context),
            Some(_) => {
                let mut reply = show(document, media_type, context);
                let headers = reply.headers_mut();
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
                if let Ok(at) =
                    HeaderValue::from_str(&http_date(SystemTime::from(Clock::system().now()) + FOREVER))
                {
                    headers.insert(EXPIRES, at);
                }
                reply
            }
        }
    }
}

/// Extension API server of the document `apis/{group}/{version}`, if one serves it.
fn backend_of<'a>(context: &'a Context, name: &str) -> Option<&'a Backend> {
    let (group, version) = name.strip_prefix("apis/")?.split_once('/')?;
    context.catalogue.backend(group, version)
}

/// Documents are built on first request, off the threads that serve requests.
async fn build(
    context: &Context,
    make: impl FnOnce(&OpenApi) -> Option<Arc<Document>> + Send + 'static,
) -> Result<Option<Arc<Document>>, tokio::task::JoinError> {
    let openapi = Arc::clone(&context.catalogue.openapi);
    let gzip = context.accepts_gzip;
    tokio::task::spawn_blocking(move || {
        let document = make(&openapi)?;
        if gzip {
            document.gzip();
        }
        Some(document)
    })
    .await
}

fn answer(
    found: Result<Option<Arc<Document>>, tokio::task::JoinError>,
    media_type: &'static str,
    context: &Context,
) -> Reply {
    match found {
        Ok(Some(document)) => show(&document, media_type, context),
        Ok(None) => bare(404),
        Err(error) => reply::status(&Status::internal(error), None),
    }
}

/// A response without body and media type.
fn bare(code: u16) -> Reply {
    let mut reply = reply::text(code, "");
    reply.headers_mut().remove(CONTENT_TYPE);
    reply
}

fn wanted(context: &Context, protobuf: [&str; 2]) -> Option<RequestedEncoding> {
    let header = context.headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("");
    if header.is_empty() {
        return Some(RequestedEncoding::Json);
    }
    header.split(',').find_map(|clause| match clause.split(';').next().map(str::trim) {
        Some("application/json" | "application/*" | "*/*") => Some(RequestedEncoding::Json),
        Some(media) if protobuf.contains(&media) => Some(RequestedEncoding::Protobuf),
        _ => None,
    })
}

fn show(document: &Document, media_type: &'static str, context: &Context) -> Reply {
    let known = context.headers.get(IF_NONE_MATCH).and_then(|v| v.to_str().ok());
    let mut reply = if known.is_some_and(|tag| document.matches(tag)) {
        reply::with_type(304, media_type, "")
    } else if context.accepts_gzip {
        let mut reply = reply::with_type(200, media_type, document.gzip());
        reply.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        reply
    } else {
        reply::with_type(200, media_type, document.plain())
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
