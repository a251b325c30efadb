//! Changes to running containers: limits, log rotation.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use cri::v1::LinuxContainerResources;

use super::create::limits;
use super::records::Container;
use super::{Doing, Runtime, RuntimeError};
use crate::attach::{self, FrameType};

/// A connection to the shim of a container.
pub(super) fn connect_to_shim(container: &Container) -> Result<UnixStream, RuntimeError> {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    sys::sockets::connect(&container.directory.join("shim.sock")).map_err(|error| match error.kind() {
        // The shim ends with its container.
        NotFound | ConnectionRefused => {
            RuntimeError::NotFound(format!("container {} has ended", container.meta.id))
        }
        _ => RuntimeError::Io("connect to the container's shim".to_owned(), error),
    })
}

impl Runtime {
    /// Sends a request to a container's shim and waits for its reply.
    pub(super) fn request_shim(&self, container: &Container, kind: FrameType) -> Result<(), RuntimeError> {
        use std::io::{Read as _, Write as _};
        let step = || "talk to the container's shim".to_owned();
        let mut socket = connect_to_shim(container)?;
        socket.set_read_timeout(Some(Duration::from_secs(10))).doing(step)?;
        let mut bytes = Vec::new();
        attach::put(&mut bytes, kind, b"");
        socket.write_all(&bytes).doing(step)?;
        bytes.clear();
        let mut buffer = [0; 1024];
        loop {
            match attach::take(&mut bytes) {
                Ok(Some(frame)) if frame.kind == FrameType::Done => return Ok(()),
                Ok(Some(frame)) => {
                    return Err(RuntimeError::Invalid(String::from_utf8_lossy(&frame.data).into_owned()));
                }
                Ok(None) => {}
                Err(error) => return Err(RuntimeError::Invalid(error.to_string())),
            }
            match socket.read(&mut buffer).doing(step)? {
                0 => return Err(RuntimeError::NotFound("the container's shim is gone".to_owned())),
                count => bytes.extend_from_slice(&buffer[..count]),
            }
        }
    }

    pub(super) fn update_resources(
        &self,
        container: &Container,
        requested: &LinuxContainerResources,
    ) -> Result<(), RuntimeError> {
        let group = sys::cgroups::Hierarchy::detect().doing(|| "find the control groups".to_owned())?;
        let group = group.group(&container.meta.cgroup);
        let merged = merge(container.resources.lock().clone().unwrap_or_default(), requested);
        if container.running().is_some() {
            let group = group.ok_or_else(|| RuntimeError::NotFound("the control group".to_owned()))?;
            group.limit(&limits(requested)).doing(|| "set limits".to_owned())?;
        }
        // A container that starts later uses these limits.
        if let Some(mut spec) = super::records::read_spec(&container.directory)? {
            spec.resources = limits(&merged);
            super::records::write_spec(&container.directory, &spec)?;
        }
        // A restarted daemon reports the same limits.
        let mut config = container.config.clone();
        config.linux.get_or_insert_default().resources = Some(merged.clone());
        super::records::write_config(&container.directory, &config)?;
        *container.resources.lock() = Some(merged);
        Ok(())
    }
}

/// Unset values stay unchanged.
fn merge(
    mut before: LinuxContainerResources,
    requested: &LinuxContainerResources,
) -> LinuxContainerResources {
    for (old, new) in [
        (&mut before.cpu_period, requested.cpu_period),
        (&mut before.cpu_quota, requested.cpu_quota),
        (&mut before.cpu_shares, requested.cpu_shares),
        (&mut before.memory_limit_in_bytes, requested.memory_limit_in_bytes),
        (&mut before.memory_swap_limit_in_bytes, requested.memory_swap_limit_in_bytes),
        (&mut before.oom_score_adj, requested.oom_score_adj),
    ] {
        if new != 0 {
            *old = new;
        }
    }
    for (old, new) in
        [(&mut before.cpuset_cpus, &requested.cpuset_cpus), (&mut before.cpuset_mems, &requested.cpuset_mems)]
    {
        if !new.is_empty() {
            old.clone_from(new);
        }
    }
    if !requested.hugepage_limits.is_empty() {
        before.hugepage_limits.clone_from(&requested.hugepage_limits);
    }
    before.unified.extend(requested.unified.clone());
    before
}
