//! Dynamic resource allocation: drivers prepare the claims of a pod before it starts, and unprepare them after its end.
//!
//! [`claims`] is pure: claims with their pods and devices. [`drivers`] has the registered plugins, [`prepare`] calls them
//! for pods, [`watch`] follows their connections and the [`health`] of devices, [`checkpoint`] keeps claims across
//! restarts.

mod checkpoint;
mod claims;
mod drivers;
mod health;
mod prepare;
mod watch;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use base::tasks::TaskGroup;
use client::{Client, ClientError};
use cri::pod_resources::{CDIDevice, ClaimResource, DynamicResource};
use objects::core::v1::{Container, ContainerStatus, Pod, ResourceHealth, ResourceStatus};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::Status;

pub use claims::ClaimInfo;
use claims::Claims;
use drivers::Plugins;
use health::Healths;
pub use watch::follow;

use crate::keyed_locks::KeyedLocks;
use crate::metrics::DraMetrics;

/// Failure to prepare or unprepare the claims of a pod, in the words that pods report in Kubernetes.
#[derive(Debug, thiserror::Error)]
pub enum DraError {
    #[error("pod {pod:?} has no resource claim {entry:?}")]
    NoClaim { pod: String, entry: String },
    #[error("pod {pod:?}: ResourceClaim not created yet")]
    NotCreated { pod: String },
    #[error("fetch ResourceClaim {claim}: {source}")]
    Fetch { claim: String, source: ClientError },
    #[error("ResourceClaim {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwner { claim: String, pod: String },
    #[error("pod {pod} ({uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved { pod: String, uid: String, claim: String, claim_uid: String },
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(String),
    #[error("DRA driver {0} is not registered")]
    NotRegistered(String),
    #[error(
        "old ResourceClaim with same name {claim} and different UID {uid} still exists (previous pod force-deleted?!)"
    )]
    OtherUid { claim: String, uid: String },
    #[error("{call}: rpc error: code = {:?} desc = {}", status.code(), status.message())]
    Call { call: &'static str, status: Status },
    #[error("{call} returned result for unknown claim UID {uid}")]
    UnknownUid { call: &'static str, uid: String },
    #[error("{call} failed for ResourceClaim {claim}: {error}")]
    Failed { call: &'static str, claim: String, error: String },
    #[error("{call} skipped {count} ResourceClaims")]
    Skipped { call: &'static str, count: usize },
    #[error("unable to get claim info for ResourceClaim {claim} in namespace {namespace}")]
    NotPrepared { claim: String, namespace: String },
    #[error("checkpoint ResourceClaim state: {path:?}: {source}")]
    Checkpoint { path: PathBuf, source: io::Error },
}

struct Parts {
    kubelet: PathBuf,
    node: String,
    client: Client,
    claims: Mutex<Claims>,
    /// Claims that are being prepared or unprepared.
    locks: KeyedLocks,
    /// Checkpoint content on disk; locked while it is written, so that writes have an order.
    written: tokio::sync::Mutex<Vec<u8>>,
    plugins: Plugins,
    health: Mutex<Healths>,
    /// Pods with devices whose health changed.
    news: Mutex<BTreeSet<String>>,
    changed: Notify,
    metrics: DraMetrics,
    tasks: TaskGroup,
}

/// Claims and drivers of a node. Clones share the state.
#[derive(Clone)]
pub struct Dra(Arc<Parts>);

impl Dra {
    /// Loads the claims of an earlier run from the kubelet's directory.
    #[must_use]
    pub fn open(kubelet: &Path, node: &str, client: Client, metrics: DraMetrics, tasks: TaskGroup) -> Self {
        let claims = checkpoint::read(kubelet).unwrap_or_else(|error| {
            tracing::error!(%error, file = checkpoint::FILE, "failed to read checkpoint, prepared claims are lost");
            Claims::new()
        });
        Self(Arc::new(Parts {
            kubelet: kubelet.to_owned(),
            node: node.to_owned(),
            client,
            claims: Mutex::new(claims),
            locks: KeyedLocks::default(),
            written: tokio::sync::Mutex::default(),
            plugins: Plugins::default(),
            health: Mutex::default(),
            news: Mutex::default(),
            changed: Notify::new(),
            metrics,
            tasks,
        }))
    }

    /// Adds the plugin of a driver.
    pub fn register(&self, driver: &str, endpoint: &str, versions: &[String]) -> Result<(), String> {
        let plugin = self.0.plugins.add(driver, endpoint, versions)?;
        let dra = self.clone();
        self.0.tasks.spawn_until_stopped(async move { dra.watch(&plugin).await });
        Ok(())
    }

    /// Removes the plugin of a driver at an endpoint.
    pub fn unregister(&self, driver: &str, endpoint: &str) {
        self.0.plugins.remove(driver, endpoint);
    }

    /// CDI devices of a container by their qualified names. The claims of its pod have to be prepared.
    pub fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, DraError> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let claims = self.0.claims.lock();
        let mut found = Vec::new();
        for (name, request) in claims::of_container(pod, container)? {
            let claim = claims
                .get(&(namespace.clone(), name.clone()))
                .ok_or_else(|| DraError::NotPrepared { claim: name.clone(), namespace: namespace.clone() })?;
            let devices = claim.devices_of(&request);
            found.extend(devices.flat_map(|(_, device)| device.cdi_device_ids.iter().flatten().cloned()));
        }
        Ok(found)
    }

    /// Devices of a container's claims, for the pod resources API.
    #[must_use]
    pub fn of_container(&self, pod: &Pod, container: &Container) -> Vec<DynamicResource> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let claims = self.0.claims.lock();
        let wanted = claims::of_container(pod, container).unwrap_or_default();
        let names: BTreeSet<&String> = wanted.iter().map(|(name, _)| name).collect();
        let resources = names.into_iter().filter_map(|name| {
            let claim = claims.get(&(namespace.clone(), name.clone()))?;
            let requests = wanted.iter().filter(|(claim, _)| claim == name);
            let mut rows: Vec<ClaimResource> = Vec::new();
            for (driver, device) in requests.flat_map(|(_, request)| claim.devices_of(request)) {
                let row = ClaimResource {
                    cdi_devices: device
                        .cdi_device_ids
                        .iter()
                        .flatten()
                        .map(|name| CDIDevice { name: name.clone() })
                        .collect(),
                    driver_name: driver.clone(),
                    pool_name: device.pool_name.clone(),
                    device_name: device.device_name.clone(),
                    share_id: device.share_id.clone().unwrap_or_default(),
                };
                if !rows.contains(&row) {
                    rows.push(row);
                }
            }
            Some(DynamicResource {
                claim_name: name.clone(),
                claim_namespace: namespace.clone(),
                claim_resources: rows,
            })
        });
        resources.collect()
    }

    /// Adds the health of the devices of claims to the statuses of a pod's containers.
    pub fn add_health(&self, pod: &Pod, statuses: &mut [ContainerStatus]) {
        let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
        for status in statuses {
            let Some(container) = containers.iter().find(|container| container.name == status.name) else {
                continue;
            };
            let resources = container.resources.as_ref();
            for claim in resources.iter().flat_map(|resources| resources.claims.iter().flatten()) {
                let request = claim.request.as_deref().unwrap_or("");
                let name = match request {
                    "" => format!("claim:{}", claim.name),
                    request => format!("claim:{}/{request}", claim.name),
                };
                let health = self.health_of(pod, &claim.name, request);
                if !health.is_empty() {
                    let rows = status.allocated_resources_status.get_or_insert_default();
                    rows.retain(|row| row.name != name);
                    rows.push(ResourceStatus { name, resources: Some(health) });
                }
            }
        }
    }

    fn health_of(&self, pod: &Pod, entry: &str, request: &str) -> Vec<ResourceHealth> {
        let Ok(Some(object)) = claims::name_of(pod, entry) else { return Vec::new() };
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let (claims, health) = (self.0.claims.lock(), self.0.health.lock());
        let Some(claim) = claims.get(&(namespace, object.name)) else { return Vec::new() };
        // Devices are listed with the request, not with the alternative that was chosen.
        let request = request.split('/').next().unwrap_or(request);
        let mut rows: Vec<ResourceHealth> = Vec::new();
        for (driver, device) in claim.devices_of(request) {
            let first = device.cdi_device_ids.as_ref().and_then(|ids| ids.first().cloned());
            let path = || format!("{driver}/{}/{}", device.pool_name, device.device_name);
            let resource_id = first.unwrap_or_else(path);
            let (status, message) = health.of(driver, &device.pool_name, &device.device_name, Instant::now());
            if !rows.iter().any(|row| row.resource_id == resource_id) {
                rows.push(ResourceHealth { resource_id, health: Some(status.to_owned()), message });
            }
        }
        rows
    }

    /// Waits for changes of health; returns the pods that they concern.
    async fn changes(&self) -> BTreeSet<String> {
        loop {
            let news = std::mem::take(&mut *self.0.news.lock());
            if !news.is_empty() {
                return news;
            }
            self.0.changed.notified().await;
        }
    }

    /// Writes the checkpoint if its content changed.
    async fn save(&self) -> Result<(), DraError> {
        let mut written = self.0.written.lock().await;
        let content = {
            let claims = self.0.claims.lock();
            self.0.metrics.in_use(claims.values());
            checkpoint::encode(&claims)
        };
        if *written == content {
            return Ok(());
        }
        let path = self.0.kubelet.join(checkpoint::FILE);
        let (file, bytes) = (path.clone(), content.clone());
        let write = move || base::file::replace(&file, &bytes, base::file::PRIVATE);
        let outcome = tokio::task::spawn_blocking(write).await;
        let outcome = outcome.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        outcome.map_err(|source| DraError::Checkpoint { path, source })?;
        *written = content;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
