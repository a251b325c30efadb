//! Kills the daemon repeatedly at random moments: every acknowledged operation holds, and nothing is lost, duplicated
//! or left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cri::v1::*;
use parking_lot::Mutex;

use crate::Node;

/// Default number of kills.
const KILLS: usize = 4;
const CHURNERS: usize = 3;

struct Daemon(Child);

impl Daemon {
    fn start(root: &Path) -> Self {
        let child = Command::new("/proc/self/exe")
            .args(["daemon", &root.display().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("a daemon");
        Self(child)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Acknowledged state that no later request was sent to undo.
#[derive(Default)]
struct Acknowledged {
    running: BTreeSet<String>,
}

/// Creates and removes pods, ignoring errors.
async fn churn(node: Node, number: usize, acknowledged: Arc<Mutex<Acknowledged>>) {
    let mut cri = node.cri.clone();
    for round in 0_usize.. {
        let name = format!("churn-{number}-{round}");
        let mut config = node.pod(&name);
        config.port_mappings = vec![PortMapping {
            protocol: 0,
            container_port: 80,
            host_port: 20_000 + (number * 1000 + round % 1000) as i32,
            host_ip: String::new(),
        }];
        let shared = round % 2 == 0;
        let pid = if shared { NamespaceMode::Pod } else { NamespaceMode::Container };
        let options = NamespaceOption { pid: pid.into(), ..NamespaceOption::default() };
        let linux = config.linux.as_mut().unwrap();
        linux.security_context.as_mut().unwrap().namespace_options = Some(options.clone());
        let request = RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let Ok(made) = cri.runtime.run_pod_sandbox(request).await else {
            // The runtime is being killed and started; the pods that it creates in between are the subject.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let pod = made.into_inner().pod_sandbox_id;
        let mut container = node.container("main", &["sleep", "1000"]);
        container.linux.as_mut().unwrap().security_context.as_mut().unwrap().namespace_options =
            Some(options);
        let request = CreateContainerRequest {
            pod_sandbox_id: pod.clone(),
            config: Some(container),
            sandbox_config: Some(config),
        };
        let Ok(made) = cri.runtime.create_container(request).await else { continue };
        let id = made.into_inner().container_id;
        let start = StartContainerRequest { container_id: id.clone() };
        if cri.runtime.start_container(start).await.is_ok() {
            acknowledged.lock().running.insert(id.clone());
        }
        // Some are retained.
        if round % 3 == 0 {
            continue;
        }
        let _ = node
            .cri
            .clone()
            .runtime
            .exec_sync(ExecSyncRequest { container_id: id.clone(), cmd: vec!["true".to_owned()], timeout: 5 })
            .await;
        acknowledged.lock().running.remove(&id);
        let _ =
            cri.runtime.stop_container(StopContainerRequest { container_id: id.clone(), timeout: 0 }).await;
        let _ = cri.runtime.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: pod }).await;
    }
}

/// Directories that running shims work on, with the number of shims.
fn shims(root: &Path) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    let mark = root.join("state/containers").display().to_string();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let arguments: Vec<String> = line
            .split(|byte| *byte == 0)
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect();
        if arguments.get(1).map(String::as_str) == Some("shim")
            && arguments.get(2).map(String::as_str) == Some("container")
            && let Some(id) = arguments.get(3).and_then(|path| path.strip_prefix(&mark)?.strip_prefix('/'))
        {
            *found.entry(id.to_owned()).or_default() += 1;
        }
    }
    found
}

impl Node {
    /// Inconsistencies; empty if there are none.
    async fn audit(&self, acknowledged: &BTreeSet<String>) -> Result<(), String> {
        let mut cri = self.cri.clone();
        let list = ListContainersRequest::default();
        let containers = cri.runtime.list_containers(list).await.map_err(|status| status.to_string())?;
        let list = ListPodSandboxRequest::default();
        let sandboxes = cri.runtime.list_pod_sandbox(list).await.map_err(|status| status.to_string())?;
        let running: BTreeSet<String> = containers
            .into_inner()
            .containers
            .into_iter()
            .filter(|container| container.state() == ContainerState::ContainerRunning)
            .map(|container| container.id)
            .collect();
        let sandboxes = sandboxes.into_inner().items.into_iter().map(|sandbox| sandbox.id).collect();
        let mut wrong = self.wrong_processes(&running, acknowledged);
        wrong.extend(self.stray_groups(&running));
        wrong.extend(self.stray_network(&sandboxes));
        wrong.extend(self.stray_mounts(&sandboxes));
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    /// Containers and shims that do not belong together.
    fn wrong_processes(&self, running: &BTreeSet<String>, acknowledged: &BTreeSet<String>) -> Vec<String> {
        let shims = shims(&self.root);
        let stopped =
            acknowledged.difference(running).map(|id| format!("{id:.12} was started and does not run"));
        let double =
            shims.iter().filter(|(_, count)| **count > 1).map(|(id, _)| format!("{id:.12} is doubled"));
        let idle = shims.keys().filter(|id| !running.contains(*id));
        let idle = idle.map(|id| format!("{id:.12} has a shim and does not run"));
        let alone = running.iter().filter(|id| !shims.contains_key(*id));
        let alone = alone.map(|id| format!("{id:.12} runs without a shim"));
        stopped.chain(double).chain(idle).chain(alone).collect()
    }

    /// Cgroups of containers that do not run.
    fn stray_groups(&self, running: &BTreeSet<String>) -> Vec<String> {
        let mut wrong = Vec::new();
        let group = sys::cgroups::Hierarchy::detect().unwrap().group(&self.cgroup).unwrap();
        for directory in group.directories() {
            let pods = std::fs::read_dir(&directory).into_iter().flatten().flatten();
            let pods = pods.filter(|entry| entry.path().is_dir());
            for container in pods.flat_map(|pod| std::fs::read_dir(pod.path())).flatten().flatten() {
                let id = container.file_name().to_string_lossy().into_owned();
                if container.path().is_dir() && !running.contains(&id) {
                    wrong.push(format!("cgroup {} has no container", container.path().display()));
                }
            }
        }
        wrong
    }

    /// Links, addresses and host ports of sandboxes that do not exist.
    fn stray_network(&self, sandboxes: &BTreeSet<String>) -> Vec<String> {
        let own: BTreeSet<String> = sandboxes.iter().map(|id| format!("fe-{}", &id[..11])).collect();
        let links = sys::netlink::Netlink::open().and_then(|mut netlink| netlink.links()).unwrap();
        let links = links.iter().filter(|link| link.name.starts_with("fe-") && !own.contains(&link.name));
        let mut wrong: Vec<String> = links.map(|link| format!("link {} has no sandbox", link.name)).collect();
        let addresses = self.root.join("state/addresses");
        for entry in std::fs::read_dir(&addresses).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let owner = std::fs::read_to_string(entry.path()).unwrap_or_default();
            if name.parse::<std::net::IpAddr>().is_ok() && !sandboxes.contains(&owner) {
                wrong.push(format!("address {name} has no sandbox"));
            }
        }
        let ports: BTreeMap<String, serde_json::Value> = std::fs::read(addresses.join("ports.json"))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        let owners = ports.keys().filter(|owner| !sandboxes.contains(*owner));
        wrong.extend(owners.map(|owner| format!("host ports of {owner:.12} remain")));
        wrong
    }

    /// Mounts of sandboxes that do not exist.
    fn stray_mounts(&self, sandboxes: &BTreeSet<String>) -> Vec<String> {
        let root = self.root.join("state/sandboxes");
        let is_stray = |target: &Path| {
            let id = target.strip_prefix(&root).ok().and_then(|rest| rest.iter().next());
            id.is_some_and(|id| !sandboxes.contains(id.to_string_lossy().as_ref()))
        };
        let mounts = sys::mounts::list().unwrap();
        let stray = mounts.iter().filter(|mount| is_stray(&mount.target));
        stray.map(|mount| format!("mount {} has no sandbox", mount.target.display())).collect()
    }
}

pub async fn daemon_killed_repeatedly_loses_nothing(node: Node) {
    let kills = std::env::var(super::KILLS).ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let tasks = node.daemon.lock().clone();
    let _ = tasks.drain(Duration::from_secs(5)).await;
    let acknowledged = Arc::new(Mutex::new(Acknowledged::default()));
    for round in 0..kills {
        let mut daemon = Daemon::start(&node.root);
        node.until("the daemon answers", async || {
            let probe = node.cri.clone().runtime.version(VersionRequest::default()).await;
            probe.map(drop).map_err(|status| status.to_string())
        })
        .await;
        // Operations that were in progress at the kill end by themselves.
        let before = acknowledged.lock().running.clone();
        node.until(&format!("all adds up after kill {round}"), async || node.audit(&before).await).await;
        let churners: Vec<_> = (0..CHURNERS)
            .map(|number| {
                tokio::task::spawn_local(churn(
                    node.clone(),
                    round * CHURNERS + number,
                    Arc::clone(&acknowledged),
                ))
            })
            .collect();
        // The kill comes at a different moment each time: the result must not depend on it.
        tokio::time::sleep(Duration::from_millis(300 + (round as u64 * 137) % 500)).await;
        daemon.0.kill().expect("killed");
        daemon.0.wait().expect("gone");
        for churner in churners {
            churner.abort();
            let _ = churner.await;
        }
        // Every few rounds the next daemon removes the retained pods, which bounds their number.
        if round % 5 == 4 {
            let _daemon = Daemon::start(&node.root);
            node.until("all pods go", async || {
                let list = async || {
                    let listed =
                        node.cri.clone().runtime.list_pod_sandbox(ListPodSandboxRequest::default()).await;
                    listed.map(|listed| listed.into_inner().items).map_err(|status| status.to_string())
                };
                let removals = list().await?.into_iter().map(|sandbox| {
                    let request = RemovePodSandboxRequest { pod_sandbox_id: sandbox.id };
                    let mut cri = node.cri.clone();
                    async move { cri.runtime.remove_pod_sandbox(request).await }
                });
                for removed in futures_util::future::join_all(removals).await {
                    removed.map_err(|status| status.to_string())?;
                }
                let left = list().await?.len();
                if left == 0 { Ok(()) } else { Err(format!("{left} left")) }
            })
            .await;
            acknowledged.lock().running.clear();
        }
    }
    *node.daemon.lock() = crate::serve(&node.root).await;
    let before = acknowledged.lock().running.clone();
    node.until("all adds up in the end", async || node.audit(&before).await).await;
    println!("survived {kills} kills with {} containers", before.len());
}
