//! Node part of a volume expansion, after the controller's.

use std::path::Path;

use cri::csi::{CapacityRange, NodeExpandVolumeRequest, NodeServiceCapabilityRPCType, VolumeCapability};
use objects::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeClaim};
use tonic::Code;

use super::driver::{Driver, within};
use super::mount::Publishing;
use super::{CsiError, Published};
use crate::volumes::growth::{Failure, Growth, wanted};

const EXPAND: &str = "NodeExpandVolume";

/// A volume that may need expansion, and its path.
pub struct Expansion<'a> {
    pub driver: &'a Driver,
    pub volume: &'a PersistentVolume,
    pub source: &'a CSIPersistentVolumeSource,
    pub claim: &'a PersistentVolumeClaim,
    pub capability: &'a VolumeCapability,
    pub target: &'a Path,
    pub published: &'a Published,
}

impl Publishing<'_> {
    /// Expands the volume if required. A driver that cannot expand a volume in use is called again later; every other
    /// failure is recorded in the claim and an event.
    pub(super) async fn expand(&self, expansion: &Expansion<'_>) -> Result<(), CsiError> {
        let Expansion { driver, volume, source, claim, published, .. } = *expansion;
        let Some(size) = wanted(volume, claim) else { return Ok(()) };
        let Publishing { client, recorder, pod, node, now, .. } = *self;
        let growth = Growth { client, recorder, pod, node, now };
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let written = |source| CsiError::Read { what: format!("persistentvolumeclaim {name}"), source };
        if driver.can(NodeServiceCapabilityRPCType::ExpandVolume) {
            growth.begin(claim).await.map_err(written)?;
            let request = NodeExpandVolumeRequest {
                volume_id: source.volume_handle.clone(),
                volume_path: expansion.target.display().to_string(),
                capacity_range: Some(CapacityRange { required_bytes: size, limit_bytes: 0 }),
                staging_target_path: published.staging_path.clone(),
                volume_capability: Some(expansion.capability.clone()),
                secrets: self.secret(source.node_expand_secret_ref.as_ref()).await?,
            };
            let expanded = driver.call(EXPAND, driver.node().node_expand_volume(within(request))).await;
            if let Err(status) = expanded {
                let failure = match status.code() {
                    Code::FailedPrecondition => return Ok(()),
                    Code::InvalidArgument | Code::OutOfRange | Code::NotFound => Failure::Infeasible,
                    _ => Failure::Retry,
                };
                growth.fail(volume, claim, status.message(), failure).await.map_err(written)?;
                return Err(CsiError::Call { call: EXPAND, status });
            }
        }
        growth.succeed(volume, claim).await.map_err(written)
    }
}
