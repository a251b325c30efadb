//! The harness: everything that control loops share, so that a loop is only `reconcile` and `plan`.

use std::any::Any;
use std::collections::HashMap;
use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::clock::Clock;
use base::tasks::{TaskGroup, panic_message};
use base::trace::{self, Kind, Parent, Span, Tracer};
use base::version::user_agent_of;
use client::{Client, ClientError, Object};
use futures_util::FutureExt;
use parking_lot::Mutex;
use tracing::Instrument;

use crate::Recorder;
use crate::informer::{Cache, Change, Informers};
use crate::key::{Key, controller_of};
use crate::metrics::LoopMetrics;
use crate::queue::{Queue, Trigger};
use crate::reconciliation::{ReconciledRevisions, Reconciliation};

/// Consecutive failures of a key after which a warning is logged.
const WARN_AFTER_FAILURES: u32 = 6;

/// Name and run parameters of a loop.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// `deployment-controller`: used by `--controllers`, metrics, events and causes.
    pub name: &'static str,
    /// Resource that its keys name: `deployments.apps`.
    pub resource: &'static str,
    /// User name for requests to the API server.
    pub identity: &'static str,
    /// Number of keys reconciled concurrently.
    pub workers: usize,
}

/// Next step for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Waits for the next change.
    Done,
    /// Requeues the key after this time, even without a change.
    RequeueAfter(Duration),
}

/// Reason of a failed reconciliation; the key is retried with growing backoff.
pub type LoopError = Box<dyn Error + Send + Sync>;

/// A control loop, driven by the [`Harness`].
///
/// ```no_run
/// use objects::core::v1::ConfigMap;
/// use runtime::{Action, Cache, Context, Descriptor, Harness, Key, Loop, LoopError, Row};
///
/// struct Settings(Cache<ConfigMap>);
///
/// #[async_trait::async_trait]
/// impl Loop for Settings {
///     async fn reconcile(&self, key: &Key, _ctx: &Context) -> Result<Action, LoopError> {
///         println!("{key:?} exists: {}", self.0.get_key(key).is_some());
///         Ok(Action::Done)
///     }
/// }
///
/// static DESCRIPTOR: Descriptor = Descriptor {
///     name: "settings-controller",
///     resource: "configmaps",
///     identity: "system:serviceaccount:kube-system:settings-controller",
///     workers: 1,
/// };
///
/// # fn start(harness: Harness) -> Result<(), client::ClientError> {
/// harness.start(&Row {
///     descriptor: &DESCRIPTOR,
///     build: |ctx| Box::new(Settings(ctx.watch_self::<ConfigMap>())),
///     by_default: true,
/// })
/// # }
/// ```
#[async_trait]
pub trait Loop: Send + Sync + 'static {
    /// Moves the object that `key` names towards its desired state. Never runs concurrently for one key.
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError>;
}

/// Table row of a loop: its descriptor and constructor.
#[derive(Clone, Copy)]
pub struct Row {
    pub descriptor: &'static Descriptor,
    pub build: fn(&Context) -> Box<dyn Loop>,
    /// False if the loop runs only when `--controllers` names it.
    pub by_default: bool,
}

/// Setting: number of workers by loop name, overriding the loop's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workers(pub HashMap<String, usize>);

/// Provides a client for each identity.
pub trait Identities: Send + Sync {
    fn client(&self, identity: &str, user_agent: &str) -> Result<Client, ClientError>;

    /// False if all clients share the credentials of the component.
    fn has_own_credentials(&self) -> bool {
        true
    }
}

/// Dependencies of a loop. Clones share everything but the cause on the client's writes.
#[derive(Clone)]
pub struct Context {
    /// Client with the loop's identity; during a reconciliation, its writes carry their cause.
    pub client: Client,
    pub informers: Informers,
    pub recorder: Recorder,
    pub clock: Clock,
    pub queue: Queue<Key>,
    /// For tasks beside the reconciliations.
    pub tasks: TaskGroup,
    pub descriptor: &'static Descriptor,
    /// Tracer of reconciliations.
    tracer: Tracer,
    /// Settings of the process, by type: see [`Context::setting`].
    settings: Arc<Vec<Box<dyn Any + Send + Sync>>>,
    waits: Arc<Mutex<Vec<Wait>>>,
    seen: Arc<ReconciledRevisions>,
}

type Wait = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl Context {
    /// Cache of a kind; the loop does not start before it has synced.
    #[must_use]
    pub fn cache<K: Object>(&self) -> Cache<K> {
        let cache = self.informers.of::<K>();
        let mut synced = cache.core().synced();
        // The sender lives as long as the cache.
        self.waits.lock().push(Box::pin(async move { drop(synced.wait_for(|synced| *synced).await) }));
        cache
    }

    /// Enqueues the keys that `keys` returns for every change of a kind.
    pub fn watch<K: Object>(
        &self,
        keys: impl Fn(&Change<K>) -> Vec<Key> + Send + Sync + 'static,
    ) -> Cache<K> {
        let (cache, queue, seen) = (self.cache::<K>(), self.queue.clone(), Arc::clone(&self.seen));
        cache.on_event(move |change| {
            let meta = change.object().metadata();
            let revision = meta.resource_version.as_deref();
            for key in keys(change) {
                let own = seen.is_of::<K>()
                    && meta.name.as_deref() == Some(&*key.name)
                    && meta.namespace.as_deref().unwrap_or_default() == &*key.namespace;
                queue.add_for(key, if own { Trigger::object(revision) } else { Trigger::other(revision) });
            }
        });
        cache
    }

    /// Enqueues every changed object of a kind.
    pub fn watch_self<K: Object>(&self) -> Cache<K> {
        self.seen.set_kind::<K>();
        self.watch::<K>(|change| vec![Key::of(&**change.object())])
    }

    /// Enqueues the controllers of this `kind` of every changed object, former controllers included.
    pub fn watch_owned<K: Object>(&self, kind: &'static str) -> Cache<K> {
        self.watch::<K>(move |change| {
            let mut keys: Vec<Key> = Vec::new();
            for object in change.old().into_iter().chain([change.object()]) {
                let meta = object.metadata();
                if let Some(owner) = controller_of(meta).filter(|owner| owner.kind == kind) {
                    let key = Key::new(meta.namespace.as_deref().unwrap_or_default(), &owner.name);
                    if !keys.contains(&key) {
                        keys.push(key);
                    }
                }
            }
            keys
        })
    }

    /// Setting of the process, if present.
    #[must_use]
    pub fn setting<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.settings.iter().find_map(|setting| setting.downcast_ref())
    }

    fn for_reconciliation(&self, reconciliation: &Arc<Reconciliation>) -> Self {
        Self { client: self.client.with_causes(Arc::clone(reconciliation) as _), ..self.clone() }
    }
}

/// Starts loops and owns what they share.
#[derive(Clone)]
pub struct Harness {
    component: &'static str,
    identities: Arc<dyn Identities>,
    informers: Informers,
    tasks: TaskGroup,
    clock: Clock,
    metrics: Option<LoopMetrics>,
    tracer: Tracer,
    settings: Arc<Vec<Box<dyn Any + Send + Sync>>>,
}

impl Harness {
    /// Harness of a component whose informers use `shared` and whose loops get their clients from `identities`.
    /// Everything runs in `tasks`.
    #[must_use]
    pub fn new(
        component: &'static str,
        shared: Client,
        identities: Arc<dyn Identities>,
        clock: Clock,
        tasks: &TaskGroup,
    ) -> Self {
        Self {
            component,
            identities,
            informers: Informers::new(shared, tasks),
            tasks: tasks.clone(),
            clock,
            metrics: None,
            tracer: Tracer::off(),
            settings: Arc::default(),
        }
    }

    /// Copy with the same settings whose informers, which use `shared`, and loops run in other `tasks`.
    #[must_use]
    pub fn within(&self, shared: Client, tasks: &TaskGroup) -> Self {
        Self { informers: Informers::new(shared, tasks), tasks: tasks.clone(), ..self.clone() }
    }

    /// Copy for loops of another component of this process.
    #[must_use]
    pub fn of_component(&self, component: &'static str) -> Self {
        Self { component, ..self.clone() }
    }

    #[must_use]
    pub fn with_metrics(self, metrics: LoopMetrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Records a span of each reconciliation.
    #[must_use]
    pub fn with_tracer(self, tracer: Tracer) -> Self {
        Self { tracer, ..self }
    }

    #[must_use]
    pub fn metrics(&self) -> Option<&LoopMetrics> {
        self.metrics.as_ref()
    }

    /// Settings that loops look up by type.
    #[must_use]
    pub fn with_settings(self, settings: Vec<Box<dyn Any + Send + Sync>>) -> Self {
        Self { settings: Arc::new(settings), ..self }
    }

    #[must_use]
    pub fn informers(&self) -> &Informers {
        &self.informers
    }

    /// User-Agent of a loop: as in Kubernetes, it ends with the service account if the loop has its own credentials.
    fn user_agent(&self, descriptor: &Descriptor) -> String {
        let account = descriptor.identity.starts_with("system:serviceaccount:");
        let client = match self.identities.has_own_credentials() && account {
            true => descriptor.identity,
            false => descriptor.name,
        };
        user_agent_of(self.component, client)
    }

    /// Context for components that are not a [`Loop`], such as the scheduler.
    pub fn context(&self, descriptor: &'static Descriptor) -> Result<Context, ClientError> {
        let client = self.identities.client(descriptor.identity, &self.user_agent(descriptor))?;
        let recorder = Recorder::new(client.clone(), descriptor.name, self.clock.clone(), &self.tasks);
        Ok(Context {
            client,
            informers: self.informers.clone(),
            recorder,
            clock: self.clock.clone(),
            queue: Queue::new(self.metrics.as_ref().map(|metrics| metrics.queue(descriptor.name))),
            tasks: self.tasks.clone(),
            descriptor,
            tracer: self.tracer.clone(),
            settings: Arc::clone(&self.settings),
            waits: Arc::default(),
            seen: Arc::default(),
        })
    }

    /// Builds a loop and starts its workers once its caches have synced.
    pub fn start(&self, row: &Row) -> Result<(), ClientError> {
        let ctx = self.context(row.descriptor)?;
        let work: Arc<dyn Loop> = (row.build)(&ctx).into();
        let (stopping, queue) = (self.tasks.stopping(), ctx.queue.clone());
        self.tasks.spawn(async move {
            stopping.await;
            queue.stop();
        });
        let tasks = self.tasks.clone();
        self.tasks.spawn(async move {
            let waits = std::mem::take(&mut *ctx.waits.lock());
            if tasks.until_stopped(futures_util::future::join_all(waits)).await.is_none() {
                return;
            }
            tracing::debug!(controller = ctx.descriptor.name, "caches synced");
            let configured = ctx
                .setting::<Workers>()
                .and_then(|configured| configured.0.get(ctx.descriptor.name).copied());
            for _ in 0..configured.unwrap_or(ctx.descriptor.workers).max(1) {
                let (work, ctx) = (Arc::clone(&work), ctx.clone());
                tasks.supervise(ctx.descriptor.name, move || worker(Arc::clone(&work), ctx.clone()));
            }
        });
        Ok(())
    }
}

/// Guard of a key in process. Dropping it without an outcome, as a panic does, retries the key; in either case the
/// key is marked as done.
struct KeyGuard<'a> {
    queue: &'a Queue<Key>,
    key: &'a Key,
    settled: bool,
}

impl Drop for KeyGuard<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.queue.retry(self.key.clone());
        }
        self.queue.done(self.key);
    }
}

async fn worker(work: Arc<dyn Loop>, ctx: Context) {
    while let Some((key, trigger)) = ctx.queue.get().await {
        let processed = AssertUnwindSafe(process(&*work, &ctx, &key, trigger)).catch_unwind().await;
        if let Err(panic) = processed {
            let (controller, panic) = (ctx.descriptor.name, panic_message(&*panic));
            ctx.tasks.supervision().count_panic(controller);
            tracing::error!(controller, %key, panic, "reconcile panicked, retrying");
        }
    }
}

/// Reconciles one key and requeues, retries or forgets it.
async fn process(work: &dyn Loop, ctx: &Context, key: &Key, trigger: Trigger) {
    let mut guard = KeyGuard { queue: &ctx.queue, key, settled: false };
    let reconciliation = Reconciliation::new(ctx.descriptor, key, trigger, &ctx.seen);
    let own = ctx.for_reconciliation(&reconciliation);
    let span = tracing::debug_span!("reconcile", controller = ctx.descriptor.name, %key);
    let mut traced = start_span(ctx, key, &reconciliation).await;
    let running = Arc::clone(&reconciliation).run(work.reconcile(key, &own).instrument(span));
    let outcome = trace::scope(traced.handle(), running).await;
    end_span(&mut traced, ctx, &reconciliation, outcome.as_ref().err().map(|error| &**error as _));
    match outcome {
        Ok(action) => {
            reconciliation.succeeded();
            ctx.queue.forget(key);
            if let Action::RequeueAfter(delay) = action {
                ctx.queue.add_after(key.clone(), delay);
            }
        }
        Err(error) => {
            report(ctx, key, &*error);
            ctx.queue.retry(key.clone());
        }
    }
    guard.settled = true;
}

/// Span of a reconciliation, in the trace of the write that caused it.
async fn start_span(ctx: &Context, key: &Key, reconciliation: &Reconciliation) -> Span {
    let Descriptor { name, resource, .. } = *ctx.descriptor;
    let parent = ctx.tracer.caused_by(reconciliation.cause_revision()).await;
    let mut span = ctx.tracer.start(Kind::Consumer, || parent, || format!("reconcile {name}"));
    span.record(|attributes| {
        attributes.set("ferry.controller", name);
        attributes.set("ferry.object", format!("{resource}/{key}"));
    });
    span
}

/// Sets the cause and the outcome. A cause that was found after the start is linked.
fn end_span(
    span: &mut Span,
    ctx: &Context,
    reconciliation: &Reconciliation,
    error: Option<&(dyn Error + 'static)>,
) {
    let revision = reconciliation.cause_revision();
    if revision > 0 {
        span.record(|attributes| attributes.set("ferry.cause.revision", revision.to_string()));
    }
    let trace = span.context().map(|context| context.trace_id);
    span.link(|| match ctx.tracer.known_cause(revision) {
        Parent::Child(cause) | Parent::Linked(cause) => {
            Some(cause).filter(|cause| Some(cause.trace_id) != trace)
        }
        Parent::Root => None,
    });
    if let Some(error) = error {
        span.fail(|| base::errors::chain(error));
    }
}

fn report(ctx: &Context, key: &Key, error: &(dyn Error + 'static)) {
    let text = base::errors::chain(error);
    let failures = ctx.queue.failures(key);
    let routine = error.downcast_ref::<ClientError>().is_some_and(ClientError::is_conflict);
    if failures >= WARN_AFTER_FAILURES && failures.is_power_of_two() && !routine {
        tracing::warn!(controller = ctx.descriptor.name, %key, failures, error = text, "reconcile keeps failing, retrying");
    } else {
        tracing::debug!(controller = ctx.descriptor.name, %key, failures, error = text, "reconcile failed, retrying");
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("loop", &self.descriptor.name).finish_non_exhaustive()
    }
}

/// Returns the same client for every identity, except for its User-Agent.
impl Identities for Client {
    fn client(&self, _identity: &str, user_agent: &str) -> Result<Client, ClientError> {
        Ok(self.called(user_agent))
    }

    fn has_own_credentials(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use base::pki::{Pki, ServingNames};

    use super::*;

    const TEST: Descriptor = Descriptor { name: "test", resource: "tests", identity: "test", workers: 1 };

    /// Panics twice at a key named `bad`, and requests the longest possible delay.
    struct Panicking(Arc<AtomicU32>);

    #[async_trait]
    impl Loop for Panicking {
        async fn reconcile(&self, key: &Key, _: &Context) -> Result<Action, LoopError> {
            if &*key.name == "bad" && self.0.fetch_add(1, Ordering::SeqCst) < 2 {
                panic!("a number of a user");
            }
            Ok(Action::RequeueAfter(Duration::MAX))
        }
    }

    /// Client of a server that does not exist.
    fn client() -> Client {
        let directory = tempfile::tempdir().expect("a directory");
        let now = Clock::system().now();
        let pki =
            Pki::open(&directory.path().join("pki"), &ServingNames::default(), now).expect("certificates");
        let authority = &pki.server_authority.certificate_pem;
        let text = client::render_kubeconfig("https://127.0.0.1:1", authority, &pki.leaves().admin);
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, text).expect("writes");
        Client::connect(&path, "test").expect("a client")
    }

    #[tokio::test(start_paused = true)]
    async fn worker_after_panic_retries_key_and_continues() {
        let tasks = TaskGroup::new();
        let client = client();
        let harness = Harness::new("tester", client.clone(), Arc::new(client), Clock::system(), &tasks);
        let ctx = harness.context(&TEST).expect("a context");
        let (queue, looks) = (ctx.queue.clone(), Arc::new(AtomicU32::new(0)));
        let work: Arc<dyn Loop> = Arc::new(Panicking(Arc::clone(&looks)));
        tasks.supervise("test", move || worker(Arc::clone(&work), ctx.clone()));
        let (good, bad) = (Key::new("ns", "good"), Key::new("ns", "bad"));
        queue.add(good);
        queue.add(bad.clone());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(looks.load(Ordering::SeqCst), 3);
        assert_eq!((queue.failures(&bad), tasks.supervision().panics("test")), (0, 2));
        // The key is no longer in process: it is reconciled when it is added again.
        queue.add(bad);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(looks.load(Ordering::SeqCst), 4);
        assert_eq!(tasks.supervision().restarts("test"), 0);
        tasks.abort();
    }
}
