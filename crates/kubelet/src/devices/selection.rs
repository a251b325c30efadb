//! Selection of devices for one container and resource.

use std::collections::BTreeSet;

use super::DeviceError;
use super::inventory::Inventory;

type Ids = BTreeSet<String>;

/// Request of a container.
pub struct Demand<'a> {
    pub uid: &'a str,
    pub container: &'a str,
    pub resource: &'a str,
    pub required: usize,
    /// Devices of init containers that have ended before this container starts.
    pub reusable: &'a Ids,
    /// NUMA nodes that the devices should belong to, if the topology manager chose some.
    pub affinity: Option<&'a BTreeSet<i64>>,
}

/// Devices selected so far, and candidates for the rest.
#[derive(Debug)]
pub struct Selection {
    required: usize,
    selected: Ids,
    /// Candidates that the plugin may prefer.
    pool: Ids,
    /// Candidates in the order of their use.
    groups: Vec<Ids>,
}

impl Selection {
    /// Selects devices as far as the plugin's preference does not matter; `None` if the container needs no more devices.
    pub fn begin(inventory: &Inventory, demand: &Demand<'_>) -> Result<Option<Self>, DeviceError> {
        let name = || demand.resource.to_owned();
        let held = inventory.allocation(demand.uid, demand.container, demand.resource);
        let held = held.map(super::inventory::Allocation::ids);
        if let Some(held) = held.as_ref().filter(|held| held.len() != demand.required) {
            return Err(DeviceError::Changed {
                pod: demand.uid.to_owned(),
                container: demand.container.to_owned(),
                resource: name(),
                from: held.len(),
                to: demand.required,
            });
        }
        let healthy = inventory.healthy(demand.resource).ok_or_else(|| DeviceError::Unregistered(name()))?;
        if healthy.is_empty() {
            return Err(DeviceError::NoneHealthy(name()));
        }
        if held.as_ref().is_some_and(|held| !held.is_subset(healthy)) {
            return Err(DeviceError::HeldUnhealthy(name()));
        }
        if held.is_some() || demand.required == 0 {
            return Ok(None);
        }
        let selected: Ids = demand.reusable.iter().take(demand.required).cloned().collect();
        let mut selection =
            Self { required: demand.required, selected, pool: Ids::new(), groups: Vec::new() };
        if selection.missing() == 0 {
            return Ok(Some(selection));
        }
        let available: Ids = healthy.difference(&inventory.in_use(demand.resource)).cloned().collect();
        if available.len() < selection.missing() {
            return Err(DeviceError::Unavailable {
                resource: name(),
                requested: selection.missing(),
                available: available.len(),
            });
        }
        selection.group(inventory, demand, available);
        Ok(Some(selection))
    }

    /// Groups available devices by affinity.
    fn group(&mut self, inventory: &Inventory, demand: &Demand<'_>, available: Ids) {
        let nodes = |id: &String| inventory.nodes_of(demand.resource, id);
        let affinity = demand.affinity.filter(|_| inventory.has_topology(demand.resource));
        let Some(affinity) = affinity else {
            (self.pool, self.groups) = (available.clone(), vec![available]);
            return;
        };
        let (mut aligned, mut unaligned, mut unrelated) = (Ids::new(), Ids::new(), Ids::new());
        for id in &available {
            let group = match nodes(id) {
                [] => &mut unrelated,
                nodes if nodes.iter().any(|node| affinity.contains(node)) => &mut aligned,
                _ => &mut unaligned,
            };
            group.insert(id.clone());
        }
        if self.missing() < aligned.len() {
            (self.pool, self.groups) = (aligned.clone(), vec![aligned]);
            return;
        }
        // All aligned devices are needed, to keep the alignment of the topology manager.
        self.selected.extend(aligned);
        (self.pool, self.groups) = (available, vec![unaligned, unrelated]);
    }

    fn missing(&self) -> usize {
        self.required.saturating_sub(self.selected.len())
    }

    /// Candidates for GetPreferredAllocation and the devices that it must include; `None` if all devices are selected.
    pub fn question(&self) -> Option<(Vec<String>, Vec<String>)> {
        let candidates = || self.pool.union(&self.selected).cloned().collect();
        (self.missing() > 0).then(|| (candidates(), self.selected.iter().cloned().collect()))
    }

    fn take(&mut self, from: &Ids) {
        let missing = self.missing();
        let new: Vec<String> = from.difference(&self.selected).take(missing).cloned().collect();
        self.selected.extend(new);
    }

    /// Selects the rest, preferred devices first.
    pub fn complete(mut self, preferred: &Ids) -> Result<Ids, DeviceError> {
        let preferred: Ids = preferred.intersection(&self.pool).cloned().collect();
        self.take(&preferred);
        for group in std::mem::take(&mut self.groups) {
            self.take(&group);
        }
        match self.missing() {
            0 => Ok(self.selected),
            _ => Err(DeviceError::TooFew { required: self.required, got: self.selected.len() }),
        }
    }
}
