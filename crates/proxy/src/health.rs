//! HTTP endpoints of the proxy: health, mode, metrics, and the health check node ports of services with
//! `externalTrafficPolicy: Local`.

use futures_util::future::BoxFuture;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base::clock::Clock;
use base::metrics::Metrics;
use base::readiness::{Probes, Readiness};
use base::tasks::TaskGroup;
use base::zpages::ComponentPages;
use bytes::Bytes;
use http::request::Parts;
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

/// Age of a pending change after which the proxy counts as unhealthy.
const PATIENCE: Duration = Duration::from_secs(60);
/// Limit of connections, and of the time for a request.
const MAX_CONNECTIONS: usize = 64;
const HEAD: Duration = Duration::from_secs(10);

/// Health of the proxy.
#[derive(Debug)]
pub struct Health {
    clock: Clock,
    pending: Mutex<Option<Instant>>,
    /// Reason why the proxy cannot plan yet.
    waiting: Mutex<Option<String>>,
    updated: Mutex<jiff::Timestamp>,
    /// False if another process changed the rules, until they are applied again.
    intact: AtomicBool,
    /// True if the node accepts new connections.
    eligible: AtomicBool,
}

impl Health {
    #[must_use]
    pub fn new(clock: &Clock) -> Self {
        Self {
            clock: clock.clone(),
            pending: Mutex::new(None),
            waiting: Mutex::new(None),
            updated: Mutex::new(clock.now()),
            intact: AtomicBool::new(true),
            eligible: AtomicBool::new(true),
        }
    }

    pub(crate) fn now(&self) -> jiff::Timestamp {
        self.clock.now()
    }

    /// A change is pending.
    pub fn queued(&self) {
        self.pending.lock().get_or_insert_with(Instant::now);
    }

    /// All changes are applied.
    pub fn made(&self) {
        *self.pending.lock() = None;
        *self.updated.lock() = self.clock.now();
    }

    /// Records the reason why the proxy cannot plan yet, if any.
    pub fn set_waiting(&self, reason: Option<String>) {
        *self.waiting.lock() = reason;
    }

    /// Records whether the rules in the kernel are those that were applied.
    pub fn set_intact(&self, intact: bool) {
        self.intact.store(intact, Ordering::Relaxed);
    }

    pub fn set_eligible(&self, eligible: bool) {
        self.eligible.store(eligible, Ordering::Relaxed);
    }

    /// Health checks of the metrics port: a proxy that cannot set its rules is listed as failing.
    #[must_use]
    pub fn checks(self: &Arc<Self>) -> Readiness {
        let (readiness, health) = (Readiness::new(), Arc::clone(self));
        readiness.register("ping", Probes::ALL, || Ok(()));
        readiness.register_extra("proxier", Probes::ALL, move || {
            let waiting = health.waiting.lock().clone();
            match waiting {
                Some(reason) => Err(reason),
                None if health.is_healthy() => Ok(()),
                None => Err("service changes are pending, or another process changed the rules".to_owned()),
            }
        });
        readiness
    }

    #[must_use]
    pub fn is_healthy(&self) -> bool {
        let is_planning = self.waiting.lock().is_none();
        is_planning
            && self.intact.load(Ordering::Relaxed)
            && self.pending.lock().is_none_or(|since| since.elapsed() < PATIENCE)
    }

    /// Health and its message. A node marked for removal is alive, but not eligible for new connections.
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
        if let Some(reason) = &*self.waiting.lock() {
            report["reason"] = json!(reason);
        }
        if about_the_node {
            report["nodeEligible"] = json!(eligible);
        }
        (well, report)
    }
}

/// Handles a request path.
pub trait Answer: Send + Sync + 'static {
    fn answer(&self, path: &str) -> Response<Full<Bytes>>;

    /// As [`Answer::answer`], with the whole head of the request.
    fn respond<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Response<Full<Bytes>>> {
        Box::pin(std::future::ready(self.answer(head.uri.path())))
    }
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

/// `/healthz` and `/livez`, for load balancers and liveness probes: port 10256.
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

/// `/metrics`, and `/proxyMode` and pages about the process if it is a proxy's: port 10249.
pub struct MetricsPort {
    pub mode: Option<&'static str>,
    pub metrics: Metrics,
    pub pages: Option<Arc<ComponentPages>>,
}

impl Answer for MetricsPort {
    fn respond<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Response<Full<Bytes>>> {
        Box::pin(async move {
            let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
            let accept = head.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
            let Some(pages) = &self.pages else { return self.answer(path) };
            match pages.page(path, query, accept.unwrap_or_default()).await {
                Some(page) => page.into_response::<Bytes>().map(Full::new),
                None => self.answer(path),
            }
        })
    }

    fn answer(&self, path: &str) -> Response<Full<Bytes>> {
        match (path, self.mode) {
            ("/proxyMode", Some(mode)) => reply(StatusCode::OK, TEXT, mode),
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

/// The health check ports of services with `externalTrafficPolicy: Local`.
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

    /// Updates the port of a service; `None` removes it.
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
            // One dual-stack socket where both families are available.
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
    serve_to(listener, answer, Arc::new(|_| true), tasks)
}

/// Serves clients whose addresses are admitted, until `tasks` stop.
pub fn serve_to(
    listener: Arc<TcpListener>,
    answer: Arc<dyn Answer>,
    admits: Arc<dyn Fn(IpAddr) -> bool + Send + Sync>,
    tasks: TaskGroup,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let accepting = async {
            let mut acceptor = base::accept::Acceptor::new(&*listener);
            loop {
                let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
                let (stream, client) = acceptor.accept().await;
                if !admits(client.ip()) {
                    continue;
                }
                let answer = Arc::clone(&answer);
                tasks.spawn_until_stopped(async move {
                    let _permit = permit;
                    let handler = service_fn(move |request: Request<Incoming>| {
                        let answer = Arc::clone(&answer);
                        async move {
                            let (head, _) = request.into_parts();
                            Ok::<_, Infallible>(answer.respond(&head).await)
                        }
                    });
                    let serving = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEAD)
                        .serve_connection(TokioIo::new(stream), handler);
                    if let Err(error) = serving.await {
                        tracing::trace!(%error, "connection failed");
                    }
                });
            }
        };
        tasks.until_stopped(accepting).await;
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::zpages::PageSettings;

    fn port(profiling: bool) -> MetricsPort {
        let clock = Clock::system();
        let configz = Some(("kubeproxy.config.k8s.io", json!({"mode": "nftables"})));
        let (settings, checks) = (PageSettings { profiling }, Arc::new(Health::new(&clock)).checks());
        let pages = ComponentPages::with_configz("kube-proxy", checks, settings, configz, &clock);
        let metrics = Metrics::new(&clock).expect("a registry");
        MetricsPort { mode: Some("nftables"), metrics, pages: Some(pages.expect("pages")) }
    }

    async fn status(port: &MetricsPort, path: &str) -> u16 {
        let (head, ()) = Request::get(path).body(()).expect("a request").into_parts();
        port.respond(&head).await.status().as_u16()
    }

    #[tokio::test]
    async fn metrics_port_serves_pages_about_the_process() {
        let plain = port(false);
        for path in ["/proxyMode", "/metrics", "/metrics/slis", "/healthz", "/statusz", "/flagz", "/configz"]
        {
            assert_eq!(status(&plain, path).await, 200, "{path}");
        }
        assert_eq!(status(&plain, "/debug/pprof/cmdline").await, 404);
        assert_eq!(status(&plain, "/unknown").await, 404);
        assert_eq!(status(&port(true), "/debug/pprof/cmdline").await, 200);
    }

    #[tokio::test]
    async fn pending_change_makes_the_proxy_unhealthy() {
        let health = Arc::new(Health::new(&Clock::system()));
        let checks = health.checks();
        let failed = async || {
            let outcomes = checks.run(base::readiness::Probe::Healthz, |_| false).await;
            outcomes.into_iter().any(|outcome| outcome.result.is_err())
        };
        health.queued();
        assert!(!failed().await);
        let before = Instant::now().checked_sub(PATIENCE * 2).expect("a time");
        *health.pending.lock() = Some(before);
        assert!(failed().await);
        health.made();
        assert!(!failed().await);
    }
}
