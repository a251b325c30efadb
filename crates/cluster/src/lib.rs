//! Config, build, run, drain: the only crate that sees every component.

mod backup;
mod certificates;
mod config;
mod control_plane;
mod error;
mod live_backup;
mod storage;

pub use apiserver::admission::names as admission_plugins;
pub use apiserver::audit;
pub use backup::{backup, restore};
pub use certificates::Certificates;
pub use config::{CertificateFiles, Config, EtcdConfig, StoreConfig, audit_trail};
pub use control_plane::ControlPlane;
pub use error::{ClusterError, chain};
