//! What others may ask the proxy: whether it is healthy, how it works, its figures; and for services that keep to their
//! node, how many endpoints are here.

use futures_util::future::BoxFuture;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base::clock::Clock;
use base::metrics::Metrics;
use base::tasks::TaskGroup;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::metrics::ProxyMetrics;
use crate::model::{Service, ServiceName};

/// How long a change may wait before the proxy counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);
/// Connections at a time, and how long one may take to say what it wants.
const MAX_CONNECTIONS: usize = 64;
const HEAD: Duration = Duration::from_secs(10);

/// How the proxy does.
#[derive(Debug)]
pub struct Health {
    clock: Clock,
    pending: Mutex<Option<Instant>>,
    updated: Mutex<jiff::Timestamp>,
    /// Whether new connections may be sent to this node.
    eligible: AtomicBool,
}

impl Health {
    #[must_use]
    pub fn new(clock: &Clock) -> Self {
        Self {
            clock: clock.clone(),
            pending: Mutex::new(None),
            updated: Mutex::new(clock.now()),
            eligible: AtomicBool::new(true),
        }
    }

    pub(crate) fn now(&self) -> jiff::Timestamp {
        self.clock.now()
    }

    /// A change is known and not made yet.
    pub fn queued(&self) {
        self.pending.lock().get_or_insert_with(Instant::now);
    }

    /// All changes are made.
    pub fn made(&self) {
        *self.pending.lock() = None;
        *self.updated.lock() = self.clock.now();
    }

    pub fn set_eligible(&self, eligible: bool) {
        self.eligible.store(eligible, Ordering::Relaxed);
    }

    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.pending.lock().is_none_or(|since| since.elapsed() < PATIENCE)
    }

    /// Whether all is well, and what is said about it. A node that is about to go is alive, but takes nothing new.
    fn report(&self, about_the_node: bool) -> (bool, Value) {
        let now = self.clock.now();
        let (healthy, updated) = (self.is_healthy(), *self.updated.lock());
        let eligible = self.eligible.load(Ordering::Relaxed);
        let well = healthy && (eligible || !about_the_node);
        let status = json!({"lastUpdated": updated.to_string(), "healthy": healthy});
        let mut report = json!({
            "lastUpdated": if well { now } else { updated }.to_string(),
            "currentTime": now.to_string(),
            "healthy": healthy,
            "status": {"IPv4": status, "IPv6": status},
        });
        if about_the_node {
            report["nodeEligible"] = json!(eligible);
        }
        (well, report)
    }
}

/// Answers requests, given their path.
pub trait Answer: Send + Sync + 'static {
    fn answer(&self, path: &str) -> Response<Full<Bytes>>;
}

fn reply(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    response
}

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

fn well(well: bool) -> StatusCode {
    if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// `/healthz` and `/livez`, for load balancers and whoever restarts proxies: port 10256.
pub struct HealthPort {
    pub health: Arc<Health>,
    pub metrics: Arc<ProxyMetrics>,
}

impl Answer for HealthPort {
    fn answer(&self, path: &str) -> Response<Full<Bytes>> {
        let (about_the_node, count) = match path {
            "/healthz" => (true, &self.metrics.healthz),
            "/livez" => (false, &self.metrics.livez),
            _ => return reply(StatusCode::NOT_FOUND, TEXT, "404 page not found\n"),
        };
        let (good, report) = self.health.report(about_the_node);
        count.with_label_values(&[well(good).as_str()]).inc();
        reply(well(good), JSON, report.to_string())
    }
}

/// `/metrics`, and `/proxyMode` if it is a proxy's: port 10249.
pub struct MetricsPort {
    pub mode: Option<&'static str>,
    pub metrics: Metrics,
}

impl Answer for MetricsPort {
    fn answer(&self, path: &str) -> Response<Full<Bytes>> {
        match (path, self.mode) {
            ("/proxyMode", Some(mode)) => reply(StatusCode::OK, TEXT, mode),
            ("/healthz" | "/livez" | "/readyz", _) => reply(StatusCode::OK, TEXT, "ok"),
            ("/metrics", _) => match self.metrics.encode() {
                Ok(text) => reply(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text),
                Err(error) => reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, error.to_string()),
            },
            _ => reply(StatusCode::NOT_FOUND, TEXT, "404 page not found\n"),
        }
    }
}

/// The health check port of one service.
struct ServicePort {
    name: ServiceName,
    endpoints: Arc<AtomicUsize>,
    health: Arc<Health>,
}

impl Answer for ServicePort {
    fn answer(&self, _: &str) -> Response<Full<Bytes>> {
        let (count, healthy) = (self.endpoints.load(Ordering::Relaxed), self.health.is_healthy());
        let report = json!({
            "service": {"namespace": self.name.namespace, "name": self.name.name},
            "localEndpoints": count,
            "serviceProxyHealthy": healthy,
        });
        let mut response = reply(well(count > 0 && healthy), JSON, format!("{report:#}"));
        response.headers_mut().insert("x-load-balancing-endpoint-weight", count.into());
        response
    }
}

/// The health check ports of services that keep outside clients to endpoints of this node.
pub struct ServicePorts {
    health: Arc<Health>,
    tasks: TaskGroup,
    open: HashMap<ServiceName, (u16, Arc<AtomicUsize>, TaskGroup)>,
}

impl ServicePorts {
    #[must_use]
    pub fn new(health: Arc<Health>, tasks: &TaskGroup) -> Self {
        Self { health, tasks: tasks.clone(), open: HashMap::new() }
    }

    /// Brings the port of a service up to date; `None` if it is gone.
    pub fn set(&mut self, name: &ServiceName, service: Option<&Service>) {
        let wanted = service.filter(|service| service.external_local);
        let wanted = wanted.and_then(|service| Some((service.health_check_port?, local(service))));
        if let Some((port, endpoints, tasks)) = self.open.get(name) {
            match wanted {
                Some((same, count)) if same == *port => {
                    endpoints.store(count, Ordering::Relaxed);
                    return;
                }
                _ => tasks.stop(),
            }
            self.open.remove(name);
        }
        let Some((port, count)) = wanted else { return };
        let (endpoints, tasks) = (Arc::new(AtomicUsize::new(count)), self.tasks.child());
        let answer = ServicePort {
            name: name.clone(),
            endpoints: Arc::clone(&endpoints),
            health: Arc::clone(&self.health),
        };
        let (group, name_text) = (tasks.clone(), name.to_string());
        self.tasks.spawn(async move {
            let any = |ip: IpAddr| SocketAddr::new(ip, port);
            // One socket for both families, where there are both.
            let listener = match TcpListener::bind(any(Ipv6Addr::UNSPECIFIED.into())).await {
                Err(_) => TcpListener::bind(any(Ipv4Addr::UNSPECIFIED.into())).await,
                bound => bound,
            };
            match listener {
                Ok(listener) => serve(Arc::new(listener), Arc::new(answer), group).await,
                Err(error) => {
                    tracing::warn!(service = name_text, port, %error, "no health check port");
                }
            }
        });
        self.open.insert(name.clone(), (port, endpoints, tasks));
    }
}

/// Endpoints of this node that serve new connections.
fn local(service: &Service) -> usize {
    let addresses: std::collections::BTreeSet<_> = service
        .ports
        .iter()
        .flat_map(|port| &port.endpoints)
        .filter(|endpoint| endpoint.local && endpoint.ready)
        .map(|endpoint| endpoint.address)
        .collect();
    addresses.len()
}

/// Serves until `tasks` stop.
pub fn serve(
    listener: Arc<TcpListener>,
    answer: Arc<dyn Answer>,
    tasks: TaskGroup,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let accepting = async {
            loop {
                let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let (answer, stopping) = (Arc::clone(&answer), tasks.stopping());
                        tasks.spawn(async move {
                            let handler = service_fn(move |request: Request<Incoming>| {
                                let reply = answer.answer(request.uri().path());
                                async move { Ok::<_, Infallible>(reply) }
                            });
                            let serving = http1::Builder::new()
                                .timer(TokioTimer::new())
                                .header_read_timeout(HEAD)
                                .serve_connection(TokioIo::new(stream), handler);
                            tokio::select! {
                                outcome = serving => {
                                    if let Err(error) = outcome {
                                        tracing::trace!(%error, "a connection ended");
                                    }
                                }
                                () = stopping => {}
                            }
                            drop(permit);
                        });
                    }
                    Err(error) => {
                        tracing::debug!(%error, "accepting");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accepting => {}
            () = tasks.stopping() => {}
        }
    })
}
