//! State of sandboxes and containers, and its files.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cri::v1::{ContainerConfig, PodSandboxConfig};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{Doing, RuntimeError};
use crate::network::Attachment;
use crate::shim::spec::{self, PRIVATE, Spec};
use crate::shim::{Identity, Started};

/// `meta.json` of a sandbox.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SandboxMeta {
    pub id: String,
    pub created: i64,
    pub runtime_handler: String,
    pub cgroup_parent: String,
    pub boot_id: String,
    /// The process that holds the pid namespace, with its start time; 0 if there is none.
    pub holder: (i32, u64),
    pub attached: Option<Attachment>,
    pub stopped: bool,
    /// True once creation has completed; a daemon that ended during creation leaves an unusable sandbox.
    #[serde(default = "yes")]
    pub complete: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug)]
pub struct Sandbox {
    pub directory: PathBuf,
    pub config: PodSandboxConfig,
    pub meta: Mutex<SandboxMeta>,
    /// Serializes changes to a sandbox.
    pub changing: tokio::sync::Mutex<()>,
}

/// `meta.json` of a container.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ContainerMeta {
    pub id: String,
    pub sandbox: String,
    pub created: i64,
    pub image_id: String,
    pub image_ref: String,
    pub log_path: String,
    pub stop_signal: i32,
    pub cgroup: String,
}

/// `exit` as written by the shim, or by the daemon if the shim was gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exited {
    pub code: i32,
    pub out_of_memory: bool,
    pub at: i64,
    pub reason: String,
    pub message: String,
}

/// State of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    Created,
    Running(Started),
    Exited { started: i64, exited: Exited },
}

#[derive(Debug)]
pub struct Container {
    pub directory: PathBuf,
    pub config: ContainerConfig,
    pub meta: ContainerMeta,
    pub phase: watch::Sender<Phase>,
    pub resources: Mutex<Option<cri::v1::LinuxContainerResources>>,
    /// User and groups of the first process, once started.
    pub identity: OnceLock<Identity>,
    /// Serializes start and removal.
    pub changing: tokio::sync::Mutex<()>,
}

impl Container {
    pub fn running(&self) -> Option<Started> {
        match &*self.phase.borrow() {
            Phase::Running(started) => Some(started.clone()),
            _ => None,
        }
    }
}

pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, RuntimeError> {
    let bytes = match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.doing(|| format!("read {}", path.display()))?,
    };
    let parsed = serde_json::from_slice(&bytes).map_err(std::io::Error::from);
    parsed.map(Some).doing(|| format!("parse {}", path.display()))
}

/// Writes a file atomically. It need not survive a crash of the machine, which its subject does not survive either.
pub fn write(path: &Path, content: &impl Serialize) -> Result<(), RuntimeError> {
    let partial = path.with_extension("new");
    let bytes = serde_json::to_vec(content).map_err(std::io::Error::from);
    bytes
        .and_then(|bytes| std::fs::write(&partial, bytes))
        .and_then(|()| std::fs::rename(&partial, path))
        .doing(|| format!("write {}", path.display()))
}

pub fn read_config<T: prost::Message + Default>(directory: &Path) -> Result<Option<T>, RuntimeError> {
    let path = directory.join("config.pb");
    let bytes = match std::fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.doing(|| format!("read {}", path.display()))?,
    };
    let decoded = T::decode(bytes.as_slice()).map_err(std::io::Error::other);
    decoded.map(Some).doing(|| format!("parse {}", path.display()))
}

pub fn write_config(directory: &Path, config: &impl prost::Message) -> Result<(), RuntimeError> {
    let (path, partial) = (directory.join("config.pb"), directory.join("config.new"));
    std::fs::write(&partial, config.encode_to_vec())
        .and_then(|()| std::fs::rename(&partial, &path))
        .doing(|| format!("write {}", path.display()))
}

/// A container's configuration without environment variables, command and arguments, which may hold values of
/// Secrets: the part that is stored on disk, and is sufficient once the container is created.
pub fn without_secrets(config: ContainerConfig) -> ContainerConfig {
    ContainerConfig { envs: Vec::new(), command: Vec::new(), args: Vec::new(), ..config }
}

/// Mounts the tmpfs for the private data of containers, unless an earlier daemon did.
pub fn mount_private(root: &Path) -> Result<(), RuntimeError> {
    let path = root.join(PRIVATE);
    std::fs::create_dir_all(&path).doing(|| format!("make {}", path.display()))?;
    sys::mounts::tmpfs(&path, 0o700).doing(|| format!("mount a tmpfs at {}", path.display()))
}

/// Writes the shim's spec, which may hold values of Secrets, to the tmpfs.
pub fn write_spec(directory: &Path, spec: &Spec) -> Result<(), RuntimeError> {
    let private = spec::private(directory);
    std::fs::create_dir_all(&private).doing(|| format!("make {}", private.display()))?;
    write(&private.join("spec.json"), spec)
}

/// Reads the file of [`write_spec`]; `None` after a reboot.
pub fn read_spec(directory: &Path) -> Result<Option<Spec>, RuntimeError> {
    read(&spec::private(directory).join("spec.json"))
}

/// Removes a container's private data.
pub fn remove_private(directory: &Path) -> Result<(), RuntimeError> {
    remove_tree(&spec::private(directory))
}

/// Moves private data that an earlier version stored on disk to the tmpfs, and removes data without a container.
pub fn migrate_private(root: &Path, containers: &[PathBuf]) -> Result<(), RuntimeError> {
    for directory in containers {
        let (path, private) = (directory.join("spec.json"), spec::private(directory));
        if path.exists() {
            std::fs::create_dir_all(&private)
                .and_then(|()| std::fs::copy(&path, private.join("spec.json")))
                .and_then(|_| std::fs::remove_file(&path))
                .doing(|| format!("move {}", path.display()))?;
            if let Some(config) = read_config::<ContainerConfig>(directory)? {
                write_config(directory, &without_secrets(config))?;
            }
        }
    }
    for private in directories(&root.join(PRIVATE))? {
        if !containers.iter().any(|directory| directory.file_name() == private.file_name()) {
            remove_tree(&private)?;
        }
    }
    Ok(())
}

/// Lists the subdirectories of `parent`. Those with a leading dot are partly created or removed, and are deleted.
pub fn directories(parent: &Path) -> Result<Vec<PathBuf>, RuntimeError> {
    let mut found = Vec::new();
    let step = || format!("list {}", parent.display());
    for entry in std::fs::read_dir(parent).doing(step)? {
        let path = entry.doing(step)?.path();
        if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            remove_tree(&path)?;
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// Removes a directory and the mounts directly below it.
pub fn remove_tree(path: &Path) -> Result<(), RuntimeError> {
    for mounted in
        ["namespaces/net", "namespaces/ipc", "namespaces/uts", "namespaces/pid", "namespaces/user", "shm"]
    {
        let mounted = path.join(mounted);
        if mounted.exists() {
            sys::mounts::unmount(&mounted).doing(|| format!("unmount {}", mounted.display()))?;
        }
    }
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.doing(|| format!("remove {}", path.display())),
    }
}

/// Hides a directory by renaming it, then removes it.
pub fn hide_and_remove(path: &Path) -> Result<(), RuntimeError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let hidden = parent.join(format!(".{}", name.to_string_lossy()));
    match std::fs::rename(path, &hidden) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.doing(|| format!("remove {}", path.display()))?,
    }
    remove_tree(&hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_of_earlier_version_is_moved_to_tmpfs() {
        let root = tempfile::tempdir().unwrap();
        let (container, orphan) = (root.path().join("containers/one"), root.path().join(PRIVATE).join("two"));
        std::fs::create_dir_all(&container).unwrap();
        std::fs::create_dir_all(&orphan).unwrap();
        std::fs::write(container.join("spec.json"), "a secret").unwrap();
        let config = ContainerConfig {
            envs: vec![cri::v1::KeyValue { key: "A".into(), value: b"a secret".to_vec() }],
            args: vec!["a secret".into()],
            log_path: "one.log".into(),
            ..ContainerConfig::default()
        };
        write_config(&container, &config).unwrap();
        migrate_private(root.path(), std::slice::from_ref(&container)).unwrap();
        assert!(!container.join("spec.json").exists() && !orphan.exists());
        let moved = std::fs::read(root.path().join(PRIVATE).join("one/spec.json")).unwrap();
        assert_eq!(moved, b"a secret");
        let stored: ContainerConfig = read_config(&container).unwrap().unwrap();
        assert_eq!(stored, ContainerConfig { log_path: "one.log".into(), ..ContainerConfig::default() });
    }
}
