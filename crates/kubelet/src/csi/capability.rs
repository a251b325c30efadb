//! How a volume is to be used, in the interface's terms, and who gives its files to a pod's group.

use cri::csi::{
    NodeServiceCapabilityRPCType, VolumeCapability, VolumeCapabilityAccessMode,
    VolumeCapabilityAccessModeMode as Mode, VolumeCapabilityAccessType, VolumeCapabilityBlockVolume,
    VolumeCapabilityMountVolume,
};
use objects::storage::v1::CSIDriver;

use super::Driver;

/// Kubernetes' name of a mode in the interface's. Only drivers that tell several writers on one node apart are told which
/// of the two it is.
fn access_mode(mode: Option<&str>, tells_apart: bool) -> Mode {
    match (mode.unwrap_or("ReadWriteOnce"), tells_apart) {
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        _ => Mode::SingleNodeWriter,
    }
}

/// What a pod wants of a volume. The first of the volume's access modes counts.
pub struct Wanted<'a> {
    pub fs_type: Option<&'a String>,
    pub mount_flags: &'a [String],
    pub modes: &'a [String],
    pub group: Option<u32>,
}

impl Wanted<'_> {
    fn access(&self, driver: &Driver) -> VolumeCapabilityAccessMode {
        let tells_apart = driver.can(NodeServiceCapabilityRPCType::SingleNodeMultiWriter);
        let mode = access_mode(self.modes.first().map(String::as_str), tells_apart);
        VolumeCapabilityAccessMode { mode: mode as i32 }
    }

    /// With a file system.
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

    /// As a device.
    pub fn raw(&self, driver: &Driver) -> VolumeCapability {
        VolumeCapability {
            access_type: Some(VolumeCapabilityAccessType::Block(VolumeCapabilityBlockVolume {})),
            access_mode: Some(self.access(driver)),
        }
    }
}

/// Whether the kubelet gives the files of a volume to the pod's group, by what the driver's settings say.
pub fn gives_to_group(settings: Option<&CSIDriver>, fs_type: Option<&String>, modes: &[String]) -> bool {
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
    fn modes() {
        for (mode, plain, told_apart) in [
            (None, Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            (Some("ReadWriteOnce"), Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            (Some("ReadWriteOncePod"), Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
            (Some("ReadWriteMany"), Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
            (Some("ReadOnlyMany"), Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
        ] {
            assert_eq!(access_mode(mode, false), plain, "{mode:?}");
            assert_eq!(access_mode(mode, true), told_apart, "{mode:?}");
        }
    }

    #[test]
    fn groups() {
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
            assert_eq!(gives_to_group(settings.as_ref(), fs_type, modes), want, "{policy:?} {fs_type:?}");
        }
    }
}
