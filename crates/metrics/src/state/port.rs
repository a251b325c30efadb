//! The port of state metrics, in plain HTTP.

use super::page::Page;
use super::render::StateMetrics;
use base::tasks::TaskGroup;
use bytes::Bytes;
use futures_util::stream;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at a time, and the time for the head of a request and for a whole connection.
const MAX_CONNECTIONS: usize = 16;
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(120);

const TEXT: &str = "text/plain; charset=utf-8";

type PageBody = UnsyncBoxBody<Bytes, std::io::Error>;

impl StateMetrics {
    /// Serves until `tasks` stop.
    pub async fn serve(self: Arc<Self>, listener: Arc<TcpListener>, tasks: TaskGroup) {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let accepting = async {
            let mut acceptor = base::accept::Acceptor::new(&*listener);
            while let Ok(permit) = Arc::clone(&connections).acquire_owned().await {
                let (stream, _) = acceptor.accept().await;
                let component = Arc::clone(&self);
                tasks.spawn_until_stopped(async move {
                    let handler = service_fn(move |request: Request<Incoming>| {
                        let component = Arc::clone(&component);
                        async move { Ok::<_, Infallible>(component.answer(&request).await) }
                    });
                    // A connection serves one request, so that idle clients hold no connection.
                    let serving = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEAD_TIMEOUT)
                        .keep_alive(false)
                        .serve_connection(TokioIo::new(stream), handler);
                    if let Ok(Err(error)) = tokio::time::timeout(CONNECTION_TIMEOUT, serving).await {
                        tracing::trace!(%error, "connection failed");
                    }
                    drop(permit);
                });
            }
        };
        tasks.until_stopped(accepting).await;
    }

    async fn answer<B>(self: &Arc<Self>, request: &Request<B>) -> Response<PageBody> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return reply(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        }
        match request.uri().path() {
            "/metrics" => whole(self.page().await, accepts_gzip(request.headers())),
            "/healthz" => reply(StatusCode::OK, "OK"),
            path @ ("/livez" | "/readyz") => {
                if self.api_server_is(path).await {
                    reply(StatusCode::OK, "OK")
                } else {
                    reply(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable")
                }
            }
            _ => reply(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut codings = values.flat_map(|value| value.split(','));
    codings.any(|coding| {
        let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
        name.trim() == "gzip" && !matches!(quality.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000")
    })
}

fn reply(status: StatusCode, text: &'static str) -> Response<PageBody> {
    let body = Full::new(Bytes::from_static(text.as_bytes()));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    response
}

/// A page that is sent part by part.
fn whole(page: Arc<Page>, is_compressed: bool) -> Response<PageBody> {
    let pieces = stream::unfold(0, move |at| {
        let piece = if is_compressed { page.compressed(at).map(Ok) } else { page.plain(at) };
        std::future::ready(piece.map(|piece| (piece.map(Frame::data), at + 1)))
    });
    let mut response = Response::new(StreamBody::new(pieces).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(base::metrics::CONTENT_TYPE));
    if is_compressed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}
