//! The resource quota loop. Watches quotas and the objects they count; writes the usage to each quota's status.
//!
//! Admission raises usage when objects are created; this loop lowers it when objects are deleted, and corrects
//! errors. A status written by admission does not trigger a recount: an admitted object may not be stored yet, and a
//! recount would drop its charge. Admission charges nothing to a quota whose status lacks its limits. Objects of that
//! time, or older, are missing from the usage; observing one late triggers a recount. An object admitted then may be
//! stored a little later: a quota is recounted some time after its status was first written.

pub mod usage;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use client::{Object, PartialObject, ResourceKey};
use jiff::Timestamp;
use machinery::quantity::Quantity;
use objects::core::v1::{
    ConfigMap, ContainerStatus, PersistentVolumeClaim, Pod, ReplicationController, ResourceQuota,
    ResourceQuotaStatus, Secret, Service,
};
use objects::meta::v1::ObjectMeta;
use objects::resource::v1::ResourceClaim;
use parking_lot::Mutex;
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};
use tokio::time::Instant;

use self::usage::{Amounts, add, read, write};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "resourcequota-controller",
    resource: "resourcequotas",
    identity: "system:serviceaccount:kube-system:resourcequota-controller",
    workers: 5,
};

/// Resync interval: recounts for changes without an event, such as an overdue deletion.
const RESYNC: std::time::Duration = std::time::Duration::from_secs(5 * 60);

/// Time after which a write that began before a quota had its status is stored or has failed.
const SETTLING: std::time::Duration = std::time::Duration::from_secs(5);

/// Revisions at which quotas got their current limits, and the time of observation, by UID.
#[derive(Clone, Default)]
struct QuotaRevisions(Arc<Mutex<HashMap<String, (u64, Instant)>>>);

fn revision(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl QuotaRevisions {
    fn note(&self, change: &Change<ResourceQuota>) {
        let uid = change.object().metadata.uid.clone().unwrap_or_default();
        match change {
            Change::Deleted(_) => {
                self.0.lock().remove(&uid);
            }
            Change::Updated { old, new }
                if old.spec == new.spec && has_current_limits(old) == has_current_limits(new) => {}
            _ => {
                self.0.lock().insert(uid, (revision(&change.object().metadata), Instant::now()));
            }
        }
    }

    /// Reports whether writes may be in flight that began before the quota had its current limits.
    fn is_settling(&self, quota: &ResourceQuota) -> bool {
        let since = self.0.lock();
        let known = quota.metadata.uid.as_ref().and_then(|uid| since.get(uid));
        known.is_some_and(|(_, seen)| seen.elapsed() < SETTLING)
    }

    /// Quotas of an object's namespace that may have been counted without it although it existed before.
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
    since: QuotaRevisions,
    pods: Cache<Pod>,
    services: Cache<Service>,
    claims: Cache<PersistentVolumeClaim>,
    resource_claims: Cache<ResourceClaim>,
    /// Resources counted as objects by some quota, watched on demand.
    counted: Mutex<HashMap<ResourceKey, Cache<PartialObject>>>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let since = QuotaRevisions::default();
    let noted = since.clone();
    let quotas = ctx.watch::<ResourceQuota>(move |change| {
        noted.note(change);
        match change {
            Change::Updated { old, new }
                if old.spec == new.spec && has_current_limits(old) && has_current_limits(new) =>
            {
                Vec::new()
            }
            _ => vec![Key::of(&**change.object())],
        }
    });
    let (all, noted) = (quotas.clone(), since.clone());
    let clock = ctx.clock.clone();
    let pods = ctx.watch::<Pod>(move |change| match change {
        Change::Added(_) => noted.missed(&all, change),
        Change::Deleted(_) => of_namespace(&all, change),
        Change::Updated { old, new } => {
            let quotas = of_namespace(&all, change);
            if quotas.is_empty() || !needs_recount(old, new, clock.now()) { Vec::new() } else { quotas }
        }
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
        Change::Updated { old, new }
            if usage::of_claim(old) == usage::of_claim(new) && usage::classes(old) == usage::classes(new) =>
        {
            Vec::new()
        }
        _ => of_namespace(&all, change),
    });
    let (all, noted) = (quotas.clone(), since.clone());
    let resource_claims = ctx.watch::<ResourceClaim>(move |change| match change {
        Change::Added(_) => noted.missed(&all, change),
        Change::Deleted(_) => of_namespace(&all, change),
        Change::Updated { .. } => Vec::new(),
    });
    Box::new(Quotas { quotas, since, pods, services, claims, resource_claims, counted: Mutex::default() })
}

/// Reports whether an update of a pod changed the usage of quotas in a way that admission has not counted.
fn needs_recount(old: &Pod, new: &Pod, now: Timestamp) -> bool {
    fn statuses(pod: &Pod) -> Option<[&Option<Vec<ContainerStatus>>; 2]> {
        let status = pod.status.as_ref()?;
        Some([&status.container_statuses, &status.init_container_statuses])
    }
    usage::is_charged(old, now) != usage::is_charged(new, now)
        || usage::has_deadline(old) != usage::has_deadline(new)
        // A resize is complete.
        || statuses(old) != statuses(new) && usage::of_pod(old, now) != usage::of_pod(new, now)
}

/// True if the limits in the status match the specification.
fn has_current_limits(quota: &ResourceQuota) -> bool {
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
    /// Usage in the quota's namespace within its scopes, of everything this process can count.
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
            for claim in self.resource_claims.list(namespace) {
                add(&mut total, usage::of_resource_claim(&claim));
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

    /// Number of objects of a resource.
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
    async fn objects_admitted_before_status_trigger_recount() {
        let (since, quotas) = (QuotaRevisions::default(), Cache::<ResourceQuota>::new());
        let new: ResourceQuota = at("q", 5);
        let mut synced: ResourceQuota = at("q", 9);
        synced.status =
            Some(ResourceQuotaStatus { hard: Some(BTreeMap::new()), used: Some(BTreeMap::new()) });
        assert!(!has_current_limits(&new) && has_current_limits(&synced));
        quotas.apply(new.clone());
        since.note(&Change::Added(Arc::new(new.clone())));
        let missed = |revision: u64| {
            since.missed(&quotas, &Change::Added(Arc::new(at::<Secret>("s", revision)))).len()
        };
        since.note(&Change::Updated { old: Arc::new(new), new: Arc::new(synced.clone()) });
        assert_eq!((missed(7), missed(9), missed(10)), (1, 1, 0), "nothing was charged at revision 7");
        assert!(since.is_settling(&synced), "an object of revision 10 may have been admitted before");
        tokio::time::advance(SETTLING).await;
        assert!(!since.is_settling(&synced));
        let mut later: ResourceQuota = at("q", 12);
        later.status = synced.status.clone();
        since.note(&Change::Updated { old: Arc::new(synced), new: Arc::new(later.clone()) });
        assert_eq!(missed(11), 0, "admission has charged it");
        assert!(!since.is_settling(&later));
    }

    #[test]
    fn completed_resize_and_end_of_pod_trigger_recount() {
        let now = Timestamp::UNIX_EPOCH;
        let pod = |requested: &str, actual: &str, phase: &str| -> Pod {
            serde_json::from_value(serde_json::json!({
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": requested}}}]},
                "status": {"phase": phase, "containerStatuses": [
                    {"name": "c", "resources": {"requests": {"cpu": actual}}},
                ]},
            }))
            .expect("a pod")
        };
        let (before, shrinking) = (pod("2", "2", "Running"), pod("1", "2", "Running"));
        assert!(!needs_recount(&before, &shrinking, now), "admission has counted the desired resources");
        assert!(needs_recount(&shrinking, &pod("1", "1", "Running"), now));
        assert!(needs_recount(&before, &pod("2", "2", "Failed"), now));
        let mut limited = before.clone();
        limited.spec.get_or_insert_default().active_deadline_seconds = Some(5);
        assert!(needs_recount(&before, &limited, now), "the pod is in another scope");
    }

    #[test]
    fn only_objects_older_than_quota_trigger_recount() {
        let (since, quotas) = (QuotaRevisions::default(), Cache::<ResourceQuota>::new());
        let quota: ResourceQuota = at("q", 5);
        quotas.apply(quota.clone());
        since.note(&Change::Added(Arc::new(quota.clone())));
        let missed = |revision: u64| {
            since.missed(&quotas, &Change::Added(Arc::new(at::<Secret>("s", revision)))).len()
        };
        assert_eq!((missed(4), missed(5), missed(6)), (1, 1, 0));
        // A new status does not move the revision; a new spec does.
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
