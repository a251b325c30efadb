//! The node's part of making a volume larger, once the controller has done its own.

use std::collections::BTreeMap;
use std::path::Path;

use client::Patch;
use cri::csi::{CapacityRange, NodeExpandVolumeRequest, NodeServiceCapabilityRPCType, VolumeCapability};
use machinery::quantity::Quantity;
use objects::Quantity as Written;
use objects::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus,
};
use serde_json::{Value, json};
use tonic::Code;

use super::driver::{Driver, within};
use super::mount::Publishing;
use super::{CsiError, Published};
use crate::events::Kind;
use crate::lifecycle::status::seconds;

/// A volume that may have to be made larger, and where it is.
pub struct Expansion<'a> {
    pub driver: &'a Driver,
    pub volume: &'a PersistentVolume,
    pub source: &'a CSIPersistentVolumeSource,
    pub claim: &'a PersistentVolumeClaim,
    pub capability: &'a VolumeCapability,
    pub target: &'a Path,
    pub published: &'a Published,
}

/// What a claim says of its own growth.
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
/// Conditions that are about growth.
const CONDITIONS: [&str; 4] = ["FileSystemResizePending", "Resizing", "ControllerResizeError", FAILED];
const FAILED: &str = "NodeResizeError";

fn bytes(amounts: Option<&BTreeMap<String, Written>>) -> i64 {
    amounts.and_then(|list| Quantity::parse(&list.get("storage")?.0).ok()).map_or(0, |size| size.value())
}

fn resize_status(claim: &PersistentVolumeClaimStatus) -> Option<&str> {
    claim.allocated_resource_statuses.as_ref()?.get("storage").map(String::as_str)
}

/// The size that the volume has to be brought to on this node, if it has not that already.
fn wanted(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<i64> {
    let wanted = bytes(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()));
    let status = claim.status.as_ref()?;
    let told = bytes(status.capacity.as_ref());
    match resize_status(status) {
        Some(PENDING | IN_PROGRESS) => Some(wanted),
        // Controllers of old say nothing, but that the volume has become larger than the claim.
        None => Some(wanted).filter(|wanted| *wanted > told && told > 0),
        Some(_) => None,
    }
}

impl Publishing<'_> {
    /// Makes the volume larger if that is wanted. A driver that cannot do it while the volume is used is asked again
    /// later; all else that goes wrong is told by the claim and an event.
    pub(super) async fn expand(&self, expansion: &Expansion<'_>) -> Result<(), CsiError> {
        let Expansion { driver, volume, source, claim, published, .. } = *expansion;
        let Some(size) = wanted(volume, claim) else { return Ok(()) };
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        if driver.can(NodeServiceCapabilityRPCType::ExpandVolume) {
            if claim.status.as_ref().and_then(resize_status) == Some(PENDING) {
                self.tell(claim, json!({"allocatedResourceStatuses": {"storage": IN_PROGRESS}})).await?;
            }
            let asked = NodeExpandVolumeRequest {
                volume_id: source.volume_handle.clone(),
                volume_path: expansion.target.display().to_string(),
                capacity_range: Some(CapacityRange { required_bytes: size, limit_bytes: 0 }),
                staging_target_path: published.staging_path.clone(),
                volume_capability: Some(expansion.capability.clone()),
                secrets: self.secret(source.node_expand_secret_ref.as_ref()).await?,
            };
            if let Err(status) = driver.node().node_expand_volume(within(asked)).await {
                if status.code() == Code::FailedPrecondition {
                    return Ok(());
                }
                let text =
                    format!("MountVolume.NodeExpandVolume failed for volume {name:?} : {}", status.message());
                self.recorder.pod(self.pod, Kind::Warning, "VolumeResizeFailed", text);
                self.tell(claim, self.failure(claim, &status)).await?;
                return Err(CsiError::Call { call: "NodeExpandVolume", status });
            }
        }
        let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
        let done = json!({
            "capacity": capacity,
            "conditions": conditions_but(claim, &CONDITIONS),
            "allocatedResourceStatuses": {"storage": null},
        });
        self.tell(claim, done).await?;
        let text = format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {}", self.node);
        self.recorder.pod(self.pod, Kind::Normal, "FileSystemResizeSuccessful", text);
        Ok(())
    }

    /// What the claim says of a failure. Some answers mean that it is no use to try again.
    fn failure(&self, claim: &PersistentVolumeClaim, status: &tonic::Status) -> Value {
        let mut conditions = conditions_but(claim, &[FAILED]);
        conditions.push(json!({
            "type": FAILED,
            "status": "True",
            "lastTransitionTime": seconds(self.now).0.to_string(),
            "message": format!("failed to expand pvc with {}", status.message()),
        }));
        let infeasible = matches!(status.code(), Code::InvalidArgument | Code::OutOfRange | Code::NotFound);
        if infeasible {
            json!({"conditions": conditions, "allocatedResourceStatuses": {"storage": INFEASIBLE}})
        } else {
            json!({"conditions": conditions})
        }
    }

    async fn tell(&self, claim: &PersistentVolumeClaim, status: Value) -> Result<(), CsiError> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (namespace, name) = (text(&claim.metadata.namespace), text(&claim.metadata.name));
        let patch = Patch::Merge(json!({"status": status}));
        let told =
            self.client.patch::<PersistentVolumeClaim>(&namespace, &name, Some("status"), &patch).await;
        told.map_err(|source| CsiError::Read { what: format!("persistentvolumeclaim {name}"), source })?;
        Ok(())
    }
}

/// Conditions of a claim of other types than these.
fn conditions_but(claim: &PersistentVolumeClaim, types: &[&str]) -> Vec<Value> {
    let all = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let others = all.filter(|condition| !types.contains(&condition.type_.as_str()));
    others.filter_map(|condition| serde_json::to_value(condition).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_a_volume_is_made_larger() {
        let volume = |size: &str| -> PersistentVolume {
            serde_json::from_value(json!({"spec": {"capacity": {"storage": size}}})).expect("a volume")
        };
        let claim = |size: &str, status: Option<&str>| -> PersistentVolumeClaim {
            let mut value = json!({"status": {"capacity": {"storage": size}}});
            if let Some(status) = status {
                value["status"]["allocatedResourceStatuses"] = json!({"storage": status});
            }
            serde_json::from_value(value).expect("a claim")
        };
        for (has, told, status, want) in [
            ("2Ki", "1Ki", None, Some(2048)),
            ("1Ki", "1Ki", None, None),
            ("2Ki", "0", None, None),
            ("2Ki", "1Ki", Some(PENDING), Some(2048)),
            ("2Ki", "1Ki", Some(IN_PROGRESS), Some(2048)),
            ("2Ki", "1Ki", Some("ControllerResizeInProgress"), None),
            ("2Ki", "1Ki", Some(INFEASIBLE), None),
        ] {
            assert_eq!(wanted(&volume(has), &claim(told, status)), want, "{has} {told} {status:?}");
        }
        assert_eq!(wanted(&volume("1Ki"), &PersistentVolumeClaim::default()), None);
    }

    #[test]
    fn other_conditions_stay() {
        let claim = serde_json::from_value(json!({"status": {"conditions": [
            {"type": "Resizing", "status": "True"}, {"type": "Own", "status": "True"}]}}));
        let left = conditions_but(&claim.expect("a claim"), &CONDITIONS);
        assert_eq!(left.len(), 1);
        assert_eq!(left[0]["type"], "Own");
    }
}
