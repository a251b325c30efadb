//! Registered drivers, published in the node's `CSINode`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use client::{ClientError, Patch};
use objects::core::v1::Node;
use objects::csi_topology::{MIGRATED_PLUGINS, migrated_plugins};
use objects::meta::v1::{ObjectMeta, OwnerReference};
use objects::storage::v1::{CSIDriver, CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use serde_json::json;

use super::driver::Driver;
use crate::shared::Shared;

/// Interval of reading `CSIDriver` settings, which may be created after the driver registers.
const SETTINGS_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum `nodeAllocatableUpdatePeriodSeconds`, in seconds.
const MIN_UPDATE_PERIOD: u64 = 10;
const ANNOTATION: &str = "csi.volume.kubernetes.io/nodeid";

/// Calls `NodeGetInfo` again for drivers with an update period: their volume limit may change. Returns the time until
/// the next call; `None` without drivers.
pub async fn refresh_node_info(
    shared: &Shared,
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

/// Connects to the driver at a socket that its plugin reported.
pub async fn connect(shared: &Shared, name: &str, endpoint: &str, versions: &[String]) -> Result<(), String> {
    if !versions.iter().any(|version| version.trim_start_matches('v').starts_with('1')) {
        return Err(format!("none of the plugin versions {versions:?} is supported"));
    }
    let driver = Driver::connect_to(name, endpoint, &shared.metrics.storage.csi).await;
    shared.drivers.add(driver.map_err(|status| status.message().to_owned())?);
    Ok(())
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
pub async fn publish_drivers(shared: &Shared) -> Result<(), ClientError> {
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
