//! An OpenTelemetry collector that records traces: OTLP over gRPC, by tonic's server, and over HTTP.

use std::convert::Infallible;
use std::future::{Ready, pending, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use base::trace::otlp::any_value::Value;
use base::trace::otlp::{ExportTraceServiceRequest, ExportTraceServiceResponse, SpanMessage};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic_prost::ProstCodec;

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Reaction of a collector to batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Accept,
    /// Reads requests and never responds.
    Hang,
    /// Returns `UNAVAILABLE`, or 503.
    Refuse,
}

/// A recorded span and the name of its component.
#[derive(Clone, Debug)]
pub struct RecordedSpan {
    pub service: String,
    pub span: SpanMessage,
}

impl RecordedSpan {
    /// Attribute as text.
    #[must_use]
    pub fn attribute(&self, key: &str) -> Option<String> {
        let found = self.span.attributes.iter().find(|attribute| attribute.key == key)?;
        Some(match found.value.as_ref()?.value.as_ref()? {
            Value::String(text) => text.clone(),
            Value::Bool(value) => value.to_string(),
            Value::Int(number) => number.to_string(),
        })
    }

    #[must_use]
    pub fn trace_id(&self) -> String {
        hex::encode(&self.span.trace_id)
    }

    #[must_use]
    pub fn parent_id(&self) -> String {
        hex::encode(&self.span.parent_span_id)
    }
}

#[derive(Debug, Default)]
struct Recorded {
    spans: Vec<RecordedSpan>,
    requests: usize,
}

/// The collector; it ends when this is dropped.
#[derive(Debug)]
pub struct Collector {
    pub address: SocketAddr,
    recorded: Arc<Mutex<Recorded>>,
    running: JoinHandle<()>,
}

impl Collector {
    /// Starts a collector on a free port that serves gRPC (HTTP/2) and HTTP/1.1.
    pub async fn start(behaviour: Behaviour) -> Result<Self> {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), behaviour).await
    }

    /// As [`Collector::start`], on this address.
    pub async fn start_at(address: SocketAddr, behaviour: Behaviour) -> Result<Self> {
        let listener = TcpListener::bind(address).await.context("failed to bind a listener")?;
        let address = listener.local_addr()?;
        let recorded = Arc::new(Mutex::new(Recorded::default()));
        let store = Arc::clone(&recorded);
        let running = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let store = Arc::clone(&store);
                connections.spawn(async move {
                    let service = service_fn(move |request| serve(request, Arc::clone(&store), behaviour));
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    // A client that closes its connection is no failure.
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self { address, recorded, running })
    }

    /// All spans so far.
    #[must_use]
    pub fn spans(&self) -> Vec<RecordedSpan> {
        self.recorded.lock().map(|recorded| recorded.spans.clone()).unwrap_or_default()
    }

    /// Number of requests so far, whatever the reaction was.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.recorded.lock().map(|recorded| recorded.requests).unwrap_or_default()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn record(store: &Mutex<Recorded>, request: ExportTraceServiceRequest) {
    let Ok(mut store) = store.lock() else { return };
    for group in request.resource_spans {
        let attributes = group.resource.map(|resource| resource.attributes).unwrap_or_default();
        let service = attributes.into_iter().find(|attribute| attribute.key == "service.name");
        let service = match service.and_then(|service| service.value?.value) {
            Some(Value::String(name)) => name,
            _ => String::new(),
        };
        for span in group.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            store.spans.push(RecordedSpan { service: service.clone(), span });
        }
    }
}

type Reply = Response<tonic::body::Body>;

async fn serve(
    request: Request<Incoming>,
    store: Arc<Mutex<Recorded>>,
    behaviour: Behaviour,
) -> Result<Reply, Infallible> {
    if let Ok(mut store) = store.lock() {
        store.requests += 1;
    }
    if behaviour == Behaviour::Hang {
        return pending().await;
    }
    let is_grpc = request.headers().get("content-type").is_some_and(|media| media == "application/grpc");
    if is_grpc && request.uri().path() == EXPORT {
        let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
        return Ok(grpc.unary(Export { store, behaviour }, request).await);
    }
    let code = match request.into_body().collect().await {
        _ if behaviour == Behaviour::Refuse => 503,
        Ok(body) => match ExportTraceServiceRequest::decode(body.to_bytes()) {
            Ok(request) => {
                record(&store, request);
                200
            }
            Err(_) => 400,
        },
        Err(_) => 400,
    };
    let mut reply = Response::new(tonic::body::Body::new(Full::new(Bytes::new())));
    *reply.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    Ok(reply)
}

struct Export {
    store: Arc<Mutex<Recorded>>,
    behaviour: Behaviour,
}

impl tonic::server::UnaryService<ExportTraceServiceRequest> for Export {
    type Response = ExportTraceServiceResponse;
    type Future = Ready<Result<tonic::Response<Self::Response>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<ExportTraceServiceRequest>) -> Self::Future {
        if self.behaviour == Behaviour::Refuse {
            return ready(Err(tonic::Status::unavailable("overloaded")));
        }
        record(&self.store, request.into_inner());
        ready(Ok(tonic::Response::new(ExportTraceServiceResponse::default())))
    }
}
