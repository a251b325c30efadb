//! Block volumes of containers.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use cri::v1::Device;
use objects::core::v1::Pod;

use super::prepare::Prepared;
use crate::lifecycle::Member;
use crate::lifecycle::members::members;

/// Use of a volume by a pod's containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    pub mounted: bool,
    pub mapped: bool,
}

/// Determines if containers of the pod mount a volume or map it as a device.
#[must_use]
pub fn use_of(pod: &Pod, volume: &str) -> Use {
    let mut found = Use::default();
    for member in pod.spec.as_ref().map(members).unwrap_or_default() {
        let container = &member.container;
        found.mounted |= container.volume_mounts.iter().flatten().any(|mount| mount.name == volume);
        found.mapped |= container.volume_devices.iter().flatten().any(|device| device.name == volume);
    }
    found
}

/// Devices of a container.
pub fn devices(member: &Member, prepared: &Prepared) -> io::Result<Vec<Device>> {
    let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    let mut out = Vec::new();
    for device in member.container.volume_devices.iter().flatten() {
        let Some(volume) = prepared.get(&device.name).filter(|volume| volume.device) else {
            return Err(wrong(format!("volume {:?} is not mapped", device.name)));
        };
        out.push(Device {
            container_path: device.device_path.clone(),
            host_path: volume.path.display().to_string(),
            permissions: if volume.read_only { "r" } else { "mrw" }.to_owned(),
        });
    }
    Ok(out)
}

/// Returns true if the path is, or links to, a block device.
#[must_use]
pub fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::PreparedVolume;

    #[test]
    fn block_volumes_map_to_devices() {
        let text = br#"{"spec": {"containers": [{"name": "c",
            "volumeMounts": [{"name": "m", "mountPath": "/m"}],
            "volumeDevices": [{"name": "d", "devicePath": "/dev/x"}, {"name": "r", "devicePath": "/dev/y"}]}]}}"#;
        let pod: Pod = serde_json::from_slice(text).expect("a pod");
        assert_eq!(use_of(&pod, "m"), Use { mounted: true, mapped: false });
        assert_eq!(use_of(&pod, "d"), Use { mounted: false, mapped: true });
        assert_eq!(use_of(&pod, "none"), Use::default());
        let member = &members(pod.spec.as_ref().expect("a spec"))[0];
        let volume = |read_only| PreparedVolume {
            path: "/host/d".into(),
            read_only,
            device: true,
            ..PreparedVolume::default()
        };
        let mut prepared = Prepared::from([("d".to_owned(), volume(false)), ("r".to_owned(), volume(true))]);
        let made = devices(member, &prepared).expect("devices");
        let shown: Vec<_> =
            made.iter().map(|one| (one.container_path.as_str(), one.permissions.as_str())).collect();
        assert_eq!(shown, [("/dev/x", "mrw"), ("/dev/y", "r")]);
        prepared.insert("d".to_owned(), PreparedVolume::default());
        assert!(devices(member, &prepared).is_err(), "a directory is not a device");
    }
}
