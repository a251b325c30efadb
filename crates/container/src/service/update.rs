//! Changes to containers that run: their limits, their logs.

use std::time::Duration;

use cri::v1::LinuxContainerResources;

use super::create::limits;
use super::records::Container;
use super::{Doing, Runtime, RuntimeError};
use crate::attach::{self, Kind};

impl Runtime {
    /// Asks a container's shim for something and waits for its word.
    pub(super) fn ask_shim(&self, container: &Container, kind: Kind) -> Result<(), RuntimeError> {
        use std::io::{Read as _, Write as _};
        let step = || "talk to the container's shim".to_owned();
        let mut socket = sys::sockets::connect(&container.directory.join("shim.sock")).doing(step)?;
        socket.set_read_timeout(Some(Duration::from_secs(10))).doing(step)?;
        let mut bytes = Vec::new();
        attach::put(&mut bytes, kind, b"");
        socket.write_all(&bytes).doing(step)?;
        bytes.clear();
        let mut buffer = [0; 1024];
        loop {
            match attach::take(&mut bytes) {
                Ok(Some(frame)) if frame.kind == Kind::Done => return Ok(()),
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
        asked: &LinuxContainerResources,
    ) -> Result<(), RuntimeError> {
        let group = sys::cgroups::Hierarchy::detect().doing(|| "find the control groups".to_owned())?;
        let group = group.group(&container.meta.cgroup);
        let merged = merge(container.resources.lock().clone().unwrap_or_default(), asked);
        if container.running().is_some() {
            let group = group.ok_or_else(|| RuntimeError::NotFound("the control group".to_owned()))?;
            group.limit(&limits(asked)).doing(|| "set limits".to_owned())?;
        }
        // A container that starts later starts with these.
        if let Some(mut spec) = super::records::read_spec(&container.directory)? {
            spec.resources = limits(&merged);
            super::records::write_spec(&container.directory, &spec)?;
        }
        // A daemon that comes after this one tells the same.
        let mut config = container.config.clone();
        config.linux.get_or_insert_default().resources = Some(merged.clone());
        super::records::write_config(&container.directory, &config)?;
        *container.resources.lock() = Some(merged);
        Ok(())
    }
}

/// What is not said stays as it was.
fn merge(mut before: LinuxContainerResources, asked: &LinuxContainerResources) -> LinuxContainerResources {
    for (old, new) in [
        (&mut before.cpu_period, asked.cpu_period),
        (&mut before.cpu_quota, asked.cpu_quota),
        (&mut before.cpu_shares, asked.cpu_shares),
        (&mut before.memory_limit_in_bytes, asked.memory_limit_in_bytes),
        (&mut before.memory_swap_limit_in_bytes, asked.memory_swap_limit_in_bytes),
        (&mut before.oom_score_adj, asked.oom_score_adj),
    ] {
        if new != 0 {
            *old = new;
        }
    }
    for (old, new) in
        [(&mut before.cpuset_cpus, &asked.cpuset_cpus), (&mut before.cpuset_mems, &asked.cpuset_mems)]
    {
        if !new.is_empty() {
            old.clone_from(new);
        }
    }
    if !asked.hugepage_limits.is_empty() {
        before.hugepage_limits.clone_from(&asked.hugepage_limits);
    }
    before.unified.extend(asked.unified.clone());
    before
}
