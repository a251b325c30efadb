//! Record of what a cluster creates on this machine outside its data directory, so that `ferry reset` removes all of
//! it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// nftables tables that Ferry creates, besides that of the bridge.
pub const TABLES: &[&str] = &["ferry-proxy", "ferry-policy"];

/// Resources outside the data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineRecord {
    /// Root cgroup of pods.
    pub cgroup_root: String,
    /// Bridge of the built-in network.
    pub bridge: String,
    /// Endpoint of a container runtime other than Ferry's own.
    pub runtime: Option<String>,
    /// Bridge between the nodes of this machine; empty without one.
    pub node_bridge: String,
}

impl MachineRecord {
    fn path(data_dir: &Path) -> PathBuf {
        data_dir.join("machine.json")
    }

    /// Writes the record; called before the first resource is created.
    pub fn write(&self, data_dir: &Path) -> Result<()> {
        let path = Self::path(data_dir);
        let text = json!({
            "cgroupRoot": self.cgroup_root, "bridge": self.bridge, "runtime": self.runtime,
            "nodeBridge": self.node_bridge,
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
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_round_trip_through_file() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(MachineRecord::read(directory.path()).expect("read"), None);
        let traces = MachineRecord {
            cgroup_root: "/kubepods".into(),
            bridge: "ferry0".into(),
            runtime: Some("unix:///run/x.sock".into()),
            node_bridge: "fnodes0".into(),
        };
        traces.write(directory.path()).expect("written");
        assert_eq!(MachineRecord::read(directory.path()).expect("read"), Some(traces));
    }
}
