//! Cached state of devices: claims, classes and slices as the API server has them, and allocations of this scheduler
//! that the API server does not have yet.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use objects::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};

use super::slices::Slices;
use super::usage::Usage;
use crate::state::Table;

/// Annotation of the claim for the extended resources of a pod.
pub const EXTENDED_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";
/// Prefix of the extended resource that every class has.
pub const CLASS_RESOURCE_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// Allocation that the cached claim does not show yet.
#[derive(Debug)]
struct InFlight {
    claim: Arc<ResourceClaim>,
    /// Version of the claim after the last write.
    written: Option<u64>,
}

#[derive(Debug, Default)]
pub struct Inventory {
    pub claims: Table<ResourceClaim>,
    pub classes: Table<DeviceClass>,
    pub slices: Slices,
    pub usage: Usage,
    /// By UID of the claim.
    in_flight: HashMap<String, InFlight>,
    /// Classes by extended resource: the newest first, then by name.
    by_resource: HashMap<String, BTreeSet<(Reverse<Timestamp>, String)>>,
    /// Claims for extended resources: namespace, UID of the pod, name.
    extended_claims: BTreeSet<(String, String, String)>,
}

impl Inventory {
    /// Adds or updates a claim.
    pub fn set_claim(&mut self, claim: &Arc<ResourceClaim>) {
        self.forget_claim(claim);
        self.extended_claims.extend(extended_entry(claim));
        let uid = uid(claim);
        let is_current = |in_flight: &InFlight| {
            let is_written = in_flight.written.is_some_and(|written| version(claim) >= Some(written));
            is_allocated(claim) || is_written
        };
        if self.in_flight.get(uid).is_some_and(is_current) {
            self.release(uid);
        }
        self.usage.add(claim);
        self.claims.set(Arc::clone(claim));
    }

    pub fn remove_claim(&mut self, claim: &ResourceClaim) {
        self.forget_claim(claim);
        self.release(uid(claim));
        self.claims.remove(claim);
    }

    /// Removes the effects of the cached version.
    fn forget_claim(&mut self, claim: &ResourceClaim) {
        let metadata = &claim.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let Some(known) = self.claims.get(namespace, metadata.name.as_deref().unwrap_or_default()) else {
            return;
        };
        self.usage.remove(known);
        if let Some(entry) = extended_entry(known) {
            self.extended_claims.remove(&entry);
        }
        // A claim of the same name that was created again.
        let former = uid(known).to_owned();
        if former != uid(claim) {
            self.release(&former);
        }
    }

    pub fn set_class(&mut self, class: &Arc<DeviceClass>) {
        self.forget_class(class);
        if let Some(resource) = &class.spec.extended_resource_name {
            self.by_resource.entry(resource.clone()).or_default().insert(rank(class));
        }
        self.classes.set(Arc::clone(class));
    }

    pub fn remove_class(&mut self, class: &DeviceClass) {
        self.forget_class(class);
        self.classes.remove(class);
    }

    fn forget_class(&mut self, class: &DeviceClass) {
        let Some(known) = self.classes.get("", class.metadata.name.as_deref().unwrap_or_default()) else {
            return;
        };
        let Some(resource) = &known.spec.extended_resource_name else { return };
        if let Some(classes) = self.by_resource.get_mut(resource) {
            classes.remove(&rank(known));
            if classes.is_empty() {
                self.by_resource.remove(resource);
            }
        }
    }

    pub fn set_slice(&mut self, old: Option<&ResourceSlice>, slice: &Arc<ResourceSlice>) {
        self.slices.set(old, slice);
    }

    /// Class whose devices back an extended resource.
    #[must_use]
    pub fn class_of_resource(&self, resource: &str) -> Option<&Arc<DeviceClass>> {
        if let Some(name) = resource.strip_prefix(CLASS_RESOURCE_PREFIX) {
            return self.classes.get("", name);
        }
        let (_, name) = self.by_resource.get(resource)?.first()?;
        self.classes.get("", name)
    }

    /// Claim for the extended resources of a pod.
    #[must_use]
    pub fn extended_claim(&self, namespace: &str, pod_uid: &str) -> Option<&Arc<ResourceClaim>> {
        let first = (namespace.to_owned(), pod_uid.to_owned(), String::new());
        let (of, uid, name) = self.extended_claims.range(first..).next()?;
        if of == namespace && uid == pod_uid { self.claims.get(of, name) } else { None }
    }

    /// Reports whether a claim is being allocated.
    #[must_use]
    pub fn is_in_flight(&self, claim: &ResourceClaim) -> bool {
        self.in_flight.contains_key(uid(claim))
    }

    /// Counts the allocation of a claim until the cached claim shows it, or it is released.
    pub fn assume(&mut self, allocated: Arc<ResourceClaim>) {
        self.release(uid(&allocated));
        self.usage.add(&allocated);
        let uid = uid(&allocated).to_owned();
        self.in_flight.insert(uid, InFlight { claim: allocated, written: None });
    }

    /// Notes that an assumed claim was written, after which only the cached claim can end the assumption. `former` is
    /// the UID under which it was assumed.
    pub fn written(&mut self, former: &str, claim: &Arc<ResourceClaim>) {
        let Some(mut in_flight) = self.in_flight.remove(former) else { return };
        in_flight.written = is_allocated(claim).then(|| version(claim)).flatten();
        let metadata = &claim.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let cached = self.claims.get(namespace, metadata.name.as_deref().unwrap_or_default());
        let is_confirmed =
            cached.is_some_and(|cached| uid(cached) == uid(claim) && version(cached) >= version(claim));
        let is_gone = former == uid(claim) && cached.is_none_or(|cached| uid(cached) != uid(claim));
        if is_gone || is_confirmed && is_allocated(claim) {
            self.usage.remove(&in_flight.claim);
        } else {
            self.in_flight.insert(uid(claim).to_owned(), in_flight);
        }
    }

    /// Ends the assumption of an allocation that was not written; reports whether there was one.
    pub fn unreserve(&mut self, uid: &str) -> bool {
        let is_pending = self.in_flight.get(uid).is_some_and(|in_flight| in_flight.written.is_none());
        if is_pending {
            self.release(uid);
        }
        is_pending
    }

    fn release(&mut self, uid: &str) {
        if let Some(in_flight) = self.in_flight.remove(uid) {
            self.usage.remove(&in_flight.claim);
        }
    }
}

fn uid(claim: &ResourceClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or_default()
}

fn version(claim: &ResourceClaim) -> Option<u64> {
    claim.metadata.resource_version.as_deref()?.parse().ok()
}

fn is_allocated(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.allocation.is_some())
}

/// Namespace, UID of the pod, and name of a claim for extended resources.
fn extended_entry(claim: &ResourceClaim) -> Option<(String, String, String)> {
    let metadata = &claim.metadata;
    let annotations = metadata.annotations.as_ref()?;
    if annotations.get(EXTENDED_CLAIM).is_none_or(|value| value != "true") {
        return None;
    }
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    let namespace = metadata.namespace.clone().unwrap_or_default();
    Some((namespace, owner.uid.clone(), metadata.name.clone().unwrap_or_default()))
}

fn rank(class: &DeviceClass) -> (Reverse<Timestamp>, String) {
    let created = class.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0);
    (Reverse(created), class.metadata.name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::PoolId;
    use super::super::fixture::{claim_named, class_named};
    use super::*;
    use serde_json::{Value, json};

    fn in_use(inventory: &Inventory) -> bool {
        inventory.usage.pool(&PoolId::new("d", "p")).is_some()
    }

    fn claim(version: &str, uid: &str, is_allocated: bool) -> Arc<ResourceClaim> {
        let results = json!([{"request": "r", "driver": "d", "pool": "p", "device": "x"}]);
        let status = json!({"allocation": {"devices": {"results": results}}});
        let status = if is_allocated { status } else { Value::Null };
        let metadata = json!({"namespace": "default", "name": "c", "uid": uid, "resourceVersion": version});
        Arc::new(claim_named(json!({"metadata": metadata, "status": status})))
    }

    #[test]
    fn assumed_allocation_counts_until_cache_shows_it() {
        let mut inventory = Inventory::default();
        inventory.set_claim(&claim("1", "u", false));
        inventory.assume(claim("1", "u", true));
        assert!(in_use(&inventory) && inventory.is_in_flight(&claim("1", "u", false)));
        // The finalizer is written first; its event does not show the allocation yet.
        inventory.set_claim(&claim("2", "u", false));
        assert!(in_use(&inventory));
        inventory.written("u", &claim("3", "u", true));
        assert!(in_use(&inventory) && !inventory.unreserve("u"));
        inventory.set_claim(&claim("3", "u", true));
        assert!(in_use(&inventory) && !inventory.is_in_flight(&claim("3", "u", true)));
        inventory.set_claim(&claim("4", "u", false));
        assert!(!in_use(&inventory));
    }

    #[test]
    fn assumption_ends_if_cache_skips_allocated_version() {
        let mut inventory = Inventory::default();
        inventory.set_claim(&claim("1", "u", false));
        inventory.assume(claim("1", "u", true));
        inventory.written("u", &claim("3", "u", true));
        inventory.set_claim(&claim("4", "u", false));
        assert!(!in_use(&inventory));
        // The event precedes the result of the write.
        inventory.assume(claim("4", "u", true));
        inventory.set_claim(&claim("6", "u", false));
        inventory.written("u", &claim("5", "u", true));
        assert!(!in_use(&inventory));
    }

    #[test]
    fn assumption_ends_with_its_claim_or_failed_binding() {
        let mut inventory = Inventory::default();
        inventory.set_claim(&claim("1", "u", false));
        inventory.assume(claim("1", "u", true));
        assert!(inventory.unreserve("u") && !in_use(&inventory));
        inventory.assume(claim("1", "u", true));
        inventory.remove_claim(&claim("2", "u", false));
        assert!(!in_use(&inventory));
        inventory.set_claim(&claim("3", "v", false));
        inventory.assume(claim("3", "v", true));
        inventory.set_claim(&claim("4", "w", false));
        assert!(!in_use(&inventory));
    }

    #[test]
    fn claim_created_for_assumption_continues_it() {
        let mut inventory = Inventory::default();
        inventory.assume(claim("", "temporary", true));
        inventory.written("temporary", &claim("1", "u", false));
        assert!(in_use(&inventory));
        inventory.set_claim(&claim("1", "u", false));
        assert!(in_use(&inventory));
        inventory.written("u", &claim("2", "u", true));
        inventory.set_claim(&claim("2", "u", true));
        assert!(in_use(&inventory) && !inventory.is_in_flight(&claim("2", "u", true)));
    }

    #[test]
    fn claim_for_extended_resources_is_in_namespace_of_its_pod() {
        let mut inventory = Inventory::default();
        let made = |namespace: &str, name: &str| {
            let owner =
                json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true});
            let metadata = json!({"namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"),
                "annotations": {EXTENDED_CLAIM: "true"}, "ownerReferences": [owner]});
            Arc::new(claim_named(json!({"metadata": metadata})))
        };
        let found = |inventory: &Inventory, namespace: &str| {
            inventory.extended_claim(namespace, "u").and_then(|claim| claim.metadata.name.clone())
        };
        // A tenant's claim with the UID of another tenant's pod.
        inventory.set_claim(&made("hostile", "a"));
        assert_eq!(found(&inventory, "default"), None);
        inventory.set_claim(&made("default", "b"));
        inventory.set_claim(&made("default", "c"));
        assert_eq!(found(&inventory, "default").as_deref(), Some("b"));
        inventory.remove_claim(&made("hostile", "a"));
        inventory.remove_claim(&made("default", "b"));
        assert_eq!(found(&inventory, "default").as_deref(), Some("c"));
        inventory.remove_claim(&made("default", "c"));
        assert_eq!(found(&inventory, "default"), None);
    }

    #[test]
    fn extended_resource_maps_to_newest_class() {
        let mut inventory = Inventory::default();
        let class = |name: &str, created: &str, resource: &str| {
            let metadata = json!({"name": name, "creationTimestamp": created});
            Arc::new(class_named(json!({"metadata": metadata, "spec": {"extendedResourceName": resource}})))
        };
        let (old, new) = ("2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z");
        inventory.set_class(&class("a", old, "example.com/gpu"));
        inventory.set_class(&class("c", new, "example.com/gpu"));
        inventory.set_class(&class("b", new, "example.com/gpu"));
        let found = |inventory: &Inventory, resource: &str| {
            inventory.class_of_resource(resource).and_then(|class| class.metadata.name.clone())
        };
        assert_eq!(found(&inventory, "example.com/gpu").as_deref(), Some("b"));
        assert_eq!(found(&inventory, "deviceclass.resource.kubernetes.io/a").as_deref(), Some("a"));
        inventory.set_class(&class("b", new, "example.com/other"));
        assert_eq!(found(&inventory, "example.com/gpu").as_deref(), Some("c"));
        assert_eq!(found(&inventory, "example.com/other").as_deref(), Some("b"));
        inventory.remove_class(&class("c", new, "example.com/gpu"));
        inventory.remove_class(&class("a", old, "example.com/gpu"));
        assert_eq!(found(&inventory, "example.com/gpu"), None);
        assert_eq!(found(&inventory, "deviceclass.resource.kubernetes.io/a"), None);
    }
}
