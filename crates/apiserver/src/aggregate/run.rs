//! Control loop that watches APIServices and updates the catalogue and their conditions.

use super::availability::{self, Availability};
use super::backend::{Backend, Remote};
use super::custom_groups::CustomGroups;
use super::discovery;
use super::extension::Extension;
use super::metrics::AggregatorMetrics;
use super::remote::{RemoteClient, ServerTls};
use super::resolve::{Address, Routing, resolve};
use super::target::{ServiceReference, Target};
use super::worker::Worker;
use crate::discovery::ApiResource;
use crate::openapi::RemoteSpec;
use crate::registry::catalogue::Addition;
use crate::registry::conditions::{self, Condition};
use crate::registry::feed::{self, Feed, FeedUpdate};
use crate::registry::update::{Change, UpdateStrategy};
use crate::registry::{OrStatus, Registry, WriteContext, WriteRecord, metadata};
use crate::user::UserInfo;
use api::value::Fields;
use base::backoff::Backoff;
use base::tasks::TaskGroup;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use machinery::status::Result;
use machinery::{Value, meta};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

const API_SERVICES: (&str, &str, &str) = ("apiregistration.k8s.io", "v1", "apiservices");
const DEFINITIONS: (&str, &str, &str) = ("apiextensions.k8s.io", "v1", "customresourcedefinitions");
const SERVICES: (&str, &str, &str) = ("", "v1", "services");
const SLICES: (&str, &str, &str) = ("discovery.k8s.io", "v1", "endpointslices");
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Check interval of an available server, and the longest retry interval of an unavailable one.
const RESYNC: Duration = Duration::from_secs(30);
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Delays after consecutive failures to read discovery.
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), RESYNC);

/// Concurrent retries, at random endpoints, after the first attempt fails.
const MORE_ATTEMPTS: usize = 4;

/// Watches APIServices.
pub struct Aggregator {
    registry: Arc<Registry>,
    routing: Routing,
    client: RemoteClient,
    identity: Mutex<FrontProxy>,
    /// Group versions of this process, by the names of their APIServices.
    extensions: Mutex<BTreeMap<String, Arc<dyn Extension>>>,
    /// Wakes the loop when a component is registered.
    registered: Notify,
    metrics: Option<AggregatorMetrics>,
}

/// Identity of the front proxy.
#[derive(Clone, Default)]
struct FrontProxy {
    /// Certificate and key, PEM.
    pem: Option<(Vec<u8>, Vec<u8>)>,
    /// Generation, incremented by each change.
    number: u64,
}

/// State of a worker between two reconciliations.
#[derive(Default)]
struct WorkerState {
    /// TLS with the identity of this generation.
    secured: Option<(u64, std::result::Result<Arc<ServerTls>, String>)>,
    resources: Vec<ApiResource>,
    /// Its part of OpenAPI v2, and the tag of the document.
    spec: Option<(String, Arc<RemoteSpec>)>,
    /// Variable part of the catalogue entry.
    published: Option<PublishedState>,
    failures: u32,
    was_available: bool,
}

/// Availability, staleness, generation of the identity, resources and the tag of OpenAPI v2.
type PublishedState = (bool, bool, u64, Value, String);

impl Aggregator {
    pub fn new(registry: Arc<Registry>, routing: Routing) -> Self {
        let (identity, extensions) = (Mutex::default(), Mutex::default());
        Self {
            registry,
            routing,
            client: RemoteClient::new(),
            identity,
            extensions,
            registered: Notify::new(),
            metrics: None,
        }
    }

    #[must_use]
    pub fn with_metrics(self, metrics: AggregatorMetrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Sets the client certificate that authenticates this server to extension servers, PEM.
    pub fn set_identity(&self, certificate: Vec<u8>, key: Vec<u8>) {
        let mut identity = self.identity.lock();
        *identity = FrontProxy { pem: Some((certificate, key)), number: identity.number + 1 };
    }

    /// Serves a group version by a component of this process, unless an APIService has a service for it.
    pub fn register(&self, extension: Arc<dyn Extension>) {
        let discovery = extension.discovery();
        let name = format!("{}.{}", discovery.version, discovery.group);
        self.extensions.lock().insert(name, extension);
        self.registered.notify_one();
    }

    /// Serves registered components whose group version has no APIService with a service.
    fn publish_extensions(&self, workers: &BTreeMap<String, Worker>, published: &mut BTreeSet<String>) {
        let extensions = self.extensions.lock().clone();
        for (name, extension) in extensions {
            if !workers.contains_key(&name) && published.insert(name.clone()) {
                self.publish(&name, extension.discovery(), Some(Backend::InProcess(extension)), None);
            }
        }
    }

    /// Watches APIServices until the task group stops.
    pub fn spawn(self: &Arc<Self>, tasks: &TaskGroup) {
        let (aggregator, group) = (Arc::clone(self), tasks.clone());
        tasks.supervise_until_stopped("aggregator", move || {
            let (aggregator, group) = (Arc::clone(&aggregator), group.clone());
            async move {
                if let Err(status) = aggregator.follow(&group).await {
                    tracing::error!(error = %status, "failed to follow APIServices");
                }
            }
        });
    }

    async fn follow(self: &Arc<Self>, tasks: &TaskGroup) -> Result<()> {
        let feed = |(group, version, resource)| -> Result<Feed> {
            Ok(Feed::new(Arc::clone(&self.registry.builtin(group, version, resource)?.storage)))
        };
        let (mut api_services, mut definitions) = (feed(API_SERVICES)?, feed(DEFINITIONS)?);
        let (mut services, mut slices) = (feed(SERVICES)?, feed(SLICES)?);
        let mut custom_groups = CustomGroups::default();
        let mut workers: BTreeMap<String, Worker> = BTreeMap::new();
        let mut published: BTreeSet<String> = BTreeSet::new();
        loop {
            for feed in [&api_services, &definitions, &services, &slices] {
                feed::ready(feed.storage()).await?;
            }
            let feed_update = api_services.take();
            custom_groups.take_api_services(&feed_update);
            self.take_api_services(feed_update, &mut workers, tasks);
            custom_groups.take_definitions(&definitions.take());
            self.publish_extensions(&workers, &mut published);
            let extensions = self.extensions.lock().values().map(|extension| extension.discovery()).collect();
            custom_groups.set_extensions(extensions);
            for feed in [&mut services, &mut slices] {
                notify(&mut workers, feed.take());
            }
            if let Err(status) = custom_groups.reconcile(&self.registry).await {
                tracing::warn!(error = %status, "failed to register the group versions of custom resources");
                tokio::time::sleep(FIRST_RETRY).await;
                continue;
            }
            tokio::select! {
                () = api_services.changed() => {}
                () = definitions.changed() => {}
                () = services.changed() => {}
                () = slices.changed() => {}
                () = self.registered.notified() => {}
            }
        }
    }

    fn take_api_services(
        self: &Arc<Self>,
        feed_update: FeedUpdate,
        workers: &mut BTreeMap<String, Worker>,
        tasks: &TaskGroup,
    ) {
        let changes: Vec<(Value, bool)> = match feed_update {
            FeedUpdate::Changes(changes) => {
                changes.into_iter().map(|(entry, gone)| (entry.value(), gone)).collect()
            }
            FeedUpdate::Snapshot(entries) => {
                let present: Vec<Value> = entries.iter().map(|entry| entry.value()).collect();
                let is_present = |name: &String| present.iter().any(|object| meta::name(object) == name);
                let gone: Vec<String> = workers.keys().filter(|name| !is_present(name)).cloned().collect();
                gone.iter().for_each(|name| self.stop_worker(name, workers));
                present.into_iter().map(|object| (object, false)).collect()
            }
        };
        for (object, gone) in changes {
            let name = meta::name(&object).to_owned();
            match Target::new(&object).filter(|_| !gone) {
                None => {
                    self.stop_worker(&name, workers);
                    if !gone {
                        self.mark_local(object, tasks);
                    }
                }
                // The aggregator's own writes of the status change nothing that a worker depends on.
                Some(target) if workers.get(&name).is_some_and(|worker| worker.target == target) => {}
                Some(target) => {
                    workers.insert(name, self.start(target, tasks));
                }
            }
        }
    }

    fn start(self: &Arc<Self>, target: Target, tasks: &TaskGroup) -> Worker {
        let aggregator = Arc::clone(self);
        Worker::start(target, tasks, move |target: &Target, known: &mut WorkerState| {
            let aggregator = Arc::clone(&aggregator);
            Box::pin(async move { aggregator.sync(target, known).await })
        })
    }

    /// Stops the worker of an APIService; a component of this process takes over its group version.
    fn stop_worker(&self, name: &str, workers: &mut BTreeMap<String, Worker>) {
        if let Some(metrics) = &self.metrics {
            metrics.remove(name);
        }
        if workers.remove(name).is_none() {
            return;
        }
        match self.extensions.lock().get(name).cloned() {
            Some(extension) => {
                self.publish(name, extension.discovery(), Some(Backend::InProcess(extension)), None)
            }
            None => {
                self.registry.catalogues.change(|additions| {
                    additions.remove(&key(name));
                });
            }
        }
    }

    /// An APIService without a service is local.
    fn mark_local(self: &Arc<Self>, object: Value, tasks: &TaskGroup) {
        let local = Availability {
            available: true,
            reason: "Local",
            message: "Local APIServices are always available".to_owned(),
        };
        if let Some(metrics) = &self.metrics {
            metrics.set(meta::name(&object), true);
        }
        if has_condition(&object, &local) {
            return;
        }
        let aggregator = Arc::clone(self);
        tasks.spawn(async move { aggregator.write_condition(meta::name(&object), &local).await });
    }

    /// One reconciliation: checks the server, writes the condition, reads discovery. Returns the time until the next
    /// one.
    async fn sync(&self, target: &Target, known: &mut WorkerState) -> Duration {
        let (secured, number) = self.secured(target, known);
        let (availability, address) = self.check(target, &secured).await;
        self.observe(target, &availability, known);
        self.write_condition(&target.name, &availability).await;
        let mut stale = !availability.available;
        if let (true, Some(address), Ok(secured)) = (availability.available, &address, &secured) {
            match self.client.discover(target, address, secured).await {
                Ok(discovered) => known.resources = discovered.resources,
                Err(reason) => {
                    stale = true;
                    tracing::warn!(
                        api_service = target.name,
                        reason,
                        "failed to read the discovery of an APIService"
                    );
                }
            }
        }
        self.publish_target(target, (availability.available, stale), &secured, number, known);
        match (availability.available, &address, &secured) {
            (true, Some(address), Ok(secured)) => {
                // Publish first: fetching the OpenAPI document may be slow.
                known.spec = self.fetch_spec(target, address, secured, known.spec.take()).await;
            }
            _ => known.spec = None,
        }
        self.publish_target(target, (availability.available, stale), &secured, number, known);
        if stale {
            known.failures = known.failures.saturating_add(1);
            RETRY.after(known.failures)
        } else {
            known.failures = 0;
            RESYNC
        }
    }

    /// Records the availability of the target in the metrics.
    fn observe(&self, target: &Target, availability: &Availability, known: &mut WorkerState) {
        let was_available = std::mem::replace(&mut known.was_available, availability.available);
        let Some(metrics) = &self.metrics else { return };
        metrics.set(&target.name, availability.available);
        if was_available && !availability.available {
            metrics.lost(&target.name, availability.reason);
        }
    }

    /// Adds the target to the catalogue, unless its entry is unchanged.
    fn publish_target(
        &self,
        target: &Target,
        (available, stale): (bool, bool),
        secured: &std::result::Result<Arc<ServerTls>, String>,
        number: u64,
        known: &mut WorkerState,
    ) {
        let discovery = discovery::group_version(target, known.resources.clone(), stale);
        let (tag, spec) = known.spec.clone().unzip();
        let state = (available, stale, number, discovery.resource_list(), tag.unwrap_or_default());
        if known.published.as_ref() == Some(&state) {
            return;
        }
        let (target, routing, secured) = (target.clone(), self.routing, secured.clone());
        let name = target.name.clone();
        let remote = Remote { target, routing, available, secured };
        self.publish(&name, discovery, Some(Backend::Remote(Arc::new(remote))), spec);
        known.published = Some(state);
    }

    /// Reads the target's OpenAPI v2 document, unless it is the known one. `None` if the server has none: as in
    /// Kubernetes, the merged document then omits it.
    async fn fetch_spec(
        &self,
        target: &Target,
        address: &Address,
        secured: &ServerTls,
        known: Option<(String, Arc<RemoteSpec>)>,
    ) -> Option<(String, Arc<RemoteSpec>)> {
        let tag = known.as_ref().map(|(tag, _)| tag.as_str());
        let fetched = match self.client.fetch_spec(address, secured, tag).await {
            Ok(Some(fetched)) => fetched,
            Ok(None) => return known,
            Err(reason) => {
                let api_service = &*target.name;
                tracing::debug!(api_service, reason, "failed to read OpenAPI v2 of an APIService");
                return None;
            }
        };
        let own = target.clone();
        let filtered = tokio::task::spawn_blocking(move || {
            RemoteSpec::new(&fetched.json, (&own.group, &own.version), own.group_priority)
                .map(|spec| (fetched.tag, Arc::new(spec)))
        });
        match filtered.await {
            Ok(Ok(spec)) => Some(spec),
            Ok(Err(error)) => {
                tracing::warn!(api_service = target.name, %error, "failed to decode OpenAPI v2 of an APIService");
                None
            }
            Err(error) => {
                tracing::error!(api_service = target.name, %error, "failed to filter OpenAPI v2 of an APIService");
                None
            }
        }
    }

    /// TLS configuration for the target, with the current identity and its generation.
    fn secured(
        &self,
        target: &Target,
        known: &mut WorkerState,
    ) -> (std::result::Result<Arc<ServerTls>, String>, u64) {
        let FrontProxy { pem, number } = self.identity.lock().clone();
        if let Some((made_for, secured)) = &known.secured
            && *made_for == number
        {
            return (secured.clone(), number);
        }
        let secured = ServerTls::new(target, pem.as_ref()).map(Arc::new);
        known.secured = Some((number, secured.clone()));
        (secured, number)
    }

    async fn check(
        &self,
        target: &Target,
        secured: &std::result::Result<Arc<ServerTls>, String>,
    ) -> (Availability, Option<Address>) {
        let failed = |reason: String| (Availability::unavailable("FailedDiscoveryCheck", reason), None);
        let (service, slices) = match service_and_slices(&self.registry, &target.service).await {
            Ok(found) => found,
            Err(status) => {
                let (name, namespace) = (&target.service.name, &target.service.namespace);
                let message = format!("service/{name} in {namespace:?} cannot be checked due to: {status}");
                return (Availability::unavailable("ServiceAccessError", message), None);
            }
        };
        if let Some(unavailable) = availability::unavailable(target, service.as_ref(), &slices) {
            return (unavailable, None);
        }
        let secured = match secured {
            Ok(secured) => secured,
            Err(reason) => return failed(reason.clone()),
        };
        let service = service.unwrap_or_default();
        let attempt = || async {
            let address = resolve(&target.service, &service, &slices, self.routing)?;
            self.client.check(target, &address, secured).await.map(|()| address)
        };
        let mut reason = match attempt().await {
            Ok(address) => return (Availability::passed(), Some(address)),
            Err(reason) => reason,
        };
        let mut attempts: FuturesUnordered<_> = (0..MORE_ATTEMPTS).map(|_| attempt()).collect();
        while let Some(outcome) = attempts.next().await {
            match outcome {
                Ok(address) => return (Availability::passed(), Some(address)),
                Err(again) => reason = again,
            }
        }
        failed(reason)
    }

    fn publish(
        &self,
        name: &str,
        discovery: crate::discovery::GroupVersion,
        backend: Option<Backend>,
        v2: Option<Arc<RemoteSpec>>,
    ) {
        let discovery = Arc::new(discovery);
        let addition = Addition { served: Vec::new(), discovery, types: None, backend, v2 };
        self.registry.catalogues.change(|additions| {
            additions.insert(key(name), addition);
        });
    }

    /// Writes the `Available` condition if it differs from that of the APIService.
    async fn write_condition(&self, name: &str, availability: &Availability) {
        if let Err(status) = self.try_write_condition(name, availability).await
            && status.code != 404
        {
            tracing::warn!(api_service = name, error = %status, "failed to write the condition of an APIService");
        }
    }

    async fn try_write_condition(&self, name: &str, availability: &Availability) -> Result<()> {
        let served = self.registry.builtin(API_SERVICES.0, API_SERVICES.1, API_SERVICES.2)?;
        if let Some(present) = self.registry.find(API_SERVICES, "", name).await?
            && has_condition(&present, availability)
        {
            return Ok(());
        }
        tracing::info!(
            api_service = name,
            available = availability.available,
            reason = availability.reason,
            message = availability.message,
            "availability of an APIService changed"
        );
        let (user, record) = (UserInfo::server(), WriteRecord::default());
        let context = WriteContext::server(&user, &record, "");
        let written = self.registry.update(
            served,
            name,
            UpdateStrategy::status(served.governing()),
            true,
            &context,
            |old| {
                let mut new = old.clone();
                conditions::set(&mut new, &condition(availability), &metadata::now());
                Ok(Change::Replace(new))
            },
        );
        written.await.map(drop)
    }
}

/// Name of an entry in the catalogue's additions.
fn key(name: &str) -> String {
    format!("apiservices/{name}")
}

/// Wakes the workers whose services changed.
fn notify(workers: &mut BTreeMap<String, Worker>, feed_update: FeedUpdate) {
    let changed: Vec<Value> = match feed_update {
        FeedUpdate::Snapshot(_) => {
            workers.values().for_each(|worker| worker.wake());
            return;
        }
        FeedUpdate::Changes(changes) if workers.is_empty() || changes.is_empty() => return,
        FeedUpdate::Changes(changes) => changes.iter().map(|(entry, _)| entry.value()).collect(),
    };
    for worker in workers.values() {
        let service = &worker.target.service;
        let concerns = |object: &Value| {
            let labelled = object.field("metadata").field("labels").text(SERVICE_NAME);
            let name = if labelled.is_empty() { meta::name(object) } else { labelled };
            meta::namespace(object) == service.namespace && name == service.name
        };
        if changed.iter().any(concerns) {
            worker.wake();
        }
    }
}

/// The service and its endpoint slices from the caches.
pub(crate) async fn service_and_slices(
    registry: &Registry,
    reference: &ServiceReference,
) -> Result<(Option<Value>, Vec<Value>)> {
    let service = registry.find(SERVICES, &reference.namespace, &reference.name).await?;
    let served = registry.builtin(SLICES.0, SLICES.1, SLICES.2)?;
    let (cache, scope) = (&served.storage.cache, served.scope_key(&reference.namespace));
    let now = cache.fresh(&scope).await.or_status()?;
    let view = cache.list(&scope, None, 0, now, |_| true);
    let slices = view.entries.iter().map(|entry| entry.value());
    let own = |slice: &Value| slice.field("metadata").field("labels").text(SERVICE_NAME) == reference.name;
    Ok((service, slices.filter(own).collect()))
}

/// The `Available` condition of an APIService.
fn condition(availability: &Availability) -> Condition {
    let status = match availability.reason {
        "ServiceAccessError" => "Unknown",
        _ if availability.available => "True",
        _ => "False",
    };
    Condition::new("Available", status, availability.reason, availability.message.clone())
}

fn has_condition(api_service: &Value, availability: &Availability) -> bool {
    let wanted = condition(availability);
    conditions::find(api_service, wanted.kind).is_some_and(|known| {
        known.text("status") == wanted.status
            && known.text("reason") == wanted.reason
            && known.text("message") == wanted.message
    })
}
