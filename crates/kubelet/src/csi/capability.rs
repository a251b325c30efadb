//! CSI volume capabilities, and the fsGroup policy of drivers.

use cri::csi::{
    NodeServiceCapabilityRPCType, VolumeCapability, VolumeCapabilityAccessMode,
    VolumeCapabilityAccessModeMode as Mode, VolumeCapabilityAccessType, VolumeCapabilityBlockVolume,
    VolumeCapabilityMountVolume,
};
use objects::storage::v1::CSIDriver;

use super::Driver;

/// Translates an access mode to CSI. Only drivers with the `SINGLE_NODE_MULTI_WRITER` capability receive the precise
/// single-node writer mode.
fn access_mode(mode: Option<&str>, distinguishes_writers: bool) -> Mode {
    match (mode.unwrap_or("ReadWriteOnce"), distinguishes_writers) {
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        _ => Mode::SingleNodeWriter,
    }
}

/// Access mode that a pod uses of a volume: the first one of the volume counts.
pub struct CapabilityRequest<'a> {
    pub fs_type: Option<&'a String>,
    pub mount_flags: &'a [String],
    pub modes: &'a [String],
    pub group: Option<u32>,
}

impl CapabilityRequest<'_> {
    fn access(&self, driver: &Driver) -> VolumeCapabilityAccessMode {
        let distinguishes_writers = driver.can(NodeServiceCapabilityRPCType::SingleNodeMultiWriter);
        let mode = access_mode(self.modes.first().map(String::as_str), distinguishes_writers);
        VolumeCapabilityAccessMode { mode: mode as i32 }
    }

    /// Capability for a file system volume.
    pub fn mounted(&self, driver: &Driver) -> VolumeCapability {
        let by_driver = driver.can(NodeServiceCapabilityRPCType::VolumeMountGroup);
        let mount = VolumeCapabilityMountVolume {
            fs_type: self.fs_type.cloned().unwrap_or_default(),
            mount_flags: self.mount_flags.to_vec(),
            volume_mount_group: self.group.filter(|_| by_driver).map(|g| g.to_string()).unwrap_or_default(),
        };
        VolumeCapability {
            access_type: Some(VolumeCapabilityAccessType::Mount(mount)),
            access_mode: Some(self.access(driver)),
        }
    }

    /// Capability for a block volume.
    pub fn raw(&self, driver: &Driver) -> VolumeCapability {
        VolumeCapability {
            access_type: Some(VolumeCapabilityAccessType::Block(VolumeCapabilityBlockVolume {})),
            access_mode: Some(self.access(driver)),
        }
    }
}

/// Returns true if the kubelet applies the pod's fsGroup to a volume, by the driver's `fsGroupPolicy`.
pub fn applies_fs_group(settings: Option<&CSIDriver>, fs_type: Option<&String>, modes: &[String]) -> bool {
    match settings.and_then(|driver| driver.spec.fs_group_policy.as_deref()) {
        Some("File") => true,
        Some("None") => false,
        _ => fs_type.is_some_and(|kind| !kind.is_empty()) && modes.iter().any(|mode| mode == "ReadWriteOnce"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_map_to_csi() {
        for (mode, plain, single_node) in [
            (None, Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            (Some("ReadWriteOnce"), Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            (Some("ReadWriteOncePod"), Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
            (Some("ReadWriteMany"), Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
            (Some("ReadOnlyMany"), Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
        ] {
            assert_eq!(access_mode(mode, false), plain, "{mode:?}");
            assert_eq!(access_mode(mode, true), single_node, "{mode:?}");
        }
    }

    #[test]
    fn fs_group_policy_decides_ownership() {
        let (once, many) = (["ReadWriteOnce".to_owned()], ["ReadWriteMany".to_owned()]);
        let ext4 = "ext4".to_owned();
        let of = |policy: &str| {
            let mut driver = CSIDriver::default();
            driver.spec.fs_group_policy = Some(policy.to_owned());
            driver
        };
        for (policy, fs_type, modes, want) in [
            (None, Some(&ext4), &once, true),
            (None, None, &once, false),
            (None, Some(&ext4), &many, false),
            (Some("ReadWriteOnceWithFSType"), Some(&ext4), &once, true),
            (Some("File"), None, &many, true),
            (Some("None"), Some(&ext4), &once, false),
        ] {
            let settings = policy.map(of);
            assert_eq!(applies_fs_group(settings.as_ref(), fs_type, modes), want, "{policy:?} {fs_type:?}");
        }
    }
}
