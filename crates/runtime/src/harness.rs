//! The harness: what every loop has in common, so that a loop is only `reconcile` and `plan`.

use std::any::Any;
use std::collections::HashMap;
use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::clock::Clock;
use base::tasks::{TaskGroup, panic_message};
use client::{Client, ClientError, Object};
use futures_util::FutureExt;
use parking_lot::Mutex;
use tracing::Instrument;

use crate::Recorder;
use crate::informer::{Cache, Change, Informers};
use crate::key::{Key, controller_of};
use crate::metrics::LoopMetrics;
use crate::pass::{Pass, Seen};
use crate::queue::{Queue, Trigger};

/// Failures of a key in a row after which its trouble is worth a warning.
const WORTH_A_WARNING: u32 = 6;

/// What a loop is called and how it runs.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// `deployment-controller`: `--controllers`, metrics, events and causes say it.
    pub name: &'static str,
    /// What its keys name: `deployments.apps`.
    pub resource: &'static str,
    /// The user it is to the API server.
    pub identity: &'static str,
    /// Keys it works on at once.
    pub workers: usize,
}

/// What to do with a key next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing until something changes.
    Done,
    /// Look again after a while, whatever happens.
    RequeueAfter(Duration),
}

/// Why a pass failed; it is tried again, later each time.
pub type LoopError = Box<dyn Error + Send + Sync>;

/// A control loop.
#[async_trait]
pub trait Loop: Send + Sync + 'static {
    /// Brings what `key` names nearer to what it should be. Never runs twice at once for one key.
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError>;
}

/// A loop in a table: how it is called and how it is built.
#[derive(Clone, Copy)]
pub struct Row {
    pub descriptor: &'static Descriptor,
    pub build: fn(&Context) -> Box<dyn Loop>,
    /// Whether it runs unless asked for by name.
    pub by_default: bool,
}

/// Setting: workers of loops, by their names, where they are not as many as the loop's own default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workers(pub HashMap<String, usize>);

/// Gives a client to each identity.
pub trait Identities: Send + Sync {
    fn client(&self, identity: &str, user_agent: &str) -> Result<Client, ClientError>;
}

/// What a loop works with. Clones share everything but the cause on the client's writes.
#[derive(Clone)]
pub struct Context {
    /// The loop's own identity; within a pass, its writes say why they are made.
    pub client: Client,
    pub informers: Informers,
    pub recorder: Recorder,
    pub clock: Clock,
    pub queue: Queue<Key>,
    /// For what must run beside the passes.
    pub tasks: TaskGroup,
    pub descriptor: &'static Descriptor,
    /// Settings of the process, by type: see [`Context::setting`].
    settings: Arc<Vec<Box<dyn Any + Send + Sync>>>,
    waits: Arc<Mutex<Vec<Wait>>>,
    seen: Arc<Seen>,
}

type Wait = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl Context {
    /// The cache of a kind; the loop does not start before it is filled.
    #[must_use]
    pub fn cache<K: Object>(&self) -> Cache<K> {
        let cache = self.informers.of::<K>();
        let mut synced = cache.core().synced();
        // The sender lives as long as the cache.
        self.waits.lock().push(Box::pin(async move { drop(synced.wait_for(|synced| *synced).await) }));
        cache
    }

    /// Puts into the queue what `keys` says for every change of a kind.
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

    /// Puts every object of a kind that changes into the queue.
    pub fn watch_self<K: Object>(&self) -> Cache<K> {
        self.seen.set_kind::<K>();
        self.watch::<K>(|change| vec![Key::of(&**change.object())])
    }

    /// Puts the controllers of this `kind` of every object that changes into the queue, the former ones too.
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

    /// A setting of the process, if it was given.
    #[must_use]
    pub fn setting<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.settings.iter().find_map(|setting| setting.downcast_ref())
    }

    fn for_pass(&self, pass: &Arc<Pass>) -> Self {
        Self { client: self.client.with_causes(Arc::clone(pass) as _), ..self.clone() }
    }
}

/// Runs loops.
#[derive(Clone)]
pub struct Harness {
    identities: Arc<dyn Identities>,
    informers: Informers,
    tasks: TaskGroup,
    clock: Clock,
    metrics: Option<LoopMetrics>,
    settings: Arc<Vec<Box<dyn Any + Send + Sync>>>,
}

impl Harness {
    /// A harness whose informers use `shared`, and whose loops get their clients from `identities`. Everything runs in
    /// `tasks`.
    #[must_use]
    pub fn new(shared: Client, identities: Arc<dyn Identities>, clock: Clock, tasks: &TaskGroup) -> Self {
        Self {
            identities,
            informers: Informers::new(shared, tasks),
            tasks: tasks.clone(),
            clock,
            metrics: None,
            settings: Arc::default(),
        }
    }

    /// A harness with the same settings whose informers, which use `shared`, and loops run in other `tasks`.
    #[must_use]
    pub fn within(&self, shared: Client, tasks: &TaskGroup) -> Self {
        Self { informers: Informers::new(shared, tasks), tasks: tasks.clone(), ..self.clone() }
    }

    #[must_use]
    pub fn with_metrics(self, metrics: LoopMetrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Settings that loops find by their type.
    #[must_use]
    pub fn with_settings(self, settings: Vec<Box<dyn Any + Send + Sync>>) -> Self {
        Self { settings: Arc::new(settings), ..self }
    }

    #[must_use]
    pub fn informers(&self) -> &Informers {
        &self.informers
    }

    /// The context of a loop that is not of the usual shape, such as the scheduler.
    pub fn context(&self, descriptor: &'static Descriptor) -> Result<Context, ClientError> {
        let client = self.identities.client(descriptor.identity, &user_agent(descriptor.name))?;
        let recorder = Recorder::new(client.clone(), descriptor.name, self.clock.clone(), &self.tasks);
        Ok(Context {
            client,
            informers: self.informers.clone(),
            recorder,
            clock: self.clock.clone(),
            queue: Queue::new(self.metrics.as_ref().map(|metrics| metrics.queue(descriptor.name))),
            tasks: self.tasks.clone(),
            descriptor,
            settings: Arc::clone(&self.settings),
            waits: Arc::default(),
            seen: Arc::default(),
        })
    }

    /// Builds a loop and sets its workers to work once its caches are filled.
    pub fn start(&self, row: &Row) -> Result<(), ClientError> {
        let ctx = self.context(row.descriptor)?;
        let work: Arc<dyn Loop> = (row.build)(&ctx).into();
        let (stopping, queue) = (self.tasks.stopping(), ctx.queue.clone());
        self.tasks.spawn(async move {
            stopping.await;
            queue.stop();
        });
        let (tasks, stopping) = (self.tasks.clone(), self.tasks.stopping());
        self.tasks.spawn(async move {
            let waits = std::mem::take(&mut *ctx.waits.lock());
            tokio::select! {
                () = stopping => return,
                _ = futures_util::future::join_all(waits) => {}
            }
            tracing::debug!(controller = ctx.descriptor.name, "caches are filled");
            let asked = ctx.setting::<Workers>().and_then(|asked| asked.0.get(ctx.descriptor.name).copied());
            for _ in 0..asked.unwrap_or(ctx.descriptor.workers).max(1) {
                let (work, ctx) = (Arc::clone(&work), ctx.clone());
                tasks.supervise(ctx.descriptor.name, move || worker(Arc::clone(&work), ctx.clone()));
            }
        });
        Ok(())
    }
}

/// What requests of a component call themselves.
fn user_agent(component: &str) -> String {
    format!("ferry/{} ({component})", env!("CARGO_PKG_VERSION"))
}

/// A key that a worker has taken. Dropping it without an outcome, as a panic does, retries the key; in either case it
/// leaves the keys in process.
struct Taken<'a> {
    queue: &'a Queue<Key>,
    key: &'a Key,
    settled: bool,
}

impl Drop for Taken<'_> {
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
            tracing::error!(controller, %key, panic, "reconcile panicked; the key is retried");
        }
    }
}

/// Reconciles one key and settles what becomes of it.
async fn process(work: &dyn Loop, ctx: &Context, key: &Key, trigger: Trigger) {
    let mut taken = Taken { queue: &ctx.queue, key, settled: false };
    let pass = Pass::new(ctx.descriptor, key, trigger, &ctx.seen);
    let own = ctx.for_pass(&pass);
    let span = tracing::debug_span!("reconcile", controller = ctx.descriptor.name, %key);
    let outcome = Arc::clone(&pass).run(work.reconcile(key, &own).instrument(span)).await;
    match outcome {
        Ok(action) => {
            pass.succeeded();
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
    taken.settled = true;
}

fn report(ctx: &Context, key: &Key, error: &(dyn Error + 'static)) {
    let text = base::errors::chain(error);
    let failures = ctx.queue.failures(key);
    let routine = error.downcast_ref::<ClientError>().is_some_and(ClientError::is_conflict);
    if failures >= WORTH_A_WARNING && failures.is_power_of_two() && !routine {
        tracing::warn!(controller = ctx.descriptor.name, %key, failures, error = text, "still failing");
    } else {
        tracing::debug!(controller = ctx.descriptor.name, %key, failures, error = text, "tried again later");
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("loop", &self.descriptor.name).finish_non_exhaustive()
    }
}

/// A client for whoever asks: all loops share one identity.
impl Identities for Client {
    fn client(&self, _identity: &str, _user_agent: &str) -> Result<Client, ClientError> {
        Ok(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use base::pki::{Pki, ServingNames};

    use super::*;

    const TEST: Descriptor = Descriptor { name: "test", resource: "tests", identity: "test", workers: 1 };

    /// A loop that panics at a key named `bad` twice, and asks for the longest delay there is.
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

    /// A client of a server that does not exist.
    fn client() -> Client {
        let directory = tempfile::tempdir().expect("a directory");
        let now = Clock::system().now();
        let pki =
            Pki::open(&directory.path().join("pki"), &ServingNames::default(), now).expect("certificates");
        let authority = &pki.server_authority.certificate_pem;
        let text = base::kubeconfig::render("https://127.0.0.1:1", authority, &pki.leaves().admin);
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, text).expect("writes");
        Client::connect(&path, "test").expect("a client")
    }

    #[tokio::test(start_paused = true)]
    async fn worker_after_panic_retries_the_key_and_goes_on() {
        let tasks = TaskGroup::new();
        let client = client();
        let harness = Harness::new(client.clone(), Arc::new(client), Clock::system(), &tasks);
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
        // The key is in process no longer: it is looked at when it is asked for.
        queue.add(bad);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(looks.load(Ordering::SeqCst), 4);
        assert_eq!(tasks.supervision().restarts("test"), 0);
        tasks.abort();
    }
}
