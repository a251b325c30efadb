//! The kubelet: built from its configuration, run until its tasks stop.

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
use crate::configure::dns::{self, ClusterDns};
use crate::configure::sandbox::NodeSettings;
use crate::csi::{self, Drivers};
use crate::engine::{self, Engine, EngineError, SeenPod};
use crate::events::Recorder;
use crate::housekeeping;
use crate::node::{self, NodeLoop, RuntimeHealth};
use crate::pods::{Cgroups, Followed, Pulls, Users, Workers};
use crate::server;
use crate::shared::Shared;
use crate::shutdown;
use crate::static_pods;
use crate::volumes::{PodDirectories, PodVolumes, Tokens};

/// Why a kubelet cannot run.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    #[error("connecting to the container runtime")]
    Connect(#[source] cri::client::ConnectError),
    #[error("the container runtime does not answer")]
    Runtime(#[source] EngineError),
    #[error("making the directory {0}")]
    Directory(std::path::PathBuf, #[source] std::io::Error),
    #[error("listening on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    #[error("registering the node")]
    Register(#[source] ClientError),
    #[error("serving HTTPS")]
    Serve(#[source] server::ServeError),
    #[error("the task {0} ended")]
    Ended(&'static str),
}

/// How long to wait between attempts to reach the runtime or the API server at the start.
const AGAIN: Duration = Duration::from_millis(250);

/// What can be told of a node once it is registered and knows its pods.
#[derive(Clone, Debug)]
pub struct Begun {
    pub name: String,
    /// Where its HTTPS API is.
    pub address: SocketAddr,
    pub ips: Vec<IpAddr>,
    /// Why it cannot run pods yet.
    pub not_ready: Option<String>,
    pub pods: usize,
}

/// A kubelet that is built and listens.
pub struct Kubelet {
    shared: Arc<Shared>,
    listener: TcpListener,
    informers: Informers,
    health: Arc<RuntimeHealth>,
    address: SocketAddr,
}

impl Kubelet {
    /// Meets the runtime and opens the port.
    pub fn build(
        mut config: Config,
        client: Client,
        tasks: TaskGroup,
    ) -> BoxFuture<'static, Result<Self, KubeletError>> {
        Box::pin(async move {
            // As Kubernetes has them: Secrets and tokens are below, for the pods that mount them only.
            for directory in [&config.directory, &config.directory.join("pods"), &config.logs] {
                sys::directories::ensure(directory, 0o750)
                    .map_err(|source| KubeletError::Directory(directory.clone(), source))?;
            }
            let calls = cri::client::connect_lazily(&config.runtime).map_err(KubeletError::Connect)?;
            let engine = Engine::meet(calls).await.map_err(KubeletError::Runtime)?;
            let listener = TcpListener::bind(config.listen)
                .await
                .map_err(|source| KubeletError::Listen(config.listen, source))?;
            let address =
                listener.local_addr().map_err(|source| KubeletError::Listen(config.listen, source))?;
            if config.node_ips.is_empty() {
                config.node_ips = node::node_ips();
            }
            let informers = Informers::new(client.clone(), &tasks);
            let settings = NodeSettings {
                logs: config.logs.clone(),
                host_dns: dns::parse(&std::fs::read_to_string(&config.resolv_conf).unwrap_or_default()),
                cluster_dns: ClusterDns {
                    servers: config.cluster_dns.iter().map(ToString::to_string).collect(),
                    domain: config.cluster_domain.clone(),
                },
                cgroup_root: config.cgroup_root.clone(),
                profiles: config.directory.join("seccomp").display().to_string(),
                memory_capacity: node::memory_capacity(),
                host_ips: config.node_ips.iter().map(ToString::to_string).collect(),
                node_name: config.node_name.clone(),
            };
            let recorder = Recorder::new(client.clone(), &config.node_name, config.clock.clone(), &tasks);
            let cgroups =
                Cgroups::open(&config.cgroup_root, config.upkeep.cgroups_per_qos, config.upkeep.pod_pids);
            let shared = Arc::new(Shared {
                cgroups,
                users: Users::open(&config.directory, config.max_pods),
                drivers: Drivers::default(),
                shutting_down: AtomicBool::new(false),
                node_news: Notify::new(),
                probes: Arc::default(),
                followed: Followed::new(client.clone(), tasks.clone()),
                clock: config.clock.clone(),
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
            });
            Ok(Self { shared, listener, informers, health: Arc::default(), address })
        })
    }

    /// Where its HTTPS API is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Registers the node and runs its pods until the tasks stop. `ready` is called once the node is registered and its
    /// pods are known.
    pub fn run<'a>(
        self,
        ready: Box<dyn FnOnce(Begun) + Send + 'a>,
    ) -> BoxFuture<'a, Result<(), KubeletError>> {
        Box::pin(async move {
            let Self { shared, listener, informers, health, address } = self;
            let workers = Workers::new(Arc::clone(&shared));
            let serving = server::Server::new(Arc::clone(&shared), Arc::clone(&workers))
                .map_err(KubeletError::Serve)?;
            let stopping = shared.tasks.stopping();
            let group = shared.tasks.clone();
            let (parts, mut ended) = Parts::new(shared.tasks.clone());
            parts.run("server", async move { serving.run(listener, group).await });

            begin_cgroups(&shared);
            let pressure = Arc::new(Mutex::default());
            let mut node = NodeLoop::new(Arc::clone(&shared), address.port(), Arc::clone(&pressure));
            let begin = async {
                loop {
                    match node.begin().await {
                        Ok(()) => return,
                        Err(error) => {
                            tracing::warn!(%error, "the node cannot be registered yet");
                            tokio::time::sleep(AGAIN).await;
                        }
                    }
                }
            };
            let mut stopping = std::pin::pin!(stopping);
            tokio::select! {
                () = begin => {}
                () = &mut stopping => return Ok(()),
            }
            let not_ready = node.not_ready();
            parts.run("node status", async move { node.run().await });

            let selection = Selection::by_field(format!("spec.nodeName={}", shared.config.node_name));
            let pods = informers.of_selected::<Pod>(selection);
            shared.services.synced().await;
            let told = Arc::clone(&workers);
            let mirrors = static_pods::Mirrors { pods: pods.clone(), changed: Arc::default() };
            let mirror_changed = Arc::clone(&mirrors.changed);
            pods.on_event(move |change| match change {
                // Files decide about these, not the API server.
                change if static_pods::is_mirror(change.object()) => {
                    let ends = change.object().metadata.deletion_timestamp.is_some();
                    if ends || matches!(change, Change::Deleted(_)) {
                        mirror_changed.notify_one();
                    }
                }
                Change::Added(pod) | Change::Updated { new: pod, .. } => told.put(Arc::clone(pod)),
                Change::Deleted(pod) => told.gone(Arc::clone(pod)),
            });
            pods.synced().await;
            ready(Begun {
                name: shared.config.node_name.clone(),
                address,
                ips: shared.config.node_ips.clone(),
                not_ready,
                pods: pods.all().len(),
            });
            parts.run("plugin registration", csi::follow(Arc::clone(&shared)));
            if let Some(directory) = shared.config.static_pods.clone() {
                let all = Arc::clone(&shared);
                let workers = Arc::clone(&workers);
                // Registered before unknown pods are removed.
                let found = static_pods::begin(&all, &workers, &directory);
                parts.run("static pods", static_pods::follow(all, workers, directory, found, mirrors));
            }
            clear_orphans(&shared, &workers).await;
            parts.run("housekeeping", housekeeping::run(Arc::clone(&shared), Arc::clone(&workers), pressure));
            shared.tasks.spawn(shutdown::follow(Arc::clone(&shared), Arc::clone(&workers)));
            let told = Arc::clone(&workers);
            let watching = engine::watch(
                shared.engine.clone(),
                move |uid| told.look(uid),
                move |error| {
                    if let Some(error) = error {
                        tracing::warn!(%error, "the runtime's events are lost");
                    }
                    health.set(error.is_none());
                },
            );
            parts.run("runtime events", watching);
            tokio::select! {
                () = stopping => Ok(()),
                Some(name) = ended.recv() => {
                    if shared.tasks.is_stopping() { Ok(()) } else { Err(KubeletError::Ended(name)) }
                }
            }
        })
    }
}

/// Tasks without which a kubelet does not work: if one panics or returns, the kubelet ends with an error, and whatever
/// supervises it starts another.
struct Parts {
    tasks: TaskGroup,
    ended: mpsc::UnboundedSender<&'static str>,
}

impl Parts {
    fn new(tasks: TaskGroup) -> (Self, mpsc::UnboundedReceiver<&'static str>) {
        let (ended, receiver) = mpsc::unbounded_channel();
        (Self { tasks, ended }, receiver)
    }

    /// Runs a task until the kubelet stops.
    fn run(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let end = PartEnd { name, ended: self.ended.clone() };
        let stopping = self.tasks.stopping();
        self.tasks.spawn(async move {
            let _end = end;
            tokio::select! {
                () = task => {}
                () = stopping => {}
            }
        });
    }
}

/// Reports the end of a task, also by a panic.
struct PartEnd {
    name: &'static str,
    ended: mpsc::UnboundedSender<&'static str>,
}

impl Drop for PartEnd {
    fn drop(&mut self) {
        // Without a receiver the kubelet has ended already.
        let _ = self.ended.send(self.name);
    }
}

/// Makes the control groups that pods will be in. Pods run without them, less well bounded.
fn begin_cgroups(shared: &Shared) {
    let reserved = |name: &str| shared.config.upkeep.reserved.get(name).copied().unwrap_or(0);
    let memory = shared.settings.memory_capacity.saturating_sub(reserved("memory") / 1000);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let milli_cpu =
        i64::try_from(processors).unwrap_or(1).saturating_mul(1000).saturating_sub(reserved("cpu"));
    if let Err(error) = shared.cgroups.begin(memory, milli_cpu) {
        tracing::warn!(%error, root = shared.config.cgroup_root, "no control groups for classes of pods");
    }
}

/// Ends pods that the runtime still has and the API server does not know, and removes what is left of those that were
/// ended while this kubelet was not there, or just before.
async fn clear_orphans(shared: &Shared, workers: &Arc<Workers>) {
    let seen = match shared.engine.survey().await {
        Ok(seen) => seen,
        Err(error) => {
            tracing::warn!(%error, "cannot look for pods that should not be there");
            return;
        }
    };
    let mut found: BTreeMap<String, Option<SeenPod>> =
        PodDirectories::uids(&shared.config.directory).into_iter().map(|uid| (uid, None)).collect();
    found.extend(seen.pods.into_iter().map(|(uid, pod)| (uid, Some(pod))));
    for (uid, found) in found {
        if workers.knows(&uid) {
            continue;
        }
        let (name, namespace) = found.map(|found| (found.name, found.namespace)).unzip();
        tracing::info!(pod = uid, name, "a pod that is not known any more");
        let metadata = ObjectMeta { uid: Some(uid), name, namespace, ..ObjectMeta::default() };
        workers.gone(Arc::new(Pod { metadata, ..Pod::default() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn part_that_panics_or_returns_is_reported() {
        let tasks = TaskGroup::new();
        let (parts, mut ended) = Parts::new(tasks.clone());
        parts.run("steady", std::future::pending());
        parts.run("returns", async {});
        assert_eq!(ended.recv().await, Some("returns"));
        parts.run("panics", async { panic!("a number of a user") });
        assert_eq!(ended.recv().await, Some("panics"));
        tasks.stop();
        assert_eq!(ended.recv().await, Some("steady"), "it ends with the kubelet");
    }
}
