//! Specs: files in which the daemon describes sandboxes, containers and processes to a shim.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sys::cgroups::Resources;

/// Directory below the runtime's root, on a tmpfs, for private data of containers.
pub const PRIVATE: &str = "private";

/// Private directory of a container, on the tmpfs: environment variables and arguments may hold values of Secrets,
/// which must not be on disk.
#[must_use]
pub fn private(directory: &Path) -> PathBuf {
    let root = directory.parent().and_then(Path::parent).unwrap_or(directory);
    root.join(PRIVATE).join(directory.file_name().unwrap_or_default())
}

/// User mapping of a pod: ranges of first id inside, first id on the host, and length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserMap {
    pub uids: Vec<(u32, u32, u32)>,
    pub gids: Vec<(u32, u32, u32)>,
}

/// A pod's namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    pub hostname: String,
    pub network: bool,
    pub ipc: bool,
    pub uts: bool,
    /// True if its containers share a pid namespace, which the shim then holds.
    pub pid: bool,
    /// User mapping, if it has a user namespace.
    #[serde(default)]
    pub users: Option<UserMap>,
    /// Sysctls of the namespaces, as `net.core.somaxconn`.
    pub sysctls: Vec<(String, String)>,
    /// Mount point and size of the shared memory filesystem.
    pub shared_memory: Option<(PathBuf, u64)>,
    /// Directory for the namespaces' files.
    pub namespaces: PathBuf,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    pub process: Process,
    pub root: Root,
    pub mounts: Vec<Mount>,
    pub namespaces: Namespaces,
    pub cgroup: String,
    pub resources: Resources,
    pub devices: Vec<Device>,
    #[serde(default)]
    pub hooks: Vec<Hook>,
    pub privileged: bool,
    pub masked_paths: Vec<PathBuf>,
    pub read_only_paths: Vec<PathBuf>,
    pub out_of_memory_score: i64,
    pub log: Option<PathBuf>,
    pub stdin: bool,
    pub stdin_once: bool,
}

/// The root filesystem: layers below a writable one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// The directory that holds all layers.
    pub store: PathBuf,
    /// Layer names in it, topmost first.
    pub layers: Vec<String>,
    pub read_only: bool,
}

/// Namespaces to enter; `None` is the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    pub network: Option<PathBuf>,
    pub ipc: Option<PathBuf>,
    pub uts: Option<PathBuf>,
    pub pid: PidNamespace,
    /// User mapping of the pod, and the path of its user namespace.
    #[serde(default)]
    pub users: Option<(UserMap, PathBuf)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PidNamespace {
    /// A new one.
    #[default]
    New,
    /// The pod's, pinned as this file.
    Of(PathBuf),
    /// That of another container's first process, identified by pid and start time, as pids are reused.
    OfProcess {
        pid: i32,
        start_time: u64,
    },
    Host,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Propagation {
    #[default]
    Private,
    HostToContainer,
    Bidirectional,
}

/// A mount of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub target: PathBuf,
    pub source: Source,
    pub read_only: bool,
    #[serde(default)]
    pub recursive_read_only: bool,
    #[serde(default)]
    pub propagation: Propagation,
    /// True if its files are mapped to the pod's users (idmapped mount).
    #[serde(default)]
    pub mapped: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A file or directory of the host.
    Bind(PathBuf),
    /// Content of an image, or a path in it.
    Layers { root: Root, sub_path: PathBuf },
    /// A kernel filesystem, with its options.
    Kernel { kind: String, options: String, no_exec: bool, no_suid: bool, no_dev: bool },
    /// The cgroup filesystem, rooted at the container's cgroup.
    Cgroups,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub host: PathBuf,
    pub target: PathBuf,
    /// Any of `r`, `w` and `m`.
    pub permissions: String,
    #[serde(default)]
    pub attributes: DeviceAttributes,
}

/// Mode and owner of a device in the container, in place of the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

/// A program of the host that runs before the container's program, in its namespaces, while paths are still the host's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    pub program: PathBuf,
    /// Arguments, the first of which is its own name.
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// Time limit.
    pub seconds: u64,
}

/// User and groups of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// `user` or `user:group`, by id or by the names in the image.
    pub name: String,
    pub group: Option<u32>,
    pub supplemental: Vec<u32>,
    /// True to omit the supplementary groups that the image defines for the user.
    pub strict: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seccomp {
    #[default]
    Default,
    Unconfined,
    /// JSON of a profile.
    Profile(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub directory: PathBuf,
    pub user: User,
    /// Bits.
    pub capabilities: u64,
    /// Ambient set, which programs of non-root users inherit.
    pub ambient: u64,
    pub no_new_privileges: bool,
    pub seccomp: Seccomp,
    /// The AppArmor profile; `None` if unconfined, or if the kernel has no AppArmor.
    #[serde(default)]
    pub apparmor: Option<String>,
    pub terminal: bool,
}

/// Another process for a running container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    /// The container's first process.
    pub pid: i32,
    pub start_time: u64,
    pub cgroup: String,
    pub process: Process,
    pub out_of_memory_score: i64,
}
