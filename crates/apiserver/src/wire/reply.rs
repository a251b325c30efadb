//! Responses: objects, lists, errors; headers and compression.

use crate::cache::{Entry, Layout};
use crate::context::Context;
use crate::registry::list::Page;
use crate::registry::{Conversion, Served, Written};
use crate::serve::ResponseBody;
use crate::wire::encode;
use crate::wire::forms::{self, Include};
use crate::wire::negotiate::{Accepted, Encoding};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY, WARNING};
use http::{HeaderValue, Response, StatusCode};
use machinery::codec::protobuf;
use machinery::status::{Result, Status};
use machinery::{Map, Value};
use std::sync::Arc;

pub type Reply = Response<ResponseBody>;

/// Size from which bodies are compressed for clients that accept it.
const COMPRESS_FROM: usize = 128 * 1024;
/// Approximate buffer size of list responses.
const LIST_BUFFER: usize = 128 * 1024;

/// A response with a body of a media type.
pub fn with_type(code: u16, media_type: &'static str, body: impl Into<ResponseBody>) -> Reply {
    let mut reply = Response::new(body.into());
    *reply.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    reply
}

pub fn text(code: u16, body: impl Into<ResponseBody>) -> Reply {
    let mut reply = with_type(code, "text/plain; charset=utf-8", body);
    reply.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    reply
}

/// Response for an unknown path.
pub fn page_not_found() -> Reply {
    text(404, "404 page not found\n")
}

/// Response for exhausted concurrency limits.
pub fn too_many_requests(retry_after: u64) -> Reply {
    let mut reply = text(429, "Too many requests, please try again later.\n");
    reply.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from(retry_after));
    reply
}

/// An error, in the client's encoding if available.
pub fn status(status: &Status, accepted: Option<&Accepted>) -> Reply {
    let encoding = accepted.map_or(Encoding::Json, |accepted| accepted.errors);
    let plain = Accepted::plain(encoding, accepted.is_some_and(|accepted| accepted.pretty));
    let value = status.to_value();
    let (media_type, body) = match encode::value(&value, &plain) {
        Ok(body) => (plain.encoding.media_type(), body),
        Err(_) => (Encoding::Json.media_type(), machinery::codec::json::encode(&value).into()),
    };
    let mut reply = with_type(status.code, media_type, body);
    // For the audit log: the code alone does not identify the error.
    reply.extensions_mut().insert(Arc::new(status.clone()));
    let wait = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if wait > 0 {
        reply.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from(wait));
    }
    reply
}

/// Any value that is already in its final form.
pub fn value(code: u16, value: &Value, accepted: &Accepted, context: &Context) -> Result<Reply> {
    let body = encode::value(value, accepted)?;
    Ok(finish(code, accepted, body, context))
}

/// An object that was read or written, in the requested version and form.
pub async fn object(
    code: u16,
    served: &Served,
    written: &Written,
    accepted: &Accepted,
    context: &Context,
) -> Result<Reply> {
    if let (Written::Stored(entry), None) = (written, accepted.form)
        && served.shows_stored_bytes(entry)
    {
        let layout = &served.storage.cache.layout;
        if let Some(body) = direct(entry, layout, accepted) {
            return Ok(finish(code, accepted, body, context));
        }
    }
    let include = Include::read(&context.query, accepted)?;
    // Only webhook conversions await, in a boxed future: those of all other requests stay small.
    let stored = match &served.conversion {
        Some(Conversion::Batch(_)) => Box::pin(served.converted_one(written.value())).await?,
        _ => written.value(),
    };
    let shown = forms::object(served, stored, accepted, include)?;
    value(code, &shown, accepted, context)
}

/// Response directly from the stored bytes, if the encoding allows it.
fn direct(entry: &Entry, layout: &Layout, accepted: &Accepted) -> Option<Bytes> {
    match accepted.encoding {
        Encoding::Json if !accepted.pretty => Some(entry.json(layout)),
        Encoding::Protobuf => {
            let message = entry.protobuf(layout)?;
            Some(protobuf::wrap(&layout.api_version, &layout.kind, message).into())
        }
        _ => None,
    }
}

/// A page of a list.
pub async fn list(
    served: &Arc<Served>,
    mut page: Page,
    accepted: &Accepted,
    context: &Context,
) -> Result<Reply> {
    if accepted.form.is_none() && served.shows_all_stored_bytes(&page.entries) {
        match accepted.encoding {
            Encoding::Json if !accepted.pretty => return Ok(json_list(served, page, accepted, context)),
            Encoding::Protobuf => {
                if let Some(reply) = protobuf_list(served, &mut page, accepted, context) {
                    return Ok(reply);
                }
            }
            _ => {}
        }
    }
    let metadata = list_metadata(&page, served.rules.is_custom() && accepted.form.is_none());
    let items = page.entries.iter().map(|entry| entry.value()).collect();
    let items = served.converted(items).await?;
    let shown = forms::list(served, metadata, items, accepted, Include::read(&context.query, accepted)?)?;
    value(200, &shown, accepted, context)
}

/// Metadata of a list. Those of custom resources have an empty token, as in Kubernetes, since no type omits it.
fn list_metadata(page: &Page, shows_empty: bool) -> Value {
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".to_owned(), page.revision.to_string().into());
    if page.continue_token.is_some() || shows_empty {
        metadata.insert("continue".to_owned(), page.continue_token.clone().unwrap_or_default().into());
    }
    if let Some(remaining) = page.remaining {
        metadata.insert("remainingItemCount".to_owned(), remaining.into());
    }
    Value::Object(metadata)
}

fn json_list(served: &Arc<Served>, page: Page, accepted: &Accepted, context: &Context) -> Reply {
    let is_custom = served.rules.is_custom();
    let head = format!(
        "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{},\"items\":[",
        served.kind.list_kind(),
        served.api_version,
        list_metadata(&page, is_custom)
    );
    let layout = served.storage.cache.layout.clone();
    let total = page.entries.iter().map(|entry| entry.bytes.len()).sum();
    let mut first = true;
    let write = move |out: &mut Vec<u8>, entry: &Entry| {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        // Items of typed lists have no kind.
        if is_custom {
            layout.prefix.write_object(out, &entry.bytes, entry.revision);
        } else {
            layout.prefix.write_item(out, &entry.bytes, entry.revision);
        }
    };
    streamed(page.entries, head.into_bytes(), write, b"]}\n", total, accepted, context)
}

/// The same for protobuf, from the messages cached with the entries; `None` if there are none.
fn protobuf_list(
    served: &Arc<Served>,
    page: &mut Page,
    accepted: &Accepted,
    context: &Context,
) -> Option<Reply> {
    let layout = served.storage.cache.layout.clone();
    let kind = format!("{}List", layout.kind);
    let schema = encode::schema_of(&layout.api_version, &kind)?;
    let mut total = 0;
    for entry in &page.entries {
        total += protobuf::item_length(entry.protobuf(&layout)?.len());
    }
    let metadata = protobuf::list_message(&list_metadata(page, false), schema, std::iter::empty());
    let (mut head, tail) = protobuf::envelope_around(&layout.api_version, &kind, metadata.len() + total);
    head.extend_from_slice(&metadata);
    let write = move |out: &mut Vec<u8>, entry: &Entry| {
        if let Some(message) = entry.protobuf(&layout) {
            protobuf::write_item(out, message);
        }
    };
    Some(streamed(std::mem::take(&mut page.entries), head, write, tail, total, accepted, context))
}

/// A list as a lazy sequence of buffers: memory usage is constant.
fn streamed(
    entries: Vec<Arc<Entry>>,
    head: Vec<u8>,
    mut write: impl FnMut(&mut Vec<u8>, &Entry) + Send + 'static,
    tail: &'static [u8],
    total: usize,
    accepted: &Accepted,
    context: &Context,
) -> Reply {
    let mut entries = entries.into_iter();
    let mut pending = Some(head);
    let buffers = std::iter::from_fn(move || {
        let mut out = pending.take()?;
        out.reserve(LIST_BUFFER.min(total + 1024));
        for entry in entries.by_ref() {
            write(&mut out, &entry);
            if out.len() >= LIST_BUFFER {
                pending = Some(Vec::new());
                return Some(Bytes::from(out));
            }
        }
        out.extend_from_slice(tail);
        Some(Bytes::from(out))
    });
    if total < LIST_BUFFER {
        let mut out: Vec<Bytes> = buffers.collect();
        let body = if out.len() == 1 { out.remove(0) } else { out.concat().into() };
        return finish(200, accepted, body, context);
    }
    let mut reply = if context.accepts_gzip {
        let mut reply =
            with_type(200, accepted.encoding.media_type(), ResponseBody::lazy(gzip_buffers(buffers)));
        reply.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        reply.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        reply
    } else {
        with_type(200, accepted.encoding.media_type(), ResponseBody::lazy(buffers))
    };
    warn(&mut reply, context);
    reply
}

/// Compresses buffers one by one on demand.
fn gzip_buffers(buffers: impl Iterator<Item = Bytes>) -> impl Iterator<Item = Bytes> {
    use std::io::Write;
    let mut source = buffers.fuse();
    let mut encoder = Some(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    std::iter::from_fn(move || {
        loop {
            let current = encoder.as_mut()?;
            match source.next() {
                Some(buffer) => {
                    // Writing into memory cannot fail.
                    if current.write_all(&buffer).is_err() {
                        return None;
                    }
                    let out = std::mem::take(current.get_mut());
                    if !out.is_empty() {
                        return Some(Bytes::from(out));
                    }
                }
                None => return encoder.take()?.finish().ok().map(Bytes::from),
            }
        }
    })
}

/// Adds the common headers, and compresses large bodies.
pub fn finish(code: u16, accepted: &Accepted, body: Bytes, context: &Context) -> Reply {
    let mut reply = if context.accepts_gzip && body.len() >= COMPRESS_FROM {
        let compressed: Vec<Bytes> = gzip_buffers(std::iter::once(body)).collect();
        let mut reply = with_type(code, accepted.encoding.media_type(), Bytes::from(compressed.concat()));
        reply.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        reply.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        reply
    } else {
        with_type(code, accepted.encoding.media_type(), body)
    };
    warn(&mut reply, context);
    reply
}

/// The same with another media type.
pub fn finish_typed(code: u16, media_type: &'static str, body: Bytes, context: &Context) -> Reply {
    let accepted = Accepted::plain(Encoding::Json, false);
    let mut reply = finish(code, &accepted, body, context);
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    reply
}

/// Adds the collected `Warning` headers.
pub fn warn(reply: &mut Reply, context: &Context) {
    for text in context.record.take_warnings() {
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(header) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            reply.headers_mut().append(WARNING, header);
        }
    }
}
