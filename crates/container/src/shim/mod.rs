//! Shims: small processes that are the parents of containers. They are this binary, re-executed, with one thread and
//! no async runtime, and are forked from the zygote.
//!
//! The daemon passes a socket; the shim replies with one line of JSON when the container runs or has failed to start,
//! and continues without the daemon. Persistent state is in the files `started` and `exit`.

mod container;
mod exec;
mod hooks;
mod identity;
mod log;
mod mount_target;
mod rootfs;
mod sandbox;
pub mod spec;
mod start;
mod supervise;
mod user;
pub(crate) mod zygote;

pub use identity::Identity;
pub(crate) use supervise::resize;

pub mod unpack;

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// The subcommand that runs this binary as a shim.
pub const SUBCOMMAND: &str = "shim";

/// The cgroup of shims: they outlive the daemon and must not be killed with it.
pub const GROUP: &str = "/ferry/shims";

/// Task of a shim, from its command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Creates the namespaces of a pod, and holds its pid namespace if it has one.
    Sandbox,
    /// Runs a container until it exits.
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

    /// Runs the task, in a process forked for it.
    fn run(self, argument: &Path, socket: &UnixStream, lock: Option<Lock>) -> Result<(), ShimError> {
        match self {
            Self::Sandbox => sandbox::run(argument, socket, lock),
            Self::Container => container::run(argument, socket, lock),
            Self::Exec => exec::run(argument, socket),
            Self::Unpack => unpack::run(argument, socket),
        }
    }
}

/// A failed step with the kernel's error.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {}", base::errors::system(source))]
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

/// Report of a shim to the daemon, one JSON object per line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    Started { pid: i32, start_time: u64 },
    Exited { code: i32 },
    Unpacked { digest: String, size: u64 },
    Failed { message: String },
}

/// Content of `started`: process, user and groups of the container.
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

/// Content of `exit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub code: i32,
    pub out_of_memory: bool,
    /// Nanoseconds since 1970.
    pub at: i64,
}

/// Runs the zygote; its stdin is the socket for shim requests.
#[must_use]
pub fn main() -> ExitCode {
    let _ = rustix::thread::set_name(c"ferry-shim");
    // Detached from the terminal's hangup and interrupt signals.
    let _ = rustix::process::setsid();
    let served = io::stdin().as_fd().try_clone_to_owned().and_then(|requests| {
        let nothing = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        rustix::stdio::dup2_stdout(&nothing)?;
        zygote::serve(requests.into())
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferry: this command is for Ferry's own use: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Held until the result is known, so that a restarted daemon waits for it.
struct Lock(OwnedFd);

impl Drop for Lock {
    /// Unlocks in all processes that inherited the descriptor.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, rustix::fs::FlockOperation::Unlock);
    }
}

fn report(socket: &UnixStream, report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    { socket }.write_all(&line)
}

/// Writes a file atomically.
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
    i64::try_from(base::clock::Clock::system().now().as_nanosecond()).unwrap_or(i64::MAX)
}
