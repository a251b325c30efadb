//! The small processes that hold containers: this binary, executed again, with one thread and no async runtime;
//! the nursery is where they come from.
//!
//! The daemon hands over a socket; the shim answers with one line of JSON when the container runs or cannot, and goes on
//! without the daemon. What outlives them is in files: `started` and `exit`.

mod container;
mod exec;
mod identity;
mod log;
mod mount_target;
pub(crate) mod nursery;
mod rootfs;
mod sandbox;
pub mod spec;
mod start;
mod supervise;
mod user;

pub use identity::Identity;
pub(crate) use supervise::resize;

pub mod unpack;

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// The subcommand by which this binary becomes a shim.
pub const SUBCOMMAND: &str = "shim";

/// The control group of shims: they outlive the daemon, and are not to be ended with it.
pub const GROUP: &str = "/ferry/shims";

/// What a shim does, as it is asked on its command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Makes the namespaces of a pod, and holds its pid namespace if it has one.
    Sandbox,
    /// Runs a container to its end.
    Container,
    /// Runs another process in a container.
    Exec,
    /// Unpacks a layer of an image.
    Unpack,
}

impl Task {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Sandbox, "sandbox"),
        (Self::Container, "container"),
        (Self::Exec, "exec"),
        (Self::Unpack, "unpack"),
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(task, _)| *task == self).map_or("", |(_, name)| name)
    }

    /// Does it, in a process made for it.
    fn run(self, argument: &Path, socket: &UnixStream, lock: Option<Lock>) -> Result<(), ShimError> {
        match self {
            Self::Sandbox => sandbox::run(argument, socket, lock),
            Self::Container => container::run(argument, socket, lock),
            Self::Exec => exec::run(argument, socket),
            Self::Unpack => unpack::run(argument, socket),
        }
    }
}

/// What went wrong, in words: the step and the kernel's answer.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct ShimError {
    step: String,
    source: io::Error,
}

/// Names the step that failed.
trait Step<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, ShimError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, ShimError> {
        self.map_err(|error| ShimError { step: step(), source: error.into() })
    }
}

fn failure(step: &str, reason: impl Into<String>) -> ShimError {
    ShimError { step: step.to_owned(), source: io::Error::other(reason.into()) }
}

/// What a shim tells the daemon, one JSON object per line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    Started { pid: i32, start_time: u64 },
    Exited { code: i32 },
    Unpacked { digest: String, size: u64 },
    Failed { message: String },
}

/// The content of `started`: which process is the container, and who it runs as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub pid: i32,
    pub start_time: u64,
    pub shim_pid: i32,
    pub shim_start_time: u64,
    pub boot_id: String,
    pub at: i64,
    #[serde(default)]
    pub identity: Option<Identity>,
}

/// The content of `exit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub code: i32,
    pub out_of_memory: bool,
    /// Nanoseconds since 1970.
    pub at: i64,
}

/// Runs the process that shims come from; its standard input is the socket on which they are asked for.
#[must_use]
pub fn main() -> ExitCode {
    let _ = rustix::thread::set_name(c"ferry-shim");
    // A terminal's hangup or interrupt is not meant for it.
    let _ = rustix::process::setsid();
    let served = io::stdin().as_fd().try_clone_to_owned().and_then(|requests| {
        let nothing = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        rustix::stdio::dup2_stdout(&nothing)?;
        nursery::serve(requests.into())
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferry: this command is for Ferry's own use: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Held until it is known what came of the work: a daemon that comes meanwhile waits for that.
struct Lock(OwnedFd);

impl Drop for Lock {
    /// For all who inherited it too.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, rustix::fs::FlockOperation::Unlock);
    }
}

fn report(socket: &UnixStream, report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    { socket }.write_all(&line)
}

/// Writes a file so that it is there whole or not at all.
fn write_whole(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let partial = path.with_extension("partial");
    std::fs::write(&partial, serde_json::to_vec(content)?)?;
    std::fs::rename(partial, path)
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, ShimError> {
    let bytes = std::fs::read(path).step(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&bytes).step(|| format!("parse {}", path.display()))
}

/// Nanoseconds since 1970.
fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
