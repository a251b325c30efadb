//! Record stored beside a published volume, under Kubernetes' file name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// File name of the record, beside the mount point.
const FILE: &str = "vol_data.json";
/// Directory of CSI volumes below the pod's directory.
const IN_POD: &str = "volumes/kubernetes.io~csi";

/// A volume that is published to a pod, or will be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    pub driver_name: String,
    pub volume_handle: String,
    /// Name of the persistent volume, or the pod's volume name of an inline one.
    #[serde(rename = "specVolID")]
    pub volume: String,
    /// `Persistent` or `Ephemeral`.
    pub volume_lifecycle_mode: String,
    /// Staging path; empty if the driver does not stage.
    #[serde(default)]
    pub staging_path: String,
    /// Path of a block volume; others are mounted beside this record.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target_path: String,
}

/// Directory of a volume below the pod's directory; the mount point is `mount` in it.
#[must_use]
pub fn directory(pod: &Path, volume: &str) -> PathBuf {
    pod.join(IN_POD).join(volume)
}

impl Published {
    /// Target path passed to the driver.
    #[must_use]
    pub fn target(&self, directory: &Path) -> PathBuf {
        if self.is_block() { PathBuf::from(&self.target_path) } else { directory.join("mount") }
    }

    /// Returns true for a block volume.
    #[must_use]
    pub fn is_block(&self) -> bool {
        !self.target_path.is_empty()
    }

    /// Removes the record, as the last step.
    pub fn remove(&self, directory: &Path) -> io::Result<()> {
        fs::remove_file(directory.join(FILE))?;
        fs::remove_dir(directory)
    }

    pub fn write(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let text = serde_json::to_vec(self)?;
        let partial = directory.join(format!("{FILE}.new"));
        fs::write(&partial, text)?;
        fs::rename(partial, directory.join(FILE))
    }

    pub fn read(directory: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(directory.join(FILE))?)?)
    }
}

/// CSI volumes of one pod: directories and records.
#[must_use]
pub fn of_pod(pod: &Path) -> Vec<(PathBuf, Published)> {
    let Ok(entries) = fs::read_dir(pod.join(IN_POD)) else { return Vec::new() };
    let directories = entries.flatten().map(|entry| entry.path());
    directories.filter_map(|path| Some((path.clone(), Published::read(&path).ok()?))).collect()
}

/// All CSI volumes of this node, by pod directory.
#[must_use]
pub fn in_use(kubelet: &Path) -> Vec<(PathBuf, Published)> {
    let Ok(entries) = fs::read_dir(kubelet.join("pods")) else { return Vec::new() };
    let pods = entries.flatten().map(|entry| entry.path());
    pods.flat_map(|pod| of_pod(&pod).into_iter().map(move |(_, published)| (pod.clone(), published)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_restart() {
        let kubelet = tempfile::tempdir().expect("a directory");
        let pod = kubelet.path().join("pods/uid");
        let published = Published {
            driver_name: "d".into(),
            volume_handle: "h".into(),
            volume: "pv".into(),
            ..Published::default()
        };
        published.write(&directory(&pod, "pv")).expect("written");
        assert_eq!(of_pod(&pod), [(directory(&pod, "pv"), published.clone())]);
        assert_eq!(in_use(kubelet.path()), [(pod.clone(), published.clone())]);
        assert_eq!(published.target(Path::new("/d")), Path::new("/d/mount"));
        let device = Published { target_path: "/dev/x".into(), ..published.clone() };
        assert_eq!(device.target(Path::new("/d")), Path::new("/dev/x"));
        published.remove(&directory(&pod, "pv")).expect("removed");
        assert!(of_pod(&pod).is_empty());
    }
}
