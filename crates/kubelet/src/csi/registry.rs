//! Drivers come and go: each has a socket in the directory of registrations, says there who it is, and is told whether it
//! was taken. The API server learns of them from the node's `CSINode`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{ClientError, Patch};
use cri::registration::{InfoRequest, RegistrationClient, RegistrationStatus};
use objects::core::v1::Node;
use objects::csi_topology::{MIGRATED_PLUGINS, migrated_plugins};
use objects::meta::v1::{ObjectMeta, OwnerReference};
use objects::storage::v1::{CSIDriver, CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use serde_json::json;
use tonic::client::Grpc;

use super::driver::{Driver, within};
use crate::changes::Changes;
use crate::shared::Shared;

/// What a plugin must say it is.
const KIND: &str = "CSIPlugin";
/// How often the directory is looked at where it cannot be watched, or something failed.
const AGAIN: Duration = Duration::from_secs(5);
/// How often a driver's settings are looked at, which may come after the driver.
const SETTINGS: Duration = Duration::from_secs(60);
/// The shortest time between two questions, in seconds.
const SHORTEST: u64 = 10;
const ANNOTATION: &str = "csi.volume.kubernetes.io/nodeid";

/// Follows the directory of registrations until the kubelet stops.
pub async fn follow(shared: Arc<Shared>) {
    let directory = shared.config.directory.join("plugins_registry");
    if let Err(error) = std::fs::create_dir_all(&directory) {
        tracing::warn!(%error, directory = %directory.display(), "no directory for plugins");
        return std::future::pending().await;
    }
    let mut changes = match Changes::of(&directory) {
        Ok(changes) => Some(changes),
        Err(error) => {
            tracing::info!(%error, "plugins are looked for every few seconds: their directory cannot be watched");
            None
        }
    };
    let mut known: BTreeMap<PathBuf, Option<String>> = BTreeMap::new();
    let mut asked = BTreeMap::new();
    loop {
        let failed = look(&shared, &directory, &mut known).await;
        let due = ask_again(&shared, &mut asked).await;
        let wait =
            if failed || changes.is_none() { Some(due.map_or(AGAIN, |due| due.min(AGAIN))) } else { due };
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

/// Asks drivers again what the node can do for them, those that want that: how many volumes they can have here may change.
/// When to look next; never without drivers.
async fn ask_again(shared: &Arc<Shared>, asked: &mut BTreeMap<String, Instant>) -> Option<Duration> {
    let drivers = shared.drivers.all();
    asked.retain(|name, _| drivers.iter().any(|driver| driver.name == *name));
    let (mut next, mut changed) = (None::<Duration>, false);
    for driver in drivers {
        let settings = shared.find::<CSIDriver>("", &driver.name).await.ok().flatten();
        let period = settings.and_then(|found| found.spec.node_allocatable_update_period_seconds);
        let Some(period) = period.and_then(|seconds| u64::try_from(seconds).ok()) else {
            // It may come to want that.
            next = Some(next.map_or(SETTINGS, |next| next.min(SETTINGS)));
            continue;
        };
        let period = Duration::from_secs(period.max(SHORTEST));
        let last = *asked.entry(driver.name.clone()).or_insert_with(Instant::now);
        if last.elapsed() >= period {
            asked.insert(driver.name.clone(), Instant::now());
            match driver.again().await {
                Ok(told) if told.info != driver.info => {
                    changed = true;
                    shared.drivers.add(told);
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(driver = driver.name, %error, "a driver does not answer"),
            }
        }
        let left = period.saturating_sub(asked.get(&driver.name).map_or(Duration::ZERO, Instant::elapsed));
        next = Some(next.map_or(left, |next| next.min(left)));
    }
    if changed && let Err(error) = tell(shared).await {
        tracing::warn!(%error, "the API server does not know what changed about the node's storage drivers");
    }
    next
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

/// Annotations of a CSINode that are to be added: the in-tree plugins that CSI drivers replace here. `None` if it has them.
fn migration_annotation(existing: &CSINode) -> Option<serde_json::Value> {
    let wanted = migrated_plugins();
    let names = |text: &str| text.split(',').map(str::to_owned).collect::<BTreeSet<_>>();
    let has = existing.metadata.annotations.as_ref().and_then(|all| all.get(MIGRATED_PLUGINS));
    let is_same = has.is_some_and(|has| names(has) == names(&wanted));
    (!is_same).then(|| json!({"metadata": {"annotations": {MIGRATED_PLUGINS: wanted}}}))
}

/// Makes the node's `CSINode` if there is none, with the in-tree plugins that CSI drivers replace here.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csi_node_names_the_replaced_plugins_once() {
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
