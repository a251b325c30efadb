//! Life of a request: every stage between the connection and the handler, in order.
//!
//! panic guard → request info → authenticate → impersonate → limits → authorize → route → handler → log.

mod access_log;
mod health;
mod impersonate;
mod in_flight;
mod metrics;
mod nonresource;
mod openapi;
mod openid;

pub use metrics::RequestMetrics;

use crate::authorize::Attributes;
use crate::context::Context;
use crate::discovery::Discovery;
use crate::negotiate::{Offers, accept};
use crate::openapi::OpenApi;
use crate::reply::{self, Reply};
use crate::rest::Rest;
use crate::serve::{Connection, RequestBody, ResponseBody, Service};
use base::metrics::Metrics;
use base::readiness::Readiness;
use futures_util::FutureExt;
use http::{Request, Response};
use in_flight::InFlight;
use machinery::status::Status;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limits of the chain.
#[derive(Clone, Debug)]
pub struct ChainConfig {
    pub max_requests_in_flight: usize,
    pub max_mutating_in_flight: usize,
    /// Requests other than watches and streams end after this long.
    pub request_timeout: Duration,
}

impl Default for ChainConfig {
    fn default() -> Self {
        Self {
            max_requests_in_flight: 400,
            max_mutating_in_flight: 200,
            request_timeout: Duration::from_secs(60),
        }
    }
}

/// Everything a request may need on its way.
pub struct Chain {
    pub rest: Rest,
    pub discovery: arc_swap::ArcSwap<Discovery>,
    pub openapi: Arc<OpenApi>,
    pub readiness: Readiness,
    pub metrics: Metrics,
    pub request_metrics: RequestMetrics,
    config: ChainConfig,
    in_flight: InFlight,
}

impl Service for Chain {
    async fn call(
        &self,
        request: Request<RequestBody>,
        connection: Arc<Connection>,
    ) -> Response<ResponseBody> {
        let started = Instant::now();
        let (parts, body) = request.into_parts();
        let mut context = Context::new(parts);
        let handled = AssertUnwindSafe(self.guarded(&mut context, body, &connection)).catch_unwind().await;
        let reply = handled.unwrap_or_else(|panic| self.panicked(&context, panic.as_ref()));
        let took = started.elapsed();
        self.request_metrics.record(&context, reply.status().as_u16(), took);
        access_log::write(&context, &connection, &reply, took);
        reply
    }
}

impl Chain {
    pub fn new(
        rest: Rest,
        discovery: Discovery,
        openapi: OpenApi,
        readiness: Readiness,
        metrics: Metrics,
        request_metrics: RequestMetrics,
        config: ChainConfig,
    ) -> Self {
        let in_flight = InFlight::new(config.max_requests_in_flight, config.max_mutating_in_flight);
        Self {
            rest,
            discovery: arc_swap::ArcSwap::from_pointee(discovery),
            openapi: Arc::new(openapi),
            readiness,
            metrics,
            request_metrics,
            config,
            in_flight,
        }
    }

    async fn guarded(&self, context: &mut Context, body: RequestBody, connection: &Connection) -> Reply {
        match self.enter(context, connection).await {
            Ok(_permit) if context.is_long_running() => self.route(context, body).await,
            Ok(_permit) => {
                match tokio::time::timeout(self.config.request_timeout, self.route(context, body)).await {
                    Ok(reply) => reply,
                    Err(_) => self.refuse(
                        context,
                        &Status::timeout("Timeout: request did not complete within the allotted timeout", 0),
                    ),
                }
            }
            Err(status) => self.refuse(context, &status),
        }
    }

    /// The doors: who is it, may they, is there room.
    async fn enter(
        &self,
        context: &mut Context,
        connection: &Connection,
    ) -> Result<in_flight::Permit, Status> {
        let authorization = &self.rest.registry.authorization;
        context.user = self.rest.authentication.user(connection, &context.headers).await?;
        if let Some(user) = impersonate::impersonate(context, authorization).await? {
            context.user = Arc::new(user);
        }
        let permit = self.in_flight.enter(context)?;
        authorization.check(&context.user, &Attributes::of(context)).await?;
        Ok(permit)
    }

    async fn route(&self, context: &Context, body: RequestBody) -> Reply {
        if !context.info.is_resource {
            return self.nonresource(context).await;
        }
        let info = &context.info;
        let known = info.group.is_empty() || self.discovery.load().group(&info.group).is_some();
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
        let offers = Offers { cbor: self.rest.limits.cbor, forms: true, streams: false };
        let accepted = accept(&context.headers, context.query.get("pretty"), offers).ok();
        reply::status(status, accepted.as_ref())
    }

    fn panicked(&self, context: &Context, panic: &(dyn std::any::Any + Send)) -> Reply {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("unknown cause");
        tracing::error!(path = %context.path, method = %context.method, panic = text, "request handler panicked");
        let status = Status::internal(format!(
            "This request caused apiserver to panic. Look in the logs for details. Path: {}",
            context.path
        ));
        reply::status(&status, None)
    }
}
