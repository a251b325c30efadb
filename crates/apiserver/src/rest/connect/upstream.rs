//! Connections from the API server to kubelets, pods and services.

use super::kubelet_certificate::KubeletCertificates;
use super::links::Links;
use super::page::SentPage;
use crate::aggregate::{Secured, user_headers};
use crate::context::Context;
use crate::reply::Reply;
use crate::serve::{RequestBody, ResponseBody};
use arc_swap::ArcSwapOption;
use base::egress::{self, Network};
use base::tasks::TaskGroup;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyStream;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use machinery::status::{Result, Status};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Time to reach the other side.
const DIAL: Duration = Duration::from_secs(30);

/// Bytes of a page that are rewritten before other tasks get a turn.
const PAGE_STEP: usize = 16 << 10;

/// What the caller asked this server for.
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// Headers that belong to one connection, or to the caller's own identity.
const NOT_PASSED_ON: [HeaderName; 9] = [
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

/// Whom to show a certificate.
#[derive(Clone, Debug)]
pub enum Trust {
    /// A kubelet: it wants to know the API server.
    Kubelet,
    /// Anybody else: no certificate is shown.
    Anybody,
    /// An extension server: its certificate is verified, and it learns the user from headers.
    Extension(Arc<Secured>),
}

impl Trust {
    fn is_kubelet(&self) -> bool {
        matches!(self, Self::Kubelet)
    }
}

/// The other side.
#[derive(Clone, Debug)]
pub struct Upstream {
    pub host: String,
    pub port: u16,
    pub tls: bool,
    pub trust: Trust,
    /// The node whose kubelet it is.
    pub node: String,
}

impl Upstream {
    /// Host and port in one.
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// What is asked for there.
pub struct Passage {
    /// Path and query.
    pub target: String,
    /// Where links that come back lead, if they must be led elsewhere.
    pub links: Option<Links>,
}

/// The certificate that kubelets know the API server by.
pub struct KubeletIdentity {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

/// How connections are secured.
#[derive(Default)]
pub struct Upstreams {
    kubelet: ArcSwapOption<rustls::ClientConfig>,
    anybody: std::sync::OnceLock<Arc<rustls::ClientConfig>>,
    pub certificates: KubeletCertificates,
}

/// Pods have whatever certificates they like: as Kubernetes does by default, those are not checked. Kubelets' are, where
/// the cluster's authority is known ([`KubeletCertificates`]).
fn builder() -> rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap_or_else(|_| rustls::ClientConfig::builder())
        .dangerous()
        .with_custom_certificate_verifier(base::tls::Anybody::new())
}

impl Upstreams {
    pub fn set_identity(&self, identity: KubeletIdentity) -> std::result::Result<(), rustls::Error> {
        let config = builder().with_client_auth_cert(identity.chain, identity.key)?;
        self.kubelet.store(Some(Arc::new(config)));
        Ok(())
    }

    fn config(&self, upstream: &Upstream) -> Arc<rustls::ClientConfig> {
        if let Trust::Extension(secured) = &upstream.trust {
            return Arc::clone(&secured.config);
        }
        let known = self.kubelet.load_full().filter(|_| upstream.trust.is_kubelet());
        let Some(known) = known else {
            return Arc::clone(self.anybody.get_or_init(|| Arc::new(builder().with_no_client_auth())));
        };
        match self.certificates.verifier(&upstream.node) {
            None => known,
            Some(verifier) => {
                let mut config = rustls::ClientConfig::clone(&known);
                config.dangerous().set_certificate_verifier(verifier);
                Arc::new(config)
            }
        }
    }

    /// Sends the caller's request to the other side and passes on what comes back. If both switch protocols,
    /// their connections are joined in `streams`.
    pub async fn send(
        &self,
        context: &Context,
        upstream: &Upstream,
        passage: Passage,
        body: RequestBody,
        streams: &TaskGroup,
    ) -> Result<Reply> {
        let address = upstream.address();
        let failed = |error: &dyn std::fmt::Display| {
            Status::service_unavailable(format!("error trying to reach service: {error}"))
        };
        let request = self.request(context, upstream, &passage, body)?;
        let dialing = egress::connect(Some(Network::Cluster), &upstream.host, upstream.port);
        let stream = match tokio::time::timeout(DIAL, dialing).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(failed(&format!("dial tcp {address}: {error}"))),
            Err(_) => return Err(failed(&format!("dial tcp {address}: i/o timeout"))),
        };
        let answer = if upstream.tls {
            let connector = tokio_rustls::TlsConnector::from(self.config(upstream));
            let name = match &upstream.trust {
                Trust::Extension(secured) => secured.name.clone(),
                _ => ServerName::try_from(upstream.host.clone())
                    .map_err(|error| failed(&format!("{}: {error}", upstream.host)))?,
            };
            let stream = tokio::time::timeout(DIAL, connector.connect(name, stream)).await;
            let stream = stream.map_err(|_| failed(&"tls: i/o timeout"))?.map_err(|error| failed(&error))?;
            exchange(stream, request, streams).await
        } else {
            exchange(stream, request, streams).await
        };
        let answer = answer.map_err(|error| failed(&error))?;
        Ok(if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            join(context, answer, streams)?
        } else {
            pass_back(answer, passage.links)
        })
    }

    fn request(
        &self,
        context: &Context,
        upstream: &Upstream,
        passage: &Passage,
        body: RequestBody,
    ) -> Result<Request<RequestBody>> {
        let target = passage.target.as_str();
        // Logs are read as ever, whatever the caller's connection becomes.
        let log = upstream.trust.is_kubelet() && target.starts_with("/containerLogs/");
        let upgrade = context.headers.contains_key(header::UPGRADE) && !log;
        let method = if log { Method::GET } else { context.method.clone() };
        // As from Kubernetes, the other side sees the name that the caller used.
        let host = context.host().map_or_else(|| upstream.address(), str::to_owned);
        let mut request = Request::builder().method(method).uri(target).header(header::HOST, host);
        if let Some(links) = &passage.links {
            request = request.header(FORWARDED_URI, links.forwarded(target));
        }
        for (name, value) in &context.headers {
            let own = NOT_PASSED_ON.contains(name)
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
        let body = if upgrade { RequestBody::default() } else { body };
        request.body(body).map_err(|error| Status::bad_request(format!("cannot be passed on: {error}")))
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<RequestBody>,
    streams: &TaskGroup,
) -> std::result::Result<Response<hyper::body::Incoming>, hyper::Error> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    streams.spawn(async move {
        let _ = connection.with_upgrades().await;
    });
    sender.send_request(request).await
}

/// An answer, its body passed on as it comes; links in it lead where they should.
fn pass_back(answer: Response<hyper::body::Incoming>, links: Option<Links>) -> Reply {
    let (parts, body) = answer.into_parts();
    let pieces = BodyStream::new(body).filter_map(|frame| async {
        // A body that breaks off ends: there is nobody to tell any more.
        frame.ok().and_then(|frame| frame.into_data().ok())
    });
    let mut headers = HeaderMap::new();
    copy_headers(&parts.headers, &mut headers, false);
    let page = links.and_then(|links| match parts.headers.get(header::LOCATION) {
        Some(place) => {
            let new = place.to_str().ok().and_then(|place| links.through(place));
            if let Some(new) = new.and_then(|new| HeaderValue::from_str(&new).ok()) {
                headers.insert(header::LOCATION, new);
            }
            None
        }
        None => page(&parts.headers, links),
    });
    let body = match page {
        Some(page) => {
            headers.remove(header::CONTENT_LENGTH);
            ResponseBody::stream(led_through(Box::pin(pieces), page))
        }
        None => ResponseBody::stream(pieces),
    };
    let mut reply = Response::new(body);
    *reply.status_mut() = parts.status;
    *reply.headers_mut() = headers;
    reply
}

/// The page that an answer is, if it is one that can be read.
fn page(headers: &HeaderMap, links: Links) -> Option<SentPage> {
    let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let html = kind.split(';').next().is_some_and(|kind| kind.trim() == "text/html");
    let coding = headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes);
    if html { SentPage::new(coding, links) } else { None }
}

/// The pieces of a page with its links changed.
fn led_through(
    pieces: impl Stream<Item = Bytes> + Unpin + Send + 'static,
    page: SentPage,
) -> impl Stream<Item = Bytes> + Send + 'static {
    futures_util::stream::unfold(Some((pieces, page)), |state| async {
        let (mut pieces, mut page) = state?;
        let piece = pieces.next().await;
        // What cannot be read breaks off.
        let mut out = Vec::new();
        match &piece {
            None => out = page.pass(None).ok()?,
            Some(piece) => {
                for part in piece.chunks(PAGE_STEP) {
                    out.extend(page.pass(Some(part)).ok()?);
                    // A small piece may inflate to a large page: other tasks run in between.
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

/// Joins the caller's connection with the other side's once both have switched protocols.
fn join(
    context: &Context,
    mut answer: Response<hyper::body::Incoming>,
    streams: &TaskGroup,
) -> Result<Reply> {
    let Some(ours) = context.upgrade.lock().take() else {
        return Err(Status::bad_request("Upgrade request required"));
    };
    let theirs = hyper::upgrade::on(&mut answer);
    streams.spawn(async move {
        let (Ok(ours), Ok(theirs)) = tokio::join!(ours, theirs) else { return };
        let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
        let _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
    });
    let mut reply = Response::new(ResponseBody::Full(Bytes::new()));
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    copy_headers(answer.headers(), reply.headers_mut(), true);
    Ok(reply)
}
