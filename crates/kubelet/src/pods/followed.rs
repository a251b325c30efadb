//! Config maps and secrets that running pods have mounted. Each is watched alone, as a node is allowed to, for as long
//! as a pod uses it; a change makes the pods that use it look at their volumes within moments.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::tasks::TaskGroup;
use client::{Client, ClientError, Object, WatchEvent, WatchOptions};
use objects::core::v1::{ConfigMap, Secret};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::configure::Sources;
use crate::configure::sources::References;

/// How long to wait before a broken watch is begun again, doubling.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_LIMIT: Duration = Duration::from_secs(30);

/// A kind of object that volumes are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    ConfigMap,
    Secret,
}

/// An object, whether or not it exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

/// A pod that wants to know, and which versions its volumes have.
#[derive(Debug)]
pub struct Follower {
    news: Arc<Notify>,
    stale: AtomicBool,
    versions: Mutex<HashMap<Reference, String>>,
}

impl Follower {
    /// `news` is told when something changed.
    #[must_use]
    pub fn new(news: Arc<Notify>) -> Arc<Self> {
        Arc::new(Self { news, stale: AtomicBool::new(false), versions: Mutex::default() })
    }

    /// Whether something changed since this was asked last.
    pub fn take_stale(&self) -> bool {
        self.stale.swap(false, Ordering::AcqRel)
    }

    /// Notes what the volumes are made of now.
    pub fn note(&self, namespace: &str, sources: &Sources) {
        let mut versions = self.versions.lock();
        versions.clear();
        let mut add = |kind, name: &String, version: &Option<String>| {
            let reference = Reference { kind, namespace: namespace.to_owned(), name: name.clone() };
            versions.insert(reference, version.clone().unwrap_or_default());
        };
        for (name, object) in &sources.config_maps {
            add(Kind::ConfigMap, name, &object.metadata.resource_version);
        }
        for (name, object) in &sources.secrets {
            add(Kind::Secret, name, &object.metadata.resource_version);
        }
    }

    fn tell(&self, reference: &Reference, version: Option<&str>) {
        if version.is_some() && self.versions.lock().get(reference).map(String::as_str) == version {
            return;
        }
        self.stale.store(true, Ordering::Release);
        self.news.notify_one();
    }
}

struct Entry {
    followers: HashMap<String, Arc<Follower>>,
    /// The watch ends when this is dropped.
    _watch: oneshot::Sender<()>,
}

type Entries = Arc<Mutex<HashMap<Reference, Entry>>>;

/// All objects that are watched for pods of this node.
pub struct Followed {
    client: Client,
    tasks: TaskGroup,
    entries: Entries,
}

impl Followed {
    #[must_use]
    pub fn new(client: Client, tasks: TaskGroup) -> Self {
        Self { client, tasks, entries: Entries::default() }
    }

    /// From now on the pod follows these objects and no others. Call it before the objects are read.
    pub fn follow(&self, uid: &str, namespace: &str, wanted: &References, follower: &Arc<Follower>) {
        let of = |kind, names: &BTreeSet<String>| -> Vec<Reference> {
            let make =
                |name: &String| Reference { kind, namespace: namespace.to_owned(), name: name.clone() };
            names.iter().map(make).collect()
        };
        let mut wanted: BTreeSet<Reference> =
            [of(Kind::ConfigMap, &wanted.config_maps), of(Kind::Secret, &wanted.secrets)]
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

    /// The pod follows nothing any more.
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
                    Kind::ConfigMap => watch::<ConfigMap>(&client, &reference, &entries).await,
                    Kind::Secret => watch::<Secret>(&client, &reference, &entries).await,
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

fn tell(entries: &Entries, reference: &Reference, version: Option<&str>) {
    if let Some(entry) = entries.lock().get(reference) {
        entry.followers.values().for_each(|follower| follower.tell(reference, version));
    }
}

/// Watches one object for as long as it is let.
async fn watch<K: Object>(client: &Client, reference: &Reference, entries: &Entries) {
    let mut version = String::new();
    let mut wait = AGAIN;
    loop {
        match once::<K>(client, reference, entries, &mut version).await {
            Ok(()) => wait = AGAIN,
            Err(error) => {
                tracing::debug!(%error, ?reference, "an object of a pod cannot be watched now");
                version.clear();
                wait = (wait * 2).min(AGAIN_LIMIT);
            }
        }
        tokio::time::sleep(wait).await;
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
                tell(entries, reference, Some(version));
            }
            WatchEvent::Deleted(object) => {
                *version = object.metadata().resource_version.clone().unwrap_or_default();
                tell(entries, reference, None);
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
    fn a_version_that_is_there_already_is_no_news() {
        let follower = Follower::new(Arc::default());
        let reference = |name: &str| Reference {
            kind: Kind::ConfigMap,
            namespace: "n".to_owned(),
            name: name.to_owned(),
        };
        let mut sources = Sources::default();
        let mut map = ConfigMap::default();
        map.metadata.resource_version = Some("5".to_owned());
        sources.config_maps.insert("a".to_owned(), map);
        follower.note("n", &sources);
        follower.tell(&reference("a"), Some("5"));
        assert!(!follower.take_stale());
        follower.tell(&reference("a"), Some("6"));
        assert!(follower.take_stale() && !follower.take_stale());
        follower.tell(&reference("b"), Some("5"));
        assert!(follower.take_stale(), "an object that was missing has come");
        follower.tell(&reference("a"), None);
        assert!(follower.take_stale(), "it is gone");
    }
}
