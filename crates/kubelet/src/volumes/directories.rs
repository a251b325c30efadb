//! File system layout of a pod on the node.

use std::path::{Path, PathBuf};

use super::stats::Measure;
use objects::core::v1::{Pod, Volume};

/// Directories of one pod.
#[derive(Clone, Debug)]
pub struct PodDirectories {
    pub root: PathBuf,
}

impl PodDirectories {
    /// Paths below the kubelet's own directory.
    #[must_use]
    pub fn new(kubelet: &Path, pod: &Pod) -> Self {
        Self::of_uid(kubelet, pod.metadata.uid.as_deref().unwrap_or(""))
    }

    #[must_use]
    pub fn of_uid(kubelet: &Path, uid: &str) -> Self {
        Self { root: kubelet.join("pods").join(uid) }
    }

    /// Pods that have directories.
    #[must_use]
    pub fn uids(kubelet: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(kubelet.join("pods")).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Removes the pod's directory once it is empty.
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

    /// Termination message file of a container.
    #[must_use]
    pub fn termination_log(&self, container: &str, restarts: u32) -> PathBuf {
        self.root.join("containers").join(container).join(format!("{restarts}.termination-log"))
    }

    #[must_use]
    pub fn sub_paths(&self) -> PathBuf {
        self.root.join("volume-subpaths")
    }
}

/// Directory name of a volume plugin within the pod's directory.
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

pub const CSI_PLUGIN: &str = "kubernetes.io/csi";
pub const LOCAL_PLUGIN: &str = "kubernetes.io/local-volume";

/// Plugin name of a driver's volumes in Kubernetes' metrics of operations.
#[must_use]
pub fn csi_plugin(driver: &str) -> String {
    format!("{CSI_PLUGIN}:{driver}")
}

/// Plugin name in Kubernetes' metrics; `None` for claims, whose volume decides.
#[must_use]
pub fn plugin_name(volume: &Volume) -> Option<&'static str> {
    Some(match plugin(volume) {
        Some("empty-dir") => "kubernetes.io/empty-dir",
        Some("configmap") => "kubernetes.io/configmap",
        Some("secret") => "kubernetes.io/secret",
        Some("downward-api") => "kubernetes.io/downward-api",
        Some("projected") => "kubernetes.io/projected",
        _ if volume.host_path.is_some() => "kubernetes.io/host-path",
        _ if volume.image.is_some() => "kubernetes.io/image",
        _ if volume.csi.is_some() => CSI_PLUGIN,
        _ => return None,
    })
}

/// Plugin name of a claim's volume.
#[must_use]
pub fn plugin_of_claim(measure: &Measure) -> &'static str {
    match measure {
        Measure::Driver { .. } => CSI_PLUGIN,
        Measure::FileSystem | Measure::Device => LOCAL_PLUGIN,
        _ => "kubernetes.io/host-path",
    }
}
