//! Allocation of devices to the containers of a pod, with the calls to their plugins.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cri::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, PreStartContainerRequest, PreferredAllocationRequest,
};
use objects::core::v1::{Container, Pod};
use tonic::{Request, Response, Status};

use super::inventory::{Allocation, NO_NODE};
use super::registration::Plugin;
use super::selection::{Demand, Selection};
use super::{DeviceError, DeviceOptions, Devices, is_claimed};
use crate::lifecycle::members::is_sidecar;
use crate::lifecycle::qos;

/// Timeout of Allocate and GetPreferredAllocation; Kubernetes has none.
const ALLOCATE_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout of PreStartContainer.
const PRE_START_TIMEOUT: Duration = Duration::from_secs(30);

type Ids = BTreeSet<String>;
/// NUMA nodes that the topology manager chose for a container.
pub type Affinity<'a> = &'a (dyn Fn(&str) -> Option<BTreeSet<i64>> + Send + Sync);

/// Resources of a container's limits with their amounts.
fn limits(container: &Container) -> impl Iterator<Item = (&str, usize)> {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    limits.into_iter().flatten().map(move |(name, _)| {
        let amount = qos::whole(limits, name).unwrap_or(0);
        (name.as_str(), usize::try_from(amount).unwrap_or(0))
    })
}

/// A call to a plugin with a timeout.
async fn call<T>(
    name: &'static str,
    limit: Duration,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, DeviceError> {
    let late = |_| Err(Status::deadline_exceeded(format!("no response within {}s", limit.as_secs())));
    let answer = tokio::time::timeout(limit, answer).await.unwrap_or_else(late);
    answer.map(Response::into_inner).map_err(|status| DeviceError::Call { call: name, status })
}

/// Devices that are reserved while their plugin is called; freed on drop.
struct Reservation<'a> {
    devices: &'a Devices,
    resource: &'a str,
    ids: Ids,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.devices.0.inventory.lock().unreserve(self.resource, &self.ids);
    }
}

impl Devices {
    /// Allocates devices to all containers of a pod, except running ones. On failure the pod has no devices.
    pub async fn allocate_pod(
        &self,
        pod: &Pod,
        is_running: &(dyn Fn(&str) -> bool + Send + Sync),
        affinity: Affinity<'_>,
    ) -> Result<(), DeviceError> {
        let Some(spec) = &pod.spec else { return Ok(()) };
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let mut reusable = BTreeMap::new();
        let init = spec.init_containers.iter().flatten().map(|container| (container, !is_sidecar(container)));
        for (container, ends) in init.chain(spec.containers.iter().map(|container| (container, false))) {
            if !is_running(&container.name)
                && let Err(error) = self.allocate(pod, container, &reusable, affinity).await
            {
                self.release(uid).await;
                return Err(error);
            }
            self.update_reusable(&mut reusable, uid, &container.name, ends);
        }
        Ok(())
    }

    /// Devices of a container that ends before others start can be used again, those of others cannot.
    fn update_reusable(&self, reusable: &mut BTreeMap<String, Ids>, uid: &str, container: &str, ends: bool) {
        let inventory = self.0.inventory.lock();
        for (resource, allocation) in inventory.of_pod_container(uid, container).into_iter().flatten() {
            let devices = reusable.entry(resource.clone()).or_default();
            let ids = allocation.ids();
            if ends {
                devices.extend(ids);
            } else {
                devices.retain(|id| !ids.contains(id));
            }
        }
    }

    async fn allocate(
        &self,
        pod: &Pod,
        container: &Container,
        reusable: &BTreeMap<String, Ids>,
        affinity: Affinity<'_>,
    ) -> Result<(), DeviceError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let (none, mut changed) = (Ids::new(), false);
        for (resource, required) in limits(container) {
            if is_claimed(pod, &container.name, resource) || !self.manage(resource) {
                continue;
            }
            let affinity = affinity(&container.name);
            let demand = Demand {
                uid,
                container: &container.name,
                resource,
                required,
                reusable: reusable.get(resource).unwrap_or(&none),
                affinity: affinity.as_ref(),
            };
            let Some(reserved) = self.select(&demand).await? else { continue };
            let begun = Instant::now();
            let plugin = self.plugin(resource)?;
            let response = self.call_allocate(plugin, resource, &reserved.ids).await;
            self.0.metrics.allocated(resource, begun);
            self.record(&demand, &reserved.ids, response?);
            changed = true;
        }
        if changed { self.save().await } else { Ok(()) }
    }

    /// Adds an allocation, with the devices by NUMA node.
    fn record(&self, demand: &Demand<'_>, ids: &Ids, response: ContainerAllocateResponse) {
        let mut inventory = self.0.inventory.lock();
        let mut devices: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for id in ids {
            let nodes = inventory.nodes_of(demand.resource, id);
            let nodes = if nodes.is_empty() { &[NO_NODE][..] } else { nodes };
            for node in nodes {
                devices.entry(*node).or_default().push(id.clone());
            }
        }
        let allocation = Allocation { devices, response };
        inventory.insert(demand.uid, demand.container, demand.resource, allocation);
    }

    fn plugin(&self, resource: &str) -> Result<Plugin, DeviceError> {
        let plugin = self.0.inventory.lock().plugin(resource);
        plugin.ok_or_else(|| DeviceError::Stopped(resource.to_owned()))
    }

    async fn call_allocate(
        &self,
        mut plugin: Plugin,
        resource: &str,
        ids: &Ids,
    ) -> Result<ContainerAllocateResponse, DeviceError> {
        let one = ContainerAllocateRequest { devices_ids: ids.iter().cloned().collect() };
        let request = AllocateRequest { container_requests: vec![one] };
        let response =
            call("Allocate", ALLOCATE_TIMEOUT, plugin.client.allocate(Request::new(request))).await?;
        let first = response.container_responses.into_iter().next();
        first.ok_or_else(|| DeviceError::EmptyResponse(resource.to_owned()))
    }

    /// Selects and reserves devices; `None` if the container needs no more.
    async fn select<'a>(&'a self, demand: &Demand<'a>) -> Result<Option<Reservation<'a>>, DeviceError> {
        let Some(selection) = Selection::begin(&self.0.inventory.lock(), demand)? else { return Ok(None) };
        let plugin = self.0.inventory.lock().plugin(demand.resource);
        let adviser = plugin.filter(|plugin| plugin.options.get_preferred_allocation_available);
        let preferred = match (selection.question(), adviser) {
            (Some((available, must_include)), Some(mut plugin)) => {
                let one = ContainerPreferredAllocationRequest {
                    available_device_ids: available,
                    must_include_device_ids: must_include,
                    allocation_size: i32::try_from(demand.required).unwrap_or(i32::MAX),
                };
                let request = PreferredAllocationRequest { container_requests: vec![one] };
                let answer = plugin.client.get_preferred_allocation(Request::new(request));
                let answer = call("GetPreferredAllocation", ALLOCATE_TIMEOUT, answer).await?;
                answer.container_responses.into_iter().next().map(|one| one.device_ids).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        // Devices may have been allocated to another pod during the call.
        let mut inventory = self.0.inventory.lock();
        let Some(selection) = Selection::begin(&inventory, demand)? else { return Ok(None) };
        let ids = selection.complete(&preferred.into_iter().collect())?;
        inventory.reserve(demand.resource, &ids);
        Ok(Some(Reservation { devices: self, resource: demand.resource, ids }))
    }

    /// Settings of a container that is about to start. Devices that were lost with the checkpoint are allocated again.
    pub async fn options(&self, pod: &Pod, container: &Container) -> Result<DeviceOptions, DeviceError> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let mut is_missing = false;
        for (resource, amount) in limits(container) {
            let is_skipped = amount == 0 || is_claimed(pod, &container.name, resource);
            if is_skipped || !self.manage(resource) {
                continue;
            }
            self.pre_start(uid, &container.name, resource).await?;
            let inventory = self.0.inventory.lock();
            is_missing |= inventory.allocation(uid, &container.name, resource).is_none();
        }
        if is_missing {
            self.allocate(pod, container, &BTreeMap::new(), &|_| None).await?;
        }
        let inventory = self.0.inventory.lock();
        let allocations = inventory.of_pod_container(uid, &container.name);
        Ok(DeviceOptions::of(allocations.into_iter().flat_map(BTreeMap::values)))
    }

    /// Calls PreStartContainer if the plugin requires it.
    async fn pre_start(&self, uid: &str, container: &str, resource: &str) -> Result<(), DeviceError> {
        let devices = {
            let inventory = self.0.inventory.lock();
            if !inventory.options(resource).is_some_and(|options| options.pre_start_required) {
                return Ok(());
            }
            inventory.allocation(uid, container, resource).map(Allocation::ids)
        };
        let devices = devices.ok_or_else(|| DeviceError::NotAllocated {
            pod: uid.to_owned(),
            container: container.to_owned(),
            resource: resource.to_owned(),
        })?;
        let mut plugin = self.plugin(resource)?;
        let request = PreStartContainerRequest { devices_ids: devices.into_iter().collect() };
        let answer = plugin.client.pre_start_container(Request::new(request));
        call("PreStartContainer", PRE_START_TIMEOUT, answer).await.map(|_| ())
    }
}
