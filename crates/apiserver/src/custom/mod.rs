//! Custom resources: watches definitions, serves their resources, and maintains their status.
//!
//! Every server watches the definitions independently, with the same result. Status is written by compare-and-swap,
//! so several servers of one store may write concurrently: the first succeeds, the others observe its result.

mod conditions;
mod conversion;
#[cfg(test)]
mod conversion_tests;
mod definition;
#[cfg(test)]
mod fault_tests;
mod instances;
mod known;
mod openapi;
mod rules;
#[cfg(test)]
mod tests;

use crate::cache::Entry;
use crate::openapi::BuiltIn;
use crate::registry::catalogue::Addition;
use crate::registry::conditions::is_true;
use crate::registry::feed::{self, Feed, FeedUpdate};
use crate::registry::update::{Change, UpdateStrategy};
use crate::registry::{Registry, Served, Storage, WriteContext, WriteRecord, Written, metadata};
use crate::user::UserInfo;
use api::value::Fields;
use base::tasks::TaskGroup;
pub use conversion::ConversionMetrics;
use conversion::ConversionSettings;
use definition::{Maker, ServedDefinition};
use known::{KnownDefinition, SpecDigest};
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const RESOURCE: (&str, &str, &str) = ("apiextensions.k8s.io", "v1", "customresourcedefinitions");
/// Retry interval of a failed step, or of one that waits for objects to be deleted.
const RETRY: Duration = Duration::from_secs(1);
/// Delay from accepted names to `Established` with several API servers. As in Kubernetes.
const ESTABLISHING_DELAY: Duration = Duration::from_secs(5);
/// Prefix of the catalogue additions of definitions.
const ADDITIONS: &str = "definitions/";

/// The custom resources of one server.
pub struct CustomResources {
    registry: Arc<Registry>,
    /// Feed of the definitions.
    storage: Arc<Storage>,
    follower: Mutex<Follower>,
}

struct Follower {
    feed: Feed,
    maker: Maker,
    definitions: BTreeMap<String, KnownDefinition>,
    /// Names of definitions that wait for their names to be accepted.
    waiting: BTreeSet<String>,
    served: BTreeMap<String, Arc<ServedDefinition>>,
    /// Names of definitions that changed since the catalogue was built.
    changed: BTreeSet<String>,
    /// Names of definitions whose status may need a change.
    pending: BTreeSet<String>,
    /// Delay from accepted names to `Established`, so that the other servers have seen the definition.
    establishing_delay: Duration,
    /// Times at which names were accepted, of definitions that are not established yet.
    accepted: BTreeMap<String, Instant>,
    /// Deletions in progress, by definition. They may wait for conversion webhooks, which must not block other
    /// definitions.
    cleanups: BTreeMap<String, JoinHandle<()>>,
}

impl CustomResources {
    /// `servers` is the number of API servers of the cluster.
    pub fn new(registry: &Arc<Registry>, metrics: ConversionMetrics, servers: u32) -> Result<Self> {
        let delay = if servers > 1 { ESTABLISHING_DELAY } else { Duration::ZERO };
        Self::with_settings(registry, ConversionSettings { timeout: conversion::TIMEOUT, metrics }, delay)
    }

    /// As [`Self::new`], with another time limit for conversion webhooks and another delay before `Established`.
    fn with_settings(
        registry: &Arc<Registry>,
        conversion: ConversionSettings,
        establishing_delay: Duration,
    ) -> Result<Self> {
        let (group, version, resource) = RESOURCE;
        let storage = Arc::clone(&registry.builtin(group, version, resource)?.storage);
        let maker = Maker {
            registry: Arc::downgrade(registry),
            store: Arc::clone(&registry.store),
            types: Arc::new(BuiltIn::new(api::schema::schema())),
            decoded: Arc::default(),
            conversion,
        };
        let follower = Follower {
            feed: Feed::new(Arc::clone(&storage)),
            maker,
            definitions: BTreeMap::new(),
            waiting: BTreeSet::new(),
            served: BTreeMap::new(),
            changed: BTreeSet::new(),
            pending: BTreeSet::new(),
            establishing_delay,
            accepted: BTreeMap::new(),
            cleanups: BTreeMap::new(),
        };
        Ok(Self { registry: Arc::clone(registry), storage, follower: Mutex::new(follower) })
    }

    /// Serves the present definitions.
    pub async fn load(&self) -> Result<()> {
        let mut follower = self.follower.lock().await;
        follower.take().await?;
        follower.serve(&self.registry).await;
        Ok(())
    }

    /// Watches definitions until the task group stops.
    pub fn spawn(self: &Arc<Self>, tasks: &TaskGroup) {
        let (this, group) = (Arc::clone(self), tasks.clone());
        tasks.supervise("custom-resources", move || {
            let (this, group) = (Arc::clone(&this), group.clone());
            async move {
                group.until_stopped(this.follow(&group)).await;
            }
        });
    }

    async fn follow(&self, tasks: &TaskGroup) {
        let mut ticks = self.storage.cache.ticks();
        loop {
            ticks.borrow_and_update();
            let round = async { self.follower.lock().await.round(&self.registry, tasks).await };
            let again = round.await.unwrap_or_else(|status| {
                tracing::warn!(
                    error = status.message,
                    "failed to follow custom resource definitions, retrying"
                );
                true
            });
            if again {
                let _ = tokio::time::timeout(RETRY, ticks.changed()).await;
            } else if ticks.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Follower {
    /// Processes changes: serves definitions and advances their status. Reports whether work remains.
    async fn round(&mut self, registry: &Arc<Registry>, tasks: &TaskGroup) -> Result<bool> {
        self.take().await?;
        self.serve(registry).await;
        Ok(self.reconcile(registry, tasks).await)
    }

    async fn take(&mut self) -> Result<()> {
        feed::ready(self.feed.storage()).await?;
        match self.feed.take() {
            FeedUpdate::Snapshot(entries) => {
                let mut previous = std::mem::take(&mut self.definitions);
                self.waiting.clear();
                for entry in &entries {
                    let name = entry.key.rsplit('/').next().unwrap_or_default().to_owned();
                    let known =
                        KnownDefinition::new(entry, previous.remove(&name).as_ref(), &self.maker.decoded);
                    self.insert(name, known);
                }
                self.pending = self.definitions.keys().cloned().collect();
                self.changed = self.definitions.keys().chain(self.served.keys()).cloned().collect();
            }
            FeedUpdate::Changes(changes) => {
                for (entry, is_gone) in changes {
                    self.change(&entry, is_gone);
                }
            }
        }
        Ok(())
    }

    /// Processes one changed definition. Requeues others of its group, which may be waiting for its names.
    fn change(&mut self, entry: &Arc<Entry>, is_gone: bool) {
        let name = entry.key.rsplit('/').next().unwrap_or_default().to_owned();
        let previous = self.definitions.get(&name);
        // The server's own status writes are also reported by the watch.
        if previous.is_some_and(|previous| !is_gone && previous.entry.revision >= entry.revision) {
            return;
        }
        let known = KnownDefinition::new(entry, previous, &self.maker.decoded);
        let group = known.head.field("spec").text("group").to_owned();
        self.changed.insert(name.clone());
        if is_gone {
            self.definitions.remove(&name);
            self.waiting.remove(&name);
            self.accepted.remove(&name);
        } else {
            self.pending.insert(name.clone());
            self.insert(name, known);
        }
        let is_of_group = |name: &&String| {
            self.definitions.get(*name).is_some_and(|other| other.head.field("spec").text("group") == group)
        };
        self.pending.extend(self.waiting.iter().filter(is_of_group).cloned());
    }

    fn insert(&mut self, name: String, known: KnownDefinition) {
        if is_true(&known.head, conditions::NAMES_ACCEPTED) {
            self.waiting.remove(&name);
        } else {
            self.waiting.insert(name.clone());
        }
        self.definitions.insert(name, known);
    }

    /// Adds the changed definitions to the catalogue.
    async fn serve(&mut self, registry: &Arc<Registry>) {
        let mut pending: Vec<RebuiltDefinition> = Vec::new();
        for name in std::mem::take(&mut self.changed) {
            let known = self.definitions.get(&name).filter(|known| definition::is_served(&known.head));
            let previous = self.served.get(&name).cloned();
            let definition = match (known, &previous) {
                (None, None) => continue,
                (None, Some(_)) => None,
                (Some(known), Some(previous)) if previous.is_current(known) => {
                    previous.source.replace(&known.entry);
                    continue;
                }
                (Some(known), _) => Some((Arc::clone(&known.entry), known.spec)),
            };
            pending.push(RebuiltDefinition { name, definition, previous, made: None });
        }
        if pending.is_empty() {
            return;
        }
        let maker = self.maker.clone();
        // Compiling schemas is expensive and must not delay requests.
        let made = tokio::task::spawn_blocking(move || make(&maker, pending)).await;
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                tracing::error!(%error, "compiling custom resource definitions panicked");
                return;
            }
        };
        registry.catalogues.change(|additions| {
            for RebuiltDefinition { name, previous, made, .. } in &made {
                let of = |served: &Arc<ServedDefinition>| served.additions.clone();
                for addition in previous.as_ref().map(of).unwrap_or_default() {
                    additions.remove(&addition_name(name, &addition));
                }
                for addition in made.as_ref().map(of).unwrap_or_default() {
                    additions.insert(addition_name(name, &addition), addition);
                }
            }
        });
        for RebuiltDefinition { name, previous, made, .. } in made {
            // Watches of replaced resources end only now, so that their clients find the replacement.
            if let Some(previous) = previous
                && made.as_ref().is_none_or(|made| !Arc::ptr_eq(&made.storage, &previous.storage))
            {
                previous.storage.cache.end_watches();
            }
            match made {
                Some(made) => self.served.insert(name, made),
                None => self.served.remove(&name),
            };
        }
    }

    /// Advances the status of definitions. Reports whether work remains. A failing definition is retried without
    /// blocking others.
    async fn reconcile(&mut self, registry: &Arc<Registry>, tasks: &TaskGroup) -> bool {
        for name in self.pending.clone() {
            match self.step(registry, tasks, &name).await {
                Ok(true) => {}
                Ok(false) => {
                    self.pending.remove(&name);
                }
                Err(status) => tracing::warn!(
                    definition = name,
                    error = status.message,
                    "failed to reconcile custom resource definition, retrying"
                ),
            }
        }
        !self.pending.is_empty()
    }

    /// One step for one definition. Reports whether another one follows.
    async fn step(&mut self, registry: &Arc<Registry>, tasks: &TaskGroup, name: &str) -> Result<bool> {
        let Some(known) = self.definitions.get(name) else { return Ok(false) };
        if meta::deletion_timestamp(&known.head).is_some() {
            if !instances::is_held(&known.head) {
                return Ok(false);
            }
            let known = known.clone();
            self.clean_up(registry, tasks, known);
            return Ok(true);
        }
        if !self.establishing_delay.is_zero() {
            let waits = is_true(&known.head, conditions::NAMES_ACCEPTED)
                && !is_true(&known.head, conditions::ESTABLISHED);
            if !waits {
                self.accepted.remove(name);
            } else if self.accepted.entry(name.to_owned()).or_insert_with(Instant::now).elapsed()
                < self.establishing_delay
            {
                return Ok(true);
            }
        }
        let all: Vec<&Value> = self.definitions.values().map(|known| &known.head).collect();
        let mut wanted = known.head.clone();
        if !conditions::advance(&mut wanted, known.structure.as_ref(), &all, &metadata::now()) {
            return Ok(false);
        }
        // Apply the write now: other definitions must not accept the same names before the watch reports it.
        if let Some(Written::Stored(entry)) =
            write_status(registry, name, known.with_status_of(&wanted)).await?
        {
            self.change(&entry, false);
        }
        Ok(true)
    }
}

impl Follower {
    /// Starts deleting the objects of a definition, unless in progress.
    fn clean_up(&mut self, registry: &Arc<Registry>, tasks: &TaskGroup, known: KnownDefinition) {
        self.cleanups.retain(|_, cleanup| !cleanup.is_finished());
        let name = meta::name(&known.head).to_owned();
        if self.cleanups.contains_key(&name) {
            return;
        }
        let stored = self.served.get(&name).map(|served| Arc::clone(&served.stored));
        let registry = Arc::clone(registry);
        let cleanup = tasks.spawn_until_stopped(async move {
            if let Err(status) = instances::clean_up(&registry, &known, stored.as_deref()).await {
                tracing::warn!(
                    definition = meta::name(&known.head),
                    error = status.message,
                    "failed to delete the objects of a custom resource definition, retrying"
                );
            }
        });
        self.cleanups.insert(name, cleanup);
    }
}

/// A definition whose served resources are rebuilt.
struct RebuiltDefinition {
    name: String,
    /// `None` if it is no longer served.
    definition: Option<(Arc<Entry>, SpecDigest)>,
    previous: Option<Arc<ServedDefinition>>,
    made: Option<Arc<ServedDefinition>>,
}

/// Builds the served resources of changed definitions.
fn make(maker: &Maker, mut pending: Vec<RebuiltDefinition>) -> Vec<RebuiltDefinition> {
    for RebuiltDefinition { name, definition, previous, made } in &mut pending {
        let Some((entry, spec)) = definition else { continue };
        match maker.make(&maker.decoded.get(entry), *spec, entry, previous.as_deref()) {
            Ok(served) => *made = Some(Arc::new(served)),
            Err(error) => {
                tracing::error!(definition = name, %error, "failed to compile custom resource definition");
            }
        }
    }
    pending
}

/// Name of a catalogue addition of a definition.
fn addition_name(definition: &str, addition: &Addition) -> String {
    format!("{ADDITIONS}{definition}/{}", addition.discovery.version)
}

/// Writes the status and the finalizers of a definition; `None` if it has changed or was deleted meanwhile.
async fn write_status(registry: &Registry, name: &str, wanted: Value) -> Result<Option<Written>> {
    let (group, version, resource) = RESOURCE;
    let served: &Served = registry.builtin(group, version, resource)?;
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let context = WriteContext { subresource: "status", ..WriteContext::server(&user, &record, "") };
    let strategy = UpdateStrategy::status(served.governing());
    let written = registry
        .update(served, name, strategy, false, &context, |_| Ok(Change::Replace(wanted.clone())))
        .await;
    match written {
        Ok(written) => Ok(Some(written)),
        Err(Status { code: 404 | 409, .. }) => Ok(None),
        Err(status) => Err(status),
    }
}
