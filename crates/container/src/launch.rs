//! Starting shims: the process that they are forked from is started when the first is wanted, and again if it was killed.

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
use sys::mounts::Attributes;

use crate::shim::{Report, SUBCOMMAND, Task, nursery};

/// Arguments are made this long, so that every shim has room to say in lists of processes what it is for.
const TITLE: usize = 256;

/// Starts shims.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The binary to execute again.
    program: PathBuf,
    nursery: Arc<Mutex<Option<Nursery>>>,
}

/// The process that shims are forked from.
#[derive(Debug)]
struct Nursery {
    process: Child,
    requests: UnixStream,
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

impl Nursery {
    fn start(program: &Path) -> io::Result<Self> {
        let (requests, theirs) = sys::sockets::packets()?;
        let sealed = seal(program)?;
        // Closed by exec, after the kernel has opened it.
        let process = Command::new(format!("/proc/self/fd/{}", sealed.as_raw_fd()))
            .arg0("ferry")
            .arg(SUBCOMMAND)
            .arg("-".repeat(TITLE))
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { process, requests })
    }
}

impl Drop for Nursery {
    /// It ends when nobody can ask it for anything any more, after what was asked before.
    fn drop(&mut self) {
        let _ = self.requests.shutdown(std::net::Shutdown::Both);
        let _ = self.process.wait();
    }
}

impl Launcher {
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self { program, nursery: Arc::default() }
    }

    /// Starts a shim; what it complains about goes to a file. It gets the lock, if there is one.
    pub fn spawn(
        &self,
        task: Task,
        argument: &Path,
        complaints: &Path,
        lock: Option<File>,
    ) -> Result<UnixStream, LaunchError> {
        let start = || -> io::Result<UnixStream> {
            let (ours, theirs) = UnixStream::pair()?;
            let complaints = OpenOptions::new().create(true).append(true).open(complaints)?;
            let mut files = vec![theirs.as_fd(), complaints.as_fd()];
            files.extend(lock.as_ref().map(File::as_fd));
            self.ask(&nursery::encode(task, argument), &files)?;
            Ok(ours)
        };
        start().map_err(LaunchError::Spawn)
    }

    fn ask(&self, request: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut nursery = self.nursery.lock();
        if let Some(there) = &*nursery
            && sys::sockets::send(&there.requests, request, files).is_ok()
        {
            return Ok(());
        }
        // There is none yet, or it is gone: whoever asked it last hears of that on the socket they gave it.
        let new = nursery.insert(Nursery::start(&self.program)?);
        sys::sockets::send(&new.requests, request, files)
    }

    /// Starts a shim and waits until it has said what came of it and is gone.
    pub fn run(
        &self,
        task: Task,
        argument: &Path,
        complaints: &Path,
        lock: Option<File>,
    ) -> Result<Report, LaunchError> {
        let socket = self.spawn(task, argument, complaints, lock)?;
        let mut socket = BufReader::new(&socket);
        let said = hear(&mut socket);
        io::copy(&mut socket, &mut io::sink()).map_err(LaunchError::Listen)?;
        said
    }
}

/// The program behind a read-only mount of its own that is attached nowhere, so that no process that gets hold of
/// `/proc/PID/exe` of a shim can write to it (CVE-2019-5736). It takes no memory, unlike a copy: that is made only where
/// the file cannot be mounted.
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
    // The name, since `/proc/self/exe` may be of another mount namespace, and what it leads to must be the same file.
    let name = std::fs::canonicalize(program)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, &name, flags)?;
    let (found, wanted) = (fstat(&tree)?, stat(program)?);
    if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino) {
        return Err(io::Error::other(format!("{} was replaced", name.display())));
    }
    let attributes = Attributes { read_only: true, no_suid: true, no_dev: true, ..Attributes::default() };
    sys::mounts::restrict_opened(tree.as_fd(), attributes)?;
    Ok(tree)
}

/// A sealed copy in memory.
fn seal_by_copy(program: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels from 6.3 on require a flag for executable memory files; those before do not know the flag.
    let copy = memfd_create("ferry-shim", flags | MemfdFlags::EXEC)
        .or_else(|_| memfd_create("ferry-shim", flags))?;
    let mut copy = File::from(copy);
    io::copy(&mut File::open(program)?, &mut copy)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&copy, seals)?;
    Ok(copy.into())
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
            // Nobody runs the file, so it is not busy.
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
