//! A storage driver that is known, and the calls to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cri::csi::{
    IdentityClient, NodeClient, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeServiceCapabilityRPCType, NodeServiceCapabilityType,
};
use parking_lot::Mutex;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// How long a driver may take for a call: attaching file systems can be slow.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A driver. Clones share the connection.
#[derive(Clone)]
pub struct Driver {
    pub name: String,
    channel: Channel,
    capabilities: Arc<[i32]>,
    pub info: NodeGetInfoResponse,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Driver").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A message with a time limit.
pub fn within<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(PATIENCE);
    request
}

impl Driver {
    /// Meets the driver at a socket.
    pub async fn meet(name: &str, endpoint: &str) -> Result<Self, Status> {
        let channel =
            cri::client::channel(endpoint).map_err(|error| Status::unavailable(error.to_string()))?;
        let mut node = NodeClient::new(Grpc::new(channel.clone()));
        let info = node.node_get_info(within(NodeGetInfoRequest {})).await?.into_inner();
        let told = node.node_get_capabilities(within(NodeGetCapabilitiesRequest {})).await?.into_inner();
        let capabilities = told.capabilities.into_iter().filter_map(|one| {
            let NodeServiceCapabilityType::Rpc(rpc) = one.r#type?;
            Some(rpc.r#type)
        });
        Ok(Self { name: name.to_owned(), channel, capabilities: capabilities.collect(), info })
    }

    #[must_use]
    pub fn node(&self) -> NodeClient {
        NodeClient::new(Grpc::new(self.channel.clone()))
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

/// The drivers of this node, by name.
#[derive(Debug, Default)]
pub struct Drivers(Mutex<BTreeMap<String, Driver>>);

impl Drivers {
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Driver> {
        self.0.lock().get(name).cloned()
    }

    pub fn add(&self, driver: Driver) {
        self.0.lock().insert(driver.name.clone(), driver);
    }

    pub fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    #[must_use]
    pub fn all(&self) -> Vec<Driver> {
        self.0.lock().values().cloned().collect()
    }
}
