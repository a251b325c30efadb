//! Resources of device plugins with their devices, and the allocations of devices to containers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cri::device_plugin::{ContainerAllocateResponse, Device, DevicePluginOptions};

use super::registration::Plugin;

/// Time that a stopped plugin has to return before its resource is removed from the node.
const STOP_GRACE: Duration = Duration::from_secs(300);
/// Health of a usable device in the plugin's list.
const HEALTHY: &str = "Healthy";
/// NUMA node number of devices without topology.
pub const NO_NODE: i64 = -1;

/// NUMA nodes by resource and device ID.
pub type NumaDevices = BTreeMap<String, BTreeMap<String, Vec<i64>>>;
/// Capacity and allocatable amount by resource.
pub type DeviceCapacity = BTreeMap<String, (i64, i64)>;

/// A device as its plugin last reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedDevice {
    pub health: String,
    pub nodes: Vec<i64>,
}

/// A resource and its plugin.
#[derive(Default)]
struct Resource {
    reported: BTreeMap<String, ReportedDevice>,
    healthy: BTreeSet<String>,
    unhealthy: BTreeSet<String>,
    plugin: Option<Plugin>,
    /// Options of the plugin, or of the last one.
    options: Option<DevicePluginOptions>,
    stopped: Option<Instant>,
}

/// Devices of one container and resource, by NUMA node, and the plugin's instructions for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocation {
    pub devices: BTreeMap<i64, Vec<String>>,
    pub response: ContainerAllocateResponse,
}

impl Allocation {
    /// IDs of the devices.
    pub fn ids(&self) -> BTreeSet<String> {
        self.devices.values().flatten().cloned().collect()
    }
}

type OfContainer = BTreeMap<String, Allocation>;

/// Resources by name, and allocations by pod UID, container and resource.
#[derive(Default)]
pub struct Inventory {
    resources: BTreeMap<String, Resource>,
    /// Resources that were removed, which the node reports with a capacity of zero.
    removed: BTreeSet<String>,
    allocations: BTreeMap<String, BTreeMap<String, OfContainer>>,
    /// Devices of allocations in progress, by resource.
    reserved: BTreeMap<String, BTreeSet<String>>,
}

impl Inventory {
    /// Adds a resource of an earlier run. Its capacity is zero until the plugin registers again.
    pub fn restore_resource(&mut self, name: String, now: Instant) {
        self.resources.insert(name, Resource { stopped: Some(now), ..Resource::default() });
    }

    pub fn insert(&mut self, uid: &str, container: &str, resource: &str, allocation: Allocation) {
        let containers = self.allocations.entry(uid.to_owned()).or_default();
        containers.entry(container.to_owned()).or_default().insert(resource.to_owned(), allocation);
    }

    /// Uses a plugin for its resource from now on, in place of an earlier one.
    pub fn connect(&mut self, name: &str, plugin: Plugin) {
        self.removed.remove(name);
        let resource = self.resources.entry(name.to_owned()).or_default();
        resource.options = Some(plugin.options.clone());
        (resource.plugin, resource.stopped) = (Some(plugin), None);
    }

    /// Marks the devices of a stopped plugin as unhealthy; false if another plugin has replaced it.
    pub fn disconnect(&mut self, name: &str, generation: u64, now: Instant) -> bool {
        let Some(resource) = self.of_generation(name, generation) else { return false };
        (resource.plugin, resource.stopped) = (None, Some(now));
        let healthy = std::mem::take(&mut resource.healthy);
        resource.unhealthy.extend(healthy);
        true
    }

    fn of_generation(&mut self, name: &str, generation: u64) -> Option<&mut Resource> {
        let resource = self.resources.get_mut(name)?;
        resource.plugin.as_ref().is_some_and(|plugin| plugin.generation == generation).then_some(resource)
    }

    /// Replaces the devices of a resource. Returns the pods with devices whose health changed; `None` if the plugin was
    /// replaced by another one.
    pub fn report(&mut self, name: &str, generation: u64, devices: Vec<Device>) -> Option<BTreeSet<String>> {
        let resource = self.of_generation(name, generation)?;
        let reported: BTreeMap<String, ReportedDevice> = devices
            .into_iter()
            .map(|device| {
                let nodes = device.topology.into_iter().flat_map(|topology| topology.nodes);
                let nodes = nodes.map(|node| node.id).collect();
                (device.id, ReportedDevice { health: device.health, nodes })
            })
            .collect();
        let before = std::mem::replace(&mut resource.reported, reported);
        let (healthy, unhealthy): (Vec<_>, Vec<_>) =
            resource.reported.iter().partition(|(_, device)| device.health == HEALTHY);
        let ids = |devices: Vec<(&String, &ReportedDevice)>| {
            devices.into_iter().map(|(id, _)| id.clone()).collect()
        };
        (resource.healthy, resource.unhealthy) = (ids(healthy), ids(unhealthy));
        // A device that is new may have been allocated before it disappeared.
        let changed: BTreeSet<String> = resource
            .reported
            .iter()
            .filter(|(id, device)| before.get(*id).is_none_or(|before| before.health != device.health))
            .map(|(id, _)| id.clone())
            .collect();
        let uses = |containers: &BTreeMap<String, OfContainer>| {
            let mut all = containers.values().filter_map(|resources| resources.get(name));
            all.any(|allocation| allocation.devices.values().flatten().any(|id| changed.contains(id)))
        };
        let pods = self.allocations.iter().filter(|(_, containers)| uses(containers));
        Some(pods.map(|(uid, _)| uid.clone()).collect())
    }

    /// Capacity and allocatable amounts, and true if the grace period of a resource is over and it was removed.
    pub fn capacity(&mut self, now: Instant) -> (DeviceCapacity, bool) {
        let is_over = |resource: &Resource| {
            resource.stopped.is_some_and(|stopped| now.saturating_duration_since(stopped) > STOP_GRACE)
        };
        let over: Vec<String> =
            self.resources.iter().filter(|(_, one)| is_over(one)).map(|(name, _)| name.clone()).collect();
        for name in &over {
            tracing::info!(resource = name, "device plugin did not return, removing its resource");
            self.resources.remove(name);
        }
        let any = !over.is_empty();
        self.removed.extend(over);
        let count = |set: &BTreeSet<String>| i64::try_from(set.len()).unwrap_or(i64::MAX);
        let rows = self.resources.iter().map(|(name, one)| {
            let healthy = count(&one.healthy);
            (name.clone(), (healthy.saturating_add(count(&one.unhealthy)), healthy))
        });
        (rows.chain(self.removed.iter().map(|name| (name.clone(), (0, 0)))).collect(), any)
    }

    pub fn is_managed(&self, resource: &str) -> bool {
        self.resources.contains_key(resource)
            || self.allocations.values().flat_map(BTreeMap::values).any(|all| all.contains_key(resource))
    }

    pub fn plugin(&self, resource: &str) -> Option<Plugin> {
        self.resources.get(resource)?.plugin.clone()
    }

    pub fn options(&self, resource: &str) -> Option<&DevicePluginOptions> {
        self.resources.get(resource)?.options.as_ref()
    }

    pub fn resources(&self) -> impl Iterator<Item = (&String, &BTreeSet<String>)> {
        self.resources.iter().map(|(name, resource)| (name, &resource.healthy))
    }

    /// Allocations with their pod UID, container and resource.
    pub fn allocations(&self) -> impl Iterator<Item = (&String, &String, &String, &Allocation)> {
        self.allocations.iter().flat_map(|(uid, containers)| {
            containers.iter().flat_map(move |(container, resources)| {
                resources.iter().map(move |(resource, allocation)| (uid, container, resource, allocation))
            })
        })
    }

    pub fn allocation(&self, uid: &str, container: &str, resource: &str) -> Option<&Allocation> {
        self.allocations.get(uid)?.get(container)?.get(resource)
    }

    pub fn of_pod_container(&self, uid: &str, container: &str) -> Option<&OfContainer> {
        self.allocations.get(uid)?.get(container)
    }

    pub fn healthy(&self, resource: &str) -> Option<&BTreeSet<String>> {
        Some(&self.resources.get(resource)?.healthy)
    }

    /// Devices that containers have, or that are being allocated.
    pub fn in_use(&self, resource: &str) -> BTreeSet<String> {
        let allocated = self.allocations.values().flat_map(BTreeMap::values);
        let allocated = allocated.filter_map(|resources| resources.get(resource)).flat_map(Allocation::ids);
        allocated.chain(self.reserved.get(resource).into_iter().flatten().cloned()).collect()
    }

    pub fn reserve(&mut self, resource: &str, devices: &BTreeSet<String>) {
        self.reserved.entry(resource.to_owned()).or_default().extend(devices.iter().cloned());
    }

    pub fn unreserve(&mut self, resource: &str, devices: &BTreeSet<String>) {
        if let Some(reserved) = self.reserved.get_mut(resource) {
            reserved.retain(|id| !devices.contains(id));
        }
    }

    /// NUMA nodes of a device; empty if unknown.
    pub fn nodes_of(&self, resource: &str, id: &str) -> &[i64] {
        let found = self.resources.get(resource).and_then(|one| one.reported.get(id));
        found.map_or(&[], |device| device.nodes.as_slice())
    }

    /// Returns true if a device of the resource belongs to a NUMA node.
    pub fn has_topology(&self, resource: &str) -> bool {
        self.resources
            .get(resource)
            .is_some_and(|one| one.reported.values().any(|device| !device.nodes.is_empty()))
    }

    /// Frees the devices of all pods but those of the predicate; true if there were any.
    pub fn retain(&mut self, is_kept: impl Fn(&str) -> bool) -> bool {
        let before = self.allocations.len();
        self.allocations.retain(|uid, _| is_kept(uid));
        self.allocations.len() != before
    }

    pub fn of_container(&self, uid: &str, container: &str) -> NumaDevices {
        let mut found = NumaDevices::new();
        for (resource, allocation) in self.of_pod_container(uid, container).into_iter().flatten() {
            let devices = found.entry(resource.clone()).or_default();
            for (node, ids) in &allocation.devices {
                for id in ids {
                    devices
                        .entry(id.clone())
                        .or_default()
                        .extend(Some(*node).filter(|node| *node != NO_NODE));
                }
            }
        }
        found
    }

    pub fn healthy_devices(&self) -> NumaDevices {
        let of_resource = |resource: &Resource| {
            let healthy = resource.reported.iter().filter(|(id, _)| resource.healthy.contains(*id));
            healthy.map(|(id, device)| (id.clone(), device.nodes.clone())).collect()
        };
        self.resources.iter().map(|(name, resource)| (name.clone(), of_resource(resource))).collect()
    }

    /// Health of the devices of a container by resource and ID, by the last report of the plugin. As in Kubernetes, a
    /// device that the plugin does not report counts as healthy.
    pub fn health_of(&self, uid: &str, container: &str) -> BTreeMap<String, BTreeMap<String, bool>> {
        let mut found = BTreeMap::new();
        for (resource, allocation) in self.of_pod_container(uid, container).into_iter().flatten() {
            let reported = self.resources.get(resource).map(|one| &one.reported);
            let is_healthy = |id: &String| {
                reported.and_then(|devices| devices.get(id)).is_none_or(|device| device.health == HEALTHY)
            };
            let devices = allocation.ids().into_iter().map(|id| (id.clone(), is_healthy(&id))).collect();
            found.insert(resource.clone(), devices);
        }
        found
    }
}
