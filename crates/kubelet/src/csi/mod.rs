//! Storage drivers: how they make themselves known, and how their volumes get into pods.
//!
//! [`registry`] finds drivers by their sockets and tells the API server of them; [`mount`] stages and publishes volumes
//! and takes them away again; [`record`] is what is kept beside a published volume, so that a kubelet that comes later
//! knows what it was.

mod driver;
mod mount;
mod record;
mod registry;

pub use driver::{Driver, Drivers};
pub use mount::{CsiError, Publishing, unpublish_all};
pub use record::{Published, in_use};
pub use registry::{follow, register_node};

use sha2::{Digest, Sha256};

/// The name of a volume on this node, as node status and the attach-detach controller have it.
#[must_use]
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The name of the object by which a volume is attached to a node.
#[must_use]
pub fn attachment_name(driver: &str, handle: &str, node: &str) -> String {
    format!("csi-{}", hex::encode(Sha256::digest(format!("{handle}{driver}{node}"))))
}

/// The handle of a volume that lives and dies with its pod.
#[must_use]
pub fn inline_handle(namespace: &str, pod: &str, volume: &str) -> String {
    format!("csi-{}", hex::encode(Sha256::digest(format!("{namespace}{pod}{volume}"))))
}
