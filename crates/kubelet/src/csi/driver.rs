//! A registered CSI driver and the calls to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cri::csi::{
    IdentityClient, NodeClient, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeServiceCapabilityRPCType, NodeServiceCapabilityType,
};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::metrics::CsiMetrics;

use crate::keyed_locks::KeyedLocks;

/// Call timeout: mounting file systems can be slow.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// A CSI driver. Clones share the connection.
#[derive(Clone)]
pub struct Driver {
    pub name: String,
    channel: Channel,
    capabilities: Arc<[i32]>,
    pub info: NodeGetInfoResponse,
    metrics: CsiMetrics,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Driver").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Request with a timeout.
pub fn within<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

impl Driver {
    /// Connects to the driver at a socket.
    pub async fn connect_to(name: &str, endpoint: &str, metrics: &CsiMetrics) -> Result<Self, Status> {
        let channel =
            cri::client::channel(endpoint).map_err(|error| Status::unavailable(error.to_string()))?;
        let mut node = NodeClient::new(Grpc::new(channel.clone()));
        let info = node.node_get_info(within(NodeGetInfoRequest {}));
        let info = metrics.timed(name, "NodeGetInfo", info).await?.into_inner();
        let reply = node.node_get_capabilities(within(NodeGetCapabilitiesRequest {}));
        let reply = metrics.timed(name, "NodeGetCapabilities", reply).await?.into_inner();
        let capabilities = reply.capabilities.into_iter().filter_map(|one| {
            let NodeServiceCapabilityType::Rpc(rpc) = one.r#type?;
            Some(rpc.r#type)
        });
        Ok(Self {
            name: name.to_owned(),
            channel,
            capabilities: capabilities.collect(),
            info,
            metrics: metrics.clone(),
        })
    }

    /// The same driver with current node information.
    pub async fn refreshed(&self) -> Result<Self, Status> {
        let info = self.call("NodeGetInfo", self.node().node_get_info(within(NodeGetInfoRequest {}))).await?;
        Ok(Self { info, ..self.clone() })
    }

    /// The node service; its methods are awaited through [`Self::call`].
    #[must_use]
    pub fn node(&self) -> NodeClient {
        NodeClient::new(Grpc::new(self.channel.clone()))
    }

    /// Awaits a call of a method of the node service and records its duration and status.
    pub async fn call<T>(
        &self,
        method: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Status> {
        self.metrics.timed(&self.name, method, call).await.map(Response::into_inner)
    }

    #[must_use]
    pub fn identity(&self) -> IdentityClient {
        IdentityClient::new(Grpc::new(self.channel.clone()))
    }

    #[must_use]
    pub fn can(&self, capability: NodeServiceCapabilityRPCType) -> bool {
        self.capabilities.contains(&(capability as i32))
    }
}

/// Drivers of this node by name, and the volumes with an operation in progress.
#[derive(Debug, Default)]
pub struct Drivers {
    known: Mutex<BTreeMap<String, Driver>>,
    locks: KeyedLocks,
}

impl Drivers {
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Driver> {
        self.known.lock().get(name).cloned()
    }

    pub fn add(&self, driver: Driver) {
        self.known.lock().insert(driver.name.clone(), driver);
    }

    pub fn remove(&self, name: &str) {
        self.known.lock().remove(name);
    }

    #[must_use]
    pub fn all(&self) -> Vec<Driver> {
        self.known.lock().values().cloned().collect()
    }

    /// Waits for other stage, publish and unpublish operations on this volume, for any pod.
    pub async fn lock_volume(&self, driver: &str, handle: &str) -> OwnedMutexGuard<()> {
        self.locks.lock((driver.to_owned(), handle.to_owned())).await
    }
}
