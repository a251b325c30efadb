//! A storage driver that is known, and the calls to it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cri::csi::{
    IdentityClient, NodeClient, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeServiceCapabilityRPCType, NodeServiceCapabilityType,
};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
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

    /// The same driver, with what it says of the node now.
    pub async fn again(&self) -> Result<Self, Status> {
        let info = self.node().node_get_info(within(NodeGetInfoRequest {})).await?.into_inner();
        Ok(Self { info, ..self.clone() })
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

/// Who is at work on a volume, as long as somebody is.
type Turn = Weak<tokio::sync::Mutex<()>>;

/// The drivers of this node, by name, and the volumes that somebody is at work on.
#[derive(Debug, Default)]
pub struct Drivers {
    known: Mutex<BTreeMap<String, Driver>>,
    turns: Mutex<HashMap<(String, String), Turn>>,
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

    /// Waits until nobody else stages, publishes or takes away this volume, for this or another pod.
    pub async fn turn(&self, driver: &str, handle: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut turns = self.turns.lock();
            turns.retain(|_, lock| lock.strong_count() > 0);
            let slot = turns.entry((driver.to_owned(), handle.to_owned())).or_default();
            slot.upgrade().unwrap_or_else(|| {
                let fresh = Arc::default();
                *slot = Arc::downgrade(&fresh);
                fresh
            })
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_for_each_volume() {
        let drivers = Drivers::default();
        let first = drivers.turn("d", "h").await;
        let _other = drivers.turn("d", "g").await;
        let mut waiting = Box::pin(drivers.turn("d", "h"));
        assert!(matches!(futures_util::poll!(&mut waiting), Poll::Pending));
        drop(first);
        drop(waiting.await);
        drop(drivers.turn("e", "h").await);
        assert_eq!(drivers.turns.lock().len(), 2, "those that are not used any more are forgotten");
    }
}
