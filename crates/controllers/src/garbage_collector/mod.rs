//! The garbage collector. Watches the metadata of every object of every kind, custom ones too; deletes objects whose
//! owners are all deleted, and performs foreground and orphaning deletions.
//!
//! Invariant: no object outlives its last owner, unless it is orphaned on request. Its keys are uids. An object is
//! read from the API server before it is deleted: the graph may be stale.

mod graph;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::{
    Client, ClientError, DeleteOptions, Discovery, PartialObject, Patch, Preconditions, Propagation,
    ResourceKey,
};
use objects::meta::v1::{ObjectMeta, OwnerReference};
use parking_lot::Mutex;
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError, Queue};
use serde_json::json;

use self::graph::{FOREGROUND, Graph, Node, ORPHAN, Stage};
use crate::shared::metrics;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "garbage-collector-controller",
    resource: "uids",
    identity: "system:serviceaccount:kube-system:generic-garbage-collector",
    workers: 20,
};

#[derive(Debug, thiserror::Error)]
enum GarbageError {
    #[error("unknown owner kind {kind} in {api_version}")]
    UnknownOwner { api_version: String, kind: String },
    #[error("failed to discover API resources")]
    Discover(#[source] ClientError),
}

/// Size of the cache of absent owners.
const ABSENT: usize = 2000;
/// Delay of rediscovery after a change of the served resources.
const SETTLE: Duration = Duration::from_secs(1);
/// Requeue time until everything has been listed once: nothing is deleted before.
const NOT_YET: Duration = Duration::from_millis(250);
const FIRST_LISTS: Duration = Duration::from_secs(30);

struct GarbageCollector {
    state: Arc<State>,
}

/// State shared by the watches and the reconciliations.
struct State {
    graph: Mutex<Graph>,
    served: Mutex<ServedResource>,
    absent: Mutex<Absent>,
}

#[derive(Default)]
struct ServedResource {
    discovery: Arc<Discovery>,
    watched: HashMap<ResourceKey, Cache<PartialObject>>,
    listed: bool,
}

type Coordinates = (String, String, String, String, String);

#[derive(Default)]
struct Absent {
    known: HashSet<Coordinates>,
    order: VecDeque<Coordinates>,
}

/// Key of the reconciliation that discovers the served resources.
fn discovery_key() -> Key {
    Key::new("", "discovery")
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    ctx.queue.add(discovery_key());
    let state = State { graph: Mutex::default(), served: Mutex::default(), absent: Mutex::default() };
    Box::new(GarbageCollector { state: Arc::new(state) })
}

#[async_trait]
impl Loop for GarbageCollector {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        if *key == discovery_key() {
            let outcome = self.discover(ctx).await;
            // A resource that cannot be listed is tried again.
            if let (Some(metrics), Err(_) | Ok(Action::RequeueAfter(_))) = (metrics::of(ctx), &outcome) {
                metrics.others.garbage_sync_errors.inc();
            }
            return Ok(outcome?);
        }
        let node = {
            let graph = self.state.graph.lock();
            let Some(node) = graph.get(&key.name).cloned() else { return Ok(Action::Done) };
            if node.stage == Stage::Alive && graph.owners_are_fine(&node) {
                return Ok(Action::Done);
            }
            node
        };
        if !self.state.served.lock().listed {
            return Ok(Action::RequeueAfter(NOT_YET));
        }
        match node.stage {
            Stage::Going => {}
            Stage::Orphaning => self.orphan(&key.name, &node, ctx).await?,
            Stage::DeletingDependents => self.delete_dependents(&key.name, &node, ctx).await?,
            Stage::Alive => self.collect(&key.name, &node, ctx).await?,
        }
        Ok(Action::Done)
    }
}

/// Verdict on an object, by the state of its owners.
#[derive(Debug, PartialEq)]
enum Verdict {
    Stays,
    /// It has an owner, and these references are dangling.
    Drop(Vec<String>),
    Delete(Propagation),
}

#[derive(Debug, Default)]
struct Owners {
    solid: usize,
    dangling: Vec<String>,
    /// Uids of owners that wait for the deletion of this object.
    waiting: Vec<String>,
}

fn plan(owners: &Owners, meta: &ObjectMeta, has_dependents: bool) -> Verdict {
    if owners.solid > 0 {
        let useless: Vec<String> = owners.dangling.iter().chain(&owners.waiting).cloned().collect();
        return if useless.is_empty() { Verdict::Stays } else { Verdict::Drop(useless) };
    }
    let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|known| known == finalizer);
    if !owners.waiting.is_empty() && has_dependents {
        return Verdict::Delete(Propagation::Foreground);
    }
    Verdict::Delete(if has(ORPHAN) {
        Propagation::Orphan
    } else if has(FOREGROUND) {
        Propagation::Foreground
    } else {
        Propagation::Background
    })
}

impl GarbageCollector {
    /// Starts watches of newly served resources, and stops those of removed ones.
    async fn discover(&self, ctx: &Context) -> Result<Action, GarbageError> {
        let discovery = ctx.client.discover().await.map_err(GarbageError::Discover)?;
        let wanted: HashMap<ResourceKey, String> = discovery
            .preferred
            .iter()
            .filter(|info| ["list", "watch", "delete"].iter().all(|verb| info.can(verb)))
            .filter(|info| info.key.resource != "events")
            .map(|info| (info.key.clone(), info.kind.clone()))
            .collect();
        let stale: HashSet<&String> = discovery.stale.iter().collect();
        let mut started = Vec::new();
        {
            let mut served = self.state.served.lock();
            let gone: Vec<ResourceKey> = served
                .watched
                .keys()
                .filter(|key| !wanted.contains_key(*key) && !stale.contains(&key.group))
                .cloned()
                .collect();
            for key in gone {
                served.watched.remove(&key);
                ctx.informers.forget_metadata(&key);
                self.state.graph.lock().forget(&key);
            }
            for (key, kind) in wanted {
                if !served.watched.contains_key(&key) {
                    let cache = ctx.informers.metadata_of(&key);
                    served.watched.insert(key.clone(), cache.clone());
                    started.push((key, kind, cache));
                }
            }
            served.discovery = Arc::new(discovery);
        }
        for (key, kind, cache) in &started {
            self.follow(key, kind, cache, &ctx.queue);
        }
        let lists = started.iter().map(|(_, _, cache)| cache.synced());
        let all = tokio::time::timeout(FIRST_LISTS, futures_util::future::join_all(lists)).await;
        self.state.served.lock().listed = true;
        // A resource that could not be listed is retried; none of its objects is deleted meanwhile.
        Ok(if all.is_err() { Action::RequeueAfter(FIRST_LISTS) } else { Action::Done })
    }

    fn follow(&self, resource: &ResourceKey, kind: &str, cache: &Cache<PartialObject>, queue: &Queue<Key>) {
        let serves_more = matches!(resource.resource.as_str(), "customresourcedefinitions" | "apiservices");
        let (state, queue) = (Arc::clone(&self.state), queue.clone());
        let (resource, kind) = (resource.clone(), kind.to_owned());
        cache.on_event(move |change| {
            let meta = &change.object().metadata;
            let look = match change {
                Change::Deleted(_) => {
                    let uid = meta.uid.as_deref().unwrap_or_default();
                    state.graph.lock().remove(uid)
                }
                _ => state.graph.lock().put(&resource, &kind, meta),
            };
            let trigger = runtime::Trigger::other(meta.resource_version.as_deref());
            for uid in look {
                queue.add_for(Key::new("", &uid), trigger);
            }
            if serves_more {
                queue.add_after(discovery_key(), SETTLE);
            }
        });
    }

    /// Deletes an object if its owners are deleted, or are terminating and wait for it.
    async fn collect(&self, uid: &str, node: &Node, ctx: &Context) -> Result<(), LoopError> {
        let objects = ctx.client.dynamic(&node.resource);
        let meta = match objects.get_metadata(&node.namespace, &node.name).await {
            Ok(meta) if meta.uid.as_deref() == Some(uid) => meta,
            Err(error) if !error.is_not_found() => return Err(error.into()),
            // Replaced or deleted: the watch will report it.
            _ => return Ok(()),
        };
        let references = meta.owner_references.clone().unwrap_or_default();
        if references.is_empty() || meta.deletion_timestamp.is_some() {
            return Ok(());
        }
        let Some(owners) = self.classify(&references, node, &ctx.client).await? else { return Ok(()) };
        let dependents = self.state.graph.lock().dependents(uid);
        match plan(&owners, &meta, !dependents.is_empty()) {
            Verdict::Stays => Ok(()),
            Verdict::Drop(useless) => {
                drop_owners(&ctx.client, node, &meta, &useless).await.map_err(Into::into)
            }
            Verdict::Delete(propagation) => {
                if propagation == Propagation::Foreground {
                    self.break_circle(node, &meta, &dependents, ctx).await?;
                }
                let options = DeleteOptions {
                    preconditions: Some(Preconditions { uid: meta.uid.clone(), resource_version: None }),
                    propagation_policy: Some(propagation.name().to_owned()),
                    ..DeleteOptions::default()
                };
                match objects.delete(&node.namespace, &node.name, &options).await {
                    Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Two objects that wait for each other would deadlock: this one stops blocking its owners.
    async fn break_circle(
        &self,
        node: &Node,
        meta: &ObjectMeta,
        dependents: &[String],
        ctx: &Context,
    ) -> Result<(), LoopError> {
        let circle = {
            let graph = self.state.graph.lock();
            dependents
                .iter()
                .any(|uid| graph.get(uid).is_some_and(|node| node.stage == Stage::DeletingDependents))
        };
        if !circle {
            return Ok(());
        }
        let mut references = meta.owner_references.clone().unwrap_or_default();
        for reference in &mut references {
            reference.block_owner_deletion = Some(false);
        }
        set_owners(&ctx.client, node, meta, &references).await?;
        Ok(())
    }

    /// Looks up the owners. `None` for an impossible reference: a cluster-scoped object owned by a namespaced one.
    async fn classify(
        &self,
        references: &[OwnerReference],
        node: &Node,
        client: &Client,
    ) -> Result<Option<Owners>, LoopError> {
        let discovery = Arc::clone(&self.state.served.lock().discovery);
        let mut owners = Owners::default();
        for reference in references {
            let Some(info) = discovery.find(&reference.api_version, &reference.kind) else {
                // The kind may be served shortly.
                let (api_version, kind) = (reference.api_version.clone(), reference.kind.clone());
                return Err(GarbageError::UnknownOwner { api_version, kind }.into());
            };
            if node.namespace.is_empty() && info.key.namespaced {
                return Ok(None);
            }
            let namespace = if info.key.namespaced { node.namespace.as_str() } else { "" };
            let coordinates: Coordinates = (
                reference.api_version.clone(),
                reference.kind.clone(),
                namespace.to_owned(),
                reference.name.clone(),
                reference.uid.clone(),
            );
            if self.state.absent.lock().known.contains(&coordinates) {
                owners.dangling.push(reference.uid.clone());
                continue;
            }
            match client.dynamic(&info.key).get_metadata(namespace, &reference.name).await {
                Ok(owner) if owner.uid.as_deref() == Some(&reference.uid) => {
                    let waits = owner.finalizers.iter().flatten().any(|finalizer| finalizer == FOREGROUND);
                    if owner.deletion_timestamp.is_some() && waits {
                        owners.waiting.push(reference.uid.clone());
                    } else {
                        owners.solid += 1;
                    }
                }
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {
                    self.state.absent.lock().add(coordinates);
                    owners.dangling.push(reference.uid.clone());
                }
            }
        }
        Ok(Some(owners))
    }

    async fn delete_dependents(&self, uid: &str, node: &Node, ctx: &Context) -> Result<(), LoopError> {
        let blocking = self.state.graph.lock().blocking(uid);
        if blocking.is_empty() {
            return remove_finalizer(&ctx.client, uid, node, FOREGROUND).await.map_err(Into::into);
        }
        for dependent in blocking {
            ctx.queue.add(Key::new("", &dependent));
        }
        Ok(())
    }

    async fn orphan(&self, uid: &str, node: &Node, ctx: &Context) -> Result<(), LoopError> {
        let dependents: Vec<(String, Node)> = {
            let graph = self.state.graph.lock();
            let uids = graph.dependents(uid);
            uids.into_iter().filter_map(|uid| graph.get(&uid).cloned().map(|node| (uid, node))).collect()
        };
        let owner = uid.to_owned();
        let releases = dependents.iter().map(|(uid, node)| async {
            let objects = ctx.client.dynamic(&node.resource);
            match objects.get_metadata(&node.namespace, &node.name).await {
                Ok(meta) if meta.uid.as_deref() == Some(uid) => {
                    drop_owners(&ctx.client, node, &meta, std::slice::from_ref(&owner)).await
                }
                Err(error) if !error.is_not_found() => Err(error),
                _ => Ok(()),
            }
        });
        for outcome in futures_util::future::join_all(releases).await {
            outcome?;
        }
        remove_finalizer(&ctx.client, uid, node, ORPHAN).await.map_err(Into::into)
    }
}

async fn drop_owners(
    client: &Client,
    node: &Node,
    meta: &ObjectMeta,
    uids: &[String],
) -> Result<(), ClientError> {
    let all = meta.owner_references.clone().unwrap_or_default();
    let kept: Vec<OwnerReference> = all.iter().filter(|owner| !uids.contains(&owner.uid)).cloned().collect();
    if kept.len() == all.len() {
        return Ok(());
    }
    set_owners(client, node, meta, &kept).await
}

async fn set_owners(
    client: &Client,
    node: &Node,
    meta: &ObjectMeta,
    owners: &[OwnerReference],
) -> Result<(), ClientError> {
    // The resource version prevents overwriting a concurrent change.
    let patch = json!({"metadata": {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "ownerReferences": owners,
    }});
    write(client, node, patch).await
}

async fn remove_finalizer(
    client: &Client,
    uid: &str,
    node: &Node,
    finalizer: &str,
) -> Result<(), ClientError> {
    let meta = match client.dynamic(&node.resource).get_metadata(&node.namespace, &node.name).await {
        Ok(meta) if meta.uid.as_deref() == Some(uid) => meta,
        Err(error) if !error.is_not_found() => return Err(error),
        _ => return Ok(()),
    };
    let all = meta.finalizers.unwrap_or_default();
    let kept: Vec<&String> = all.iter().filter(|known| *known != finalizer).collect();
    if kept.len() == all.len() {
        return Ok(());
    }
    let patch = json!({"metadata": {
        "uid": uid,
        "resourceVersion": meta.resource_version,
        "finalizers": kept,
    }});
    write(client, node, patch).await
}

async fn write(client: &Client, node: &Node, patch: serde_json::Value) -> Result<(), ClientError> {
    let written =
        client.dynamic(&node.resource).patch(&node.namespace, &node.name, None, &Patch::Merge(patch)).await;
    match written {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

impl Absent {
    fn add(&mut self, coordinates: Coordinates) {
        if self.known.insert(coordinates.clone()) {
            self.order.push_back(coordinates);
        }
        if self.order.len() > ABSENT
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::meta;

    #[test]
    fn verdict_by_owner_state() {
        let owners = |solid, dangling: &[&str], waiting: &[&str]| Owners {
            solid,
            dangling: dangling.iter().map(ToString::to_string).collect(),
            waiting: waiting.iter().map(ToString::to_string).collect(),
        };
        let plain = meta("a");
        let with = |finalizer: &str| ObjectMeta { finalizers: Some(vec![finalizer.to_owned()]), ..meta("a") };
        assert_eq!(plan(&owners(1, &[], &[]), &plain, false), Verdict::Stays);
        let useless = Verdict::Drop(vec!["u".to_owned(), "w".to_owned()]);
        assert_eq!(plan(&owners(1, &["u"], &["w"]), &plain, true), useless);
        assert_eq!(plan(&owners(0, &["u"], &[]), &plain, true), Verdict::Delete(Propagation::Background));
        assert_eq!(plan(&owners(0, &[], &["w"]), &plain, false), Verdict::Delete(Propagation::Background));
        assert_eq!(plan(&owners(0, &[], &["w"]), &plain, true), Verdict::Delete(Propagation::Foreground));
        assert_eq!(plan(&owners(0, &["u"], &[]), &with(ORPHAN), false), Verdict::Delete(Propagation::Orphan));
        assert_eq!(
            plan(&owners(0, &["u"], &[]), &with(FOREGROUND), false),
            Verdict::Delete(Propagation::Foreground)
        );
    }

    #[test]
    fn absent_owner_cache_is_bounded() {
        let mut absent = Absent::default();
        let owner = |number: usize| {
            let empty = String::new;
            (empty(), empty(), empty(), empty(), number.to_string())
        };
        (0..ABSENT + 5).for_each(|number| absent.add(owner(number)));
        assert_eq!((absent.known.len(), absent.order.len()), (ABSENT, ABSENT));
        assert!(!absent.known.contains(&owner(0)) && absent.known.contains(&owner(ABSENT)));
    }
}
