//! Pod sandboxes: namespaces, a network, shared memory and a few files.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use cri::v1::{DNSConfig, IDMapping, NamespaceMode, NamespaceOption, PodSandboxConfig, Protocol};
use machinery::quantity::Quantity;
use sys::process;

use super::records::{self, Sandbox, SandboxMeta};
use super::{Doing, Runtime, RuntimeError, new_id, now};
use crate::launch;
use crate::network::{Bandwidth, Pod, PortMapping};
use crate::shim::spec::{SandboxSpec, UserMap};
use crate::shim::{Report, Task};

const SHARED_MEMORY: u64 = 64 << 20;
/// In bits: a few maximum-size packets.
const SMALLEST_BURST: u64 = 8 * (32 << 10);

/// Namespaces that a pod requests; its own by default.
pub(super) fn namespaces(config: &PodSandboxConfig) -> NamespaceOption {
    let context = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    context.and_then(|context| context.namespace_options.clone()).unwrap_or_default()
}

/// User mapping of a pod, if it requests a user namespace.
pub(super) fn users(requested: &NamespaceOption) -> Result<Option<UserMap>, RuntimeError> {
    let Some(options) = requested.userns_options.as_ref() else { return Ok(None) };
    let wrong = |what: &str| RuntimeError::Invalid(format!("user namespace: {what}"));
    match options.mode() {
        NamespaceMode::Pod => {}
        NamespaceMode::Node => return Ok(None),
        NamespaceMode::Container | NamespaceMode::Target => {
            return Err(wrong("it can be the pod's or the node's, not a container's"));
        }
    }
    if [requested.network(), requested.ipc(), requested.pid()].contains(&NamespaceMode::Node) {
        return Err(wrong("it cannot be combined with a namespace of the node"));
    }
    let read = |found: &[IDMapping]| {
        let map: Vec<_> = found.iter().map(|map| (map.container_id, map.host_id, map.length)).collect();
        // Root in the pod must not be root on the host.
        let fine = map.iter().all(|(inside, outside, length)| {
            *length > 0
                && *outside > 0
                && inside.checked_add(*length).is_some()
                && outside.checked_add(*length).is_some()
        });
        if fine && map.iter().any(|(inside, ..)| *inside == 0) {
            Ok(map)
        } else {
            Err(wrong("its mapping is not valid"))
        }
    };
    Ok(Some(UserMap { uids: read(&options.uids)?, gids: read(&options.gids)? }))
}

impl Sandbox {
    pub(super) fn host_network(&self) -> bool {
        namespaces(&self.config).network() == NamespaceMode::Node
    }

    /// Reports whether the sandbox's namespaces exist and its holder process is alive.
    pub(super) fn ready(&self) -> bool {
        let meta = self.meta.lock();
        let (pid, start_time) = meta.holder;
        let held = pid == 0 || process::start_time(pid).ok() == Some(start_time);
        let network = self.host_network() || process::is_namespace_file(&self.namespace("net"));
        meta.complete && !meta.stopped && held && network
    }

    pub(super) fn namespace(&self, name: &str) -> std::path::PathBuf {
        self.directory.join("namespaces").join(name)
    }

    pub(super) fn pod(&self, id: &str) -> Pod {
        pod(&self.config, id, self.namespace("net"))
    }
}

fn pod(config: &PodSandboxConfig, id: &str, network_namespace: std::path::PathBuf) -> Pod {
    let metadata = config.metadata.clone().unwrap_or_default();
    let ports = config.port_mappings.iter().filter(|mapping| mapping.host_port > 0).filter_map(|mapping| {
        let protocol = match mapping.protocol() {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        };
        Some(PortMapping {
            host_port: u16::try_from(mapping.host_port).ok()?,
            container_port: u16::try_from(mapping.container_port).ok()?,
            protocol: protocol.to_owned(),
            host_ip: mapping.host_ip.clone(),
        })
    });
    Pod {
        sandbox: id.to_owned(),
        namespace: metadata.namespace,
        name: metadata.name,
        uid: metadata.uid,
        network_namespace,
        ports: ports.collect(),
        bandwidth: bandwidth(config),
    }
}

/// Bandwidth limits from the pod's annotations. The kubelet has already rejected pods with invalid ones.
fn bandwidth(config: &PodSandboxConfig) -> Bandwidth {
    let rate = |name: &str| {
        let quantity = config.annotations.get(name).and_then(|text| Quantity::parse(text).ok());
        quantity.and_then(|quantity| u64::try_from(quantity.value()).ok()).unwrap_or(0)
    };
    // The burst is the traffic of a tenth of a second.
    let burst =
        |rate: u64| if rate == 0 { 0 } else { (rate / 10).clamp(SMALLEST_BURST, u64::from(u32::MAX)) };
    let (ingress, egress) = (rate("kubernetes.io/ingress-bandwidth"), rate("kubernetes.io/egress-bandwidth"));
    Bandwidth {
        ingress_rate: ingress,
        ingress_burst: burst(ingress),
        egress_rate: egress,
        egress_burst: burst(egress),
    }
}

/// Writes the pod's `resolv.conf`: from its configuration, or a copy of the host's.
fn resolver_file(config: Option<&DNSConfig>) -> std::io::Result<String> {
    let Some(config) = config else {
        return match std::fs::read_to_string("/etc/resolv.conf") {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            other => other,
        };
    };
    let mut text = String::new();
    if !config.searches.is_empty() {
        let _ = writeln!(text, "search {}", config.searches.join(" "));
    }
    for server in &config.servers {
        let _ = writeln!(text, "nameserver {server}");
    }
    if !config.options.is_empty() {
        let _ = writeln!(text, "options {}", config.options.join(" "));
    }
    Ok(text)
}

/// Reserves a name until dropped.
pub(super) struct Reservation<'a> {
    runtime: &'a Runtime,
    name: String,
}

impl Runtime {
    pub(super) fn reserve(&self, name: String) -> Result<Reservation<'_>, RuntimeError> {
        if !self.reserved.lock().insert(name.clone()) {
            return Err(RuntimeError::Conflict(format!("name {name:?} is reserved")));
        }
        Ok(Reservation { runtime: self, name })
    }

    /// Creates a pod's sandbox. This blocks.
    pub(super) fn run_sandbox(
        self: &Arc<Self>,
        config: PodSandboxConfig,
        handler: &str,
    ) -> Result<Arc<Sandbox>, RuntimeError> {
        if !handler.is_empty() && handler != "ferry" {
            return Err(RuntimeError::NotFound(format!("no runtime for {handler:?} is configured")));
        }
        let security = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
        if security.is_some_and(|security| security.run_as_group.is_some() && security.run_as_user.is_none())
        {
            return Err(RuntimeError::Invalid("a group to run as needs a user to run as".to_owned()));
        }
        let metadata = config.metadata.clone().unwrap_or_default();
        let name = format!("{}_{}_{}_{}", metadata.name, metadata.namespace, metadata.uid, metadata.attempt);
        let _reserved = self.reserve(format!("sandbox {name}"))?;
        let same = |sandbox: &&Arc<Sandbox>| sandbox.config.metadata.as_ref() == Some(&metadata);
        if let Some(there) = self.state.read().sandboxes.values().find(same) {
            let id = &there.meta.lock().id;
            return Err(RuntimeError::Conflict(format!(
                "failed to reserve sandbox name {name:?}: it is reserved for {id:?}"
            )));
        }
        let id = new_id();
        let parent = self.config.root.join("sandboxes");
        let hidden = parent.join(format!(".{id}"));
        std::fs::create_dir_all(&hidden).doing(|| "make the sandbox's directory".to_owned())?;
        let made = self.make_sandbox(&id, config, handler, &hidden);
        match made {
            Ok(sandbox) => {
                self.state.write().sandboxes.insert(id, Arc::clone(&sandbox));
                Ok(sandbox)
            }
            Err(error) => {
                for candidate in [&hidden, &parent.join(&id)] {
                    if let Err(left) = records::remove_tree(candidate) {
                        tracing::warn!(%left, "failed to clean up after sandbox creation failure");
                    }
                }
                Err(error)
            }
        }
    }

    fn make_sandbox(
        self: &Arc<Self>,
        id: &str,
        config: PodSandboxConfig,
        handler: &str,
        hidden: &Path,
    ) -> Result<Arc<Sandbox>, RuntimeError> {
        let requested = namespaces(&config);
        let linux = config.linux.clone().unwrap_or_default();
        let directory = self.config.root.join("sandboxes").join(id);
        let host_ipc = requested.ipc() == NamespaceMode::Node;
        let host_network = requested.network() == NamespaceMode::Node;
        let host_name =
            std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let hostname = if config.hostname.is_empty() { host_name } else { config.hostname.clone() };
        let spec = SandboxSpec {
            hostname: hostname.clone(),
            network: !host_network,
            ipc: !host_ipc,
            uts: !host_network,
            pid: requested.pid() == NamespaceMode::Pod,
            users: users(&requested)?,
            sysctls: linux.sysctls.clone().into_iter().collect(),
            shared_memory: (!host_ipc).then(|| (directory.join("shm"), SHARED_MEMORY)),
            namespaces: directory.join("namespaces"),
        };
        records::write(&hidden.join("spec.json"), &spec)?;
        records::write_config(hidden, &config)?;
        let file = |name: &str, content: String| {
            std::fs::write(hidden.join(name), content).doing(|| format!("write {name}"))
        };
        file(
            "resolv.conf",
            resolver_file(config.dns_config.as_ref()).doing(|| "read resolv.conf".to_owned())?,
        )?;
        file("hostname", format!("{hostname}\n"))?;
        let mut meta = SandboxMeta {
            id: id.to_owned(),
            created: now(),
            runtime_handler: handler.to_owned(),
            cgroup_parent: linux.cgroup_parent,
            boot_id: process::boot_id().doing(|| "read the boot id".to_owned())?,
            ..SandboxMeta::default()
        };
        records::write(&hidden.join("meta.json"), &meta)?;
        // From here on a restarted daemon finds the sandbox and can remove it.
        std::fs::rename(hidden, &directory).doing(|| "make the sandbox's directory".to_owned())?;
        let lock = launch::lock(&directory).doing(|| "lock the sandbox".to_owned())?;
        let report = self.launcher.run(Task::Sandbox, &directory, &directory.join("shim.log"), Some(lock))?;
        if let Report::Started { pid, start_time } = report
            && start_time != 0
        {
            meta.holder = (pid, start_time);
            records::write(&directory.join("meta.json"), &meta)?;
        }
        let sandbox = Sandbox {
            directory: directory.clone(),
            config,
            meta: parking_lot::Mutex::new(meta),
            changing: tokio::sync::Mutex::default(),
        };
        if !host_network && let Err(error) = self.connect(&sandbox, id) {
            self.release_sandbox(&sandbox)?;
            return Err(error);
        }
        {
            let mut meta = sandbox.meta.lock();
            meta.complete = true;
            records::write(&directory.join("meta.json"), &*meta)?;
        }
        Ok(Arc::new(sandbox))
    }

    fn connect(&self, sandbox: &Sandbox, id: &str) -> Result<(), RuntimeError> {
        let configuration = self.plugins.configuration(&self.pod_ranges.read())?;
        // Written first, so that a partly created sandbox can be disconnected after a restart.
        let path = sandbox.directory.join("meta.json");
        {
            let mut meta = sandbox.meta.lock();
            meta.attached = Some(crate::network::Attachment {
                configuration: configuration.clone(),
                ..Default::default()
            });
            records::write(&path, &*meta)?;
        }
        let attached = self.plugins.attach(configuration, &sandbox.pod(id))?;
        let mut meta = sandbox.meta.lock();
        meta.attached = Some(attached);
        records::write(&path, &*meta)
    }

    /// Releases a sandbox's network, namespaces, mounts and holder. Idempotent.
    fn release_sandbox(&self, sandbox: &Sandbox) -> Result<(), RuntimeError> {
        let (id, attached, (pid, start_time)) = {
            let meta = sandbox.meta.lock();
            (meta.id.clone(), meta.attached.clone(), meta.holder)
        };
        if let Some(attached) = attached {
            self.plugins.detach(&attached, &sandbox.pod(&id))?;
            sandbox.meta.lock().attached = None;
        }
        if pid > 1 && process::start_time(pid).ok() == Some(start_time) {
            process::kill(pid, 9).doing(|| "end the pod's first process".to_owned())?;
        }
        for name in ["net", "ipc", "uts", "pid", "user"] {
            let path = sandbox.namespace(name);
            if path.exists() {
                sys::mounts::unmount(&path).doing(|| format!("unmount {}", path.display()))?;
            }
        }
        let memory = sandbox.directory.join("shm");
        if memory.exists() {
            sys::mounts::unmount(&memory).doing(|| format!("unmount {}", memory.display()))?;
        }
        Ok(())
    }

    /// Stops a pod's containers and releases its network.
    pub(super) async fn stop_sandbox(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<(), RuntimeError> {
        let _alone = sandbox.changing.lock().await;
        let id = sandbox.meta.lock().id.clone();
        for container in self.containers_of(&id) {
            self.stop_container(&container, 0).await?;
        }
        if sandbox.meta.lock().stopped {
            return Ok(());
        }
        let ours = Arc::clone(sandbox);
        self.blocking(move |runtime| {
            runtime.release_sandbox(&ours)?;
            let mut meta = ours.meta.lock();
            meta.stopped = true;
            records::write(&ours.directory.join("meta.json"), &*meta)
        })
        .await
    }

    pub(super) async fn remove_sandbox(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<(), RuntimeError> {
        self.stop_sandbox(sandbox).await?;
        let id = sandbox.meta.lock().id.clone();
        for container in self.containers_of(&id) {
            self.remove_container(&container).await?;
        }
        let directory = sandbox.directory.clone();
        self.blocking(move |_| records::hide_and_remove(&directory)).await?;
        self.state.write().sandboxes.remove(&id);
        Ok(())
    }

    /// Restores the sandboxes of an earlier daemon.
    pub(super) fn restore_sandboxes(&self) -> Result<(), RuntimeError> {
        let boot = process::boot_id().doing(|| "read the boot id".to_owned())?;
        let mut known = BTreeSet::new();
        for directory in records::directories(&self.config.root.join("sandboxes"))? {
            let meta: Option<SandboxMeta> = records::read(&directory.join("meta.json"))?;
            let (Some(mut meta), Some(config)) = (meta, records::read_config(&directory)?) else {
                records::remove_tree(&directory)?;
                continue;
            };
            // A shim started by an earlier daemon may still be starting.
            launch::settled(&directory);
            if meta.holder == (0, 0) {
                meta.holder = records::read(&directory.join("holder"))?.unwrap_or_default();
            }
            if meta.boot_id != boot {
                meta.holder = (0, 0);
            }
            let id = meta.id.clone();
            let sandbox = Sandbox {
                directory,
                config,
                meta: parking_lot::Mutex::new(meta),
                changing: tokio::sync::Mutex::default(),
            };
            known.insert(id.clone());
            self.state.write().sandboxes.insert(id, Arc::new(sandbox));
        }
        tracing::debug!(count = known.len(), "restored sandboxes");
        Ok(())
    }

    /// Releases network resources of pods without a sandbox. A failure does not prevent the start.
    pub(super) fn collect_networks(&self) {
        let Ok(configuration) = self.plugins.configuration(&self.pod_ranges.read()) else { return };
        let known: Vec<String> = {
            let state = self.state.read();
            let connected = state.sandboxes.values().filter(|sandbox| sandbox.meta.lock().attached.is_some());
            connected.map(|sandbox| sandbox.meta.lock().id.clone()).collect()
        };
        if let Err(error) = self.plugins.collect(&configuration, &known) {
            tracing::warn!(%error, "failed to release network resources of removed pods");
        }
    }

    /// Result of the network's CHECK as text, for verbose status.
    pub(super) fn network_health(&self, sandbox: &Sandbox) -> String {
        let (id, attached) = {
            let meta = sandbox.meta.lock();
            (meta.id.clone(), meta.attached.clone())
        };
        match attached.map(|attached| self.plugins.check(&attached, &sandbox.pod(&id))) {
            None => "not connected".to_owned(),
            Some(Ok(())) => "ok".to_owned(),
            Some(Err(error)) => error.to_string(),
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.runtime.reserved.lock().remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_mappings_invalid_are_rejected() {
        let with = |container_id, host_id, length, network: NamespaceMode| {
            let map = vec![IDMapping { container_id, host_id, length }];
            let options =
                cri::v1::UserNamespace { mode: NamespaceMode::Pod.into(), uids: map.clone(), gids: map };
            users(&NamespaceOption {
                network: network.into(),
                userns_options: Some(options),
                ..NamespaceOption::default()
            })
        };
        let pod = NamespaceMode::Pod;
        assert_eq!(with(0, 65536, 65536, pod).unwrap().unwrap().uids, [(0, 65536, 65536)]);
        for (inside, outside, length, network) in [
            (0, 0, 10, pod),
            (1, 65536, 10, pod),
            (0, u32::MAX, 2, pod),
            (0, 1, 0, pod),
            (0, 65536, 9, NamespaceMode::Node),
        ] {
            assert!(with(inside, outside, length, network).is_err(), "{inside} {outside} {length}");
        }
        assert_eq!(users(&NamespaceOption::default()).unwrap(), None);
        let of = |mode: NamespaceMode| {
            let options = cri::v1::UserNamespace { mode: mode.into(), ..Default::default() };
            users(&NamespaceOption { userns_options: Some(options), ..NamespaceOption::default() })
        };
        assert_eq!(of(NamespaceMode::Node).unwrap(), None);
        assert!(of(NamespaceMode::Container).is_err() && of(NamespaceMode::Target).is_err());
    }

    #[test]
    fn bandwidth_annotations_are_parsed() {
        let with = |ingress: &str, egress: &str| {
            let mut config = PodSandboxConfig::default();
            config.annotations.insert("kubernetes.io/ingress-bandwidth".into(), ingress.into());
            config.annotations.insert("kubernetes.io/egress-bandwidth".into(), egress.into());
            bandwidth(&config)
        };
        assert_eq!(bandwidth(&PodSandboxConfig::default()), Bandwidth::default());
        let found = with("10M", "1Gi");
        assert_eq!((found.ingress_rate, found.ingress_burst), (10_000_000, 1_000_000));
        assert_eq!((found.egress_rate, found.egress_burst), (1 << 30, (1 << 30) / 10));
        assert_eq!(with("-1", "nonsense"), Bandwidth::default());
    }

    #[test]
    fn resolv_conf_is_written() {
        let config = DNSConfig {
            servers: vec!["10.0.0.10".into()],
            searches: vec!["default.svc".into(), "svc".into()],
            options: vec!["ndots:5".into()],
        };
        assert_eq!(
            resolver_file(Some(&config)).unwrap(),
            "search default.svc svc\nnameserver 10.0.0.10\noptions ndots:5\n"
        );
        assert_eq!(resolver_file(Some(&DNSConfig::default())).unwrap(), "");
    }
}
