//! Index of resource slices by pool and node.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use objects::core::v1::NodeSelector;
use objects::resource::v1::{Device, ResourceSlice};

use super::PoolId;
use super::allocator::Target;
use crate::state::NodeTerms;

/// A slice with its parsed node selectors.
#[derive(Debug)]
pub struct IndexedSlice {
    pub slice: Arc<ResourceSlice>,
    selector: Option<NodeTerms>,
    /// By device, for node selection of each device; else empty.
    device_selectors: Vec<Option<NodeTerms>>,
}

impl IndexedSlice {
    fn new(slice: Arc<ResourceSlice>) -> Self {
        let selector = slice.spec.node_selector.as_ref().map(NodeTerms::of);
        let by_device = slice.spec.per_device_node_selection == Some(true);
        let devices = slice.spec.devices.iter().flatten().filter(|_| by_device);
        let device_selectors =
            devices.map(|device| device.node_selector.as_ref().map(NodeTerms::of)).collect();
        Self { slice, selector, device_selectors }
    }

    pub fn devices(&self) -> &[Device] {
        self.slice.spec.devices.as_deref().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.slice.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn generation(&self) -> i64 {
        self.slice.spec.pool.generation
    }

    pub fn has_counters(&self) -> bool {
        self.slice.spec.shared_counters.as_ref().is_some_and(|counters| !counters.is_empty())
    }

    /// Reports whether each device has its own nodes.
    fn selects_by_device(&self) -> bool {
        self.slice.spec.per_device_node_selection == Some(true)
    }

    /// Node that the slice is limited to.
    fn node(&self) -> Option<&str> {
        let node = self.slice.spec.node_name.as_deref().filter(|node| !node.is_empty());
        node.filter(|_| !self.has_counters())
    }

    /// Reports whether the slice matters for a node. Counters matter for every node.
    pub fn concerns(&self, node: &Target<'_>) -> bool {
        let spec = &self.slice.spec;
        if self.has_counters() {
            return true;
        }
        let node_name = spec.node_name.as_deref().unwrap_or_default();
        if !node_name.is_empty() || spec.all_nodes == Some(true) || spec.node_selector.is_some() {
            return matches(node, node_name, spec.all_nodes, self.selector.as_ref());
        }
        self.selects_by_device() && (0..self.devices().len()).any(|device| self.reaches(device, node))
    }

    /// Reports whether a device of a slice that concerns the node is accessible from it.
    pub fn reaches(&self, device: usize, node: &Target<'_>) -> bool {
        if !self.selects_by_device() {
            return true;
        }
        let Some(own) = self.devices().get(device) else { return false };
        let selector = self.device_selectors.get(device).and_then(Option::as_ref);
        matches(node, own.node_name.as_deref().unwrap_or_default(), own.all_nodes, selector)
    }

    /// Nodes of a device: a name, or a selector.
    pub fn nodes_of(&self, device: &'_ Device) -> (bool, Option<NodeSelector>) {
        let spec = &self.slice.spec;
        let (name, selector) = if self.selects_by_device() {
            (&device.node_name, &device.node_selector)
        } else {
            (&spec.node_name, &spec.node_selector)
        };
        (name.is_some(), selector.clone())
    }
}

fn matches(node: &Target<'_>, name: &str, all: Option<bool>, selector: Option<&NodeTerms>) -> bool {
    if !name.is_empty() {
        return node.name == name;
    }
    all == Some(true) || selector.is_some_and(|selector| selector.matches(node.name, node.labels))
}

/// Slices of one pool by name.
pub type PoolSlices = BTreeMap<Box<str>, Arc<IndexedSlice>>;

/// All slices.
#[derive(Debug, Default)]
pub struct Slices {
    pools: BTreeMap<PoolId, PoolSlices>,
    /// Number of slices of each pool that only one node can use.
    by_node: HashMap<Box<str>, BTreeMap<PoolId, usize>>,
    /// Number of other slices of each pool.
    shared: BTreeMap<PoolId, usize>,
}

impl Slices {
    pub fn set(&mut self, old: Option<&ResourceSlice>, slice: &Arc<ResourceSlice>) {
        // Drivers and pools of slices are immutable, but a slice may be deleted and created again between two events.
        if let Some(old) = old {
            self.remove(old);
        }
        self.remove(slice);
        let indexed = Arc::new(IndexedSlice::new(Arc::clone(slice)));
        let id = pool_of(slice);
        self.count(&indexed, &id, true);
        self.pools.entry(id).or_default().insert(indexed.name().into(), indexed);
    }

    pub fn remove(&mut self, slice: &ResourceSlice) {
        let id = pool_of(slice);
        let Some(pool) = self.pools.get_mut(&id) else { return };
        let Some(known) = pool.remove(slice.metadata.name.as_deref().unwrap_or_default()) else { return };
        if pool.is_empty() {
            self.pools.remove(&id);
        }
        self.count(&known, &id, false);
    }

    fn count(&mut self, slice: &IndexedSlice, id: &PoolId, more: bool) {
        let counts = match slice.node() {
            Some(node) => self.by_node.entry(node.into()).or_default(),
            None => &mut self.shared,
        };
        let count = counts.entry(id.clone()).or_insert(0);
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            counts.remove(id);
        }
        if let Some(node) = slice.node()
            && self.by_node.get(node).is_some_and(BTreeMap::is_empty)
        {
            self.by_node.remove(node);
        }
    }

    /// Pools with slices that a node may use, in order of their names.
    pub fn pools_of(&self, node: &str) -> impl Iterator<Item = (&PoolId, &PoolSlices)> {
        let local = self.by_node.get(node).into_iter().flat_map(BTreeMap::keys);
        let ids: BTreeSet<&PoolId> = local.chain(self.shared.keys()).collect();
        ids.into_iter().filter_map(|id| self.pools.get_key_value(id))
    }
}

fn pool_of(slice: &ResourceSlice) -> PoolId {
    PoolId::new(&slice.spec.driver, &slice.spec.pool.name)
}
