//! Limits the kernel sets on this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one: every connection is a descriptor.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}
