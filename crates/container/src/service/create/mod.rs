//! Conversion of a CRI container request to the shim's spec.

mod confinement;
mod mounts;
mod process;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cri::v1::{
    ContainerConfig, ContainerEventType, LinuxContainerResources, LinuxContainerSecurityContext,
    NamespaceMode, PodSandboxConfig,
};
use sys::cgroups::Resources;
use tokio::sync::watch;

use self::process::process;
use super::containers::config_resources;
use super::records::{self, Container, ContainerMeta, Phase, Sandbox};
use super::signals::stop_signal;
use super::{Doing, Runtime, RuntimeError, new_id, now};
use crate::cdi;
use crate::images::Image;
use crate::shim::spec::{Device, DeviceAttributes, Namespaces, PidNamespace, Spec};

/// Cgroup of containers whose pod names no parent.
const DEFAULT_PARENT: &str = "/ferry";

impl Runtime {
    /// Prepares a container. This blocks.
    pub(super) fn create_container(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        config: ContainerConfig,
        pod: &PodSandboxConfig,
    ) -> Result<Arc<Container>, RuntimeError> {
        let metadata = config.metadata.clone().unwrap_or_default();
        let sandbox_id = sandbox.meta.lock().id.clone();
        let name = format!("{} of {sandbox_id} attempt {}", metadata.name, metadata.attempt);
        let _reserved = self.reserve(format!("container {name}"))?;
        let same = |container: &Arc<Container>| container.config.metadata.as_ref() == Some(&metadata);
        if let Some(there) = self.containers_of(&sandbox_id).iter().find(|container| same(container)) {
            let id = &there.meta.id;
            return Err(RuntimeError::Conflict(format!(
                "failed to reserve container name {name:?}: it is reserved for {id:?}"
            )));
        }
        if !sandbox.ready() {
            return Err(RuntimeError::Conflict(format!("sandbox {sandbox_id} is not ready")));
        }
        let requested = config.image.clone().unwrap_or_default();
        let image = self.images.find(&requested.image);
        let image =
            image.ok_or_else(|| RuntimeError::NotFound(format!("image {:?} not found", requested.image)))?;
        let id = new_id();
        let cgroup = self.cgroup_of(sandbox, &id);
        let log = match (pod.log_directory.as_str(), config.log_path.as_str()) {
            ("", _) | (_, "") => None,
            (directory, name) => Some(Path::new(directory).join(name)),
        };
        let run = &image.config.config;
        let spec = self.spec(sandbox, &config, pod, &image, &id, cgroup.clone(), log.clone())?;
        let config = records::without_secrets(config);
        let meta = ContainerMeta {
            id: id.clone(),
            sandbox: sandbox_id,
            created: now(),
            image_id: image.id.clone(),
            image_ref: image.id.clone(),
            log_path: log.map(|path| path.display().to_string()).unwrap_or_default(),
            stop_signal: stop_signal(&config, run),
            cgroup,
        };
        let parent = self.config.root.join("containers");
        let hidden = parent.join(format!(".{id}"));
        let directory = parent.join(&id);
        let made = (|| {
            for part in ["upper", "work", "rootfs"] {
                std::fs::create_dir_all(hidden.join(part))
                    .doing(|| "make the container's directory".to_owned())?;
            }
            records::write_spec(&directory, &spec)?;
            records::write(&hidden.join("meta.json"), &meta)?;
            records::write_config(&hidden, &config)?;
            std::fs::rename(&hidden, &directory).doing(|| "make the container's directory".to_owned())
        })();
        if let Err(error) = made {
            records::remove_tree(&hidden)?;
            records::remove_private(&directory)?;
            return Err(error);
        }
        let container = Arc::new(Container {
            directory,
            resources: parking_lot::Mutex::new(config_resources(&config)),
            config,
            meta,
            identity: OnceLock::new(),
            phase: watch::Sender::new(Phase::Created),
            changing: tokio::sync::Mutex::default(),
        });
        self.state.write().containers.insert(id, Arc::clone(&container));
        self.emit(&container, ContainerEventType::ContainerCreatedEvent);
        Ok(container)
    }

    fn cgroup_of(&self, sandbox: &Sandbox, id: &str) -> String {
        let parent = sandbox.meta.lock().cgroup_parent.clone();
        let parent = if parent.is_empty() { DEFAULT_PARENT.to_owned() } else { parent };
        format!("{}/{id}", parent.trim_end_matches('/'))
    }

    #[expect(clippy::too_many_arguments, reason = "every argument is an input of the spec")]
    fn spec(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
        pod: &PodSandboxConfig,
        image: &Image,
        id: &str,
        cgroup: String,
        log: Option<PathBuf>,
    ) -> Result<Spec, RuntimeError> {
        let linux = config.linux.clone().unwrap_or_default();
        let security = linux.security_context.clone().unwrap_or_default();
        let resources = linux.resources.clone().unwrap_or_default();
        let run = &image.config.config;
        let privileged = security.privileged;
        let mounts = self.mounts(sandbox, config, &security)?;
        let devices = config.devices.iter().map(|device| Device {
            host: device.host_path.clone().into(),
            target: device.container_path.clone().into(),
            permissions: device.permissions.clone(),
            attributes: DeviceAttributes::default(),
        });
        let paths = |paths: &[String]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let mut spec = Spec {
            process: process(config, pod, run, &security)?,
            root: image.root(&self.images, security.readonly_rootfs),
            mounts,
            namespaces: self.container_namespaces(sandbox, &security)?,
            cgroup,
            out_of_memory_score: resources.oom_score_adj,
            resources: limits(&resources),
            devices: devices.collect(),
            hooks: Vec::new(),
            privileged,
            masked_paths: if privileged { Vec::new() } else { paths(&security.masked_paths) },
            read_only_paths: if privileged { Vec::new() } else { paths(&security.readonly_paths) },
            log,
            stdin: config.stdin,
            stdin_once: config.stdin_once,
        };
        let names: Vec<String> = config.cdi_devices.iter().map(|device| device.name.clone()).collect();
        for (device, edits) in cdi::edits_of(&self.config.cdi_directories, &names)? {
            cdi::apply(&mut spec, &device, &edits)?;
        }
        tracing::debug!(container = id, "wrote container spec");
        Ok(spec)
    }

    fn container_namespaces(
        &self,
        sandbox: &Sandbox,
        security: &LinuxContainerSecurityContext,
    ) -> Result<Namespaces, RuntimeError> {
        let options = security.namespace_options.clone().unwrap_or_default();
        let of_pod = |name: &str| Some(sandbox.namespace(name)).filter(|path| path.exists());
        let pid = match options.pid() {
            NamespaceMode::Container => PidNamespace::New,
            NamespaceMode::Node => PidNamespace::Host,
            NamespaceMode::Pod => PidNamespace::Of(of_pod("pid").ok_or_else(|| {
                RuntimeError::Invalid("the pod's containers do not share a pid namespace".to_owned())
            })?),
            NamespaceMode::Target => {
                let target = self.container(&options.target_id)?;
                let started = target.running().ok_or_else(|| {
                    RuntimeError::Conflict(format!("container {} is not running", options.target_id))
                })?;
                PidNamespace::OfProcess { pid: started.pid, start_time: started.start_time }
            }
        };
        let users = match super::sandboxes::users(&super::sandboxes::namespaces(&sandbox.config))? {
            Some(map) => {
                let missing = || RuntimeError::Conflict("the pod's user namespace is gone".to_owned());
                Some((map, of_pod("user").ok_or_else(missing)?))
            }
            None => None,
        };
        Ok(Namespaces { network: of_pod("net"), ipc: of_pod("ipc"), uts: of_pod("uts"), pid, users })
    }
}

/// Limits in cgroup form. Zero means unset in CRI.
pub(super) fn limits(resources: &LinuxContainerResources) -> Resources {
    let nonzero = |number: i64| Some(number).filter(|number| *number != 0);
    let positive = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0);
    let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    Resources {
        cpu_shares: positive(resources.cpu_shares),
        cpu_quota: nonzero(resources.cpu_quota),
        cpu_period: positive(resources.cpu_period),
        cpuset_cpus: text(&resources.cpuset_cpus),
        cpuset_mems: text(&resources.cpuset_mems),
        memory_limit: nonzero(resources.memory_limit_in_bytes),
        swap_limit: nonzero(resources.memory_swap_limit_in_bytes),
        pids_limit: None,
        hugepages: resources
            .hugepage_limits
            .iter()
            .map(|limit| (limit.page_size.clone(), limit.limit))
            .collect(),
        unified: resources.unified.clone(),
    }
}
