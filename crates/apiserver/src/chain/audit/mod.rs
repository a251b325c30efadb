//! Audit: records requests with user, time, source and outcome.
//!
//! A policy selects what is recorded; backends store it. In addition, and on by default, Ferry keeps a small built-in
//! audit log of all writes with user and cause, without objects. `ferry audit` reads it.

mod audit_log;
mod backend;
mod event;
mod event_text;
pub mod log_file;
mod policy;
mod record;
mod webhook;

pub use backend::{Format, Mode};
pub use log_file::Rotation;
pub use policy::PolicyError;
pub use record::Record;
pub use webhook::{Throttle, WebhookConfig};

use crate::authorize::Attributes;
use crate::context::Context;
use crate::outbound::KubeconfigError;
use crate::serve::{Connection, Peer};
use backend::{AuditError, Backend, Backends, BlockingLog, BufferedLog};
use base::clock::Clock;
use base::metrics::{IntCounter, IntCounterVec, Metrics, MetricsError};
use http::{HeaderName, HeaderValue};
use log_file::LogFile;
use machinery::status::Status;
use parking_lot::Mutex;
use policy::{Level, Policy, Stage};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use webhook::Webhook;

/// Header in which controllers send the cause of a write.
const CAUSE: HeaderName = HeaderName::from_static("ferry-cause");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// Queued events of the built-in log; more are lost.
const AUDIT_LOG_BUFFER: usize = 16 * 1024;

/// Audit configuration.
#[derive(Clone, Debug, Default)]
pub struct AuditConfig {
    /// Policy file; without one, log and webhook receive no events.
    pub policy_file: Option<PathBuf>,
    pub log: Option<LogConfig>,
    pub webhook: Option<WebhookConfig>,
    /// Path of the built-in audit log, if it is enabled.
    pub audit_log: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub struct LogConfig {
    /// `-` for the standard output.
    pub path: PathBuf,
    pub rotation: Rotation,
    pub format: Format,
    pub mode: Mode,
    pub buffer: usize,
    /// Larger events are recorded without their objects, or not at all.
    pub max_event_bytes: Option<usize>,
}

#[derive(Debug, thiserror::Error)]
pub enum AuditSetupError {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("failed to open the audit log {}", .path.display())]
    Log { path: PathBuf, source: std::io::Error },
    #[error("failed to start the audit log")]
    Start(#[source] AuditError),
    #[error("failed to set up the audit webhook")]
    Webhook(#[source] KubeconfigError),
    #[error("failed to register metrics")]
    Metrics(#[from] MetricsError),
}

struct Counters {
    events: IntCounter,
    errors: IntCounterVec,
    levels: IntCounterVec,
    rejected: IntCounter,
}

impl Counters {
    fn new(metrics: &Metrics) -> Result<Self, MetricsError> {
        Ok(Self {
            events: metrics.counter(
                "apiserver_audit_event_total",
                "Counter of audit events generated and sent to the audit backend.",
            )?,
            errors: metrics.counters(
                "apiserver_audit_error_total",
                "Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the error.",
                &["plugin"],
            )?,
            levels: metrics.counters(
                "apiserver_audit_level_total",
                "Counter of policy levels for audit events (1 per request).",
                &["level"],
            )?,
            rejected: metrics.counter(
                "apiserver_audit_requests_rejected_total",
                "Counter of apiserver requests rejected due to an error in audit logging backend.",
            )?,
        })
    }
}

pub struct Audit {
    policy: Option<Policy>,
    backends: Backends,
    audit_log: Option<Arc<dyn Backend>>,
    counters: Counters,
    clock: Clock,
}

impl Audit {
    /// Returns `None` if nothing is recorded, so that disabled auditing costs nothing.
    pub fn build(
        config: &AuditConfig,
        metrics: &Metrics,
        clock: &Clock,
    ) -> Result<Option<Arc<Self>>, AuditSetupError> {
        let policy = config.policy_file.as_deref().map(Policy::read).transpose()?;
        if policy.is_none() && (config.log.is_some() || config.webhook.is_some()) {
            tracing::warn!("no audit policy file configured: no events are recorded for log and webhook");
        }
        let wanted = policy.is_some() && (config.log.is_some() || config.webhook.is_some());
        if !wanted && config.audit_log.is_none() {
            return Ok(None);
        }
        let counters = Counters::new(metrics)?;
        let mut backends: Backends = Vec::new();
        if wanted {
            if let Some(log) = &config.log {
                backends.push(log.open(clock)?);
            }
            if let Some(webhook) = &config.webhook {
                backends.push(Arc::new(Webhook::new(webhook, &counters.errors)?));
            }
        }
        let audit_log = config.audit_log.as_ref().map(|path| audit_log::open(path, clock)).transpose()?;
        let policy = policy.filter(|_| wanted);
        Ok(Some(Arc::new(Self { policy, backends, audit_log, counters, clock: clock.clone() })))
    }

    /// Starts the background tasks of the backends.
    pub fn start(&self) {
        self.backends.iter().for_each(|backend| backend.start());
    }

    /// Waits until all events are recorded, at most for this long.
    pub async fn flush(&self, limit: Duration) {
        let backends = self.backends.iter().chain(&self.audit_log);
        futures_util::future::join_all(backends.map(|backend| backend.flush(limit))).await;
    }

    /// Evaluates the policy for an authenticated request and records RequestReceived. An error rejects the request.
    pub fn begin(
        &self,
        context: &Context,
        connection: &Connection,
        id: &HeaderValue,
        started: Instant,
    ) -> Result<Option<Box<Record>>, Status> {
        let Some(record) = self.record(context, connection, id, started, true) else { return Ok(None) };
        if record.ruling.wants(Stage::RequestReceived) && !self.emit(&record, Stage::RequestReceived) {
            self.counters.rejected.inc();
            return Err(Status::internal("failed to store audit event"));
        }
        Ok(Some(record))
    }

    fn record(
        &self,
        context: &Context,
        connection: &Connection,
        id: &HeaderValue,
        started: Instant,
        known: bool,
    ) -> Option<Box<Record>> {
        let attributes = Attributes::of(context);
        let user = known.then_some(&*context.user);
        let ruling = self.policy.as_ref().map(|policy| policy.ruling(user, &attributes)).unwrap_or_default();
        if self.policy.is_some() {
            self.counters.levels.with_label_values(&[ruling.level.text()]).inc();
        }
        let audit_log = self.audit_log.is_some() && known && audit_log::wants(context);
        if ruling.level == Level::None && !audit_log {
            return None;
        }
        let ago = jiff::SignedDuration::try_from(started.elapsed()).unwrap_or_default();
        let received = self.clock.now();
        let received = received.checked_sub(ago).unwrap_or(received);
        let record = Record::new(context, id, ruling, audit_log, received, source_ips(context, connection));
        if let Some(cause) = context.headers.get(CAUSE).and_then(|cause| cause.to_str().ok()) {
            record.annotate("ferry.dev/cause", cause.to_owned());
        }
        Some(Box::new(record))
    }

    /// Records a request that failed authentication.
    pub fn not_authenticated(
        &self,
        context: &Context,
        connection: &Connection,
        id: &HeaderValue,
        started: Instant,
        status: &Status,
    ) {
        let Some(record) = self.record(context, connection, id, started, false) else { return };
        let bearer = context.headers.contains_key(http::header::AUTHORIZATION);
        let how = match (bearer, &connection.certificates) {
            (true, _) => "Authentication failed, attempted: bearer",
            (false, Some(_)) => "Authentication failed, attempted: certificate",
            (false, None) => "Authentication failed, no credentials provided",
        };
        let reported = Status { message: how.to_owned(), ..status.clone() };
        record.answered(status.code, Some(&reported));
        if record.ruling.wants(Stage::ResponseStarted) {
            self.emit(&record, Stage::ResponseStarted);
        }
    }

    /// Records ResponseStarted of a long-running request.
    pub fn started(&self, record: &Record) {
        if record.ruling.wants(Stage::ResponseStarted) {
            self.emit(record, Stage::ResponseStarted);
        }
    }

    /// Records the last stage of a request.
    pub fn completed(&self, record: &Record) {
        self.finish(record, Stage::ResponseComplete);
    }

    pub fn panicked(&self, record: &Record, why: &str) {
        let message = format!("APIServer panic'd: {why}");
        record.answered(500, Some(&Status { message, ..Status::internal("") }));
        self.finish(record, Stage::Panic);
    }

    fn finish(&self, record: &Record, stage: Stage) {
        if record.ruling.wants(stage) {
            self.emit(record, stage);
        }
        if let Some(audit_log) = self.audit_log.as_ref().filter(|_| record.audit_log) {
            record.event(stage, Level::Metadata, self.clock.now(), |event| self.send(&**audit_log, event));
        }
    }

    /// Returns true if every strict backend has recorded the event.
    fn emit(&self, record: &Record, stage: Stage) -> bool {
        self.counters.events.inc();
        record.event(stage, record.ruling.level, self.clock.now(), |event| {
            let sent = |backend: &Arc<dyn Backend>| self.send(&**backend, event) || !backend.is_strict();
            // Every backend gets the event, even if another one failed.
            self.backends.iter().filter(|backend| !sent(backend)).count() == 0
        })
    }

    fn send(&self, backend: &dyn Backend, event: &event::Event<'_>) -> bool {
        match backend.process(event) {
            Ok(()) => true,
            Err(error) => {
                self.counters.errors.with_label_values(&[backend.plugin()]).inc();
                tracing::debug!(plugin = backend.plugin(), %error, "failed to record audit event");
                false
            }
        }
    }
}

impl LogConfig {
    fn open(&self, clock: &Clock) -> Result<Arc<dyn Backend>, AuditSetupError> {
        let file = LogFile::open(&self.path, self.rotation)
            .map_err(|source| AuditSetupError::Log { path: self.path.clone(), source })?;
        let max_event_bytes = self.max_event_bytes.unwrap_or(usize::MAX);
        if self.mode == Mode::Batch {
            let log = BufferedLog::start(file, self.format, max_event_bytes, self.buffer, clock.clone());
            return Ok(Arc::new(log.map_err(AuditSetupError::Start)?));
        }
        Ok(Arc::new(BlockingLog {
            file: Mutex::new(file),
            format: self.format,
            max_event_bytes,
            strict: self.mode == Mode::BlockingStrict,
            clock: clock.clone(),
        }))
    }
}

/// Source addresses: forwarding proxies and the client, as far as the headers are trusted.
fn source_ips(context: &Context, connection: &Connection) -> Vec<IpAddr> {
    let header =
        |name: HeaderName| context.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let mut ips: Vec<IpAddr> =
        header(FORWARDED_FOR).split(',').filter_map(|ip| ip.trim().parse().ok()).collect();
    ips.extend(header(REAL_IP).trim().parse::<IpAddr>().ok().filter(|ip| !ips.contains(ip)));
    match connection.peer {
        Peer::Remote(address) => {
            let ip = address.ip().to_canonical();
            if ips.last() != Some(&ip) {
                ips.push(ip);
            }
        }
        Peer::InProcess if ips.is_empty() => ips.push(std::net::Ipv4Addr::LOCALHOST.into()),
        Peer::InProcess => {}
    }
    ips
}
