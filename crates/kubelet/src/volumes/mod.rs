//! Volumes: directories of the node made ready for a pod, and how its containers mount them.

mod atomic;
mod directories;
mod empty_dir;
mod host_path;
mod mounts;
pub(crate) mod ownership;
mod payload;
mod prepare;
mod sub_path;
mod trust_bundle;

pub use directories::PodDirectories;
pub(crate) use empty_dir::is_mount_point;
pub use mounts::{is_recursive, mounts};
pub use payload::{File, Payload, PayloadError};
pub use prepare::{
    Context, Prepared, PreparedVolume, Tokens, VolumeError, prepare, release_parts, tear_down,
};
