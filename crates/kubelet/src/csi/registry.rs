//! Drivers come and go: each has a socket in the directory of registrations, says there who it is, and is told whether it
//! was taken. The API server learns of them from the node's `CSINode`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use client::{ClientError, Patch};
use cri::registration::{InfoRequest, RegistrationClient, RegistrationStatus};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use rustix::fs::inotify;
use serde_json::json;
use tokio::io::unix::AsyncFd;
use tonic::client::Grpc;

use super::driver::{Driver, within};
use crate::shared::Shared;

/// What a plugin must say it is.
const KIND: &str = "CSIPlugin";
/// How often the directory is looked at where it cannot be watched, or something failed.
const AGAIN: Duration = Duration::from_secs(5);
/// How long to wait for more changes before looking.
const SETTLE: Duration = Duration::from_millis(20);
const ANNOTATION: &str = "csi.volume.kubernetes.io/nodeid";

/// Follows the directory of registrations until the kubelet stops.
pub async fn follow(shared: Arc<Shared>) {
    let directory = shared.config.directory.join("plugins_registry");
    if let Err(error) = std::fs::create_dir_all(&directory) {
        tracing::warn!(%error, directory = %directory.display(), "no directory for plugins");
        return;
    }
    let mut changes = match Changes::of(&directory) {
        Ok(changes) => Some(changes),
        Err(error) => {
            tracing::info!(%error, "plugins are looked for every few seconds: their directory cannot be watched");
            None
        }
    };
    let mut known: BTreeMap<PathBuf, Option<String>> = BTreeMap::new();
    loop {
        let failed = look(&shared, &directory, &mut known).await;
        match &mut changes {
            Some(changes) if !failed => changes.next().await,
            Some(changes) => {
                let _ = tokio::time::timeout(AGAIN, changes.next()).await;
            }
            None => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// Changes in a directory.
struct Changes(AsyncFd<OwnedFd>);

impl Changes {
    fn of(directory: &Path) -> std::io::Result<Self> {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let wanted = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::MOVED_FROM;
        inotify::add_watch(&watch, directory, wanted)?;
        #[expect(deprecated, reason = "the descriptor is owned by what is returned, and open for as long")]
        let watched = AsyncFd::new(watch)?;
        Ok(Self(watched))
    }

    async fn next(&mut self) {
        let Ok(mut ready) = self.0.readable().await else { return tokio::time::sleep(AGAIN).await };
        ready.clear_ready();
        tokio::time::sleep(SETTLE).await;
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.0.get_ref(), &mut buffer);
        while reader.next().is_ok() {}
    }
}

/// Compares the sockets with what is known; true if something is to be tried again.
async fn look(shared: &Arc<Shared>, directory: &Path, known: &mut BTreeMap<PathBuf, Option<String>>) -> bool {
    let sockets: BTreeSet<PathBuf> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .collect();
    let gone: Vec<PathBuf> = known.keys().filter(|path| !sockets.contains(*path)).cloned().collect();
    let mut changed = false;
    for path in gone {
        if let Some(Some(name)) = known.remove(&path) {
            tracing::info!(driver = name, "a storage driver is gone");
            shared.drivers.remove(&name);
            changed = true;
        }
    }
    let mut failed = false;
    for path in sockets {
        if known.get(&path).is_some_and(Option::is_some) {
            continue;
        }
        match register(shared, &path).await {
            Ok(name) => {
                tracing::info!(driver = name, "a storage driver is known");
                known.insert(path, Some(name));
                changed = true;
            }
            Err(error) => {
                tracing::warn!(socket = %path.display(), error, "a plugin is not taken");
                known.insert(path, None);
                failed = true;
            }
        }
    }
    if changed && let Err(error) = tell(shared).await {
        tracing::warn!(%error, "the API server does not know of the node's storage drivers yet");
        failed = true;
    }
    failed
}

/// Asks the plugin at a socket who it is, meets it, and says whether it was taken.
async fn register(shared: &Shared, socket: &Path) -> Result<String, String> {
    let channel = cri::client::channel(&socket.display().to_string()).map_err(|error| error.to_string())?;
    let mut plugin = RegistrationClient::new(Grpc::new(channel));
    let said = |status: tonic::Status| status.message().to_owned();
    let info = plugin.get_info(within(InfoRequest {})).await.map_err(said)?.into_inner();
    let endpoint =
        if info.endpoint.is_empty() { socket.display().to_string() } else { info.endpoint.clone() };
    let outcome = if info.r#type != KIND {
        Err(format!("plugins of type {:?} are not known", info.r#type))
    } else if !info.supported_versions.iter().any(|version| version.trim_start_matches('v').starts_with('1'))
    {
        Err(format!("none of the versions {:?} is supported", info.supported_versions))
    } else {
        Driver::meet(&info.name, &endpoint).await.map_err(said)
    };
    let status = RegistrationStatus {
        plugin_registered: outcome.is_ok(),
        error: outcome.as_ref().err().cloned().unwrap_or_default(),
    };
    plugin.notify_registration_status(within(status)).await.map_err(said)?;
    shared.drivers.add(outcome?);
    Ok(info.name)
}

/// Makes the node's `CSINode` if there is none.
pub async fn register_node(shared: &Shared, node: &Node) -> Result<(), ClientError> {
    let name = &shared.config.node_name;
    if shared.find::<CSINode>("", name).await?.is_some() {
        return Ok(());
    }
    let object = CSINode {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: name.clone(),
                uid: node.metadata.uid.clone().unwrap_or_default(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec { drivers: Vec::new() },
    };
    match shared.client.create("", &object).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// Tells the API server which drivers there are.
async fn tell(shared: &Shared) -> Result<(), ClientError> {
    let drivers = shared.drivers.all();
    let name = &shared.config.node_name;
    let rows: Vec<CSINodeDriver> = drivers.iter().map(row).collect();
    let ids: BTreeMap<&str, &str> =
        drivers.iter().map(|driver| (driver.name.as_str(), driver.info.node_id.as_str())).collect();
    let labels: BTreeMap<&String, &String> = drivers
        .iter()
        .flat_map(|driver| driver.info.accessible_topology.iter())
        .flat_map(|t| &t.segments)
        .collect();
    let annotations = json!({ANNOTATION: serde_json::to_string(&ids).unwrap_or_default()});
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations, "labels": labels}}));
    shared.client.patch::<Node>("", name, None, &patch).await?;
    let patch = Patch::Merge(json!({"spec": {"drivers": rows}}));
    shared.client.patch::<CSINode>("", name, None, &patch).await?;
    Ok(())
}

fn row(driver: &Driver) -> CSINodeDriver {
    let keys =
        driver.info.accessible_topology.as_ref().map(|topology| topology.segments.keys().cloned().collect());
    let most = i32::try_from(driver.info.max_volumes_per_node).ok().filter(|most| *most > 0);
    CSINodeDriver {
        name: driver.name.clone(),
        node_id: driver.info.node_id.clone(),
        topology_keys: keys,
        allocatable: most.map(|count| VolumeNodeResources { count: Some(count) }),
    }
}
