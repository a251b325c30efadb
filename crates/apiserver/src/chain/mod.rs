//! Request chain: every stage between the connection and the handler, in order.
//!
//! panic guard → request info → authenticate → audit → impersonate → priority and fairness → authorize → route →
//! handler → audit → log.

mod access_log;
pub mod audit;
mod audited;
mod body_buffer;
mod cors;
mod debug;
pub mod fairness;
mod health;
mod impersonate;
mod in_flight;
mod journal;
mod memory;
pub(crate) mod metrics;
mod nonresource;
pub(crate) mod offload;
mod openapi;
mod openid;
mod pages;
mod seat_guard;
mod shutting_down;
mod traced;

pub use cors::Cors;
pub use metrics::{LongRunning, RequestMetrics, Termination};

use crate::aggregate::Backend;
use crate::authenticate::Authentication;
use crate::authorize::{Attributes, Decision};
use crate::context::Context;
use crate::request_info::Verb;
use crate::rest::Rest;
use crate::serve::{Connection, RequestBody, ResponseBody, Service};
use crate::wire::negotiate::{Forms, Offers, accept};
use crate::wire::reply::{self, Reply};
use audit::Audit;
use base::clock::Clock;
use base::metrics::{Metrics, MetricsError};
use base::readiness::Readiness;
use base::trace::{self, Kind, Tracer};
use base::zpages::PageSettings;
use base::zpages::slis::HealthMetrics;
use body_buffer::BufferedBody;
use fairness::{Classification, Fairness};
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body::Body;
use in_flight::{InFlight, is_mutating};
use jiff::Timestamp;
use machinery::codec::time::parse_duration;
use machinery::status::Status;
use memory::{Exhausted, Memory};
use metrics::{AuthenticationMetrics, CatalogueChanges, RequestFilter, StoredObjects};
use offload::Offload;
use seat_guard::HeldSeat;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

/// Limits of the chain.
#[derive(Clone, Debug)]
pub struct ChainConfig {
    pub max_requests_in_flight: usize,
    pub max_mutating_in_flight: usize,
    /// True if requests queue for seats by FlowSchemas and PriorityLevelConfigurations; otherwise max-in-flight
    /// limits apply.
    pub priority_and_fairness: bool,
    /// Timeout of requests other than watches and streams.
    pub request_timeout: Duration,
    /// Value of the `Strict-Transport-Security` header, if it is sent.
    pub strict_transport_security: Option<HeaderValue>,
    /// Allowed CORS origins.
    pub cors: Cors,
    /// Returns 429 to requests while the server drains.
    pub retry_after_while_draining: bool,
    pub pages: PageSettings,
    pub tracer: Tracer,
}

impl Default for ChainConfig {
    fn default() -> Self {
        Self {
            max_requests_in_flight: 400,
            max_mutating_in_flight: 200,
            priority_and_fairness: true,
            request_timeout: Duration::from_secs(60),
            strict_transport_security: None,
            cors: Cors::default(),
            retry_after_while_draining: false,
            pages: PageSettings::default(),
            tracer: Tracer::off(),
        }
    }
}

/// State of the server that the stages share.
pub struct Chain {
    pub rest: Rest,
    pub readiness: Readiness,
    pub metrics: Metrics,
    pub request_metrics: RequestMetrics,
    authentication_metrics: AuthenticationMetrics,
    health_metrics: HealthMetrics,
    catalogue_changes: CatalogueChanges,
    pub clock: Clock,
    started: Timestamp,
    pub audit: Option<Arc<Audit>>,
    /// Recent writes and their causes.
    journal: journal::Journal,
    config: ChainConfig,
    concurrency: Concurrency,
    memory: Memory,
    offload: Offload,
    last_modes: impersonate::LastModes,
    /// Set while new requests are rejected.
    draining: AtomicBool,
}

/// Limit on concurrent requests.
enum Concurrency {
    PriorityAndFairness(Arc<Fairness>),
    MaxInFlight(InFlight),
}

impl Service for Chain {
    async fn call(
        &self,
        request: Request<RequestBody>,
        connection: Arc<Connection>,
    ) -> Response<ResponseBody> {
        let started = Instant::now();
        let (parts, body) = request.into_parts();
        if let Some(refusal) = self.refusal_while_draining(&parts, &connection) {
            return refusal;
        }
        let origin = self.config.cors.allowed_origin(&parts.headers).cloned();
        if origin.is_some() && parts.method == http::Method::OPTIONS {
            let mut reply = reply::text(204, "");
            cors::allow(&mut reply, origin.as_ref());
            return reply;
        }
        let mut context = Context::new(parts, self.rest.registry.catalogue());
        let id = audited::id(&context.headers);
        let handling = self.guarded(&mut context, body, &connection, started, &id);
        let handled = AssertUnwindSafe(handling).catch_unwind().await;
        let reply = handled.unwrap_or_else(|panic| self.panicked(&mut context, panic.as_ref()));
        self.journal.record(&context, &self.clock);
        let reply = self.audited(&mut context, reply);
        let mut reply = traced::finish(std::mem::take(&mut context.span), reply);
        reply.headers_mut().insert(audited::AUDIT_ID, id);
        if let Some(value) = &self.config.strict_transport_security {
            reply.headers_mut().insert(http::header::STRICT_TRANSPORT_SECURITY, value.clone());
        }
        cors::allow(&mut reply, origin.as_ref());
        let took = started.elapsed();
        access_log::write(&context, &connection, &reply, took);
        let reply = self.request_metrics.record(&context, reply, took);
        if self.catalogue_changes.are_due(&context.catalogue) {
            self.forget_unserved();
        }
        reply
    }
}

/// Flow schema and priority level of the request.
const SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
/// Wait limit for a seat: this fraction of the request's timeout, and never longer than a minute.
const WAIT_PART: u32 = 4;
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Memory for compiling expressions, as a multiple of the memory for decoding them.
const COMPILED_FACTOR: u64 = 20;

impl Chain {
    pub fn new(
        rest: Rest,
        readiness: Readiness,
        metrics: Metrics,
        clock: Clock,
        audit: Option<Arc<Audit>>,
        config: ChainConfig,
    ) -> Result<Self, MetricsError> {
        let request_metrics = RequestMetrics::new(&metrics)?;
        let authentication_metrics = AuthenticationMetrics::new(&metrics)?;
        metrics.register(StoredObjects::new(Arc::clone(&rest.registry))?)?;
        crate::metrics::register(&metrics)?;
        let health_metrics = HealthMetrics::new(&clock)?;
        let (reading, mutating) = (config.max_requests_in_flight, config.max_mutating_in_flight);
        let concurrency = if config.priority_and_fairness {
            let fairness = Arc::new(Fairness::new(rest.registry.clone(), reading.saturating_add(mutating)));
            metrics.register(fairness.collector()?)?;
            Concurrency::PriorityAndFairness(fairness)
        } else {
            Concurrency::MaxInFlight(InFlight::new(reading, mutating))
        };
        Ok(Self {
            rest,
            readiness,
            metrics,
            request_metrics,
            authentication_metrics,
            health_metrics,
            catalogue_changes: CatalogueChanges::default(),
            started: clock.now(),
            clock,
            audit,
            journal: journal::Journal::default(),
            config,
            concurrency,
            memory: Memory::default(),
            offload: Offload::default(),
            last_modes: impersonate::LastModes::default(),
            draining: AtomicBool::new(false),
        })
    }

    pub fn fairness(&self) -> Option<&Arc<Fairness>> {
        match &self.concurrency {
            Concurrency::PriorityAndFairness(fairness) => Some(fairness),
            Concurrency::MaxInFlight(_) => None,
        }
    }

    /// Authenticates, then handles the request in its span.
    async fn guarded(
        &self,
        context: &mut Context,
        body: RequestBody,
        connection: &Connection,
        started: Instant,
        id: &HeaderValue,
    ) -> Reply {
        // Before authentication, as in Kubernetes.
        let allowed = match self.allowed_time(context) {
            Ok(allowed) => allowed,
            Err(status) => return self.refuse(context, &status),
        };
        if let Err(status) = self.identify(context, connection, started, id).await {
            return self.refuse(context, &status);
        }
        let handle = context.span.handle();
        trace::scope(handle, self.identified(context, body, started, allowed)).await
    }

    /// Handles a request whose user is known: queues, authorizes, routes.
    async fn identified(
        &self,
        context: &mut Context,
        body: RequestBody,
        started: Instant,
        allowed: Duration,
    ) -> Reply {
        let deadline = started + allowed;
        let buffered = self.buffer_body(context, body, deadline).await;
        let limit = (allowed / WAIT_PART).min(MAX_WAIT);
        let Ok(_memory) = self.reserve(context, &buffered, deadline.min(Instant::now() + limit)).await else {
            return self.busy(context, 1);
        };
        match &self.concurrency {
            Concurrency::PriorityAndFairness(fairness) => {
                if context.is_long_running() && context.info.verb != Verb::Watch {
                    return self.admitted(context, buffered, HeldSeat::default(), deadline).await;
                }
                let now = Instant::now();
                let queued = self.request_metrics.in_queue.count(is_mutating(context));
                let span = trace::child(Kind::Internal, || "priorityandfairness");
                let (class, outcome) = fairness.enter(context, now, deadline.min(now + limit)).await;
                drop(span);
                drop(queued);
                context.record.add_wait(now.elapsed());
                self.authentication_metrics.filtered(RequestFilter::PriorityAndFairness, now.elapsed());
                let mut reply = match outcome {
                    Ok(seat) => {
                        let watched =
                            (context.info.verb == Verb::Watch).then(|| fairness.watched(context)).flatten();
                        let held_seat = HeldSeat { seat: Some(seat), watched, long_running: None };
                        self.admitted(context, buffered, held_seat, deadline).await
                    }
                    Err(refused) => self.busy(context, refused.retry_after),
                };
                if let Some(Classification { schema_uid, level_uid }) = class {
                    let headers = reply.headers_mut();
                    headers.insert(SCHEMA_UID, schema_uid);
                    headers.insert(LEVEL_UID, level_uid);
                }
                reply
            }
            Concurrency::MaxInFlight(in_flight) => match in_flight.enter(context) {
                Some(_permit) => self.admitted(context, buffered, HeldSeat::default(), deadline).await,
                None => self.busy(context, 1),
            },
        }
    }

    /// Rejects a request with 429.
    fn busy(&self, context: &Context, retry_after: u64) -> Reply {
        *context.termination.lock() = Some(Termination::TooManyRequests);
        reply::too_many_requests(retry_after)
    }

    /// Reserves memory for the request body. A request without a seat reads its body later, if at all.
    async fn reserve(
        &self,
        context: &Context,
        buffered: &BufferedBody,
        until: Instant,
    ) -> Result<Option<OwnedSemaphorePermit>, Exhausted> {
        let Ok(body) = &buffered.body else { return Ok(None) };
        if context.is_long_running() || context.user.is_in("system:unauthenticated") {
            return Ok(None);
        }
        let most = self.rest.limits.max_body_bytes as u64;
        let mut length = body.size_hint().upper().unwrap_or(most).min(most);
        if offload::is_compiled(context) {
            length = length.saturating_mul(COMPILED_FACTOR);
        }
        self.memory.reserve(length, offload::is_heavy(context, body), until).await
    }

    /// Timeout of the request: its own `timeout` parameter, capped by the server's limit.
    fn allowed_time(&self, context: &Context) -> Result<Duration, Status> {
        let most = self.config.request_timeout;
        let requested =
            context.query.get("timeout").filter(|text| !text.is_empty() && !context.is_long_running());
        let Some(requested) = requested else { return Ok(most) };
        let nanos = parse_duration(requested).map_err(|why| {
            Status::bad_request(format!("invalid timeout specified in the request URL - {why}"))
        })?;
        let requested = u64::try_from(nanos).ok().filter(|nanos| *nanos > 0).map(Duration::from_nanos);
        Ok(requested.map_or(most, |requested| requested.min(most)))
    }

    async fn identify(
        &self,
        context: &mut Context,
        connection: &Connection,
        started: Instant,
        id: &HeaderValue,
    ) -> Result<(), Status> {
        let begin = Instant::now();
        let outcome = self.rest.authentication.user(connection, &context.headers, &context.path).await;
        let has_credentials =
            connection.certificates.is_some() || context.headers.contains_key(http::header::AUTHORIZATION);
        let user = outcome.as_ref().ok().map(|user| &**user);
        self.authentication_metrics.authenticated(user, has_credentials, begin.elapsed());
        match outcome {
            Ok(user) => {
                context.user = user;
                Authentication::remove_credentials(&mut context.headers);
                context.span = traced::start(&self.config.tracer, context, connection, started, id);
            }
            Err(status) => {
                if let Some(audit) = &self.audit {
                    audit.not_authenticated(context, connection, id, started, &status);
                }
                return Err(status);
            }
        }
        if let Some(audit) = &self.audit {
            context.audit = audit.begin(context, connection, id, started)?;
        }
        if let Some(user) =
            impersonate::impersonate(context, &self.rest.registry.authorization, &self.last_modes).await?
        {
            context.user = Arc::new(user);
            if let Some(record) = &context.audit {
                record.impersonate(context.user.clone());
            }
        }
        Ok(())
    }

    /// Authorizes and handles a request that has its seat, within its timeout.
    async fn admitted(
        &self,
        context: &mut Context,
        buffered: BufferedBody,
        mut held_seat: HeldSeat,
        deadline: Instant,
    ) -> Reply {
        let BufferedBody { body, share: _share } = buffered;
        let body = match self.authorize(context).await.and(body) {
            Ok(body) => body,
            Err(status) => return self.refuse(context, &status),
        };
        let is_long_running = context.is_long_running();
        let _in_flight =
            (!is_long_running).then(|| self.request_metrics.in_flight.count(is_mutating(context)));
        *context.long_running.lock() = self.request_metrics.long_running(context);
        let is_heavy = offload::is_heavy(context, &body);
        let body = match self.offload.run(self.audited_body(context, body), is_heavy).await {
            Ok(body) => body,
            Err(status) => return self.refuse(context, &status),
        };
        let handling = self.offload.run(self.route(context, body), is_heavy);
        let reply = if is_long_running {
            handling.await
        } else {
            match tokio::time::timeout_at(deadline.into(), handling).await {
                Ok(reply) => reply,
                Err(_) => {
                    *context.termination.lock() = Some(Termination::Timeout);
                    let why = "Timeout: request did not complete within the allotted timeout";
                    self.refuse(context, &Status::timeout(why, 0))
                }
            }
        };
        held_seat.long_running = context.long_running.lock().take();
        seat_guard::hold(reply, held_seat, deadline)
    }

    async fn authorize(&self, context: &Context) -> Result<(), Status> {
        let attributes = Attributes::of(context);
        let begin = Instant::now();
        let mut span = trace::child(Kind::Internal, || "authorization");
        let deciding = self.rest.registry.authorization.decide(&context.user, &attributes);
        let decision = trace::scope(span.handle(), deciding).await;
        if let Err(status) = &decision {
            span.fail(|| status.message.clone());
        }
        drop(span);
        self.authentication_metrics.authorized(&decision, begin.elapsed());
        let decision = decision?;
        let (allowed, reason) = match &decision {
            Decision::Allowed(reason) => ("allow", &**reason),
            Decision::NoOpinion(reason) | Decision::Denied(reason) => ("forbid", reason.as_str()),
        };
        if let Some(record) = &context.audit {
            record.annotate("authorization.k8s.io/decision", allowed);
            record.annotate("authorization.k8s.io/reason", reason.to_owned());
        }
        match decision {
            Decision::Allowed(_) => Ok(()),
            Decision::NoOpinion(reason) | Decision::Denied(reason) => {
                Err(attributes.forbidden(&context.user, &reason))
            }
        }
    }

    async fn route(&self, context: &Context, body: RequestBody) -> Reply {
        // The catalogue serves the discovery of components of this process.
        let answers = |backend: &&Backend| context.info.is_resource || matches!(backend, Backend::Remote(_));
        if let Some(backend) = backend_of(context).filter(answers) {
            return Box::pin(self.rest.delegate(context, backend, body)).await;
        }
        if !context.info.is_resource {
            return Box::pin(self.nonresource(context)).await;
        }
        let info = &context.info;
        // Other paths of groups that only CRDs define return 404, as in Kubernetes.
        let offered = self.rest.registry.catalogues.offered();
        let known = info.group.is_empty()
            || offered.discovery.has_group(&info.group)
            || context.catalogue.served(&info.group, &info.version, &info.resource).is_some();
        if !known || crate::rest::is_out_of_scope(context) {
            return reply::page_not_found();
        }
        let (outcome, accepted) = self.rest.handle(context, body).await;
        outcome.unwrap_or_else(|status| {
            let mut reply = reply::status(&status, accepted.as_ref());
            reply::warn(&mut reply, context);
            reply
        })
    }

    fn refuse(&self, context: &Context, status: &Status) -> Reply {
        let offers =
            Offers { cbor: self.rest.limits.cbor, forms: Forms::All, streams: false, protobuf: true };
        let accepted = accept(&context.headers, context.query.get("pretty"), offers).ok();
        reply::status(status, accepted.as_ref())
    }

    fn panicked(&self, context: &mut Context, panic: &(dyn std::any::Any + Send)) -> Reply {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("unknown cause");
        if let (Some(audit), Some(record)) = (&self.audit, context.audit.take()) {
            audit.panicked(&record, text);
        }
        tracing::error!(path = %context.path, method = %context.method, panic = text, "request handler panicked");
        let status = Status::internal(format!(
            "This request caused apiserver to panic. Look in the logs for details. Path: {}",
            context.path
        ));
        reply::status(&status, None)
    }
}

/// Extension API server that serves the path's group version, for its resources and its discovery.
fn backend_of(context: &Context) -> Option<&Backend> {
    let mut parts = context.path.strip_prefix("/apis/")?.splitn(3, '/');
    context.catalogue.backend(parts.next()?, parts.next()?)
}
