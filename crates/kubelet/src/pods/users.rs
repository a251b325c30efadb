//! User namespaces of pods with `hostUsers: false`: each has an exclusive range of host IDs.
//!
//! The range is stored in the pod's directory, so that it survives a kubelet restart.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use cri::v1::{ContainerConfig, IDMapping, NamespaceMode, NamespaceOption, PodSandboxConfig, UserNamespace};
use objects::core::v1::Pod;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::volumes::PodDirectories;

/// Number of IDs per pod.
const LENGTH: u32 = 65536;
/// File name, as in Kubernetes.
const FILE: &str = "userns";

/// Allocated ID ranges of a node.
pub struct Users {
    kubelet: PathBuf,
    /// Number of ranges; the first IDs belong to the host's own users.
    most: u32,
    /// Range index by pod, counted from 1.
    taken: Mutex<BTreeMap<String, u32>>,
}

/// Host ID range of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range(u32);

/// Returns true if the pod requests a user namespace.
#[must_use]
pub fn wanted(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false)
}

impl Users {
    /// Loads the ranges of existing pods.
    #[must_use]
    pub fn open(kubelet: &Path, most_pods: u32) -> Self {
        let most = most_pods.min(u32::MAX / LENGTH - 1);
        let users = Self { kubelet: kubelet.to_owned(), most, taken: Mutex::default() };
        let found = PodDirectories::uids(kubelet).into_iter();
        let found = found.filter_map(|uid| read(&users.file(&uid)).map(|number| (uid, number)));
        users.taken.lock().extend(found);
        users
    }

    fn file(&self, uid: &str) -> PathBuf {
        PodDirectories::of_uid(&self.kubelet, uid).root.join(FILE)
    }

    /// Range of a pod, allocated if it has none.
    pub fn of(&self, uid: &str) -> io::Result<Range> {
        let mut taken = self.taken.lock();
        if let Some(number) = taken.get(uid) {
            return Ok(Range(*number));
        }
        let free = (1..=self.most).find(|number| !taken.values().any(|other| other == number));
        let range =
            Range(free.ok_or_else(|| {
                io::Error::other("could not find an empty slot to allocate a user namespace")
            })?);
        let map = json!([{"hostId": range.first(), "containerId": 0, "length": LENGTH}]);
        let text = json!({"uidMappings": map, "gidMappings": map}).to_string();
        let file = self.file(uid);
        base::file::replace(&file, text.as_bytes(), base::file::PRIVATE)?;
        taken.insert(uid.to_owned(), range.0);
        Ok(range)
    }

    /// Releases the range of a removed pod.
    pub fn forget(&self, uid: &str) {
        self.taken.lock().remove(uid);
    }
}

fn read(file: &Path) -> Option<u32> {
    let map: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    let first = u32::try_from(map["uidMappings"][0]["hostId"].as_u64()?).ok()?;
    Some(first / LENGTH).filter(|number| *number > 0)
}

impl Range {
    /// Host ID of the pod's root user.
    fn first(self) -> u32 {
        self.0 * LENGTH
    }

    fn map(self) -> Vec<IDMapping> {
        vec![IDMapping { host_id: self.first(), container_id: 0, length: LENGTH }]
    }

    fn apply_mapping(self, options: &mut Option<NamespaceOption>) {
        let mode = NamespaceMode::Pod as i32;
        let namespace = UserNamespace { mode, uids: self.map(), gids: self.map() };
        options.get_or_insert_default().userns_options = Some(namespace);
    }

    /// Applies the mapping to a sandbox.
    pub fn apply_to_sandbox(self, config: &mut PodSandboxConfig) {
        let linux = config.linux.get_or_insert_default();
        self.apply_mapping(&mut linux.security_context.get_or_insert_default().namespace_options);
    }

    /// Applies the mapping to a container; its volumes are ID-mapped accordingly.
    pub fn apply_to_container(self, config: &mut ContainerConfig) {
        let linux = config.linux.get_or_insert_default();
        self.apply_mapping(&mut linux.security_context.get_or_insert_default().namespace_options);
        for mount in &mut config.mounts {
            mount.uid_mappings = self.map();
            mount.gid_mappings = self.map();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_get_exclusive_id_ranges() {
        let kubelet = tempfile::tempdir().unwrap();
        for uid in ["a", "b", "c"] {
            std::fs::create_dir_all(kubelet.path().join("pods").join(uid)).unwrap();
        }
        let users = Users::open(kubelet.path(), 2);
        let a = users.of("a").unwrap();
        assert_eq!((a.first(), users.of("a").unwrap()), (65536, a));
        assert_eq!(users.of("b").unwrap().first(), 2 * 65536);
        assert!(users.of("c").is_err(), "all ranges are allocated");
        users.forget("a");
        assert_eq!(users.of("c").unwrap(), a);
        // A restarted kubelet loads the allocated range.
        std::fs::remove_file(kubelet.path().join("pods/a").join(FILE)).unwrap();
        let users = Users::open(kubelet.path(), 3);
        assert_eq!(users.of("b").unwrap().first(), 2 * 65536);
        assert_eq!(users.of("a").unwrap().first(), 3 * 65536);
        let mut config = ContainerConfig { mounts: vec![cri::v1::Mount::default()], ..Default::default() };
        a.apply_to_container(&mut config);
        assert_eq!(config.mounts[0].gid_mappings[0].host_id, 65536);
    }
}
