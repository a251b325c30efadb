//! Device plugins: their registration, the devices that they report, and the allocation of devices to containers.
//!
//! [`inventory`] and [`selection`] are pure: the state of resources and allocations, and the devices for a request.
//! [`registration`] connects plugins, [`allocate`] calls them for pods, [`checkpoint`] keeps allocations across restarts.

mod allocate;
mod checkpoint;
mod inventory;
mod options;
mod registration;
mod selection;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use base::tasks::TaskGroup;
use objects::core::v1::{ContainerStatus, Pod, ResourceHealth, ResourceStatus};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::Status;

use inventory::Inventory;
pub use inventory::{DeviceCapacity, NumaDevices};
pub use options::DeviceOptions;
pub use registration::follow;

use crate::metrics::DeviceMetrics;

/// Name of the directory of sockets and the checkpoint, below the kubelet's.
const DIRECTORY: &str = "device-plugins";

/// Failure to allocate devices, in the words that pods report in Kubernetes.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "pod {pod:?} container {container:?} changed request for resource {resource:?} from {from} to {to}"
    )]
    Changed { pod: String, container: String, resource: String, from: usize, to: usize },
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    HeldUnhealthy(String),
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    Unavailable { resource: String, requested: usize, available: usize },
    #[error("unexpectedly allocated less resources than required. Requested: {required}, Got: {got}")]
    TooFew { required: usize, got: usize },
    #[error("endpoint of device plugin {0} has been stopped")]
    Stopped(String),
    #[error("device plugin {call} rpc failed with err: rpc error: code = {:?} desc = {}", status.code(), status.message())]
    Call { call: &'static str, status: Status },
    #[error("no containers return in allocation response for {0}")]
    EmptyResponse(String),
    #[error(
        "no devices found allocated in local cache for pod {pod}, container {container}, resource {resource}"
    )]
    NotAllocated { pod: String, container: String, resource: String },
    #[error("failed to write checkpoint file {path:?}: {source}")]
    Checkpoint { path: PathBuf, source: io::Error },
}

/// Changes since they were last taken.
#[derive(Default)]
struct DeviceNews {
    /// Pods whose devices changed their health.
    pods: BTreeSet<String>,
    /// The capacity of the node may have changed.
    capacity: bool,
}

struct Parts {
    directory: PathBuf,
    inventory: Mutex<Inventory>,
    /// Checkpoint content on disk; locked while it is written, so that writes have an order.
    written: tokio::sync::Mutex<Vec<u8>>,
    news: Mutex<DeviceNews>,
    changed: Notify,
    metrics: DeviceMetrics,
    tasks: TaskGroup,
}

/// Device plugins of a node. Clones share the state.
#[derive(Clone)]
pub struct Devices(Arc<Parts>);

impl Devices {
    /// Loads the allocations of an earlier run from the kubelet's directory.
    #[must_use]
    pub fn open(kubelet: &Path, metrics: DeviceMetrics, tasks: TaskGroup) -> Self {
        let directory = kubelet.join(DIRECTORY);
        let inventory = match checkpoint::read(&directory) {
            Ok(found) => found.map(|found| found.into_inventory(Instant::now())).unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, directory = %directory.display(), "failed to read device checkpoint, allocations are lost");
                Inventory::default()
            }
        };
        Self(Arc::new(Parts {
            directory,
            inventory: Mutex::new(inventory),
            written: tokio::sync::Mutex::default(),
            news: Mutex::default(),
            changed: Notify::new(),
            metrics,
            tasks,
        }))
    }

    /// Returns true if a plugin manages the resource, or did when devices of it were allocated.
    #[must_use]
    pub fn manage(&self, resource: &str) -> bool {
        self.0.inventory.lock().is_managed(resource)
    }

    /// Capacity and allocatable amounts by resource; zeros for resources whose plugin is gone.
    pub async fn capacity(&self) -> DeviceCapacity {
        let (capacity, removed) = self.0.inventory.lock().capacity(Instant::now());
        if removed && let Err(error) = self.save().await {
            tracing::warn!(%error, "failed to write device checkpoint");
        }
        capacity
    }

    /// Frees the devices of a pod that has ended.
    pub async fn release(&self, uid: &str) {
        self.retain(|other| other != uid).await;
    }

    /// Frees the devices of all pods but those of the predicate.
    pub async fn retain(&self, is_kept: impl Fn(&str) -> bool) {
        let released = self.0.inventory.lock().retain(is_kept);
        if released && let Err(error) = self.save().await {
            tracing::warn!(%error, "failed to write device checkpoint");
        }
    }

    /// Devices of a container by resource and ID, with their NUMA nodes.
    #[must_use]
    pub fn of_container(&self, uid: &str, container: &str) -> NumaDevices {
        self.0.inventory.lock().of_container(uid, container)
    }

    /// All healthy devices by resource and ID, with their NUMA nodes.
    #[must_use]
    pub fn allocatable(&self) -> NumaDevices {
        self.0.inventory.lock().healthy_devices()
    }

    /// Adds the health of allocated devices to the statuses of a pod's containers.
    pub fn add_health(&self, uid: &str, statuses: &mut [ContainerStatus]) {
        let inventory = self.0.inventory.lock();
        for status in statuses {
            for (resource, devices) in inventory.health_of(uid, &status.name) {
                let resources = devices.into_iter().map(|(id, healthy)| ResourceHealth {
                    resource_id: id,
                    health: Some(if healthy { "Healthy" } else { "Unhealthy" }.to_owned()),
                    ..ResourceHealth::default()
                });
                let row = ResourceStatus { name: resource, resources: Some(resources.collect()) };
                let rows = status.allocated_resources_status.get_or_insert_default();
                rows.retain(|other| other.name != row.name);
                rows.push(row);
            }
        }
    }

    /// Waits for changes; returns the pods whose devices changed, and true if the capacity did.
    pub async fn changes(&self) -> (BTreeSet<String>, bool) {
        loop {
            let news = std::mem::take(&mut *self.0.news.lock());
            if news.capacity || !news.pods.is_empty() {
                return (news.pods, news.capacity);
            }
            self.0.changed.notified().await;
        }
    }

    fn notify(&self, pods: BTreeSet<String>) {
        {
            let mut news = self.0.news.lock();
            news.capacity = true;
            news.pods.extend(pods);
        }
        self.0.changed.notify_one();
    }

    /// Writes the checkpoint if its content changed.
    async fn save(&self) -> Result<(), DeviceError> {
        let mut written = self.0.written.lock().await;
        let content = checkpoint::encode(&self.0.inventory.lock());
        if *written == content {
            return Ok(());
        }
        let path = self.0.directory.join(checkpoint::FILE);
        let (file, bytes) = (path.clone(), content.clone());
        let write = move || base::file::replace(&file, &bytes, base::file::PRIVATE);
        let outcome =
            tokio::task::spawn_blocking(write).await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        outcome.map_err(|source| DeviceError::Checkpoint { path, source })?;
        *written = content;
        Ok(())
    }
}

/// Returns true if devices of the resource come from a claim of the pod instead of a plugin.
fn is_claimed(pod: &Pod, container: &str, resource: &str) -> bool {
    let status = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    let mut rows = status.into_iter().flat_map(|status| &status.request_mappings);
    rows.any(|row| row.container_name == container && row.resource_name == resource)
}

#[cfg(test)]
mod tests;
