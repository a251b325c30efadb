//! The zygote: the process that shims are forked from. It is this binary, executed once per daemon, so that the
//! memory of the loaded program is shared by all shims.
//!
//! It has one thread, handles one request after the other and never waits for a shim. It exits with the daemon that
//! started it; its shims do not.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use sys::process::{self, Fork, Title};

use super::{Lock, Report, SUBCOMMAND, Task, report};

/// Size limit of a request, above the longest path.
const LARGEST: usize = 8 << 10;

/// A request for a shim: its task, the socket for its report, and the file for its stderr.
struct Request {
    task: Task,
    argument: PathBuf,
    socket: UnixStream,
    stderr: File,
    /// Not yet a [`Lock`], whose drop would unlock it for all processes that share it.
    lock: Option<OwnedFd>,
}

/// Encodes a request; the descriptors are sent with it: socket, stderr file and an optional lock.
pub(crate) fn encode(task: Task, argument: &Path) -> Vec<u8> {
    [task.name().as_bytes(), b"\0", argument.as_os_str().as_bytes()].concat()
}

fn decode(bytes: &[u8], files: Vec<OwnedFd>) -> Option<Request> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let (task, _) = Task::ALL.into_iter().find(|(_, name)| name.as_bytes() == &bytes[..end])?;
    let mut files = files.into_iter();
    Some(Request {
        task,
        argument: OsStr::from_bytes(&bytes[end + 1..]).into(),
        socket: files.next()?.into(),
        stderr: files.next()?.into(),
        lock: files.next(),
    })
}

/// Forks a shim for every request, until the socket is closed.
pub(super) fn serve(requests: UnixStream) -> io::Result<()> {
    let title = Title::find()?;
    title.set(&[b"ferry", SUBCOMMAND.as_bytes()])?;
    process::let_children_go(true);
    let mut bytes = vec![0; LARGEST];
    loop {
        let (count, files) = sys::sockets::receive(&requests, &mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        let Some(request) = decode(&bytes[..count], files) else {
            eprintln!("malformed shim request");
            continue;
        };
        match process::fork() {
            Ok(Fork::Parent(_)) => {}
            Ok(Fork::Child) => {
                drop(requests);
                process::let_children_go(false);
                let argument = request.argument.as_os_str().as_bytes();
                let title_parts: [&[u8]; 4] =
                    [b"ferry", SUBCOMMAND.as_bytes(), request.task.name().as_bytes(), argument];
                // Process title, shown in process listings.
                let _ = title.set(&title_parts);
                std::process::exit(i32::from(!perform(request)));
            }
            Err(error) => {
                let _ = report(&request.socket, &Report::Failed { message: format!("fork: {error}") });
            }
        }
    }
}

/// Runs the task in the new process; returns whether it succeeded.
fn perform(request: Request) -> bool {
    let Request { task, argument, socket, stderr, lock } = request;
    let _ = rustix::stdio::dup2_stderr(&stderr);
    drop(stderr);
    // Detaches containers from the terminal's hangup and interrupt signals.
    let _ = rustix::process::setsid();
    // Processes in a container that a shim enters must not reach the host's binary through it.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    match task.run(&argument, &socket, lock.map(Lock)) {
        Ok(()) => true,
        Err(error) => {
            eprintln!("{error}");
            let _ = report(&socket, &Report::Failed { message: error.to_string() });
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip() {
        let files = |count: usize| -> Vec<OwnedFd> {
            (0..count).map(|_| File::open("/dev/null").unwrap().into()).collect()
        };
        let bytes = encode(Task::Container, Path::new("/a b/\u{e4}"));
        let request = decode(&bytes, files(3)).unwrap();
        assert_eq!((request.task, request.argument.as_path()), (Task::Container, Path::new("/a b/\u{e4}")));
        assert!(request.lock.is_some());
        assert!(decode(&bytes, files(2)).unwrap().lock.is_none());
        assert!(decode(&bytes, files(1)).is_none());
        assert!(decode(b"container", files(2)).is_none());
        assert!(decode(b"cook\0/", files(2)).is_none());
    }
}
