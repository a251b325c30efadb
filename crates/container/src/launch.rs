//! Starts shims. Their zygote is started with the first shim, and again if it was killed.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::mount::{OpenTreeFlags, open_tree};
use sys::mounts::MountAttributes;

use crate::shim::{Report, SUBCOMMAND, Task, zygote};

/// Length that arguments are padded to, so that every shim has space for its process title.
const TITLE_LENGTH: usize = 256;

/// Starts shims through the zygote.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The binary to re-execute.
    program: PathBuf,
    zygote: Arc<Mutex<Option<Zygote>>>,
}

/// The zygote: the process that shims are forked from.
#[derive(Debug)]
struct Zygote {
    process: Child,
    requests: UnixStream,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("failed to start shim")]
    Spawn(#[source] io::Error),
    #[error("failed to read shim report")]
    ReadReport(#[source] io::Error),
    #[error("shim exited without a report")]
    NoReport,
    #[error("{0}")]
    Failed(String),
}

impl Zygote {
    fn start(program: &Path) -> io::Result<Self> {
        let (requests, theirs) = sys::sockets::packets()?;
        let sealed = seal(program)?;
        // Closed by exec, after the kernel has opened it.
        let process = Command::new(format!("/proc/self/fd/{}", sealed.as_raw_fd()))
            .arg0("ferry")
            .arg(SUBCOMMAND)
            .arg("-".repeat(TITLE_LENGTH))
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { process, requests })
    }
}

impl Drop for Zygote {
    /// The zygote exits when its request socket is closed, after handling pending requests.
    fn drop(&mut self) {
        let _ = self.requests.shutdown(std::net::Shutdown::Both);
        let _ = self.process.wait();
    }
}

impl Launcher {
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self { program, zygote: Arc::default() }
    }

    /// Starts a shim with its stderr in a file. The shim inherits the lock, if there is one.
    pub fn spawn(
        &self,
        task: Task,
        argument: &Path,
        stderr: &Path,
        lock: Option<File>,
    ) -> Result<UnixStream, LaunchError> {
        let start = || -> io::Result<UnixStream> {
            let (ours, theirs) = UnixStream::pair()?;
            let stderr = OpenOptions::new().create(true).append(true).open(stderr)?;
            let mut files = vec![theirs.as_fd(), stderr.as_fd()];
            files.extend(lock.as_ref().map(File::as_fd));
            self.send_request(&zygote::encode(task, argument), &files)?;
            Ok(ours)
        };
        start().map_err(LaunchError::Spawn)
    }

    fn send_request(&self, request: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut zygote = self.zygote.lock();
        if let Some(there) = &*zygote
            && sys::sockets::send(&there.requests, request, files).is_ok()
        {
            return Ok(());
        }
        // No zygote yet, or it has exited: callers of the previous one get EOF on their own sockets.
        let new = zygote.insert(Zygote::start(&self.program)?);
        sys::sockets::send(&new.requests, request, files)
    }

    /// Starts a shim and waits until it has reported its result and exited.
    pub fn run(
        &self,
        task: Task,
        argument: &Path,
        stderr: &Path,
        lock: Option<File>,
    ) -> Result<Report, LaunchError> {
        let socket = self.spawn(task, argument, stderr, lock)?;
        let mut socket = BufReader::new(&socket);
        let report = read_report(&mut socket);
        io::copy(&mut socket, &mut io::sink()).map_err(LaunchError::ReadReport)?;
        report
    }
}

/// Opens the program behind a detached read-only mount of its own, so that no process with access to `/proc/PID/exe`
/// of a shim can write to it (CVE-2019-5736). This costs no memory, unlike a copy, which is made only where the file
/// cannot be mounted.
fn seal(program: &Path) -> io::Result<OwnedFd> {
    match seal_by_mount(program) {
        Ok(sealed) => Ok(sealed),
        Err(error) => {
            tracing::debug!(%error, "failed to mount the shim's program read-only, copying it instead");
            seal_by_copy(program)
        }
    }
}

fn seal_by_mount(program: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{CWD, fstat, stat};
    // By name, since `/proc/self/exe` may be of another mount namespace; the opened file must be the same one.
    let name = std::fs::canonicalize(program)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, &name, flags)?;
    let (found, wanted) = (fstat(&tree)?, stat(program)?);
    if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino) {
        return Err(io::Error::other(format!("{} was replaced", name.display())));
    }
    let attributes =
        MountAttributes { read_only: true, no_suid: true, no_dev: true, ..MountAttributes::default() };
    sys::mounts::restrict_opened(tree.as_fd(), attributes)?;
    Ok(tree)
}

/// Returns a sealed in-memory copy.
fn seal_by_copy(program: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels from 6.3 on require a flag for executable memory files; earlier ones reject it.
    let copy = memfd_create("ferry-shim", flags | MemfdFlags::EXEC)
        .or_else(|_| memfd_create("ferry-shim", flags))?;
    let mut copy = File::from(copy);
    io::copy(&mut File::open(program)?, &mut copy)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&copy, seals)?;
    Ok(copy.into())
}

/// Locks a directory until the shim that inherits the lock has reported its result, even if the process that started
/// it has exited: see [`settled`].
pub fn lock(directory: &Path) -> io::Result<File> {
    use rustix::fs::{FlockOperation, flock};
    let file = File::create(directory.join("starting"))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Waits until every shim working on a directory has reported its result.
pub fn settled(directory: &Path) {
    use rustix::fs::{FlockOperation, flock};
    if let Ok(file) = File::open(directory.join("starting")) {
        let _ = flock(&file, FlockOperation::LockShared);
    }
}

/// Reads one report; a reported failure is an error.
pub fn read_report(socket: &mut impl io::BufRead) -> Result<Report, LaunchError> {
    let mut line = String::new();
    io::Read::take(&mut *socket, 64 << 10).read_line(&mut line).map_err(LaunchError::ReadReport)?;
    if line.is_empty() {
        return Err(LaunchError::NoReport);
    }
    match serde_json::from_str(&line).map_err(|error| LaunchError::ReadReport(error.into()))? {
        Report::Failed { message } => Err(LaunchError::Failed(message)),
        report => Ok(report),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    #[test]
    fn sealed_program_runs_and_cannot_be_written() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        std::fs::copy("/bin/echo", &program).unwrap();
        let original = std::fs::read(&program).unwrap();
        let mut sealed = vec![seal_by_copy(&program).unwrap()];
        if rustix::process::geteuid().is_root() {
            sealed.push(seal_by_mount(&program).unwrap());
        } else {
            println!("skipped: mounts need root");
        }
        for sealed in sealed {
            let path = format!("/proc/self/fd/{}", sealed.as_raw_fd());
            // The file is not executing, so it is not busy.
            let written = OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|mut file| file.write_all(b"overwritten"));
            assert!(written.is_err());
            let mut content = Vec::new();
            File::open(&path).unwrap().read_to_end(&mut content).unwrap();
            assert!(content == original);
            let out = Command::new(&path).arg0("echo").arg("runs").output().unwrap();
            assert_eq!(out.stdout, b"runs\n");
        }
        assert!(std::fs::read(&program).unwrap() == original);
    }
}
