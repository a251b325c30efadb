//! `/version`: the Kubernetes version of this server.

pub use base::version::{GIT_VERSION, register_build_info, version};
