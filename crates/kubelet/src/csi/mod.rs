//! CSI drivers: registration, and mounting of their volumes into pods.
//!
//! [`registry`] connects drivers whose plugins register and publishes them in `CSINode`; [`mount`] stages and publishes
//! volumes with the context from [`call_context`], [`expand`] expands them, [`release`] unpublishes them; [`stats`] queries
//! their usage. [`record`] persists published volumes across kubelet restarts.

mod call_context;
mod capability;
mod driver;
mod expand;
mod mount;
mod record;
mod registry;
mod release;
mod stats;

use std::io;
use std::path::{Path, PathBuf};

use client::ClientError;
pub use driver::{Driver, Drivers};
pub use mount::Publishing;
pub use record::{Published, in_use};
pub use registry::{connect, publish_drivers, refresh_node_info, register_node};
pub use release::unpublish_all;
pub use stats::usage;
use tonic::Status;

use sha2::{Digest, Sha256};

/// Failure of a CSI volume operation.
#[derive(Debug, thiserror::Error)]
pub enum CsiError {
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    NoDriver(String),
    #[error("volume mode {mode:?} not supported by driver {driver}{}", if *.known { "" } else { " (no CSIDriver object)" })]
    NotForThis { driver: String, mode: &'static str, known: bool },
    #[error("volume {0} is not attached to this node yet: waiting for its VolumeAttachment")]
    NotAttached(String),
    #[error("failed to read {what}: {source}")]
    Read { what: String, source: ClientError },
    #[error("failed to fetch a token for the driver: {0}")]
    Token(#[source] ClientError),
    #[error("secret {0} not found")]
    NoSecret(String),
    #[error("{call}: {}", status.message())]
    Call { call: &'static str, status: Status },
    #[error("driver published {0}, which is not a block device")]
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

/// Unique name of a volume on this node, as in node status and the attach-detach controller.
#[must_use]
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// Name of the VolumeAttachment of a volume and node.
#[must_use]
pub fn attachment_name(driver: &str, handle: &str, node: &str) -> String {
    format!("csi-{}", hex::encode(Sha256::digest(format!("{handle}{driver}{node}"))))
}

/// Handle of an ephemeral inline volume.
#[must_use]
pub fn inline_handle(namespace: &str, pod: &str, volume: &str) -> String {
    format!("csi-{}", hex::encode(Sha256::digest(format!("{namespace}{pod}{volume}"))))
}
