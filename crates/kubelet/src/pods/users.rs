//! Users of their own for pods with `hostUsers: false`: each has a range of the host's numbers that no other pod has.
//!
//! A pod's range is in a file of its directory, so that it has the same one after a restart of the kubelet.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use cri::v1::{ContainerConfig, IDMapping, NamespaceMode, NamespaceOption, PodSandboxConfig, UserNamespace};
use objects::core::v1::Pod;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::volumes::PodDirectories;

/// Numbers of one pod.
const LENGTH: u32 = 65536;
/// The file, named as Kubernetes does.
const FILE: &str = "userns";

/// The ranges of a node's pods.
pub struct Users {
    kubelet: PathBuf,
    /// Ranges that there are; the first numbers are the host's own users.
    most: u32,
    /// Which range a pod has, counted from 1.
    taken: Mutex<BTreeMap<String, u32>>,
}

/// A pod's numbers on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range(u32);

/// Whether a pod asks for users of its own.
#[must_use]
pub fn wanted(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false)
}

impl Users {
    /// Finds the ranges of pods that were here before.
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

    /// The range of a pod, which gets one if it has none.
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

    /// The pod is gone.
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
    /// The pod's root.
    fn first(self) -> u32 {
        self.0 * LENGTH
    }

    fn map(self) -> Vec<IDMapping> {
        vec![IDMapping { host_id: self.first(), container_id: 0, length: LENGTH }]
    }

    fn tell(self, options: &mut Option<NamespaceOption>) {
        let mode = NamespaceMode::Pod as i32;
        let namespace = UserNamespace { mode, uids: self.map(), gids: self.map() };
        options.get_or_insert_default().userns_options = Some(namespace);
    }

    /// Gives a sandbox these users.
    pub fn tell_sandbox(self, config: &mut PodSandboxConfig) {
        let linux = config.linux.get_or_insert_default();
        self.tell(&mut linux.security_context.get_or_insert_default().namespace_options);
    }

    /// Gives a container these users; files of its volumes belong to them as they did to the host's.
    pub fn tell_container(self, config: &mut ContainerConfig) {
        let linux = config.linux.get_or_insert_default();
        self.tell(&mut linux.security_context.get_or_insert_default().namespace_options);
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
    fn every_pod_has_numbers_of_its_own() {
        let kubelet = tempfile::tempdir().unwrap();
        for uid in ["a", "b", "c"] {
            std::fs::create_dir_all(kubelet.path().join("pods").join(uid)).unwrap();
        }
        let users = Users::open(kubelet.path(), 2);
        let a = users.of("a").unwrap();
        assert_eq!((a.first(), users.of("a").unwrap()), (65536, a));
        assert_eq!(users.of("b").unwrap().first(), 2 * 65536);
        assert!(users.of("c").is_err(), "there are two");
        users.forget("a");
        assert_eq!(users.of("c").unwrap(), a);
        // Another kubelet finds what this one gave away.
        std::fs::remove_file(kubelet.path().join("pods/a").join(FILE)).unwrap();
        let users = Users::open(kubelet.path(), 3);
        assert_eq!(users.of("b").unwrap().first(), 2 * 65536);
        assert_eq!(users.of("a").unwrap().first(), 3 * 65536);
        let mut config = ContainerConfig { mounts: vec![cri::v1::Mount::default()], ..Default::default() };
        a.tell_container(&mut config);
        assert_eq!(config.mounts[0].gid_mappings[0].host_id, 65536);
    }
}
