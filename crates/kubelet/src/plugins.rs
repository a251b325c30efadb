//! Plugin registration: each plugin has a socket in the registration directory, reports its identity there and receives
//! the result. The plugin type selects the part of the kubelet that uses it.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::file_changes::DirectoryChanges;
use cri::registration::{InfoRequest, RegistrationClient, RegistrationStatus};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tonic::Request;
use tonic::client::Grpc;

use crate::csi;
use crate::shared::Shared;

/// Polling interval if the directory cannot be watched, and retry interval after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Timeout of calls to the registration service of a plugin.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of sockets that are considered.
const MAX_SOCKETS: usize = 1024;

/// Plugin types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PluginKind {
    Csi,
    Device,
    Dra,
}

const KINDS: [(&str, PluginKind); 3] =
    [("CSIPlugin", PluginKind::Csi), ("DevicePlugin", PluginKind::Device), ("DRAPlugin", PluginKind::Dra)];

/// A registered plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Registered {
    kind: PluginKind,
    name: String,
    endpoint: String,
}

/// Identity of a socket file: device, inode and change time. A plugin that starts again makes a new socket.
type SocketId = (u64, u64, i64, i64);

/// A socket and its plugin; `None` while the registration is in progress or after it failed.
struct Entry {
    id: SocketId,
    plugin: Option<Registered>,
    pending: bool,
}

type Attempt = BoxFuture<'static, (PathBuf, SocketId, Result<Registered, String>)>;

/// Watches the registration directory until the kubelet stops.
pub async fn follow(shared: Arc<Shared>) {
    let directory = shared.config.directory.join("plugins_registry");
    if let Err(error) = std::fs::create_dir_all(&directory) {
        tracing::warn!(%error, directory = %directory.display(), "failed to create plugin registration directory");
        return std::future::pending().await;
    }
    let mut changes = match DirectoryChanges::of(&directory) {
        Ok(changes) => Some(changes),
        Err(error) => {
            tracing::info!(%error, "cannot watch plugin registration directory, polling instead");
            None
        }
    };
    let mut registry = Registry { shared, entries: BTreeMap::new(), attempts: FuturesUnordered::new() };
    let mut last_update = BTreeMap::new();
    let mut publish = false;
    loop {
        publish |= registry.scan(&directory);
        if publish {
            publish = match csi::publish_drivers(&registry.shared).await {
                Ok(()) => false,
                Err(error) => {
                    tracing::warn!(%error, "failed to update CSINode, retrying");
                    true
                }
            };
        }
        let due = csi::refresh_node_info(&registry.shared, &mut last_update).await;
        let retry = (publish || changes.is_none() || registry.has_failed()).then_some(RETRY_DELAY);
        let timer = async {
            match [retry, due].into_iter().flatten().min() {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        let change = async {
            match &mut changes {
                Some(changes) => changes.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = change => {}
            () = timer => {}
            Some(attempt) = registry.attempts.next() => publish |= registry.finish(attempt),
        }
    }
}

struct Registry {
    shared: Arc<Shared>,
    entries: BTreeMap<PathBuf, Entry>,
    /// Registrations in progress: a plugin that does not respond delays no other.
    attempts: FuturesUnordered<Attempt>,
}

impl Registry {
    fn has_failed(&self) -> bool {
        self.entries.values().any(|entry| entry.plugin.is_none() && !entry.pending)
    }

    /// Compares the sockets with registered plugins; true if a CSI driver was removed.
    fn scan(&mut self, directory: &Path) -> bool {
        let sockets = sockets(directory);
        let is_current = |path: &PathBuf, entry: &Entry| sockets.get(path) == Some(&entry.id);
        let gone: Vec<PathBuf> = self
            .entries
            .iter()
            .filter(|(path, entry)| !is_current(path, entry))
            .map(|(path, _)| path.clone())
            .collect();
        let mut publish = false;
        let gone: Vec<Registered> =
            gone.iter().filter_map(|path| self.entries.remove(path)?.plugin).collect();
        for plugin in gone {
            tracing::info!(plugin = plugin.name, kind = ?plugin.kind, "plugin unregistered");
            self.remove(&plugin);
            publish |= plugin.kind == PluginKind::Csi;
        }
        for (path, id) in sockets {
            let entry =
                self.entries.entry(path.clone()).or_insert(Entry { id, plugin: None, pending: false });
            if entry.plugin.is_none() && !entry.pending {
                entry.pending = true;
                let shared = Arc::clone(&self.shared);
                self.attempts.push(Box::pin(async move {
                    let outcome = register(&shared, &path).await;
                    (path, id, outcome)
                }));
            }
        }
        publish
    }

    /// Records the outcome of a registration; true if a CSI driver was added.
    fn finish(&mut self, (path, id, outcome): (PathBuf, SocketId, Result<Registered, String>)) -> bool {
        let entry = self.entries.get_mut(&path).filter(|entry| entry.id == id);
        match (outcome, entry) {
            (Ok(plugin), Some(entry)) => {
                tracing::info!(plugin = plugin.name, kind = ?plugin.kind, "plugin registered");
                let is_csi = plugin.kind == PluginKind::Csi;
                (entry.plugin, entry.pending) = (Some(plugin), false);
                is_csi
            }
            (Ok(plugin), None) => {
                self.remove(&plugin);
                false
            }
            (Err(error), entry) => {
                tracing::warn!(socket = %path.display(), error, "plugin registration failed");
                if let Some(entry) = entry {
                    entry.pending = false;
                }
                false
            }
        }
    }

    fn remove(&self, plugin: &Registered) {
        // Another socket may have registered the same plugin since.
        if self.entries.values().any(|entry| entry.plugin.as_ref() == Some(plugin)) {
            return;
        }
        match plugin.kind {
            PluginKind::Csi => self.shared.drivers.remove(&plugin.name),
            PluginKind::Device => self.shared.devices.disconnect(&plugin.name),
            PluginKind::Dra => self.shared.dra.unregister(&plugin.name, &plugin.endpoint),
        }
    }
}

/// Sockets of a directory; hidden files are skipped, as in Kubernetes.
fn sockets(directory: &Path) -> BTreeMap<PathBuf, SocketId> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter_map(|entry| {
        let found = std::fs::symlink_metadata(entry.path()).ok()?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let id = (found.dev(), found.ino(), found.ctime(), found.ctime_nsec());
        (found.file_type().is_socket() && !hidden).then(|| (entry.path(), id))
    });
    sockets.take(MAX_SOCKETS).collect()
}

fn within<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

/// Reads the identity of the plugin at a socket, connects to it and reports the registration result.
async fn register(shared: &Shared, socket: &Path) -> Result<Registered, String> {
    let channel = cri::client::channel(&socket.display().to_string()).map_err(|error| error.to_string())?;
    let mut client = RegistrationClient::new(Grpc::new(channel));
    let error_message = |status: tonic::Status| status.message().to_owned();
    let late = |_| "no response within 10s".to_owned();
    let info = tokio::time::timeout(CALL_TIMEOUT, client.get_info(within(InfoRequest {}))).await;
    let info = info.map_err(late)?.map_err(error_message)?.into_inner();
    let endpoint =
        if info.endpoint.is_empty() { socket.display().to_string() } else { info.endpoint.clone() };
    let kind = KINDS.iter().find(|(name, _)| *name == info.r#type).map(|(_, kind)| *kind);
    let outcome = match kind {
        None => Err(format!("unsupported plugin type {:?}", info.r#type)),
        Some(PluginKind::Csi) => csi::connect(shared, &info.name, &endpoint, &info.supported_versions).await,
        Some(PluginKind::Dra) => shared.dra.register(&info.name, &endpoint, &info.supported_versions),
        Some(PluginKind::Device) => {
            connect_device(shared, &info.name, &endpoint, &info.supported_versions).await
        }
    };
    let status = RegistrationStatus {
        plugin_registered: outcome.is_ok(),
        error: outcome.as_ref().err().cloned().unwrap_or_default(),
    };
    let notified =
        tokio::time::timeout(CALL_TIMEOUT, client.notify_registration_status(within(status))).await;
    let plugin =
        outcome.and(kind.ok_or_else(String::new)).map(|kind| Registered { kind, name: info.name, endpoint });
    if let Err(error) = notified.map_err(late).and_then(|answer| answer.map(|_| ()).map_err(error_message)) {
        tracing::warn!(socket = %socket.display(), error, "failed to report the registration to the plugin");
    }
    plugin
}

async fn connect_device(
    shared: &Shared,
    resource: &str,
    endpoint: &str,
    versions: &[String],
) -> Result<(), String> {
    if !versions.iter().any(|version| version == "v1beta1") {
        return Err(format!("manager version, v1beta1, is not among plugin supported versions {versions:?}"));
    }
    shared.devices.connect(resource, Path::new(endpoint)).await
}
