//! Record of what a cluster creates on this machine outside its data directory, so that `ferry reset` removes all of
//! it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sys::instance::Instance;

use crate::up::{DEFAULT_DATA_DIR, bridge};

/// Root cgroup of pods of the main instance.
const CGROUP_ROOT: &str = "/kubepods";

/// nftables tables of the main instance, besides that of the bridge.
const TABLES: [&str; 2] = ["ferry-proxy", "ferry-policy"];

/// Resources outside the data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineRecord {
    /// Instance whose identity the names of tables, chains, links and routes carry.
    pub instance: Instance,
    /// Root cgroup of pods.
    pub cgroup_root: String,
    /// Bridge of the built-in network.
    pub bridge: String,
    /// Endpoint of a container runtime other than Ferry's own.
    pub runtime: Option<String>,
    /// Bridge between the nodes of this machine; empty without one.
    pub node_bridge: String,
}

/// Instance of a new cluster in a data directory.
fn instance(data_dir: &Path) -> Instance {
    let path = crate::claims::absolute(data_dir);
    if path == Path::new(DEFAULT_DATA_DIR) { Instance::MAIN } else { Instance::of_directory(&path) }
}

impl MachineRecord {
    /// Names of the cluster in `data_dir`: the recorded ones, so that a cluster of an earlier version keeps its names.
    pub fn names(data_dir: &Path, cgroup_root: Option<String>) -> Result<Self> {
        let recorded = Self::read(data_dir)?;
        let instance = recorded.as_ref().map_or_else(|| instance(data_dir), |recorded| recorded.instance);
        let recorded_root = recorded.map(|recorded| recorded.cgroup_root).filter(|root| !root.is_empty());
        let cgroup_root = cgroup_root.or(recorded_root).unwrap_or_else(|| instance.cgroup(CGROUP_ROOT));
        Ok(Self { instance, cgroup_root, bridge: bridge(data_dir), ..Self::default() })
    }

    /// nftables tables of the cluster.
    pub fn tables(&self) -> Vec<String> {
        let own = (!self.bridge.is_empty()).then(|| network::table(&self.bridge));
        TABLES.iter().map(|table| self.instance.table(table)).chain(own).collect()
    }

    fn path(data_dir: &Path) -> PathBuf {
        data_dir.join("machine.json")
    }

    /// Writes the record; called before the first resource is created.
    pub fn write(&self, data_dir: &Path) -> Result<()> {
        let path = Self::path(data_dir);
        let text = json!({
            "cgroupRoot": self.cgroup_root, "bridge": self.bridge, "runtime": self.runtime,
            "nodeBridge": self.node_bridge, "instance": self.instance.identity(),
        });
        let text = text.to_string();
        std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
    }

    /// Record of the last `ferry up`; `None` if no node ever ran here.
    pub fn read(data_dir: &Path) -> Result<Option<Self>> {
        let path = Self::path(data_dir);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("failed to read {}", path.display())),
        };
        let value: Value =
            serde_json::from_slice(&text).with_context(|| format!("failed to read {}", path.display()))?;
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        Ok(Some(Self {
            cgroup_root: text("cgroupRoot"),
            bridge: text("bridge"),
            runtime: value["runtime"].as_str().map(str::to_owned),
            node_bridge: text("nodeBridge"),
            instance: Instance::new(
                value["instance"]
                    .as_u64()
                    .and_then(|identity| u32::try_from(identity).ok())
                    .unwrap_or_default(),
            ),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_record_round_trips() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(MachineRecord::read(directory.path()).expect("read"), None);
        let record = MachineRecord {
            instance: Instance::new(7),
            cgroup_root: "/kubepods".into(),
            bridge: "ferry0".into(),
            runtime: Some("unix:///run/x.sock".into()),
            node_bridge: "fnodes0".into(),
        };
        record.write(directory.path()).expect("written");
        assert_eq!(MachineRecord::read(directory.path()).expect("read"), Some(record));
    }

    #[test]
    fn clusters_have_their_own_names_and_those_of_earlier_versions_keep_theirs() {
        let directory = tempfile::tempdir().expect("a directory");
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        for data_dir in [&one, &two] {
            std::fs::create_dir(data_dir).expect("a directory");
        }
        let names = |data_dir: &Path| MachineRecord::names(data_dir, None).expect("names");
        let all = |names: &MachineRecord| {
            let mut all = names.tables();
            all.extend([names.cgroup_root.clone(), names.bridge.clone(), names.instance.chain_prefix()]);
            all
        };
        let (first, second) = (all(&names(&one)), all(&names(&two)));
        assert!(first.iter().all(|name| !second.contains(name)), "{first:?} {second:?}");
        std::fs::write(one.join("machine.json"), r#"{"cgroupRoot":"/kubepods","bridge":"x"}"#)
            .expect("written");
        let old = names(&one);
        assert_eq!((old.instance, old.cgroup_root.as_str()), (Instance::MAIN, "/kubepods"));
        assert_eq!(old.tables()[..2], ["ferry-proxy", "ferry-policy"]);
        let flag = MachineRecord::names(&two, Some("/mine".into())).expect("names");
        assert_eq!(flag.cgroup_root, "/mine");
    }
}
