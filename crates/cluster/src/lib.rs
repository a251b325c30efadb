//! Config, build, run, drain: the only crate that sees every component.

mod backup;
mod certificates;
mod components;
mod config;
mod control_plane;
mod encryption;
mod error;
mod in_process;
mod live_backup;
mod local_path;
mod node;
mod reencrypt;
mod scheduling;
mod storage;

pub use apiserver::admission::names as admission_plugins;
pub use apiserver::audit;
pub use apiserver::encryption::{EncryptionError, add_key};
pub use apiserver::outbound;
pub use apiserver::{OidcFlags, WebhookTokenConfig};
pub use backup::{backup, restore};
pub use certificates::Certificates;
pub use components::{Components, run_alone, run_simulation};
pub use config::{
    CertificateFiles, Config, EncryptionConfig, EtcdConfig, StoreConfig, audit_trail, default_encryption_file,
};
pub use control_plane::ControlPlane;
pub use error::{ClusterError, chain};
pub use in_process::InProcessClients;
pub use kubelet::{Begun, Upkeep, housekeeping};
pub use node::{NodeBeside, NodeConfig, run_kubelet, run_node};
pub use reencrypt::{ReencryptError, Rewritten, reencrypt};
pub use scheduler::Configuration as SchedulerConfiguration;
pub use simulate::Fleet;
