//! Process foundations: logging, metrics, clock, task groups, drain, readiness, PKI, TLS, the HTTP client.

pub mod addresses;
pub mod clock;
pub mod egress;
pub mod errors;
pub mod features;
pub mod file;
pub mod file_changes;
pub mod http;
pub mod kubeconfig;
pub mod limits;
pub mod logging;
pub mod metrics;
pub mod peers;
pub mod pki;
pub mod readiness;
pub mod tasks;
pub mod tls;
