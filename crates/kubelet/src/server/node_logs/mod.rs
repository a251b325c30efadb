//! `/logs/`: files of the machine's log directory, and queries of the logs of its services (NodeLogQuery).
//!
//! Directories, redirects and ranges are served as by the file server of Go's standard library, which Kubernetes uses.
//! Symbolic links are followed only to what is below the directory, because pods with a `hostPath` volume may write them.

mod files;
mod journal;
mod query;
mod serve;

use std::path::PathBuf;

pub use serve::{NodeLogRequest, Queries};

/// Settings of the endpoint.
#[derive(Clone, Debug)]
pub struct NodeLogSettings {
    /// Directory that is served.
    pub directory: PathBuf,
    /// `enableSystemLogHandler`: serves the endpoint.
    pub serve: bool,
    /// `enableSystemLogQuery`: answers queries of services and files.
    pub query: bool,
}

impl Default for NodeLogSettings {
    fn default() -> Self {
        Self { directory: PathBuf::from("/var/log"), serve: true, query: false }
    }
}
