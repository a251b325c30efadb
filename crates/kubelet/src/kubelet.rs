//! The kubelet: built from its configuration, runs until its tasks are stopped.

use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use base::tasks::TaskGroup;
use client::{Client, ClientError};
use objects::core::v1::{Pod, Service};
use objects::meta::v1::ObjectMeta;
use parking_lot::{Mutex, RwLock};
use runtime::{Change, Informers, Selection};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};

use crate::config::Config;
use crate::configure::dns::ClusterDns;
use crate::configure::sandbox::NodeSettings;
use crate::cpus::{self, CpuError, Cpus};
use crate::csi::Drivers;
use crate::devices::{self, Devices};
use crate::dra::{self, Dra};
use crate::engine::{self, Engine, EngineError, RuntimePod};
use crate::events::Recorder;
use crate::housekeeping;
use crate::metrics::KubeletMetrics;
use crate::node::{self, NodeAddresses, NodeLoop};
use crate::plugins;
use crate::pod_resources;
use crate::pods::{Cgroups, MountedObjects, Pulls, Users, Workers};
use crate::server;
use crate::shared::Shared;
use crate::shutdown;
use crate::static_pods;
use crate::volumes::{PodDirectories, PodVolumes, Tokens};

/// Failure to start or run a kubelet.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    #[error("failed to connect to the container runtime")]
    Connect(#[source] cri::client::ConnectError),
    #[error("failed to register metrics")]
    Metrics(#[source] base::metrics::MetricsError),
    #[error("container runtime is not responding")]
    Runtime(#[source] EngineError),
    #[error("failed to create directory {0}")]
    Directory(std::path::PathBuf, #[source] std::io::Error),
    #[error("failed to listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    #[error("failed to register node")]
    Register(#[source] ClientError),
    #[error("failed to start the CPU manager")]
    Cpus(#[source] CpuError),
    #[error("failed to serve HTTPS")]
    Serve(#[source] server::ServeError),
    #[error("task {0} exited unexpectedly")]
    Ended(&'static str),
}

/// Delay between attempts to reach the runtime or the API server at startup.
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// State of a node once it is registered and its pods are known.
#[derive(Clone, Debug)]
pub struct NodeStarted {
    pub name: String,
    /// Address of the HTTPS API.
    pub address: SocketAddr,
    pub ips: Vec<IpAddr>,
    /// Reasons why the node cannot run pods yet.
    pub not_ready: Option<String>,
    pub pods: usize,
}

/// A kubelet that is built and listening.
pub struct Kubelet {
    shared: Arc<Shared>,
    listener: TcpListener,
    informers: Informers,
    address: SocketAddr,
}

impl Kubelet {
    /// Connects to the runtime and binds the port.
    pub fn build(
        config: Config,
        client: Client,
        tasks: TaskGroup,
    ) -> BoxFuture<'static, Result<Self, KubeletError>> {
        Box::pin(async move {
            // Modes as in Kubernetes: Secrets and tokens below are only for the pods that mount them.
            for directory in [&config.directory, &config.directory.join("pods"), &config.logs] {
                sys::directories::ensure(directory, 0o750)
                    .map_err(|source| KubeletError::Directory(directory.clone(), source))?;
            }
            let metrics = Arc::new(KubeletMetrics::new(&config.clock).map_err(KubeletError::Metrics)?);
            if let Some(exporter) = &config.exporter {
                exporter.register(&metrics.registry).map_err(KubeletError::Metrics)?;
            }
            let calls = cri::client::connect_lazily(&config.runtime).map_err(KubeletError::Connect)?;
            let engine =
                Engine::connect_to(calls, metrics.runtime.clone()).await.map_err(KubeletError::Runtime)?;
            let (listener, address) = base::listen::listen(config.listen)
                .map_err(|source| KubeletError::Listen(config.listen, source))?;
            let informers = Informers::new(client.clone(), &tasks);
            let settings = NodeSettings {
                logs: config.logs.clone(),
                cluster_dns: ClusterDns {
                    servers: config.cluster_dns.iter().map(ToString::to_string).collect(),
                    domain: config.cluster_domain.clone(),
                },
                cgroup_root: config.cgroup_root.clone(),
                profiles: config.directory.join("seccomp").display().to_string(),
                memory_capacity: node::memory_capacity(),
                node_name: config.node_name.clone(),
            };
            let recorder = Recorder::new(client.clone(), &config.node_name, config.clock.clone(), &tasks);
            let cgroups = Cgroups::open(
                &config.cgroup_root,
                config.housekeeping.cgroups_per_qos,
                config.housekeeping.pod_pids,
            )
            .timed_by(metrics.cgroup_manager.clone());
            let reserved = config.housekeeping.reserved.get("cpu").copied().unwrap_or(0);
            let cpus = Cpus::open(&config.housekeeping.cpu_manager, reserved, &config.directory)
                .map_err(KubeletError::Cpus)?;
            let shared = Arc::new(Shared {
                cgroups,
                cpus,
                users: Users::open(&config.directory, config.max_pods),
                drivers: Drivers::default(),
                devices: Devices::open(&config.directory, metrics.devices.clone(), tasks.clone()),
                dra: Dra::open(
                    &config.directory,
                    &config.node_name,
                    client.clone(),
                    metrics.dra.clone(),
                    tasks.clone(),
                ),
                shutting_down: AtomicBool::new(false),
                node_news: Notify::new(),
                probes: Arc::default(),
                followed: MountedObjects::new(client.clone(), tasks.clone()),
                clock: config.clock.clone(),
                addresses: Arc::new(NodeAddresses::new(&config)),
                config,
                client,
                engine,
                recorder,
                tasks,
                services: informers.of::<Service>(),
                tokens: Tokens::default(),
                volumes: PodVolumes::default(),
                pulls: Pulls::default(),
                settings,
                allocatable: RwLock::default(),
                metrics,
            });
            Ok(Self { shared, listener, informers, address })
        })
    }

    /// Address of the HTTPS API.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Registers the node and runs its pods until the tasks stop. `ready` is called once the node is registered and its
    /// pods are known.
    pub fn run<'a>(
        self,
        ready: Box<dyn FnOnce(NodeStarted) + Send + 'a>,
    ) -> BoxFuture<'a, Result<(), KubeletError>> {
        Box::pin(async move {
            let Self { shared, listener, informers, address } = self;
            let workers = Workers::new(Arc::clone(&shared));
            let serving = server::Server::new(Arc::clone(&shared), Arc::clone(&workers))
                .map_err(KubeletError::Serve)?;
            let group = shared.tasks.clone();
            let (parts, mut ended) = RequiredTasks::new(shared.tasks.clone());
            parts.run("server", async move { serving.run(listener, group).await });

            create_cgroups(&shared);
            let pressure = Arc::new(Mutex::default());
            let mut node = NodeLoop::new(Arc::clone(&shared), address.port(), Arc::clone(&pressure));
            if shared.tasks.until_stopped(register(&mut node)).await.is_none() {
                return Ok(());
            }
            let not_ready = node.not_ready();
            parts.run("node status", async move { node.run().await });

            let (pods, mirrors) = follow_pods(&shared, &informers, &workers).await;
            ready(NodeStarted {
                name: shared.config.node_name.clone(),
                address,
                ips: shared.addresses.ips().iter().filter_map(|ip| ip.parse().ok()).collect(),
                not_ready,
                pods,
            });
            parts.run("addresses", node::follow_addresses(Arc::clone(&shared), Arc::clone(&workers)));
            parts.run("plugin registration", plugins::follow(Arc::clone(&shared)));
            parts.run("device plugins", devices::follow(Arc::clone(&shared), Arc::clone(&workers)));
            parts.run("shared CPUs", cpus::follow(Arc::clone(&shared), Arc::clone(&workers)));
            parts.run("dynamic resources", dra::follow(Arc::clone(&shared), Arc::clone(&workers)));
            parts.run("pod resources", pod_resources::serve(Arc::clone(&shared), Arc::clone(&workers)));
            if let Some(directory) = shared.config.static_pods.clone() {
                let all = Arc::clone(&shared);
                let workers = Arc::clone(&workers);
                // Registers before unknown pods are removed.
                let found = static_pods::begin(&all, &workers, &directory);
                parts.run("static pods", static_pods::follow(all, workers, directory, found, mirrors));
            }
            terminate_orphans(&shared, &workers).await;
            // Pods that ended while this kubelet was down.
            shared.devices.retain(|uid| workers.contains(uid)).await;
            shared.cpus.retain(|uid| workers.contains(uid)).await;
            parts.run("housekeeping", housekeeping::run(Arc::clone(&shared), Arc::clone(&workers), pressure));
            shared.tasks.spawn(shutdown::follow(Arc::clone(&shared), Arc::clone(&workers)));
            let watching = engine::watch(shared.engine.clone(), move |uid| workers.wake(uid));
            parts.run("runtime events", watching);
            match shared.tasks.until_stopped(ended.recv()).await.flatten() {
                Some(name) if !shared.tasks.is_stopping() => Err(KubeletError::Ended(name)),
                _ => Ok(()),
            }
        })
    }
}

/// Registers the node, until it succeeds.
async fn register(node: &mut NodeLoop) {
    while let Err(error) = node.begin().await {
        tracing::warn!(%error, "failed to register node, retrying");
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Passes the pods of this node to their workers; returns their number once they are known.
async fn follow_pods(
    shared: &Shared,
    informers: &Informers,
    workers: &Arc<Workers>,
) -> (usize, static_pods::Mirrors) {
    let selection = Selection::by_field(format!("spec.nodeName={}", shared.config.node_name));
    let pods = informers.of_selected::<Pod>(selection);
    shared.services.synced().await;
    let workers = Arc::clone(workers);
    let mirrors = static_pods::Mirrors { pods: pods.clone(), changed: Arc::default() };
    let mirror_changed = Arc::clone(&mirrors.changed);
    pods.on_event(move |change| match change {
        // Static pods are defined by files, not by the API server.
        change if static_pods::is_mirror(change.object()) => {
            let ends = change.object().metadata.deletion_timestamp.is_some();
            if ends || matches!(change, Change::Deleted(_)) {
                mirror_changed.notify_one();
            }
        }
        Change::Added(pod) | Change::Updated { new: pod, .. } => workers.put(Arc::clone(pod)),
        Change::Deleted(pod) => workers.gone(Arc::clone(pod)),
    });
    pods.synced().await;
    (pods.all().len(), mirrors)
}

/// Required tasks: if one panics or returns, the kubelet exits with an error so that its supervisor restarts it.
struct RequiredTasks {
    tasks: TaskGroup,
    ended: mpsc::UnboundedSender<&'static str>,
}

impl RequiredTasks {
    fn new(tasks: TaskGroup) -> (Self, mpsc::UnboundedReceiver<&'static str>) {
        let (ended, receiver) = mpsc::unbounded_channel();
        (Self { tasks, ended }, receiver)
    }

    /// Runs a task until the kubelet stops.
    fn run(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let end = TaskExit { name, ended: self.ended.clone() };
        self.tasks.spawn_until_stopped(async move {
            let _end = end;
            task.await;
        });
    }
}

/// Reports the exit of a task, including by panic.
struct TaskExit {
    name: &'static str,
    ended: mpsc::UnboundedSender<&'static str>,
}

impl Drop for TaskExit {
    fn drop(&mut self) {
        // Without a receiver the kubelet has already stopped.
        let _ = self.ended.send(self.name);
    }
}

/// Creates the parent cgroups of pods. On failure pods run without those limits.
fn create_cgroups(shared: &Shared) {
    let reserved = |name: &str| shared.config.housekeeping.reserved.get(name).copied().unwrap_or(0);
    let memory = shared.settings.memory_capacity.saturating_sub(reserved("memory") / 1000);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let milli_cpu =
        i64::try_from(processors).unwrap_or(1).saturating_mul(1000).saturating_sub(reserved("cpu"));
    if let Err(error) = shared.cgroups.begin(memory, milli_cpu) {
        tracing::warn!(%error, root = shared.config.cgroup_root, "failed to create QoS class cgroups");
    }
}

/// Terminates pods that the runtime has but the API server does not, and removes the remains of pods terminated while
/// this kubelet was down or just before.
async fn terminate_orphans(shared: &Shared, workers: &Arc<Workers>) {
    let seen = match shared.engine.runtime_states().await {
        Ok(seen) => seen,
        Err(error) => {
            tracing::warn!(%error, "failed to list orphaned pods");
            return;
        }
    };
    let mut found: BTreeMap<String, Option<RuntimePod>> =
        PodDirectories::uids(&shared.config.directory).into_iter().map(|uid| (uid, None)).collect();
    found.extend(seen.pods.into_iter().map(|(uid, pod)| (uid, Some(pod))));
    for (uid, found) in found {
        if workers.contains(&uid) {
            continue;
        }
        let (name, namespace) = found.map(|found| (found.name, found.namespace)).unzip();
        tracing::info!(pod = uid, name, "terminating orphaned pod");
        let metadata = ObjectMeta { uid: Some(uid), name, namespace, ..ObjectMeta::default() };
        workers.gone(Arc::new(Pod { metadata, ..Pod::default() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn task_panic_or_return_is_reported() {
        let tasks = TaskGroup::new();
        let (parts, mut ended) = RequiredTasks::new(tasks.clone());
        parts.run("steady", std::future::pending());
        parts.run("returns", async {});
        assert_eq!(ended.recv().await, Some("returns"));
        parts.run("panics", async { panic!("a number of a user") });
        assert_eq!(ended.recv().await, Some("panics"));
        tasks.stop();
        assert_eq!(ended.recv().await, Some("steady"), "stops with the kubelet");
    }
}
