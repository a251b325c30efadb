//! What a cluster puts on this machine outside its data directory, noted so that `ferry reset` finds all of it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Tables of packet rules that Ferry makes, besides that of the bridge.
pub const TABLES: &[&str] = &["ferry-proxy", "ferry-policy"];

/// Things outside the data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traces {
    /// The control group under which pods are.
    pub cgroup_root: String,
    /// The bridge of the built-in network.
    pub bridge: String,
    /// A container runtime that is not Ferry's own.
    pub runtime: Option<String>,
    /// The bridge between the nodes of this machine; empty without one.
    pub node_bridge: String,
}

impl Traces {
    fn path(data_dir: &Path) -> PathBuf {
        data_dir.join("machine.json")
    }

    /// Notes them, before the first is made.
    pub fn write(&self, data_dir: &Path) -> Result<()> {
        let path = Self::path(data_dir);
        let text = json!({
            "cgroupRoot": self.cgroup_root, "bridge": self.bridge, "runtime": self.runtime,
            "nodeBridge": self.node_bridge,
        });
        let text = text.to_string();
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// What the last `ferry up` noted; `None` if a node never ran here.
    pub fn read(data_dir: &Path) -> Result<Option<Self>> {
        let path = Self::path(data_dir);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        let value: Value =
            serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?;
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
    fn traces_are_found_again() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(Traces::read(directory.path()).expect("read"), None);
        let traces = Traces {
            cgroup_root: "/kubepods".into(),
            bridge: "ferry0".into(),
            runtime: Some("unix:///run/x.sock".into()),
            node_bridge: "fnodes0".into(),
        };
        traces.write(directory.path()).expect("written");
        assert_eq!(Traces::read(directory.path()).expect("read"), Some(traces));
    }
}
