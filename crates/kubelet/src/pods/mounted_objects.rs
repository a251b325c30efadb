//! Config maps and secrets mounted by running pods. Each is watched individually, as the node authorizer requires,
//! while a pod uses it; a change triggers a volume refresh of its pods.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::backoff::Backoff;
use base::tasks::TaskGroup;
use client::{Client, ClientError, Object, WatchEvent, WatchOptions};
use objects::core::v1::{ConfigMap, Secret};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::configure::Sources;
use crate::configure::sources::References;

/// Delays before a watch is restarted.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// Kind of an object that provides volume content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MountedKind {
    ConfigMap,
    Secret,
}

/// Reference to an object that may not exist.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    pub kind: MountedKind,
    pub namespace: String,
    pub name: String,
}

/// Subscription of a pod, with the resource versions of its volumes.
#[derive(Debug)]
pub struct Follower {
    news: Arc<Notify>,
    stale: AtomicBool,
    versions: Mutex<HashMap<Reference, String>>,
}

impl Follower {
    /// `news` is notified on changes.
    #[must_use]
    pub fn new(news: Arc<Notify>) -> Arc<Self> {
        Arc::new(Self { news, stale: AtomicBool::new(false), versions: Mutex::default() })
    }

    /// Returns true if something changed since the last call.
    pub fn take_stale(&self) -> bool {
        self.stale.swap(false, Ordering::AcqRel)
    }

    /// Records the resource versions of the current volume content.
    pub fn note(&self, namespace: &str, sources: &Sources) {
        let mut versions = self.versions.lock();
        versions.clear();
        let mut add = |kind, name: &String, version: &Option<String>| {
            let reference = Reference { kind, namespace: namespace.to_owned(), name: name.clone() };
            versions.insert(reference, version.clone().unwrap_or_default());
        };
        for (name, object) in &sources.config_maps {
            add(MountedKind::ConfigMap, name, &object.metadata.resource_version);
        }
        for (name, object) in &sources.secrets {
            add(MountedKind::Secret, name, &object.metadata.resource_version);
        }
    }

    fn notify_changed(&self, reference: &Reference, version: Option<&str>) {
        if version.is_some() && self.versions.lock().get(reference).map(String::as_str) == version {
            return;
        }
        self.stale.store(true, Ordering::Release);
        self.news.notify_one();
    }
}

struct Entry {
    followers: HashMap<String, Arc<Follower>>,
    /// Aborts the watch on drop.
    _watch: oneshot::Sender<()>,
}

type Entries = Arc<Mutex<HashMap<Reference, Entry>>>;

/// All objects watched for pods of this node.
pub struct MountedObjects {
    client: Client,
    tasks: TaskGroup,
    entries: Entries,
}

impl MountedObjects {
    #[must_use]
    pub fn new(client: Client, tasks: TaskGroup) -> Self {
        Self { client, tasks, entries: Entries::default() }
    }

    /// Replaces the set of objects that the pod follows. Must be called before the objects are read.
    pub fn follow(&self, uid: &str, namespace: &str, wanted: &References, follower: &Arc<Follower>) {
        let of = |kind, names: &BTreeSet<String>| -> Vec<Reference> {
            let make =
                |name: &String| Reference { kind, namespace: namespace.to_owned(), name: name.clone() };
            names.iter().map(make).collect()
        };
        let mut wanted: BTreeSet<Reference> =
            [of(MountedKind::ConfigMap, &wanted.config_maps), of(MountedKind::Secret, &wanted.secrets)]
                .concat()
                .into_iter()
                .collect();
        let mut entries = self.entries.lock();
        entries.retain(|reference, entry| {
            if wanted.remove(reference) {
                entry.followers.insert(uid.to_owned(), Arc::clone(follower));
            } else {
                entry.followers.remove(uid);
            }
            !entry.followers.is_empty()
        });
        for reference in wanted {
            let followers = HashMap::from([(uid.to_owned(), Arc::clone(follower))]);
            let entry = Entry { followers, _watch: self.begin(reference.clone()) };
            entries.insert(reference, entry);
        }
    }

    /// Removes all subscriptions of the pod.
    pub fn forget(&self, uid: &str) {
        self.entries.lock().retain(|_, entry| {
            entry.followers.remove(uid);
            !entry.followers.is_empty()
        });
    }

    fn begin(&self, reference: Reference) -> oneshot::Sender<()> {
        let (keep, dropped) = oneshot::channel();
        let (client, stopping, entries) =
            (self.client.clone(), self.tasks.stopping(), Arc::clone(&self.entries));
        self.tasks.spawn(async move {
            let watching = async {
                match reference.kind {
                    MountedKind::ConfigMap => watch::<ConfigMap>(&client, &reference, &entries).await,
                    MountedKind::Secret => watch::<Secret>(&client, &reference, &entries).await,
                }
            };
            tokio::select! {
                () = watching => {}
                _ = dropped => {}
                () = stopping => {}
            }
        });
        keep
    }
}

fn notify_changed(entries: &Entries, reference: &Reference, version: Option<&str>) {
    if let Some(entry) = entries.lock().get(reference) {
        entry.followers.values().for_each(|follower| follower.notify_changed(reference, version));
    }
}

/// Watches one object until aborted.
async fn watch<K: Object>(client: &Client, reference: &Reference, entries: &Entries) {
    let mut version = String::new();
    let mut retry = RETRY;
    loop {
        match once::<K>(client, reference, entries, &mut version).await {
            Ok(()) => retry.reset(),
            Err(error) => {
                tracing::debug!(%error, ?reference, "failed to watch referenced object, retrying");
                version.clear();
            }
        }
        retry.wait().await;
    }
}

async fn once<K: Object>(
    client: &Client,
    reference: &Reference,
    entries: &Entries,
    version: &mut String,
) -> Result<(), ClientError> {
    let options = WatchOptions {
        field_selector: format!("metadata.name={}", reference.name),
        resource_version: version.clone(),
        bookmarks: true,
        ..WatchOptions::default()
    };
    let mut events = client.watch::<K>(&reference.namespace, &options).await?;
    while let Some(event) = events.next().await? {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                *version = object.metadata().resource_version.clone().unwrap_or_default();
                notify_changed(entries, reference, Some(version));
            }
            WatchEvent::Deleted(object) => {
                *version = object.metadata().resource_version.clone().unwrap_or_default();
                notify_changed(entries, reference, None);
            }
            WatchEvent::Bookmark { resource_version, .. } => *version = resource_version,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_resource_version_is_not_a_change() {
        let follower = Follower::new(Arc::default());
        let reference = |name: &str| Reference {
            kind: MountedKind::ConfigMap,
            namespace: "n".to_owned(),
            name: name.to_owned(),
        };
        let mut sources = Sources::default();
        let mut map = ConfigMap::default();
        map.metadata.resource_version = Some("5".to_owned());
        sources.config_maps.insert("a".to_owned(), map);
        follower.note("n", &sources);
        follower.notify_changed(&reference("a"), Some("5"));
        assert!(!follower.take_stale());
        follower.notify_changed(&reference("a"), Some("6"));
        assert!(follower.take_stale() && !follower.take_stale());
        follower.notify_changed(&reference("b"), Some("5"));
        assert!(follower.take_stale(), "a missing object was created");
        follower.notify_changed(&reference("a"), None);
        assert!(follower.take_stale(), "the object was deleted");
    }
}
