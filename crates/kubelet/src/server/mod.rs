//! The kubelet's HTTPS API: logs, exec, statistics and metrics.

mod access;
mod cadvisor;
mod client_authorities;
mod configz;
mod containers;
mod limits;
mod machine;
mod metrics;
mod node_logs;
mod pages;
mod route;
mod streams;
mod summary;
mod tls;
mod usage;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use base::peers::Peers;
use base::tasks::TaskGroup;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::pods::Workers;
use crate::shared::Shared;
use access::{Access, Caller};
pub use base::zpages::PageSettings;
use client_authorities::AcceptedChain;
pub use client_authorities::ClientAuthorities;
use limits::{CONNECTIONS, CONNECTIONS_PER_ADDRESS, HANDSHAKE};
pub use machine::booted;
pub use node_logs::NodeLogSettings;
pub use tls::{ServeError, Serving};

type Body = UnsyncBoxBody<Bytes, Infallible>;
type Reply = Response<Body>;

fn text(code: StatusCode, text: impl Into<Bytes>) -> Reply {
    typed(code, "text/plain; charset=utf-8", text)
}

fn typed(code: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()).boxed_unsync());
    *reply.status_mut() = code;
    reply.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    reply
}

/// The server.
pub struct Server {
    shared: Arc<Shared>,
    workers: Arc<Workers>,
    acceptor: TlsAcceptor,
    access: Access,
    /// CPU usage rate of the machine.
    busy: machine::Rate,
    pages: Arc<base::zpages::ComponentPages>,
    /// Cgroups of this machine, if they are mounted.
    hierarchy: Option<sys::cgroups::Hierarchy>,
    node_log_queries: node_logs::Queries,
}

impl Server {
    pub fn new(shared: Arc<Shared>, workers: Arc<Workers>) -> Result<Self, ServeError> {
        let acceptor = tls::acceptor(&shared.config)?;
        let access = Access::new(shared.client.clone(), shared.config.node_name.clone());
        let pages = pages::pages(&shared).map_err(ServeError::Metrics)?;
        let hierarchy = sys::cgroups::Hierarchy::detect().ok();
        let (busy, node_log_queries) = (machine::Rate::default(), node_logs::Queries::default());
        Ok(Self { shared, workers, acceptor, access, busy, pages, hierarchy, node_log_queries })
    }

    /// Serves until `tasks` stop.
    pub async fn run(self, listener: TcpListener, tasks: TaskGroup) {
        let server = Arc::new(self);
        let slots = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS));
        let peers = Peers::new(CONNECTIONS_PER_ADDRESS);
        let accepting = async {
            let mut acceptor = base::accept::Acceptor::new(&listener);
            loop {
                let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
                let (stream, peer) = acceptor.accept().await;
                let Some(counted) = peers.enter(peer.ip()) else {
                    tracing::debug!(%peer, "connection rejected, too many from this address");
                    continue;
                };
                let server = Arc::clone(&server);
                tasks.spawn_until_stopped(async move {
                    let _counted = (slot, counted);
                    server.connection(stream, peer.ip()).await;
                });
            }
        };
        tasks.until_stopped(accepting).await;
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, peer: IpAddr) {
        let _ = stream.set_nodelay(true);
        let generation = self.shared.config.client_authorities.generation();
        let stream = match tokio::time::timeout(HANDSHAKE, self.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => return,
        };
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let chain: Vec<_> = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        let accepted = AcceptedChain::new(chain, generation);
        let caller = Caller::of_certificate(accepted.leaf());
        if let Some((observer, user)) = self.shared.config.peer.as_ref().zip(caller.user()) {
            observer.observe(user, peer);
        }
        let caller = Arc::new((caller, accepted));
        let handler = service_fn(move |request: Request<Incoming>| {
            let (server, caller) = (Arc::clone(&self), Arc::clone(&caller));
            async move {
                let (caller, accepted) = &*caller;
                Ok::<_, Infallible>(server.answer(request, caller, accepted).await)
            }
        });
        let serving = limits::http().serve_connection(TokioIo::new(stream), handler).with_upgrades();
        if let Err(error) = serving.await {
            tracing::debug!(%error, "connection closed with error");
        }
    }

    async fn answer(&self, request: Request<Incoming>, caller: &Caller, accepted: &AcceptedChain) -> Reply {
        if !self.shared.config.client_authorities.is_still_accepted(accepted) {
            tracing::warn!("CA of client certificate has been removed since the connection was made");
            return text(StatusCode::UNAUTHORIZED, "Unauthorized");
        }
        let route = route::find(request.method(), request.uri().path());
        let path = route.as_ref().map_or("other", route::Route::metric_path);
        let long_running = matches!(path, "exec" | "attach" | "debug");
        let _request = self.shared.metrics.request(request.method(), path, long_running);
        let Some(route) = route else { return text(StatusCode::NOT_FOUND, "404 page not found\n") };
        let now = self.shared.clock.now();
        let access = self.access.check(caller, request.method(), request.headers(), &route, now);
        if let Err(refusal) = access.await {
            return refusal;
        }
        self.route(request, route).await
    }
}
