//! Records volume expansion on this node: status and conditions of the claim, events of the pod.

use std::collections::BTreeMap;

use client::{Client, ClientError, Patch};
use jiff::Timestamp;
use machinery::quantity::Quantity;
use objects::Quantity as Written;
use objects::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus, Pod};
use serde_json::{Value, json};

use crate::events::{Kind, Recorder};
use crate::lifecycle::status::seconds;

/// Resize statuses of a claim.
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
/// Conditions related to expansion.
const CONDITIONS: [&str; 4] = ["FileSystemResizePending", "Resizing", "ControllerResizeError", FAILED];
const FAILED: &str = "NodeResizeError";

/// Consequence of a failed expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The expansion is retried.
    Retry,
    /// The expansion is not retried for the same size.
    Infeasible,
}

/// Records the expansion of volumes of one pod.
pub struct Growth<'a> {
    pub client: &'a Client,
    pub recorder: &'a Recorder,
    pub pod: &'a Pod,
    pub node: &'a str,
    pub now: Timestamp,
}

fn bytes(amounts: Option<&BTreeMap<String, Written>>) -> i64 {
    amounts.and_then(|list| Quantity::parse(&list.get("storage")?.0).ok()).map_or(0, |size| size.value())
}

fn resize_status(claim: &PersistentVolumeClaimStatus) -> Option<&str> {
    claim.allocated_resource_statuses.as_ref()?.get("storage").map(String::as_str)
}

/// Returns the size that the volume has to be expanded to on this node, unless it is already that large.
#[must_use]
pub fn wanted(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<i64> {
    let wanted = bytes(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()));
    let status = claim.status.as_ref()?;
    let recorded = bytes(status.capacity.as_ref());
    match resize_status(status) {
        Some(PENDING | IN_PROGRESS) => Some(wanted),
        // Older controllers set no resize status; the volume's size then exceeds that in the claim's status.
        None => Some(wanted).filter(|wanted| *wanted > recorded && recorded > 0),
        Some(_) => None,
    }
}

impl Growth<'_> {
    /// Marks the expansion as in progress.
    pub async fn begin(&self, claim: &PersistentVolumeClaim) -> Result<(), ClientError> {
        if claim.status.as_ref().and_then(resize_status) != Some(PENDING) {
            return Ok(());
        }
        self.write(claim, json!({"allocatedResourceStatuses": {"storage": IN_PROGRESS}})).await
    }

    /// Records the volume's size in the claim's status.
    pub async fn succeed(
        &self,
        volume: &PersistentVolume,
        claim: &PersistentVolumeClaim,
    ) -> Result<(), ClientError> {
        let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
        let done = json!({
            "capacity": capacity,
            "conditions": conditions_but(claim, &CONDITIONS),
            "allocatedResourceStatuses": {"storage": null},
        });
        self.write(claim, done).await?;
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let text = format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {}", self.node);
        self.recorder.pod(self.pod, Kind::Normal, "FileSystemResizeSuccessful", text);
        Ok(())
    }

    /// Records a failed expansion.
    pub async fn fail(
        &self,
        volume: &PersistentVolume,
        claim: &PersistentVolumeClaim,
        message: &str,
        failure: Failure,
    ) -> Result<(), ClientError> {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let text = format!("MountVolume.NodeExpandVolume failed for volume {name:?} : {message}");
        self.recorder.pod(self.pod, Kind::Warning, "VolumeResizeFailed", text);
        let mut conditions = conditions_but(claim, &[FAILED]);
        conditions.push(json!({
            "type": FAILED,
            "status": "True",
            "lastTransitionTime": seconds(self.now).0.to_string(),
            "message": format!("failed to expand pvc with {message}"),
        }));
        let status = match failure {
            Failure::Retry => json!({"conditions": conditions}),
            Failure::Infeasible => {
                json!({"conditions": conditions, "allocatedResourceStatuses": {"storage": INFEASIBLE}})
            }
        };
        self.write(claim, status).await
    }

    async fn write(&self, claim: &PersistentVolumeClaim, status: Value) -> Result<(), ClientError> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (namespace, name) = (text(&claim.metadata.namespace), text(&claim.metadata.name));
        let patch = Patch::Merge(json!({"status": status}));
        self.client.patch::<PersistentVolumeClaim>(&namespace, &name, Some("status"), &patch).await?;
        Ok(())
    }
}

/// Conditions of a claim except those of these types.
fn conditions_but(claim: &PersistentVolumeClaim, types: &[&str]) -> Vec<Value> {
    let all = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let others = all.filter(|condition| !types.contains(&condition.type_.as_str()));
    others.filter_map(|condition| serde_json::to_value(condition).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_expansion_size_is_detected() {
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
        for (has, reported, status, want) in [
            ("2Ki", "1Ki", None, Some(2048)),
            ("1Ki", "1Ki", None, None),
            ("2Ki", "0", None, None),
            ("2Ki", "1Ki", Some(PENDING), Some(2048)),
            ("2Ki", "1Ki", Some(IN_PROGRESS), Some(2048)),
            ("2Ki", "1Ki", Some("ControllerResizeInProgress"), None),
            ("2Ki", "1Ki", Some(INFEASIBLE), None),
        ] {
            assert_eq!(wanted(&volume(has), &claim(reported, status)), want, "{has} {reported} {status:?}");
        }
        assert_eq!(wanted(&volume("1Ki"), &PersistentVolumeClaim::default()), None);
    }

    #[test]
    fn expansion_keeps_other_conditions() {
        let claim = serde_json::from_value(json!({"status": {"conditions": [
            {"type": "Resizing", "status": "True"}, {"type": "Own", "status": "True"}]}}));
        let left = conditions_but(&claim.expect("a claim"), &CONDITIONS);
        assert_eq!(left.len(), 1);
        assert_eq!(left[0]["type"], "Own");
    }
}
