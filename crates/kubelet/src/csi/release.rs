//! Unpublishes CSI volumes from a pod.

use std::fs;
use std::path::Path;
use std::time::Instant;

use cri::csi::{NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};
use tonic::{Code, Status};

use super::driver::within;
use super::record::{self, Published};
use super::{CsiError, at};
use crate::metrics::VolumeOperation;
use crate::shared::Shared;
use crate::volumes::csi_plugin;

const UNPUBLISH: &str = "NodeUnpublishVolume";
const UNSTAGE: &str = "NodeUnstageVolume";

/// Unpublishes all CSI volumes of a pod, and unstages those that no other pod of the node uses.
pub async fn unpublish_all(shared: &Shared, pod: &Path) -> Result<(), CsiError> {
    let (drivers, metrics, kubelet) = (&shared.drivers, &shared.metrics.storage, &shared.config.directory);
    for (directory, published) in record::of_pod(pod) {
        let name = &published.driver_name;
        let driver = drivers.find(name).ok_or_else(|| CsiError::NoDriver(name.clone()))?;
        let _lock = drivers.lock_volume(name, &published.volume_handle).await;
        let target = published.target(&directory);
        let request = NodeUnpublishVolumeRequest {
            volume_id: published.volume_handle.clone(),
            target_path: target.display().to_string(),
        };
        let plugin = csi_plugin(name);
        let [unmount, unmount_device] = operations(&published);
        let begun = Instant::now();
        let outcome = driver.call(UNPUBLISH, driver.node().node_unpublish_volume(within(request))).await;
        let outcome = ignore_not_found(outcome, UNPUBLISH);
        metrics.operated(unmount, &plugin, outcome.is_ok(), begun);
        outcome?;
        let others = record::in_use(kubelet).into_iter().any(|(other, one)| {
            other != pod
                && (&one.driver_name, &one.volume_handle)
                    == (&published.driver_name, &published.volume_handle)
        });
        if !published.staging_path.is_empty() && !others {
            let request = NodeUnstageVolumeRequest {
                volume_id: published.volume_handle.clone(),
                staging_target_path: published.staging_path.clone(),
            };
            let begun = Instant::now();
            let outcome = driver.call(UNSTAGE, driver.node().node_unstage_volume(within(request))).await;
            let outcome = ignore_not_found(outcome, UNSTAGE);
            metrics.operated(unmount_device, &plugin, outcome.is_ok(), begun);
            outcome?;
            let staged = Path::new(&published.staging_path);
            // A driver may leave its directory; a remaining mount is not removed with it.
            let _ = fs::remove_dir(staged);
            let _ = staged.parent().map(fs::remove_dir);
        }
        if published.is_block() {
            // Drivers remove their target. A leftover is an empty file or a device node.
            let _ = fs::remove_file(&target);
            let _ = target.parent().map(fs::remove_dir);
        } else {
            let _ = fs::remove_dir(&target);
        }
        published.remove(&directory).map_err(at(&directory))?;
    }
    Ok(())
}

/// Operations of the metrics: for the pod, and for the node.
fn operations(published: &Published) -> [VolumeOperation; 2] {
    if published.is_block() {
        [VolumeOperation::UnmapVolume, VolumeOperation::UnmapDevice]
    } else {
        [VolumeOperation::Unmount, VolumeOperation::UnmountDevice]
    }
}

fn ignore_not_found<T>(outcome: Result<T, Status>, name: &'static str) -> Result<(), CsiError> {
    match outcome {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::NotFound => Ok(()),
        Err(status) => Err(CsiError::Call { call: name, status }),
    }
}
