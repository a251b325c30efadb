//! The resource quota loop. Watches quotas and what they count; keeps in each quota's status how much of it is used.
//!
//! Admission raises the numbers as objects are made; this loop lowers them as objects go, and corrects what was missed.
//! What admission wrote is no reason to count: an object it has let in may not be there yet, and would be let in twice.
//! Admission charges nothing to a quota whose status does not say its limits yet. Objects of that time, or older, are
//! not counted; if one is seen late, that is a reason. One that was let in then may be stored a little later: a quota is
//! counted again some time after its status was first written.

pub mod usage;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use client::{Object, PartialObject, ResourceKey};
use machinery::quantity::Quantity;
use objects::core::v1::{
    ConfigMap, PersistentVolumeClaim, Pod, ReplicationController, ResourceQuota, ResourceQuotaStatus, Secret,
    Service,
};
use objects::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};
use tokio::time::Instant;

use self::usage::{Amounts, add, read, write};
use crate::pod_facts;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "resourcequota-controller",
    resource: "resourcequotas",
    identity: "system:serviceaccount:kube-system:resourcequota-controller",
    workers: 5,
};

/// Everything is counted anew this often: changes that nobody tells, such as a deletion that is overdue.
const RESYNC: std::time::Duration = std::time::Duration::from_secs(5 * 60);

/// The time after which a write that began before a quota had its status is stored, or will not be.
const SETTLING: std::time::Duration = std::time::Duration::from_secs(5);

/// The revisions at which quotas came to say what they say, and when that was seen, by UID.
#[derive(Clone, Default)]
struct Since(Arc<Mutex<HashMap<String, (u64, Instant)>>>);

fn revision(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Since {
    fn note(&self, change: &Change<ResourceQuota>) {
        let uid = change.object().metadata.uid.clone().unwrap_or_default();
        match change {
            Change::Deleted(_) => {
                self.0.lock().remove(&uid);
            }
            Change::Updated { old, new } if old.spec == new.spec && is_told(old) == is_told(new) => {}
            _ => {
                self.0.lock().insert(uid, (revision(&change.object().metadata), Instant::now()));
            }
        }
    }

    /// Reports whether writes may be under way that began before the quota said what it says.
    fn is_settling(&self, quota: &ResourceQuota) -> bool {
        let since = self.0.lock();
        let known = quota.metadata.uid.as_ref().and_then(|uid| since.get(uid));
        known.is_some_and(|(_, seen)| seen.elapsed() < SETTLING)
    }

    /// Quotas of an object's namespace that may have been counted without it although it was there before.
    fn missed<K: Object>(&self, quotas: &Cache<ResourceQuota>, change: &Change<K>) -> Vec<Key> {
        let meta = change.object().metadata();
        let own = revision(meta);
        let quotas = quotas.list(meta.namespace.as_deref().unwrap_or_default());
        let since = self.0.lock();
        let older = |quota: &&Arc<ResourceQuota>| {
            quota.metadata.uid.as_ref().and_then(|uid| since.get(uid)).is_some_and(|(since, _)| own <= *since)
        };
        quotas.iter().filter(older).map(|quota| Key::of(&**quota)).collect()
    }
}

struct Quotas {
    quotas: Cache<ResourceQuota>,
    since: Since,
    pods: Cache<Pod>,
    services: Cache<Service>,
    claims: Cache<PersistentVolumeClaim>,
    /// Resources that some quota counts as objects, as they come up.
    counted: Mutex<HashMap<ResourceKey, Cache<PartialObject>>>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let since = Since::default();
    let noted = since.clone();
    let quotas = ctx.watch::<ResourceQuota>(move |change| {
        noted.note(change);
        match change {
            Change::Updated { old, new } if old.spec == new.spec && is_told(old) && is_told(new) => {
                Vec::new()
            }
            _ => vec![Key::of(&**change.object())],
        }
    });
    let (all, noted) = (quotas.clone(), since.clone());
    let pods = ctx.watch::<Pod>(move |change| match change {
        Change::Added(_) => noted.missed(&all, change),
        Change::Updated { old, new } if pod_facts::is_finished(old) == pod_facts::is_finished(new) => {
            Vec::new()
        }
        _ => of_namespace(&all, change),
    });
    let (all, noted) = (quotas.clone(), since.clone());
    let services = ctx.watch::<Service>(move |change| match change {
        Change::Added(_) => noted.missed(&all, change),
        Change::Updated { old, new } if old.spec == new.spec => Vec::new(),
        _ => of_namespace(&all, change),
    });
    let (all, noted) = (quotas.clone(), since.clone());
    let claims = ctx.watch::<PersistentVolumeClaim>(move |change| match change {
        Change::Added(_) => noted.missed(&all, change),
        Change::Deleted(_) => of_namespace(&all, change),
        Change::Updated { .. } => Vec::new(),
    });
    Box::new(Quotas { quotas, since, pods, services, claims, counted: Mutex::default() })
}

/// Whether the status says what the specification does.
fn is_told(quota: &ResourceQuota) -> bool {
    let status = quota.status.as_ref();
    status.is_some_and(|status| status.used.is_some())
        && read(status.and_then(|status| status.hard.as_ref()))
            == read(quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()))
}

fn of_namespace<K: Object>(quotas: &Cache<ResourceQuota>, change: &Change<K>) -> Vec<Key> {
    let namespace = change.object().metadata().namespace.as_deref().unwrap_or_default();
    quotas.list(namespace).iter().map(|quota| Key::of(&**quota)).collect()
}

#[async_trait]
impl Loop for Quotas {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(quota) = self.quotas.get_key(key) else { return Ok(Action::Done) };
        let hard = read(quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()));
        let known = quota.status.clone().unwrap_or_default();
        let mut used: Amounts = self.usage(&quota, ctx).await?;
        let before = read(known.used.as_ref());
        used.retain(|name, _| hard.contains_key(name));
        for name in hard.keys() {
            used.entry(name.clone()).or_insert_with(|| before.get(name).copied().unwrap_or(Quantity::new(0)));
        }
        let dirty = known.used.is_none()
            || known.hard.is_none()
            || before != used
            || read(known.hard.as_ref()) != hard;
        if dirty {
            let mut updated = quota.as_ref().clone();
            updated.status = Some(ResourceQuotaStatus {
                hard: updated.spec.as_ref().and_then(|spec| spec.hard.clone()).or(Some(BTreeMap::new())),
                used: Some(write(&used)),
            });
            ctx.client.update_status(&updated).await?;
        }
        Ok(Action::RequeueAfter(if self.since.is_settling(&quota) { SETTLING } else { RESYNC }))
    }
}

impl Quotas {
    /// What is used in the quota's namespace within its scopes, of everything this process can count.
    async fn usage(&self, quota: &ResourceQuota, ctx: &Context) -> Result<Amounts, LoopError> {
        let namespace = quota.metadata.namespace.as_deref().unwrap_or_default();
        let scopes = usage::scopes(quota);
        let hard: Vec<String> =
            quota.spec.iter().flat_map(|spec| spec.hard.iter().flatten()).map(|(n, _)| n.clone()).collect();
        let now = ctx.clock.now();
        let zero = |names: &mut dyn Iterator<Item = &String>| {
            names.map(|name| (name.clone(), Quantity::new(0))).collect::<Amounts>()
        };
        let is_count = |name: &str| name.starts_with("count/") || legacy(name).is_some();
        let mut total = zero(&mut hard.iter().filter(|name| !is_count(name)));
        for pod in self.pods.list(namespace) {
            if scopes.iter().all(|scope| usage::pod_in_scope(scope, &pod)) {
                add(&mut total, usage::of_pod(&pod, now));
            }
        }
        for claim in self.claims.list(namespace) {
            if scopes.iter().all(|scope| usage::claim_in_scope(scope, &claim)) {
                add(&mut total, usage::of_claim(&claim));
            }
        }
        if scopes.is_empty() {
            for service in self.services.list(namespace) {
                add(&mut total, usage::of_service(&service));
            }
            for name in hard.iter().filter(|name| is_count(name)) {
                if total.contains_key(name) {
                    continue;
                }
                if let Some(count) = self.count(name, namespace, ctx).await? {
                    total.insert(name.clone(), Quantity::new(i64::try_from(count).unwrap_or(i64::MAX)));
                }
            }
        }
        Ok(total)
    }

    /// How many objects of a resource there are.
    async fn count(&self, name: &str, namespace: &str, ctx: &Context) -> Result<Option<usize>, LoopError> {
        let resource = match legacy(name) {
            Some(resource) => resource,
            None => {
                let qualified = name.trim_start_matches("count/");
                let known = self.counted.lock().keys().find(|known| known.qualified() == qualified).cloned();
                match known {
                    Some(known) => known,
                    None => {
                        let discovery = ctx.client.discover().await?;
                        let found = discovery.preferred.iter().find(|info| info.key.qualified() == qualified);
                        let Some(found) = found.filter(|info| info.key.namespaced) else { return Ok(None) };
                        found.key.clone()
                    }
                }
            }
        };
        let cache = self.follow(&resource, ctx);
        cache.synced().await;
        Ok(Some(cache.list(namespace).len()))
    }

    fn follow(&self, resource: &ResourceKey, ctx: &Context) -> Cache<PartialObject> {
        let mut counted = self.counted.lock();
        if let Some(cache) = counted.get(resource) {
            return cache.clone();
        }
        let cache = ctx.informers.metadata_of(resource);
        let (quotas, since, queue) = (self.quotas.clone(), self.since.clone(), ctx.queue.clone());
        cache.on_event(move |change| {
            let keys = match change {
                Change::Added(_) => since.missed(&quotas, change),
                Change::Deleted(_) => of_namespace(&quotas, change),
                Change::Updated { .. } => Vec::new(),
            };
            keys.into_iter().for_each(|key| queue.add(key));
        });
        counted.insert(resource.clone(), cache.clone());
        cache
    }
}

/// Resources that are counted under their plain name too.
fn legacy(name: &str) -> Option<ResourceKey> {
    match name {
        "configmaps" => Some(ResourceKey::of::<ConfigMap>()),
        "secrets" => Some(ResourceKey::of::<Secret>()),
        "replicationcontrollers" => Some(ResourceKey::of::<ReplicationController>()),
        "resourcequotas" => Some(ResourceKey::of::<ResourceQuota>()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<K: Object + Default>(name: &str, revision: u64) -> K {
        let mut object = K::default();
        *object.metadata_mut() = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("a".to_owned()),
            uid: Some(name.to_owned()),
            resource_version: Some(revision.to_string()),
            ..ObjectMeta::default()
        };
        object
    }

    #[tokio::test(start_paused = true)]
    async fn objects_let_in_before_the_status_is_written_are_missed() {
        let (since, quotas) = (Since::default(), Cache::<ResourceQuota>::new());
        let new: ResourceQuota = at("q", 5);
        let mut told: ResourceQuota = at("q", 9);
        told.status = Some(ResourceQuotaStatus { hard: Some(BTreeMap::new()), used: Some(BTreeMap::new()) });
        assert!(!is_told(&new) && is_told(&told));
        quotas.apply(new.clone());
        since.note(&Change::Added(Arc::new(new.clone())));
        let missed = |revision: u64| {
            since.missed(&quotas, &Change::Added(Arc::new(at::<Secret>("s", revision)))).len()
        };
        since.note(&Change::Updated { old: Arc::new(new), new: Arc::new(told.clone()) });
        assert_eq!((missed(7), missed(9), missed(10)), (1, 1, 0), "nothing was charged at revision 7");
        assert!(since.is_settling(&told), "one of revision 10 may have been let in before");
        tokio::time::advance(SETTLING).await;
        assert!(!since.is_settling(&told));
        let mut later: ResourceQuota = at("q", 12);
        later.status = told.status.clone();
        since.note(&Change::Updated { old: Arc::new(told), new: Arc::new(later.clone()) });
        assert_eq!(missed(11), 0, "admission has charged it");
        assert!(!since.is_settling(&later));
    }

    #[test]
    fn objects_older_than_their_quota_are_missed_and_others_are_not() {
        let (since, quotas) = (Since::default(), Cache::<ResourceQuota>::new());
        let quota: ResourceQuota = at("q", 5);
        quotas.apply(quota.clone());
        since.note(&Change::Added(Arc::new(quota.clone())));
        let missed = |revision: u64| {
            since.missed(&quotas, &Change::Added(Arc::new(at::<Secret>("s", revision)))).len()
        };
        assert_eq!((missed(4), missed(5), missed(6)), (1, 1, 0));
        // What is written into its status changes nothing; what it asks for does.
        let mut later: ResourceQuota = at("q", 7);
        since.note(&Change::Updated { old: Arc::new(quota.clone()), new: Arc::new(later.clone()) });
        assert_eq!(missed(6), 0);
        later.spec = Some(objects::core::v1::ResourceQuotaSpec::default());
        since.note(&Change::Updated { old: Arc::new(quota.clone()), new: Arc::new(later) });
        assert_eq!((missed(6), missed(8)), (1, 0));
        since.note(&Change::Deleted(Arc::new(quota)));
        assert_eq!(missed(1), 0);
    }
}
