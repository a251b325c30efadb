//! Storage drivers: how they make themselves known, and how their volumes get into pods.
//!
//! [`registry`] finds drivers by their sockets and tells the API server of them; [`mount`] stages and publishes volumes
//! with what [`told`] gathers for their driver, [`expand`] makes them larger, [`release`] takes them away again; [`stats`]
//! asks how full they are. [`record`] is what is kept of a published volume, so that a kubelet that comes later knows what
//! it was.

mod capability;
mod driver;
mod expand;
mod mount;
mod record;
mod registry;
mod release;
mod stats;
mod told;

use std::io;
use std::path::{Path, PathBuf};

use client::ClientError;
pub use driver::{Driver, Drivers};
pub use mount::Publishing;
pub use record::{Published, in_use};
pub use registry::{follow, register_node};
pub use release::unpublish_all;
pub use stats::usage;
use tonic::Status;

use sha2::{Digest, Sha256};

/// Why a volume is not there.
#[derive(Debug, thiserror::Error)]
pub enum CsiError {
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    NoDriver(String),
    #[error("volume mode {mode:?} not supported by driver {driver}{}", if *.known { "" } else { " (no CSIDriver object)" })]
    NotForThis { driver: String, mode: &'static str, known: bool },
    #[error("volume {0} is not attached to this node yet: waiting for its VolumeAttachment")]
    NotAttached(String),
    #[error("reading {what}: {source}")]
    Read { what: String, source: ClientError },
    #[error("failed to fetch a token for the driver: {0}")]
    Token(#[source] ClientError),
    #[error("the secret {0} does not exist")]
    NoSecret(String),
    #[error("{call}: {}", status.message())]
    Call { call: &'static str, status: Status },
    #[error("the driver published {0}, which is no block device")]
    NoDevice(PathBuf),
    #[error("{path}: {source}")]
    Files { path: PathBuf, source: io::Error },
}

fn call(name: &'static str) -> impl FnOnce(Status) -> CsiError {
    move |status| CsiError::Call { call: name, status }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> CsiError {
    let path = path.to_owned();
    |source| CsiError::Files { path, source }
}

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
