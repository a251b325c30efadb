//! Plugin registration: each driver has a socket in the registration directory, reports its identity there and
//! receives the registration result. Drivers are published in the node's `CSINode`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::file_changes::DirectoryChanges;
use client::{ClientError, Patch};
use cri::registration::{InfoRequest, RegistrationClient, RegistrationStatus};
use objects::core::v1::Node;
use objects::csi_topology::{MIGRATED_PLUGINS, migrated_plugins};
use objects::meta::v1::{ObjectMeta, OwnerReference};
use objects::storage::v1::{CSIDriver, CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use serde_json::json;
use tonic::client::Grpc;

use super::driver::{Driver, within};
use crate::shared::Shared;

/// Required plugin type.
const KIND: &str = "CSIPlugin";
/// Polling interval if the directory cannot be watched, and retry interval after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Interval of reading `CSIDriver` settings, which may be created after the driver registers.
const SETTINGS_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum `nodeAllocatableUpdatePeriodSeconds`, in seconds.
const MIN_UPDATE_PERIOD: u64 = 10;
const ANNOTATION: &str = "csi.volume.kubernetes.io/nodeid";

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
    let mut known: BTreeMap<PathBuf, Option<String>> = BTreeMap::new();
    let mut last_update = BTreeMap::new();
    loop {
        let failed = scan(&shared, &directory, &mut known).await;
        let due = refresh_node_info(&shared, &mut last_update).await;
        let wait = if failed || changes.is_none() {
            Some(due.map_or(RETRY_DELAY, |due| due.min(RETRY_DELAY)))
        } else {
            due
        };
        let change = async {
            match &mut changes {
                Some(changes) => changes.next().await,
                None => std::future::pending().await,
            }
        };
        match wait {
            Some(wait) => {
                let _ = tokio::time::timeout(wait, change).await;
            }
            None => change.await,
        }
    }
}

/// Calls `NodeGetInfo` again for drivers with an update period: their volume limit may change. Returns the time until
/// the next call; `None` without drivers.
async fn refresh_node_info(
    shared: &Arc<Shared>,
    last_update: &mut BTreeMap<String, Instant>,
) -> Option<Duration> {
    let drivers = shared.drivers.all();
    last_update.retain(|name, _| drivers.iter().any(|driver| driver.name == *name));
    let (mut next, mut changed) = (None::<Duration>, false);
    for driver in drivers {
        let settings = shared.find::<CSIDriver>("", &driver.name).await.ok().flatten();
        let period = settings.and_then(|found| found.spec.node_allocatable_update_period_seconds);
        let Some(period) = period.and_then(|seconds| u64::try_from(seconds).ok()) else {
            // The setting may be added later.
            next = Some(next.map_or(SETTINGS_INTERVAL, |next| next.min(SETTINGS_INTERVAL)));
            continue;
        };
        let period = Duration::from_secs(period.max(MIN_UPDATE_PERIOD));
        let last = *last_update.entry(driver.name.clone()).or_insert_with(Instant::now);
        if last.elapsed() >= period {
            last_update.insert(driver.name.clone(), Instant::now());
            match driver.refreshed().await {
                Ok(reported) if reported.info != driver.info => {
                    changed = true;
                    shared.drivers.add(reported);
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(driver = driver.name, %error, "CSI driver is not responding"),
            }
        }
        let left =
            period.saturating_sub(last_update.get(&driver.name).map_or(Duration::ZERO, Instant::elapsed));
        next = Some(next.map_or(left, |next| next.min(left)));
    }
    if changed && let Err(error) = publish_drivers(shared).await {
        tracing::warn!(%error, "failed to update CSINode");
    }
    next
}

/// Compares the sockets with registered plugins; true if a retry is needed.
async fn scan(shared: &Arc<Shared>, directory: &Path, known: &mut BTreeMap<PathBuf, Option<String>>) -> bool {
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
            tracing::info!(driver = name, "CSI driver unregistered");
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
                tracing::info!(driver = name, "CSI driver registered");
                known.insert(path, Some(name));
                changed = true;
            }
            Err(error) => {
                tracing::warn!(socket = %path.display(), error, "plugin registration failed");
                known.insert(path, None);
                failed = true;
            }
        }
    }
    if changed && let Err(error) = publish_drivers(shared).await {
        tracing::warn!(%error, "failed to update CSINode, retrying");
        failed = true;
    }
    failed
}

/// Reads the identity of the plugin at a socket, connects to it and reports the registration result.
async fn register(shared: &Shared, socket: &Path) -> Result<String, String> {
    let channel = cri::client::channel(&socket.display().to_string()).map_err(|error| error.to_string())?;
    let mut plugin = RegistrationClient::new(Grpc::new(channel));
    let error_message = |status: tonic::Status| status.message().to_owned();
    let info = plugin.get_info(within(InfoRequest {})).await.map_err(error_message)?.into_inner();
    let endpoint =
        if info.endpoint.is_empty() { socket.display().to_string() } else { info.endpoint.clone() };
    let outcome = if info.r#type != KIND {
        Err(format!("unsupported plugin type {:?}", info.r#type))
    } else if !info.supported_versions.iter().any(|version| version.trim_start_matches('v').starts_with('1'))
    {
        Err(format!("none of the plugin versions {:?} is supported", info.supported_versions))
    } else {
        Driver::connect_to(&info.name, &endpoint, &shared.metrics.storage.csi).await.map_err(error_message)
    };
    let status = RegistrationStatus {
        plugin_registered: outcome.is_ok(),
        error: outcome.as_ref().err().cloned().unwrap_or_default(),
    };
    plugin.notify_registration_status(within(status)).await.map_err(error_message)?;
    shared.drivers.add(outcome?);
    Ok(info.name)
}

/// Missing annotations of a CSINode: in-tree plugins migrated to CSI here. `None` if all are present.
fn migration_annotation(existing: &CSINode) -> Option<serde_json::Value> {
    let wanted = migrated_plugins();
    let names = |text: &str| text.split(',').map(str::to_owned).collect::<BTreeSet<_>>();
    let has = existing.metadata.annotations.as_ref().and_then(|all| all.get(MIGRATED_PLUGINS));
    let is_same = has.is_some_and(|has| names(has) == names(&wanted));
    (!is_same).then(|| json!({"metadata": {"annotations": {MIGRATED_PLUGINS: wanted}}}))
}

/// Creates the node's `CSINode` if it is missing, with the in-tree plugins migrated to CSI here.
pub async fn register_node(shared: &Shared, node: &Node) -> Result<(), ClientError> {
    let name = &shared.config.node_name;
    if let Some(existing) = shared.find::<CSINode>("", name).await? {
        if let Some(annotations) = migration_annotation(&existing) {
            shared.client.patch::<CSINode>("", name, None, &Patch::Merge(annotations)).await?;
        }
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
            annotations: Some(BTreeMap::from([(MIGRATED_PLUGINS.to_owned(), migrated_plugins())])),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec { drivers: Vec::new() },
    };
    match shared.client.create("", &object).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// Updates the driver list in `CSINode`.
async fn publish_drivers(shared: &Shared) -> Result<(), ClientError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csi_node_lists_migrated_plugins_once() {
        let node = |annotation: Option<&str>| -> CSINode {
            let annotations = annotation.map(|text| json!({MIGRATED_PLUGINS: text}));
            let object =
                json!({"metadata": {"name": "n", "annotations": annotations}, "spec": {"drivers": []}});
            serde_json::from_value(object).expect("a node")
        };
        let all = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,\
                   kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";
        let wanted = Some(json!({"metadata": {"annotations": {MIGRATED_PLUGINS: all}}}));
        assert_eq!(migration_annotation(&node(None)), wanted);
        assert_eq!(migration_annotation(&node(Some("kubernetes.io/gce-pd"))), wanted);
        assert_eq!(migration_annotation(&node(Some(all))), None);
        let reversed: Vec<&str> = all.rsplit(',').collect();
        assert_eq!(migration_annotation(&node(Some(&reversed.join(",")))), None);
    }
}
