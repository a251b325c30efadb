//! Limits the kernel sets on this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limit of open files, if there is one.
#[must_use]
pub fn open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum
}

/// Raises the soft limit of open files to the hard one: every connection is a descriptor.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "failed to raise the limit of open files");
    }
}
