//! Connections from the API server to kubelets, pods and services.

use super::kubelet_certificate::KubeletCertificates;
use super::links::Links;
use super::page::SentPage;
use crate::aggregate::{ServerTls, user_headers};
use crate::context::Context;
use crate::serve::{RequestBody, ResponseBody};
use crate::wire::reply::Reply;
use arc_swap::ArcSwapOption;
use base::egress::Network;
use base::http::{Authorities, Client, HttpError, Limits, Origin, OriginError, TrustError};
use base::tasks::TaskGroup;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use machinery::status::{Result, Status};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Limits of connections to kubelets, pods and services, which serve one request each. The caller's request limits the
/// time of a response.
const SINGLE: Limits = Limits {
    connect: Duration::from_secs(30),
    response: Duration::MAX,
    silence: Duration::MAX,
    max_idle: 0,
    idle: Duration::ZERO,
    read_buffer: base::http::READ_BUFFER,
};

/// Limits of connections to extension API servers, which are reused. Servers of Kubernetes close idle ones after 90
/// seconds; a request on a connection that is just being closed fails.
const REUSED: Limits = Limits { max_idle: 64, idle: Duration::from_secs(60), ..SINGLE };

/// Bytes of a page that are rewritten before yielding to other tasks.
const PAGE_STEP: usize = 16 << 10;

/// Carries the path of the caller's request.
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// Hop-by-hop headers, and headers of the caller's identity.
const DROPPED_HEADERS: [HeaderName; 9] = [
    FORWARDED_URI,
    header::HOST,
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::CONTENT_LENGTH,
    HeaderName::from_static("keep-alive"),
];

/// Peer type: determines client certificate and verification.
#[derive(Clone, Debug)]
pub enum Trust {
    /// A kubelet: it requires the API server's client certificate.
    Kubelet,
    /// Any other backend: no client certificate is presented.
    Unverified,
    /// An extension API server: its certificate is verified, and it gets the user in headers.
    Extension(Arc<ServerTls>),
}

impl Trust {
    fn is_kubelet(&self) -> bool {
        matches!(self, Self::Kubelet)
    }
}

/// Backend of a connection.
#[derive(Clone, Debug)]
pub struct Upstream {
    pub host: String,
    pub port: u16,
    pub tls: bool,
    pub trust: Trust,
    /// Node of the kubelet; empty for other backends.
    pub node: String,
}

impl Upstream {
    /// `host:port`.
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Request to the backend.
pub struct BackendRequest {
    /// Path and query.
    pub target: String,
    /// Link rewriting of the response, if it is needed.
    pub links: Option<Links>,
}

/// Client certificate of the API server for kubelets.
pub struct KubeletIdentity {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

/// Connections with their TLS configurations.
pub struct Upstreams {
    single: Client,
    extensions: Client,
    kubelet: ArcSwapOption<rustls::ClientConfig>,
    /// Without a client certificate, and without verification of the server's.
    unverified: OnceLock<Arc<rustls::ClientConfig>>,
    pub certificates: KubeletCertificates,
}

impl Default for Upstreams {
    fn default() -> Self {
        Self {
            single: Client::new(SINGLE),
            extensions: Client::new(REUSED),
            kubelet: ArcSwapOption::default(),
            unverified: OnceLock::default(),
            certificates: KubeletCertificates::default(),
        }
    }
}

impl Upstreams {
    pub fn set_identity(&self, identity: KubeletIdentity) -> std::result::Result<(), rustls::Error> {
        let builder = base::tls::client_builder()?.dangerous();
        let builder = builder.with_custom_certificate_verifier(base::tls::accept_all());
        let config = builder.with_client_auth_cert(identity.chain, identity.key)?;
        self.kubelet.store(Some(Arc::new(config)));
        Ok(())
    }

    /// Pod certificates are not verified, as in Kubernetes by default. Those of kubelets are, where the cluster's CA is
    /// known ([`KubeletCertificates`]).
    fn config(&self, upstream: &Upstream) -> std::result::Result<Arc<rustls::ClientConfig>, TrustError> {
        let known = match &upstream.trust {
            Trust::Extension(secured) => Some(Arc::clone(&secured.config)),
            Trust::Kubelet => self.kubelet_config(&upstream.node),
            Trust::Unverified => None,
        };
        if let Some(known) = known.or_else(|| self.unverified.get().cloned()) {
            return Ok(known);
        }
        let trust =
            base::http::Trust { authorities: Authorities::Unverified, ..base::http::Trust::default() };
        let config = trust.config()?;
        Ok(Arc::clone(self.unverified.get_or_init(|| config)))
    }

    /// TLS towards the kubelet of a node, with the certificate of this server; `None` while it has none.
    pub fn kubelet_config(&self, node: &str) -> Option<Arc<rustls::ClientConfig>> {
        let known = self.kubelet.load_full()?;
        let Some(verifier) = self.certificates.verifier(node) else { return Some(known) };
        let mut config = rustls::ClientConfig::clone(&known);
        config.dangerous().set_certificate_verifier(verifier);
        Some(Arc::new(config))
    }

    fn origin(&self, upstream: &Upstream) -> std::result::Result<Origin, OriginError> {
        let (host, port) = (upstream.host.as_str(), upstream.port);
        let origin = if upstream.tls {
            let name = match &upstream.trust {
                Trust::Extension(secured) => Some(secured.name.to_str()),
                Trust::Kubelet | Trust::Unverified => None,
            };
            Origin::secured(host, port, self.config(upstream)?, name.as_deref())?
        } else {
            Origin::plain(host, port)
        };
        Ok(origin.on(Network::Cluster))
    }

    /// Sends the caller's request to the backend and returns the response. If both switch protocols, their
    /// connections are joined in `streams`.
    pub async fn send(
        &self,
        context: &Context,
        upstream: &Upstream,
        passage: BackendRequest,
        body: RequestBody,
        streams: &TaskGroup,
    ) -> Result<Reply> {
        let failed = |error: &dyn std::fmt::Display| {
            Status::service_unavailable(format!("error trying to reach service: {error}"))
        };
        let request = self.request(context, upstream, &passage, body)?;
        let origin = self.origin(upstream).map_err(|error| failed(&error))?;
        let client = match &upstream.trust {
            Trust::Extension(_) => &self.extensions,
            Trust::Kubelet | Trust::Unverified => &self.single,
        };
        let answer = if request.headers().contains_key(header::UPGRADE) {
            client.send_upgrade(&origin, request.map(|_| ())).await
        } else {
            client.send(&origin, request).await
        };
        let answer = answer.map_err(|error| failed(&reason(error)))?;
        Ok(if answer.status == StatusCode::SWITCHING_PROTOCOLS {
            join(context, answer, streams)?
        } else {
            pass_back(answer, passage.links, streams)
        })
    }

    fn request(
        &self,
        context: &Context,
        upstream: &Upstream,
        passage: &BackendRequest,
        body: RequestBody,
    ) -> Result<Request<RequestBody>> {
        let target = passage.target.as_str();
        // Logs are read by a plain GET, even if the caller's connection is upgraded.
        let log = upstream.trust.is_kubelet() && target.starts_with("/containerLogs/");
        let upgrade = context.headers.contains_key(header::UPGRADE) && !log;
        let method = if log { Method::GET } else { context.method.clone() };
        // As in Kubernetes, the backend sees the caller's Host header.
        let host = context.host().map_or_else(|| upstream.address(), str::to_owned);
        let mut request = Request::builder().method(method).uri(target).header(header::HOST, host);
        if let Some(links) = &passage.links {
            request = request.header(FORWARDED_URI, links.forwarded(target));
        }
        for (name, value) in &context.headers {
            let own = DROPPED_HEADERS.contains(name)
                || name.as_str().starts_with("impersonate-")
                || (!upgrade && matches!(*name, header::CONNECTION | header::UPGRADE))
                || (upstream.trust.is_kubelet() && *name == header::ACCEPT_ENCODING);
            if !own {
                request = request.header(name, value);
            }
        }
        if let (Trust::Extension(_), Some(headers)) = (&upstream.trust, request.headers_mut()) {
            user_headers::set(headers, &context.user);
        }
        if let Some(headers) = request.headers_mut() {
            base::trace::inject(headers);
        }
        let body = if upgrade { RequestBody::default() } else { body };
        request
            .body(body)
            .map_err(|error| Status::bad_request(format!("failed to build the proxied request: {error}")))
    }
}

/// Reason of a failed request, as Go's HTTP client reports it.
fn reason(error: HttpError) -> String {
    match error {
        HttpError::Connect { address, source } => {
            format!("dial tcp {address}: connect: {}", base::errors::system(source))
        }
        HttpError::ConnectTimeout { address, .. } => format!("dial tcp {address}: i/o timeout"),
        HttpError::Tls { source, .. } => source.to_string(),
        HttpError::Exchange(source) => source.to_string(),
        error => base::errors::chain(&error),
    }
}

/// Converts a response to a streaming reply with rewritten links, which ends with `streams`.
fn pass_back(answer: base::http::Response, links: Option<Links>, streams: &TaskGroup) -> Reply {
    let (status, original) = (answer.status, answer.headers.clone());
    // A failed body ends the response: its headers are sent already.
    let pieces = futures_util::stream::unfold(answer, |mut answer| async {
        answer.piece().await.ok().flatten().map(|piece| (piece, answer))
    });
    let pieces = pieces.take_until(streams.stopping());
    let mut headers = HeaderMap::new();
    copy_headers(&original, &mut headers, false);
    let page = links.and_then(|links| match original.get(header::LOCATION) {
        Some(place) => {
            let new = place.to_str().ok().and_then(|place| links.through(place));
            if let Some(new) = new.and_then(|new| HeaderValue::from_str(&new).ok()) {
                headers.insert(header::LOCATION, new);
            }
            None
        }
        None => page(&original, links),
    });
    let body = match page {
        Some(page) => {
            headers.remove(header::CONTENT_LENGTH);
            ResponseBody::stream(rewritten_page(Box::pin(pieces), page))
        }
        None => ResponseBody::stream(pieces),
    };
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    *reply.headers_mut() = headers;
    reply
}

/// Rewriter for an HTML response, if its encoding is supported.
fn page(headers: &HeaderMap, links: Links) -> Option<SentPage> {
    let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let html = kind.split(';').next().is_some_and(|kind| kind.trim() == "text/html");
    let coding = headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes);
    if html { SentPage::new(coding, links) } else { None }
}

/// Pieces of a page with rewritten links.
fn rewritten_page(
    pieces: impl Stream<Item = Bytes> + Unpin + Send + 'static,
    page: SentPage,
) -> impl Stream<Item = Bytes> + Send + 'static {
    futures_util::stream::unfold(Some((pieces, page)), |state| async {
        let (mut pieces, mut page) = state?;
        let piece = pieces.next().await;
        // Input that cannot be decoded ends the stream.
        let mut out = Vec::new();
        match &piece {
            None => out = page.pass(None).ok()?,
            Some(piece) => {
                for part in piece.chunks(PAGE_STEP) {
                    out.extend(page.pass(Some(part)).ok()?);
                    // A small piece may inflate to a large page, so this yields to other tasks.
                    tokio::task::yield_now().await;
                }
            }
        }
        Some((Bytes::from(out), piece.map(|_| (pieces, page))))
    })
    .filter(|piece| std::future::ready(!piece.is_empty()))
}

pub(super) fn copy_headers(from: &HeaderMap, to: &mut HeaderMap, upgraded: bool) {
    for (name, value) in from {
        let own = matches!(*name, header::TRANSFER_ENCODING | header::TRAILER)
            || (!upgraded && matches!(*name, header::CONNECTION | header::UPGRADE));
        if !own {
            to.append(name, value.clone());
        }
    }
}

/// Joins both connections once they have switched protocols.
fn join(context: &Context, answer: base::http::Response, streams: &TaskGroup) -> Result<Reply> {
    let Some(ours) = context.upgrade.lock().take() else {
        return Err(Status::bad_request("Upgrade request required"));
    };
    let mut reply = Response::new(ResponseBody::Full(Bytes::new()));
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    copy_headers(&answer.headers, reply.headers_mut(), true);
    let counted = context.long_running.lock().take();
    streams.spawn(async move {
        let _counted = counted;
        let (Ok(ours), Ok(mut theirs)) = tokio::join!(ours, answer.upgraded()) else { return };
        let mut ours = TokioIo::new(ours);
        let _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
    });
    Ok(reply)
}
