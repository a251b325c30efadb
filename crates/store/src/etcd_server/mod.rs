//! Serves a store by etcd's v3 API, as far as API servers use it: ranges, transactions on one key, compaction, watches,
//! leases and status. Anything else is answered with `UNIMPLEMENTED`, never with a partial effect.
//!
//! The same port answers `GET /health` and `GET /version` over HTTP/1.1, as etcd does.

mod failure;
mod grpc;
mod kv;
mod lease;
mod status;
mod watch;

use std::convert::Infallible;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tonic::Status;
use tonic::body::Body;

pub use self::status::VERSION;

use self::grpc::{Answer, streaming, unary};
use crate::contract::{Revision, Store};
use crate::etcd::rpc;

/// Largest message that is decoded. The store rejects values far smaller, with etcd's error.
const MAX_MESSAGE: usize = 16 << 20;

/// State shared by all connections.
struct Server {
    store: Arc<dyn Store>,
    leases: lease::Leases,
}

/// The header of an answer: the store is the only member of its cluster.
fn header(revision: Revision) -> Option<rpc::ResponseHeader> {
    Some(rpc::ResponseHeader { cluster_id: 1, member_id: 1, revision: signed(revision), raft_term: 1 })
}

/// A revision as etcd's messages carry it.
fn signed(revision: Revision) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// Serves `store` on `listener` until `stop` completes, which also ends open streams.
pub async fn serve(listener: TcpListener, store: Arc<dyn Store>, stop: impl Future<Output = ()> + Send) {
    let server = Arc::new(Server { store, leases: lease::Leases::default() });
    let mut connections = FuturesUnordered::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(()) = connections.next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => connections.push(connection(stream, Arc::clone(&server))),
                // The client reset its connection; the next one may be accepted at once.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection to the store");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            },
        }
    }
}

async fn connection(stream: TcpStream, server: Arc<Server>) {
    let _ = stream.set_nodelay(true);
    let service = hyper::service::service_fn(move |request| {
        let answer = route(Arc::clone(&server), request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection to the store ended");
    }
}

fn route(server: Arc<Server>, request: http::Request<Incoming>) -> Answer {
    match request.uri().path() {
        "/etcdserverpb.KV/Range" => unary(request, move |message| async move { server.range(message).await }),
        "/etcdserverpb.KV/Put" => unary(request, move |message| async move { server.put(message).await }),
        "/etcdserverpb.KV/DeleteRange" => {
            unary(request, move |message| async move { server.delete_range(message).await })
        }
        "/etcdserverpb.KV/Txn" => unary(request, move |message| async move { server.txn(message).await }),
        "/etcdserverpb.KV/Compact" => {
            unary(request, move |message| async move { server.compact(message).await })
        }
        "/etcdserverpb.Lease/LeaseGrant" => {
            unary(request, move |message| async move { server.lease_grant(message).await })
        }
        "/etcdserverpb.Lease/LeaseRevoke" => {
            unary(request, move |message| async move { server.lease_revoke(message).await })
        }
        "/etcdserverpb.Lease/LeaseKeepAlive" => {
            streaming(request, move |messages| lease::keep_alive(server, messages))
        }
        "/etcdserverpb.Watch/Watch" => streaming(request, move |messages| watch::watch(server, messages)),
        "/etcdserverpb.Maintenance/Status" => {
            unary(request, move |_: status::StatusRequest| async move { Ok(server.status()) })
        }
        "/health" => Box::pin(std::future::ready(server.health())),
        "/version" => Box::pin(std::future::ready(status::version())),
        _ => {
            let status = Status::unimplemented("ferry serves the part of etcd's API that API servers use");
            Box::pin(std::future::ready(status.into_http::<Body>()))
        }
    }
}
