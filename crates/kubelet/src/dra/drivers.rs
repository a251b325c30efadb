//! Registered plugins of drivers, their connections, and the removal of ResourceSlices of drivers that are gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::backoff::Backoff;
use client::{Client, ClientError, ListOptions};
use cri::Connections;
use cri::dra::{
    NodePrepareResourcesRequest, NodePrepareResourcesResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};
use objects::resource::v1::ResourceSlice;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::DraError;
use crate::metrics::DraMetrics;

/// Timeout of calls to a driver.
const CALL_TIMEOUT: Duration = Duration::from_secs(45);
/// Time a driver has to return before its ResourceSlices are deleted.
const WIPING_DELAY: Duration = Duration::from_secs(30);
/// Delays between attempts to delete ResourceSlices.
const WIPE_RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

/// Services with which a plugin prepares resources, newest first: the name that it registers, and that of the protocol.
const SERVICES: [(&str, &str); 2] = [
    ("v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"),
    ("v1beta1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"),
];

/// One plugin of a driver.
#[derive(Debug)]
pub struct DriverPlugin {
    pub driver: String,
    pub endpoint: String,
    service: &'static str,
    pub channel: Channel,
    pub connections: Connections,
    generation: u64,
    /// Notified when the plugin is removed.
    pub removed: Notify,
}

/// The part of the driver's names that a plugin supports.
fn service_of(versions: &[String]) -> Result<&'static str, String> {
    if versions.is_empty() {
        return Err("empty list of supported gRPC services (aka supported versions)".to_owned());
    }
    let known = |version: &String| SERVICES.iter().find(|(name, _)| name == version);
    versions.iter().find_map(known).map(|(_, service)| *service).ok_or_else(|| {
        let ours: Vec<&str> = SERVICES.iter().map(|(name, _)| *name).collect();
        format!(
            "none of services supported by the plugin ({versions:?}) are supported by the kubelet ({ours:?})"
        )
    })
}

impl DriverPlugin {
    async fn call<Req, Res>(
        &self,
        method: &'static str,
        message: Req,
        metrics: &DraMetrics,
    ) -> Result<Res, DraError>
    where
        Req: prost::Message + Send + Sync + 'static,
        Res: prost::Message + Default + Send + Sync + 'static,
    {
        let path = format!("/{}/{method}", self.service);
        let begun = Instant::now();
        let call = async {
            let path =
                PathAndQuery::try_from(path.clone()).map_err(|error| Status::internal(error.to_string()))?;
            let mut grpc = Grpc::new(self.channel.clone());
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec = ProstCodec::<Req, Res>::default();
            let mut request = Request::new(message);
            request.set_timeout(CALL_TIMEOUT);
            grpc.unary(request, path, codec).await
        };
        let late = |_| Err(Status::deadline_exceeded("context deadline exceeded"));
        let answer = tokio::time::timeout(CALL_TIMEOUT, call).await.unwrap_or_else(late);
        let code = answer.as_ref().err().map_or(tonic::Code::Ok, Status::code);
        metrics.called(&self.driver, &path, code, begun);
        answer.map(tonic::Response::into_inner).map_err(|status| DraError::Call { call: method, status })
    }

    pub async fn prepare(
        &self,
        message: NodePrepareResourcesRequest,
        metrics: &DraMetrics,
    ) -> Result<NodePrepareResourcesResponse, DraError> {
        self.call("NodePrepareResources", message, metrics).await
    }

    pub async fn unprepare(
        &self,
        message: NodeUnprepareResourcesRequest,
        metrics: &DraMetrics,
    ) -> Result<NodeUnprepareResourcesResponse, DraError> {
        self.call("NodeUnprepareResources", message, metrics).await
    }
}

#[derive(Default)]
struct Store {
    /// Plugins by driver in the order of their registration.
    plugins: BTreeMap<String, Vec<Arc<DriverPlugin>>>,
    /// Times at which the slices of unusable drivers are deleted.
    wipes: BTreeMap<String, tokio::time::Instant>,
}

/// Registered plugins of a node.
#[derive(Default)]
pub struct Plugins {
    store: Mutex<Store>,
    changed: Notify,
    generations: AtomicU64,
}

impl Plugins {
    /// Adds a plugin.
    pub fn add(
        &self,
        driver: &str,
        endpoint: &str,
        versions: &[String],
    ) -> Result<Arc<DriverPlugin>, String> {
        let service = service_of(versions).map_err(|error| {
            format!("invalid supported gRPC versions of DRA driver plugin {driver} at endpoint {endpoint}: {error}")
        })?;
        if driver.is_empty()
            || driver.len() > 63
            || !machinery::names::dns_subdomain(driver, false).is_empty()
        {
            return Err(format!("invalid DRA driver name {driver:?}"));
        }
        let connections = Connections::default();
        let channel =
            cri::client::counted_channel(endpoint, &connections).map_err(|error| error.to_string())?;
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        let plugin = Arc::new(DriverPlugin {
            driver: driver.to_owned(),
            endpoint: endpoint.to_owned(),
            service,
            channel,
            connections,
            generation,
            removed: Notify::new(),
        });
        let mut store = self.store.lock();
        let plugins = store.plugins.entry(driver.to_owned()).or_default();
        if plugins.iter().any(|other| other.endpoint == endpoint) {
            // One plugin instance cannot replace another at its endpoint.
            return Err(format!("endpoint {endpoint} already registered for DRA driver plugin {driver}"));
        }
        plugins.push(Arc::clone(&plugin));
        tracing::info!(driver, endpoint, service, "DRA plugin registered");
        Ok(plugin)
    }

    /// Removes the plugin of a driver at an endpoint.
    pub fn remove(&self, driver: &str, endpoint: &str) {
        let mut store = self.store.lock();
        let Some(plugins) = store.plugins.get_mut(driver) else { return };
        plugins.retain(|plugin| {
            let is_kept = plugin.endpoint != endpoint;
            if !is_kept {
                plugin.removed.notify_one();
            }
            is_kept
        });
        if plugins.is_empty() {
            store.plugins.remove(driver);
        }
        drop(store);
        tracing::info!(driver, endpoint, "DRA plugin unregistered");
        self.sync(driver);
    }

    /// The newest plugin of a driver, connected ones before others.
    pub fn get(&self, driver: &str) -> Result<Arc<DriverPlugin>, DraError> {
        let store = self.store.lock();
        let plugins = store.plugins.get(driver).map(Vec::as_slice).unwrap_or_default();
        let connected = plugins.iter().rev().find(|plugin| plugin.connections.is_connected());
        let newest = plugins.iter().max_by_key(|plugin| plugin.generation);
        connected.or(newest).cloned().ok_or_else(|| DraError::NotRegistered(driver.to_owned()))
    }

    /// Schedules the deletion of a driver's slices if no plugin of it is connected, or cancels it.
    pub fn sync(&self, driver: &str) {
        let mut store = self.store.lock();
        let usable = store
            .plugins
            .get(driver)
            .is_some_and(|plugins| plugins.iter().any(|plugin| plugin.connections.is_connected()));
        if usable {
            store.wipes.remove(driver);
        } else {
            let at = tokio::time::Instant::now() + WIPING_DELAY;
            store.wipes.entry(driver.to_owned()).or_insert(at);
        }
        drop(store);
        self.changed.notify_one();
    }

    /// Deletes slices: those of all drivers at the start, because none has registered, then those of drivers that stay
    /// away.
    pub async fn wipe(&self, client: &Client, node: &str) {
        let mut retries: BTreeMap<String, Backoff> = BTreeMap::new();
        self.store.lock().wipes.insert(String::new(), tokio::time::Instant::now());
        loop {
            let next = self.store.lock().wipes.iter().map(|(driver, at)| (*at, driver.clone())).min();
            let timer = async {
                match &next {
                    Some((at, _)) => tokio::time::sleep_until(*at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = timer => {}
                () = self.changed.notified() => continue,
            }
            let Some((_, driver)) = next else { continue };
            let outcome = delete_slices(client, node, &driver).await;
            let mut store = self.store.lock();
            // It may have returned during the call; its slices are published again by the driver then.
            let Some(at) = store.wipes.get_mut(&driver) else { continue };
            match outcome {
                Ok(()) => {
                    tracing::debug!(driver, "deleted ResourceSlices of the node");
                    store.wipes.remove(&driver);
                    retries.remove(&driver);
                }
                Err(error) => {
                    tracing::debug!(driver, %error, "failed to delete ResourceSlices, retrying");
                    *at = tokio::time::Instant::now()
                        + retries.entry(driver).or_insert(WIPE_RETRY).next_delay();
                }
            }
        }
    }
}

async fn delete_slices(client: &Client, node: &str, driver: &str) -> Result<(), ClientError> {
    let mut field_selector = format!("spec.nodeName={node}");
    if !driver.is_empty() {
        field_selector.push_str(&format!(",spec.driver={driver}"));
    }
    let options = ListOptions { field_selector, ..ListOptions::default() };
    match client.delete_collection::<ResourceSlice>("", &options).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
