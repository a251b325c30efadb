//! Life of a request: every stage between the connection and the handler, in order.
//!
//! panic guard → request info → authenticate → audit → impersonate → priority and fairness → authorize → route
//! → handler → audit → log.

mod access_log;
pub mod audit;
mod audited;
mod cors;
mod debug;
pub mod fairness;
mod health;
mod held;
mod impersonate;
mod in_flight;
mod intake;
mod journal;
mod memory;
mod metrics;
mod nonresource;
pub(crate) mod offload;
mod openapi;
mod openid;
mod shutting_down;
mod slis;

pub use cors::Cors;
pub use metrics::RequestMetrics;

use crate::aggregate::Backend;
use crate::authenticate::Authentication;
use crate::authorize::{Attributes, Decision};
use crate::context::Context;
use crate::negotiate::{Forms, Offers, accept};
use crate::reply::{self, Reply};
use crate::request_info::Verb;
use crate::rest::Rest;
use crate::serve::{Connection, RequestBody, ResponseBody, Service};
use audit::Audit;
use base::clock::Clock;
use base::metrics::{Metrics, MetricsError};
use base::readiness::Readiness;
use fairness::{Classification, Fairness};
use futures_util::FutureExt;
use held::Place;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body::Body;
use in_flight::InFlight;
use intake::Taken;
use machinery::codec::time::parse_duration;
use machinery::status::Status;
use memory::{Exhausted, Memory};
use offload::Offload;
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
    /// Whether requests queue for seats by FlowSchemas and PriorityLevelConfigurations; otherwise they are only counted.
    pub priority_and_fairness: bool,
    /// Requests other than watches and streams end after this long.
    pub request_timeout: Duration,
    /// Value of the header `Strict-Transport-Security`; none if absent.
    pub strict_transport_security: Option<HeaderValue>,
    /// Origins of web pages that may use the API.
    pub cors: Cors,
    /// Refuses requests with 429 while the server drains.
    pub retry_after_while_draining: bool,
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
        }
    }
}

/// Everything a request may need on its way.
pub struct Chain {
    pub rest: Rest,
    pub readiness: Readiness,
    pub metrics: Metrics,
    pub request_metrics: RequestMetrics,
    health_metrics: slis::HealthMetrics,
    pub clock: Clock,
    pub audit: Option<Arc<Audit>>,
    /// Who wrote what and why.
    journal: journal::Journal,
    config: ChainConfig,
    room: Room,
    memory: Memory,
    offload: Offload,
    last_modes: impersonate::LastModes,
    /// Requests that arrive now are refused.
    draining: AtomicBool,
}

/// What keeps requests from being too many.
enum Room {
    Fair(Arc<Fairness>),
    Counted(InFlight),
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
        let mut reply = self.audited(&mut context, reply);
        reply.headers_mut().insert(audited::AUDIT_ID, id);
        if let Some(value) = &self.config.strict_transport_security {
            reply.headers_mut().insert(http::header::STRICT_TRANSPORT_SECURITY, value.clone());
        }
        cors::allow(&mut reply, origin.as_ref());
        let took = started.elapsed();
        self.request_metrics.record(&context, reply.status().as_u16(), took);
        access_log::write(&context, &connection, &reply, took);
        reply
    }
}

/// How fairness saw the request.
const SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
/// How long a request may wait for a seat: this part of the time it has, and never longer than a minute.
const WAIT_PART: u32 = 4;
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Memory that compiling expressions takes, as a multiple of what decoding them does.
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
        let health_metrics = slis::HealthMetrics::new(&clock)?;
        let (reading, mutating) = (config.max_requests_in_flight, config.max_mutating_in_flight);
        let room = if config.priority_and_fairness {
            let fairness = Arc::new(Fairness::new(rest.registry.clone(), reading.saturating_add(mutating)));
            metrics.register(fairness.collector()?)?;
            Room::Fair(fairness)
        } else {
            Room::Counted(InFlight::new(reading, mutating))
        };
        Ok(Self {
            rest,
            readiness,
            metrics,
            request_metrics,
            health_metrics,
            clock,
            audit,
            journal: journal::Journal::default(),
            config,
            room,
            memory: Memory::default(),
            offload: Offload::default(),
            last_modes: impersonate::LastModes::default(),
            draining: AtomicBool::new(false),
        })
    }

    pub fn fairness(&self) -> Option<&Arc<Fairness>> {
        match &self.room {
            Room::Fair(fairness) => Some(fairness),
            Room::Counted(_) => None,
        }
    }

    /// Who is it, is there room, may they; then the handler.
    async fn guarded(
        &self,
        context: &mut Context,
        body: RequestBody,
        connection: &Connection,
        started: Instant,
        id: &HeaderValue,
    ) -> Reply {
        // Before anybody is asked who they are, as in Kubernetes.
        let allowed = match self.allowed_time(context) {
            Ok(allowed) => allowed,
            Err(status) => return self.refuse(context, &status),
        };
        if let Err(status) = self.identify(context, connection, started, id).await {
            return self.refuse(context, &status);
        }
        let deadline = started + allowed;
        let taken = self.take_in(context, body, deadline).await;
        let limit = (allowed / WAIT_PART).min(MAX_WAIT);
        let Ok(_memory) = self.reserve(context, &taken, deadline.min(Instant::now() + limit)).await else {
            return reply::too_many_requests(1);
        };
        match &self.room {
            Room::Fair(fairness) => {
                if context.is_long_running() && context.info.verb != Verb::Watch {
                    return self.admitted(context, taken, Place::default(), deadline).await;
                }
                let now = Instant::now();
                let (class, outcome) = fairness.enter(context, now, deadline.min(now + limit)).await;
                let mut reply = match outcome {
                    Ok(seat) => {
                        let watched =
                            (context.info.verb == Verb::Watch).then(|| fairness.watched(context)).flatten();
                        let place = Place { seat: Some(seat), watched };
                        self.admitted(context, taken, place, deadline).await
                    }
                    Err(refused) => reply::too_many_requests(refused.retry_after),
                };
                if let Some(Classification { schema_uid, level_uid }) = class {
                    let headers = reply.headers_mut();
                    headers.insert(SCHEMA_UID, schema_uid);
                    headers.insert(LEVEL_UID, level_uid);
                }
                reply
            }
            Room::Counted(in_flight) => match in_flight.enter(context) {
                Some(_permit) => self.admitted(context, taken, Place::default(), deadline).await,
                None => reply::too_many_requests(1),
            },
        }
    }

    /// Reserves memory for what the request sends. One that is not let in yet reads its body later, if at all.
    async fn reserve(
        &self,
        context: &Context,
        taken: &Taken,
        until: Instant,
    ) -> Result<Option<OwnedSemaphorePermit>, Exhausted> {
        let Ok(body) = &taken.body else { return Ok(None) };
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

    /// How long the request may take: what it says itself, if that is less than what all may.
    fn allowed_time(&self, context: &Context) -> Result<Duration, Status> {
        let most = self.config.request_timeout;
        let said = context.query.get("timeout").filter(|text| !text.is_empty() && !context.is_long_running());
        let Some(said) = said else { return Ok(most) };
        let nanos = parse_duration(said).map_err(|why| {
            Status::bad_request(format!("invalid timeout specified in the request URL - {why}"))
        })?;
        let said = u64::try_from(nanos).ok().filter(|nanos| *nanos > 0).map(Duration::from_nanos);
        Ok(said.map_or(most, |said| said.min(most)))
    }

    async fn identify(
        &self,
        context: &mut Context,
        connection: &Connection,
        started: Instant,
        id: &HeaderValue,
    ) -> Result<(), Status> {
        match self.rest.authentication.user(connection, &context.headers, &context.path).await {
            Ok(user) => {
                context.user = user;
                Authentication::remove_credentials(&mut context.headers);
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

    /// A request that has its place: authorized, handled, within its time.
    async fn admitted(&self, context: &mut Context, taken: Taken, place: Place, deadline: Instant) -> Reply {
        let Taken { body, share: _share } = taken;
        let body = match self.authorize(context).await.and(body) {
            Ok(body) => body,
            Err(status) => return self.refuse(context, &status),
        };
        let is_heavy = offload::is_heavy(context, &body);
        let body = match self.offload.run(self.audited_body(context, body), is_heavy).await {
            Ok(body) => body,
            Err(status) => return self.refuse(context, &status),
        };
        let handling = self.offload.run(self.route(context, body), is_heavy);
        let reply = if context.is_long_running() {
            handling.await
        } else {
            match tokio::time::timeout_at(deadline.into(), handling).await {
                Ok(reply) => reply,
                Err(_) => self.refuse(
                    context,
                    &Status::timeout("Timeout: request did not complete within the allotted timeout", 0),
                ),
            }
        };
        held::hold(reply, place, deadline)
    }

    async fn authorize(&self, context: &Context) -> Result<(), Status> {
        let attributes = Attributes::of(context);
        let decision = self.rest.registry.authorization.decide(&context.user, &attributes).await?;
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
        // Discovery of a component of this process is in the catalogue.
        let answers = |backend: &&Backend| context.info.is_resource || matches!(backend, Backend::Remote(_));
        if let Some(backend) = backend_of(context).filter(answers) {
            return Box::pin(self.rest.delegate(context, backend, body)).await;
        }
        if !context.info.is_resource {
            return Box::pin(self.nonresource(context)).await;
        }
        let info = &context.info;
        // Other paths of groups that only definitions have are not found, as in Kubernetes.
        let offered = self.rest.registry.catalogues.offered();
        let known = info.group.is_empty()
            || offered.discovery.has_group(&info.group)
            || context.catalogue.served(&info.group, &info.version, &info.resource).is_some();
        if !known {
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
        let offers = Offers { cbor: self.rest.limits.cbor, forms: Forms::All, streams: false };
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

/// The server that answers for the path's group version, if it is another one: for its resources and for its discovery.
fn backend_of(context: &Context) -> Option<&Backend> {
    let mut parts = context.path.strip_prefix("/apis/")?.splitn(3, '/');
    context.catalogue.backend(parts.next()?, parts.next()?)
}
