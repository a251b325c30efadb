//! Volumes: preparation on the node, and the mounts of containers.

mod atomic;
mod devices;
mod directories;
mod disk_usage;
mod empty_dir;
pub(crate) mod growth;
mod host_path;
mod local;
mod mounts;
pub(crate) mod ownership;
mod payload;
mod prepare;
mod stats;
mod sub_path;
mod tokens;
mod trust_bundle;

pub use devices::{devices, is_block_device, use_of};
pub use directories::{PodDirectories, csi_plugin, plugin_name, plugin_of_claim};
pub use disk_usage::{DiskUsage, disk_usage};
pub use mounts::{MountInputs, is_recursive, mounts};
pub use payload::{File, Payload, PayloadError};
pub use prepare::{Prepared, PreparedVolume, VolumeContext, VolumeError, prepare, release_parts, tear_down};
pub use stats::{Amounts, Measure, PodVolumes, VolumeStats};
pub use sub_path::read as read_file;
pub use tokens::Tokens;
