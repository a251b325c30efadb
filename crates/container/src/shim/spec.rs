//! What the daemon writes down for a shim.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sys::cgroups::Resources;

/// Directory below the runtime's root, in memory, of what is private to containers.
pub const PRIVATE: &str = "private";

/// The directory in memory that belongs to a container's directory: environment variables and arguments may hold values
/// of Secrets, which must not be on disk.
#[must_use]
pub fn private(directory: &Path) -> PathBuf {
    let root = directory.parent().and_then(Path::parent).unwrap_or(directory);
    root.join(PRIVATE).join(directory.file_name().unwrap_or_default())
}

/// Which numbers the users of a pod have on the host: first inside, first outside, how many.
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
    /// Whether its containers share a pid namespace, which the shim then holds.
    pub pid: bool,
    /// Users of its own.
    #[serde(default)]
    pub users: Option<UserMap>,
    /// Kernel settings of the namespaces, as `net.core.somaxconn`.
    pub sysctls: Vec<(String, String)>,
    /// Where to mount a file system for shared memory, and how large it is.
    pub shared_memory: Option<(PathBuf, u64)>,
    /// The directory for the namespaces' files.
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
    pub privileged: bool,
    pub masked_paths: Vec<PathBuf>,
    pub read_only_paths: Vec<PathBuf>,
    pub out_of_memory_score: i64,
    pub log: Option<PathBuf>,
    pub stdin: bool,
    pub stdin_once: bool,
}

/// The root file system: layers under a writable one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// The directory that holds all layers.
    pub store: PathBuf,
    /// Names in it, the topmost first.
    pub layers: Vec<String>,
    pub read_only: bool,
}

/// Which namespaces to enter; what is `None` is the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    pub network: Option<PathBuf>,
    pub ipc: Option<PathBuf>,
    pub uts: Option<PathBuf>,
    pub pid: PidNamespace,
    /// The pod's users, who they are on the host, and where their namespace is.
    #[serde(default)]
    pub users: Option<(UserMap, PathBuf)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PidNamespace {
    /// One of its own.
    #[default]
    New,
    /// The one that a file stands for: the pod's.
    Of(PathBuf),
    /// That of another container's first process, distinguished by its start time from a later one with the same id.
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

/// What is mounted into a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub target: PathBuf,
    pub source: Source,
    pub read_only: bool,
    #[serde(default)]
    pub recursive_read_only: bool,
    #[serde(default)]
    pub propagation: Propagation,
    /// Whether its files belong to the pod's users by the numbers that these have inside.
    #[serde(default)]
    pub mapped: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A file or directory of the host.
    Bind(PathBuf),
    /// The content of an image, or a path in it.
    Layers { root: Root, sub_path: PathBuf },
    /// A file system of the kernel, with its options.
    Kernel { kind: String, options: String, no_exec: bool, no_suid: bool, no_dev: bool },
    /// The control groups, as the container's own root.
    Cgroups,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub host: PathBuf,
    pub target: PathBuf,
    /// Of `r`, `w` and `m`.
    pub permissions: String,
}

/// Who a process runs as.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// `user` or `user:group`, by number or by the names of the image.
    pub name: String,
    pub group: Option<u32>,
    pub supplemental: Vec<u32>,
    /// Whether the image's own groups of the user are left out.
    pub strict: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seccomp {
    #[default]
    Default,
    Unconfined,
    /// A profile's JSON.
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
    /// Those that plain programs of other users than root inherit.
    pub ambient: u64,
    pub no_new_privileges: bool,
    pub seccomp: Seccomp,
    /// The AppArmor profile; none if it is unconfined, or the kernel has no AppArmor.
    #[serde(default)]
    pub apparmor: Option<String>,
    pub terminal: bool,
}

/// Another process for a container that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    /// The container's first process.
    pub pid: i32,
    pub start_time: u64,
    pub cgroup: String,
    pub process: Process,
    pub out_of_memory_score: i64,
}
