//! The daemon: implements CRI with images, shims and networks.

mod containers;
mod create;
mod cri_images;
pub(crate) mod cri_runtime;
mod describe;
mod events;
mod exec;
mod metrics;
mod pull;
mod records;
mod sandboxes;
mod signals;
mod stats;
mod streams;
mod update;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use base::tasks::TaskGroup;
use parking_lot::{Mutex, RwLock};
use tokio::sync::broadcast;
use tonic::Status;

use crate::images::{ImageStore, PullError, StoreError};
use crate::launch::{LaunchError, Launcher};
use crate::network::{NetworkError, Plugins};
use cri::v1::ContainerEventResponse;
pub(crate) use cri_images::describe;
use records::{Container, Sandbox};

/// Configuration of the runtime.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of images, sandboxes and containers.
    pub root: PathBuf,
    /// The binary that is re-executed as shim and as network plugin.
    pub program: PathBuf,
    /// Directory of the administrator's network configurations.
    pub cni_configurations: PathBuf,
    pub cni_programs: Vec<PathBuf>,
    /// Directories of CDI specs; those of later ones take precedence.
    pub cdi_directories: Vec<PathBuf>,
    /// Pod address ranges of this node; the kubelet can set them later.
    pub pod_ranges: Vec<String>,
    pub bridge: String,
    /// Pod address ranges of the whole cluster; traffic within them is not masqueraded. Without them they are derived
    /// from this node's range.
    pub cluster_ranges: Vec<String>,
    /// Mirrors, credentials and trust for registries; reread for every pull.
    pub registries: PathBuf,
}

impl Config {
    /// Default paths, with state below `root`.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            program: "/proc/self/exe".into(),
            cni_configurations: "/etc/cni/net.d".into(),
            cni_programs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
            cdi_directories: crate::cdi::DIRECTORIES.map(PathBuf::from).into(),
            pod_ranges: Vec::new(),
            bridge: "ferry0".to_owned(),
            cluster_ranges: Vec::new(),
            registries: "/etc/ferry/registries.yaml".into(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error("{0}: {1}")]
    Io(String, #[source] io::Error),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Image(#[from] StoreError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("CDI device injection failed: {0}")]
    Cdi(#[from] crate::cdi::CdiError),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Conflict(String),
    #[error("{0}")]
    TimedOut(String),
    #[error("failed to pull and unpack image {name:?}: {error}")]
    Pull { name: String, error: Arc<PullError> },
}

impl From<RuntimeError> for Status {
    fn from(error: RuntimeError) -> Self {
        let text = error.to_string();
        match error {
            RuntimeError::NotFound(_) => Self::not_found(text),
            RuntimeError::Invalid(_) => Self::invalid_argument(text),
            RuntimeError::Conflict(_) => Self::failed_precondition(text),
            RuntimeError::TimedOut(_) => Self::deadline_exceeded(text),
            RuntimeError::Pull { error, .. } if error.is_not_found() => Self::not_found(text),
            _ => Self::unknown(text),
        }
    }
}

/// Adds the attempted operation to an IO error.
trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, RuntimeError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, RuntimeError> {
        self.map_err(|error| RuntimeError::Io(what(), error))
    }
}

#[derive(Default)]
struct State {
    sandboxes: BTreeMap<String, Arc<Sandbox>>,
    containers: BTreeMap<String, Arc<Container>>,
}

/// The container runtime. It serves CRI; see [`cri::server::serve`].
pub struct Runtime {
    config: Config,
    launcher: Launcher,
    images: Arc<ImageStore>,
    plugins: Plugins,
    pod_ranges: RwLock<Vec<String>>,
    state: RwLock<State>,
    events: broadcast::Sender<ContainerEventResponse>,
    tasks: TaskGroup,
    streaming: streams::Streaming,
    /// Names reserved for sandboxes or containers that are being created.
    reserved: Mutex<std::collections::BTreeSet<String>>,
    pulls: pull::Pulls,
}

impl Runtime {
    /// Opens the runtime's directory and restores running containers. Must be called in an async runtime.
    pub fn open(config: Config, tasks: TaskGroup) -> Result<Arc<Self>, RuntimeError> {
        for part in ["sandboxes", "containers"] {
            let path = config.root.join(part);
            std::fs::create_dir_all(&path).doing(|| format!("make {}", path.display()))?;
        }
        // Images contain setuid programs, which local users must not be able to run.
        std::fs::set_permissions(&config.root, std::fs::Permissions::from_mode(0o700))
            .doing(|| format!("close {}", config.root.display()))?;
        records::mount_private(&config.root)?;
        let launcher = Launcher::new(config.program.clone());
        let images = ImageStore::open(&config.root.join("images"), launcher.clone())
            .doing(|| "open the image store".to_owned())?;
        let plugins = Plugins {
            configurations: config.cni_configurations.clone(),
            programs: config.cni_programs.clone(),
            built_in: config.program.clone(),
            state: config.root.join("addresses"),
            bridge: config.bridge.clone(),
            cluster_ranges: config.cluster_ranges.clone(),
        };
        let (events, _) = broadcast::channel(1024);
        let runtime = Arc::new(Self {
            pod_ranges: RwLock::new(config.pod_ranges.clone()),
            launcher,
            images: Arc::new(images),
            plugins,
            state: RwLock::default(),
            events,
            tasks,
            streaming: streams::Streaming::default(),
            reserved: Mutex::default(),
            pulls: pull::Pulls::default(),
            config,
        });
        runtime.restore_sandboxes()?;
        runtime.restore_containers()?;
        runtime.collect_networks();
        Ok(runtime)
    }

    #[must_use]
    pub fn images(&self) -> &Arc<ImageStore> {
        &self.images
    }

    /// Runs a blocking closure off the async threads.
    pub(crate) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, RuntimeError> + Send + 'static,
    ) -> Result<T, RuntimeError> {
        let runtime = Arc::clone(self);
        tokio::task::spawn_blocking(move || work(&runtime))
            .await
            .unwrap_or_else(|error| Err(RuntimeError::Io("run".to_owned(), io::Error::other(error))))
    }

    fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>, RuntimeError> {
        let missing = || {
            RuntimeError::NotFound(format!("an error occurred when try to find sandbox {id:?}: not found"))
        };
        find(&self.state.read().sandboxes, id).ok_or_else(missing)
    }

    fn container(&self, id: &str) -> Result<Arc<Container>, RuntimeError> {
        let missing = || {
            RuntimeError::NotFound(format!("an error occurred when try to find container {id:?}: not found"))
        };
        find(&self.state.read().containers, id).ok_or_else(missing)
    }

    fn containers_of(&self, sandbox: &str) -> Vec<Arc<Container>> {
        let state = self.state.read();
        state.containers.values().filter(|container| container.meta.sandbox == sandbox).cloned().collect()
    }
}

/// Finds an entry by id, or by a unique prefix.
fn find<T: Clone>(table: &BTreeMap<String, T>, id: &str) -> Option<T> {
    if let Some(found) = table.get(id) {
        return Some(found.clone());
    }
    if id.is_empty() {
        return None;
    }
    let mut matching = table.range(id.to_owned()..).take_while(|(key, _)| key.starts_with(id));
    match (matching.next(), matching.next()) {
        (Some((_, found)), None) => Some(found.clone()),
        _ => None,
    }
}

fn new_id() -> String {
    hex::encode(rand::random::<[u8; 32]>())
}

fn now() -> i64 {
    i64::try_from(base::clock::Clock::system().now().as_nanosecond()).unwrap_or(i64::MAX)
}
