//! Process foundations: logging, metrics, clock, task groups, drain, readiness, PKI, TLS, the HTTP client.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod accept;
pub mod addresses;
pub mod backoff;
pub mod clock;
pub mod egress;
pub mod errors;
pub mod features;
pub mod file;
pub mod file_changes;
pub mod http;
pub mod limits;
pub mod listen;
pub mod logging;
pub mod machine_network;
pub mod metrics;
pub mod peers;
pub mod pki;
pub mod profile;
pub mod readiness;
pub mod redact;
pub mod tasks;
pub mod tls;
pub mod trace;
pub mod version;
pub mod zpages;
