//! Where a pod's files are on the node.

use std::path::{Path, PathBuf};

use objects::core::v1::{Pod, Volume};

/// The directories of one pod.
#[derive(Clone, Debug)]
pub struct PodDirectories {
    pub root: PathBuf,
}

impl PodDirectories {
    /// Below the kubelet's own directory.
    #[must_use]
    pub fn new(kubelet: &Path, pod: &Pod) -> Self {
        Self::of_uid(kubelet, pod.metadata.uid.as_deref().unwrap_or(""))
    }

    #[must_use]
    pub fn of_uid(kubelet: &Path, uid: &str) -> Self {
        Self { root: kubelet.join("pods").join(uid) }
    }

    /// The pods that have directories.
    #[must_use]
    pub fn uids(kubelet: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(kubelet.join("pods")).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Removes the pod's directory, when nothing is in it any more.
    pub fn remove(&self) -> std::io::Result<()> {
        match std::fs::remove_dir(&self.root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    #[must_use]
    pub fn volume(&self, plugin: &str, name: &str) -> PathBuf {
        self.root.join("volumes").join(format!("kubernetes.io~{plugin}")).join(name)
    }

    #[must_use]
    pub fn etc_hosts(&self) -> PathBuf {
        self.root.join("etc-hosts")
    }

    /// The file a container leaves its last words in.
    #[must_use]
    pub fn termination_log(&self, container: &str, restarts: u32) -> PathBuf {
        self.root.join("containers").join(container).join(format!("{restarts}.termination-log"))
    }

    #[must_use]
    pub fn sub_paths(&self) -> PathBuf {
        self.root.join("volume-subpaths")
    }
}

/// The directory name of a kind of volume that lives in the pod's own directory.
#[must_use]
pub fn plugin(volume: &Volume) -> Option<&'static str> {
    if volume.empty_dir.is_some() {
        Some("empty-dir")
    } else if volume.config_map.is_some() {
        Some("configmap")
    } else if volume.secret.is_some() {
        Some("secret")
    } else if volume.downward_api.is_some() {
        Some("downward-api")
    } else if volume.projected.is_some() {
        Some("projected")
    } else {
        None
    }
}
