//! All nodes and pods, with their indexes. One task owns it; a scheduling cycle reads it while nothing changes.

use std::collections::HashMap;
use std::sync::Arc;

use objects::core::v1::{Namespace, Node};
use parking_lot::Mutex;

use crate::devices::Inventory;

use super::affinity::PodMatch;
use super::counts::{Counters, NamespaceLabels, Terms};
use super::labels::Labels;
use super::node::NodeInfo;
use super::objects::Objects;
use super::pod::PodInfo;
use super::topology::{Topology, TopologyKey};

/// A pod that uses resources of a node.
#[derive(Clone, Debug)]
struct Placed {
    info: Arc<PodInfo>,
    slot: usize,
    /// Assumed: scheduled here and not yet observed as bound.
    assumed: bool,
}

/// Classification of an observed bound pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// Not known before.
    New,
    /// Confirms the assumed node.
    AsAssumed,
    /// A new version of a known pod.
    Known,
}

#[derive(Debug, Default)]
struct Indexes {
    topology: Topology,
    counters: Counters,
}

/// Nodes of one zone, in order of addition.
#[derive(Debug)]
struct Zone {
    name: (Box<str>, Box<str>),
    slots: Vec<usize>,
}

#[derive(Debug, Default)]
pub struct Cluster {
    nodes: Vec<NodeInfo>,
    by_name: HashMap<Arc<str>, usize>,
    free: Vec<usize>,
    zones: Vec<Zone>,
    order: Vec<usize>,
    order_is_stale: bool,
    pods: HashMap<Arc<str>, Placed>,
    terms: Terms,
    indexes: Mutex<Indexes>,
    /// Number of nodes that have each image.
    images: HashMap<Box<str>, usize>,
    /// Number of placed pods that use each claim, by namespace and name.
    claims_in_use: HashMap<(Arc<str>, Box<str>), usize>,
    nominated: HashMap<Arc<str>, (Box<str>, Arc<PodInfo>)>,
    /// Number of assumed pods.
    assumed: usize,
    pub objects: Objects,
    pub devices: Inventory,
}

impl Cluster {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    // Nodes.

    /// Adds or updates a node.
    pub fn set_node(&mut self, node: Arc<Node>) {
        let name = node.metadata.name.clone().unwrap_or_default();
        let slot = self.slot_for(&name);
        self.forget_images(slot);
        let before = self.nodes[slot].node.is_some().then(|| zone_of(&self.nodes[slot]));
        self.nodes[slot].set_node(node);
        for image in self.nodes[slot].images.keys() {
            *self.images.entry(image.clone()).or_insert(0) += 1;
        }
        let after = zone_of(&self.nodes[slot]);
        if before.as_ref() != Some(&after) {
            if let Some(before) = before {
                self.leave_zone(&before, slot);
            }
            match self.zones.iter_mut().find(|zone| zone.name == after) {
                Some(zone) => zone.slots.push(slot),
                None => self.zones.push(Zone { name: after, slots: vec![slot] }),
            }
            self.order_is_stale = true;
        }
        self.indexes.get_mut().topology.set(slot, Some(&self.nodes[slot].labels));
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(slot) = self.by_name.get(name).copied() else { return };
        if self.nodes[slot].node.is_none() {
            return;
        }
        self.forget_images(slot);
        let zone = zone_of(&self.nodes[slot]);
        self.leave_zone(&zone, slot);
        self.order_is_stale = true;
        self.indexes.get_mut().topology.set(slot, None);
        self.nodes[slot].clear_node();
        self.release_if_unused(slot);
    }

    fn leave_zone(&mut self, name: &(Box<str>, Box<str>), slot: usize) {
        if let Some(zone) = self.zones.iter_mut().find(|zone| zone.name == *name) {
            zone.slots.retain(|own| *own != slot);
        }
        self.zones.retain(|zone| !zone.slots.is_empty());
    }

    fn forget_images(&mut self, slot: usize) {
        for image in self.nodes[slot].images.keys() {
            if let Some(count) = self.images.get_mut(image) {
                *count -= 1;
                if *count == 0 {
                    self.images.remove(image);
                }
            }
        }
    }

    fn slot_for(&mut self, name: &str) -> usize {
        if let Some(slot) = self.by_name.get(name) {
            return *slot;
        }
        let slot = self.free.pop().unwrap_or(self.nodes.len());
        let node = NodeInfo::new(slot, name);
        self.by_name.insert(Arc::clone(&node.name), slot);
        if slot == self.nodes.len() {
            self.nodes.push(node);
        } else {
            self.nodes[slot] = node;
        }
        slot
    }

    fn release_if_unused(&mut self, slot: usize) {
        let node = &self.nodes[slot];
        if node.node.is_none() && node.pods.is_empty() {
            self.by_name.remove(&node.name);
            self.free.push(slot);
        }
    }

    /// Updates the node order: zones alternate, as in Kubernetes.
    pub fn refresh(&mut self) {
        if !self.order_is_stale {
            return;
        }
        self.order.clear();
        let longest = self.zones.iter().map(|zone| zone.slots.len()).max().unwrap_or(0);
        for at in 0..longest {
            self.order.extend(self.zones.iter().filter_map(|zone| zone.slots.get(at)));
        }
        self.order_is_stale = false;
    }

    /// Slots of existing nodes, in the order they are tried.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    #[must_use]
    pub fn node_at(&self, slot: usize) -> &NodeInfo {
        &self.nodes[slot]
    }

    /// An existing node.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.by_name.get(name).map(|slot| &self.nodes[*slot]).filter(|node| node.node.is_some())
    }

    pub fn nodes(&self) -> impl Iterator<Item = &NodeInfo> {
        self.order.iter().map(|slot| &self.nodes[*slot])
    }

    #[must_use]
    pub fn nodes_with_image(&self, image: &str) -> usize {
        self.images.get(image).copied().unwrap_or(0)
    }

    // Pods.

    /// Adds or updates a bound pod.
    pub fn set_pod(&mut self, info: Arc<PodInfo>) -> Confirmation {
        let Some(node) = info.node_name().map(str::to_owned) else { return Confirmation::New };
        if let Some(placed) = self.pods.get_mut(&info.uid)
            && *self.nodes[placed.slot].name == *node
            && placed.info.weighs_as(&info)
        {
            let confirmation = if placed.assumed { Confirmation::AsAssumed } else { Confirmation::Known };
            self.nodes[placed.slot].replace(&info);
            self.nominated.remove(&info.uid);
            self.assumed -= usize::from(placed.assumed);
            (placed.info, placed.assumed) = (info, false);
            return confirmation;
        }
        let confirmation = match self.take(&info.uid) {
            None => Confirmation::New,
            Some(placed) if placed.assumed => Confirmation::AsAssumed,
            Some(_) => Confirmation::Known,
        };
        self.nominated.remove(&info.uid);
        self.add_placed(info, &node, false);
        confirmation
    }

    /// Assumes a pod on its node before the binding is written.
    pub fn assume(&mut self, info: Arc<PodInfo>, node: &str) {
        self.take(&info.uid);
        self.nominated.remove(&info.uid);
        self.add_placed(info, node, true);
    }

    /// Releases the resources of an assumed pod; does nothing if it is not, or no longer, assumed.
    pub fn forget(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        if !self.is_assumed(uid) {
            return None;
        }
        self.remove_pod(uid)
    }

    /// Removes a pod; returns its last state on its node, even if it was only assumed.
    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let placed = self.take(uid)?;
        let node = Arc::clone(&self.nodes[placed.slot].name);
        self.release_if_unused(placed.slot);
        Some(if placed.assumed { Arc::new(placed.info.on(&node)) } else { placed.info })
    }

    #[must_use]
    pub fn is_assumed(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|placed| placed.assumed)
    }

    /// Last state of a pod known to be bound.
    #[must_use]
    pub fn bound(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(uid).filter(|placed| !placed.assumed).map(|placed| &placed.info)
    }

    #[must_use]
    pub fn is_placed(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    #[must_use]
    pub fn assumed_pods(&self) -> usize {
        self.assumed
    }

    #[must_use]
    pub fn placed_pods(&self) -> usize {
        self.pods.len()
    }

    fn add_placed(&mut self, info: Arc<PodInfo>, node: &str, assumed: bool) {
        let slot = self.slot_for(node);
        self.terms.change(&info, slot, true);
        self.count(&info, slot, 1);
        for claim in &info.claims {
            *self.claims_in_use.entry((Arc::clone(&info.namespace), claim.clone())).or_insert(0) += 1;
        }
        self.nodes[slot].add(Arc::clone(&info));
        self.assumed += usize::from(assumed);
        self.pods.insert(Arc::clone(&info.uid), Placed { info, slot, assumed });
    }

    fn take(&mut self, uid: &str) -> Option<Placed> {
        let placed = self.pods.remove(uid)?;
        self.assumed -= usize::from(placed.assumed);
        self.nodes[placed.slot].remove(uid);
        self.terms.change(&placed.info, placed.slot, false);
        self.count(&placed.info, placed.slot, -1);
        for claim in &placed.info.claims {
            let key = (Arc::clone(&placed.info.namespace), claim.clone());
            if let Some(count) = self.claims_in_use.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.claims_in_use.remove(&key);
                }
            }
        }
        Some(placed)
    }

    fn count(&mut self, info: &PodInfo, slot: usize, by: i64) {
        let none = Labels::default();
        let namespace = self.objects.labels_of(&info.namespace).unwrap_or(&none);
        self.indexes.get_mut().counters.change(info, slot, by, namespace);
    }

    #[must_use]
    pub fn claim_is_in_use(&self, namespace: &Arc<str>, claim: &str) -> bool {
        self.claims_in_use.contains_key(&(Arc::clone(namespace), claim.into()))
    }

    // Nominations.

    /// Nominates a node for a pod whose preemption is in progress there.
    pub fn nominate(&mut self, info: Arc<PodInfo>, node: &str) {
        if !self.is_placed(&info.uid) {
            self.nominated.insert(Arc::clone(&info.uid), (node.into(), info));
        }
    }

    pub fn withdraw_nomination(&mut self, uid: &str) {
        self.nominated.remove(uid);
    }

    #[must_use]
    pub fn nomination(&self, uid: &str) -> Option<&str> {
        self.nominated.get(uid).map(|(node, _)| &**node)
    }

    #[must_use]
    pub fn has_nominations(&self) -> bool {
        !self.nominated.is_empty()
    }

    pub fn nominated_to<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Arc<PodInfo>> {
        self.nominated.values().filter(move |(own, _)| **own == *node).map(|(_, info)| info)
    }

    // Indexes.

    pub fn set_namespace(&mut self, namespace: &Namespace) {
        if self.objects.set_namespace(namespace) {
            self.indexes.get_mut().counters.namespace_changed();
        }
    }

    pub fn remove_namespace(&mut self, name: &str) {
        self.objects.remove_namespace(name);
        self.indexes.get_mut().counters.namespace_changed();
    }

    /// Terms of the placed pods.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    #[must_use]
    pub fn topology(&self, key: &str) -> Arc<TopologyKey> {
        let nodes = self.nodes.iter().filter(|node| node.node.is_some());
        self.indexes.lock().topology.key(key, nodes.map(|node| (node.slot, &node.labels)))
    }

    /// Passes `read` the matching pods by slot and in total. Pods of missing nodes count too; slots without a node
    /// belong to no domain.
    pub fn count_pods<R>(&self, question: &PodMatch, read: impl FnOnce(&[u32], u64) -> R) -> R {
        let mut indexes = self.indexes.lock();
        let (per_slot, total) = indexes.counters.count_matches(question, self.nodes.iter(), &self.objects);
        read(per_slot, total)
    }
}

fn zone_of(node: &NodeInfo) -> (Box<str>, Box<str>) {
    let (region, zone) = node.zone();
    (region.into(), zone.into())
}

#[cfg(test)]
mod tests {
    use super::super::affinity::TermMatch;
    use super::super::labels::{Requirement, Selector};
    use super::*;
    use crate::testing::{node, pod};
    use serde_json::json;

    fn question() -> PodMatch {
        let selector = Selector::new(vec![Requirement::equals("app", "web")]);
        PodMatch { terms: Box::new([TermMatch::within("default", selector)]), skip_terminating: true }
    }

    fn counts(cluster: &Cluster) -> (Vec<u32>, u64) {
        cluster.count_pods(&question(), |per_slot, total| (per_slot.to_vec(), total))
    }

    #[test]
    fn counts_follow_pod_changes() {
        let mut cluster = Cluster::new();
        cluster.set_node(node("a").arc());
        cluster.set_node(node("b").arc());
        cluster.set_pod(pod("1").label("app", "web").on("a").info());
        assert_eq!(counts(&cluster), (vec![1], 1));
        cluster.set_pod(pod("2").label("app", "web").on("b").info());
        cluster.set_pod(pod("3").label("app", "db").on("b").info());
        cluster.assume(pod("4").label("app", "web").info(), "b");
        assert_eq!(counts(&cluster), (vec![1, 2], 3));
        assert_eq!(cluster.forget("4").expect("it was assumed").node_name(), Some("b"));
        assert!(cluster.forget("2").is_none());
        cluster.remove_pod("1");
        assert_eq!(counts(&cluster), (vec![0, 1], 1));
    }

    #[test]
    fn bound_pod_confirms_assumption() {
        let mut cluster = Cluster::new();
        cluster.set_node(node("a").arc());
        cluster.assume(pod("1").cpu("1").info(), "a");
        assert_eq!(cluster.set_pod(pod("1").cpu("1").on("a").info()), Confirmation::AsAssumed);
        assert_eq!(cluster.set_pod(pod("1").cpu("1").on("a").info()), Confirmation::Known);
        assert_eq!(cluster.set_pod(pod("2").cpu("1").on("a").info()), Confirmation::New);
        assert_eq!(cluster.node("a").unwrap().requested.milli_cpu, 2000);
        cluster.remove_pod("1");
        cluster.remove_pod("2");
        assert_eq!(cluster.node("a").unwrap().requested.milli_cpu, 0);
    }

    #[test]
    fn node_order_alternates_zones() {
        let mut cluster = Cluster::new();
        for (name, zone) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c"), ("c2", "c")] {
            cluster.set_node(node(name).label("topology.kubernetes.io/zone", zone).arc());
        }
        cluster.refresh();
        let names: Vec<_> = cluster.nodes().map(|node| node.name.to_string()).collect();
        assert_eq!(names, ["a1", "b1", "c1", "a2", "c2", "a3"]);
    }

    #[test]
    fn removed_node_keeps_pods_and_slots_are_reused() {
        let mut cluster = Cluster::new();
        cluster.set_pod(pod("1").on("later").info());
        assert!(cluster.node("later").is_none());
        cluster.set_node(node("later").arc());
        assert_eq!(cluster.node("later").unwrap().pods.len(), 1);
        cluster.remove_node("later");
        cluster.refresh();
        assert_eq!(cluster.order(), &[] as &[usize]);
        cluster.remove_pod("1");
        cluster.set_node(node("other").arc());
        assert_eq!(cluster.node("other").unwrap().slot, 0);
    }

    #[test]
    fn image_count_follows_nodes() {
        let mut cluster = Cluster::new();
        let with_image = |name: &str| {
            node(name).status(json!({"images": [{"names": ["x:1", "x@sha"], "sizeBytes": 7}]})).arc()
        };
        cluster.set_node(with_image("a"));
        cluster.set_node(with_image("b"));
        assert_eq!(cluster.nodes_with_image("x:1"), 2);
        cluster.set_node(node("b").arc());
        assert_eq!(cluster.nodes_with_image("x@sha"), 1);
        cluster.remove_node("a");
        assert_eq!(cluster.nodes_with_image("x:1"), 0);
    }
}
