//! Starting shims.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::shim::{Report, SUBCOMMAND, Task};

/// How to start shims: the binary to execute again.
#[derive(Clone, Debug)]
pub struct Launcher {
    pub program: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("start a shim")]
    Spawn(#[source] io::Error),
    #[error("hear from the shim")]
    Listen(#[source] io::Error),
    #[error("the shim ended without a word")]
    Silent,
    #[error("{0}")]
    Failed(String),
}

impl Default for Launcher {
    /// The running binary, also when its file has been replaced.
    fn default() -> Self {
        Self { program: "/proc/self/exe".into() }
    }
}

impl Launcher {
    /// Starts a shim; what it complains about goes to a file. It inherits the lock, if there is one.
    pub fn spawn(
        &self,
        task: Task,
        argument: &Path,
        complaints: &Path,
        lock: Option<File>,
    ) -> Result<(Child, UnixStream), LaunchError> {
        let (ours, theirs) = UnixStream::pair().map_err(LaunchError::Spawn)?;
        let errors =
            OpenOptions::new().create(true).append(true).open(complaints).map_err(LaunchError::Spawn)?;
        let child = Command::new(&self.program)
            .arg0_for_humans()
            .arg(SUBCOMMAND)
            .arg(task.name())
            .arg(argument)
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(lock.map_or_else(Stdio::null, Stdio::from))
            .stderr(errors)
            .spawn()
            .map_err(LaunchError::Spawn)?;
        Ok((child, ours))
    }

    /// Starts a shim and waits until it has said what came of it and is gone.
    pub fn run(
        &self,
        task: Task,
        argument: &Path,
        complaints: &Path,
        lock: Option<File>,
    ) -> Result<Report, LaunchError> {
        let (mut child, socket) = self.spawn(task, argument, complaints, lock)?;
        let said = hear(&mut BufReader::new(&socket));
        child.wait().map_err(LaunchError::Spawn)?;
        said
    }
}

/// A lock on a directory for as long as a shim that inherits it has not said what came of its work, also when whoever
/// started it is gone: see [`settled`].
pub fn lock(directory: &Path) -> io::Result<File> {
    use rustix::fs::{FlockOperation, flock};
    let file = File::create(directory.join("starting"))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Waits until no shim is at work on a directory that has not said what came of it.
pub fn settled(directory: &Path) {
    use rustix::fs::{FlockOperation, flock};
    if let Ok(file) = File::open(directory.join("starting")) {
        let _ = flock(&file, FlockOperation::LockShared);
    }
}

trait Named {
    fn arg0_for_humans(&mut self) -> &mut Self;
}

impl Named for Command {
    /// So that process lists say what it is, not `/proc/self/exe`.
    fn arg0_for_humans(&mut self) -> &mut Self {
        use std::os::unix::process::CommandExt as _;
        self.arg0("ferry")
    }
}

/// Reads one report; a failure is an error.
pub fn hear(socket: &mut impl io::BufRead) -> Result<Report, LaunchError> {
    let mut line = String::new();
    io::Read::take(&mut *socket, 64 << 10).read_line(&mut line).map_err(LaunchError::Listen)?;
    if line.is_empty() {
        return Err(LaunchError::Silent);
    }
    match serde_json::from_str(&line).map_err(|error| LaunchError::Listen(error.into()))? {
        Report::Failed { message } => Err(LaunchError::Failed(message)),
        report => Ok(report),
    }
}
