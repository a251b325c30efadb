//! The process that shims are forked from: this binary, executed once per daemon. What loading it took is paid for once
//! and shared by all shims, which have little of their own.
//!
//! It has one thread, takes one request after the other and never waits for a shim. It ends with the daemon that started
//! it; its shims do not.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use sys::process::{self, Fork, Title};

use super::{Lock, Report, SUBCOMMAND, Task, report};

/// No path is longer.
const LARGEST: usize = 8 << 10;

/// A shim that is asked for: what it does, where it speaks to whoever asked, and where it complains.
struct Request {
    task: Task,
    argument: PathBuf,
    socket: UnixStream,
    complaints: File,
    /// Not yet a [`Lock`], which would be given back for all who have it.
    lock: Option<OwnedFd>,
}

/// The bytes of a request; the descriptors go along: socket, complaints and perhaps a lock.
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
        complaints: files.next()?.into(),
        lock: files.next(),
    })
}

/// Forks a shim for every request, until nobody is there to send one.
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
            eprintln!("a request for a shim makes no sense");
            continue;
        };
        match process::fork() {
            Ok(Fork::Parent(_)) => {}
            Ok(Fork::Child) => {
                drop(requests);
                process::let_children_go(false);
                let argument = request.argument.as_os_str().as_bytes();
                let words: [&[u8]; 4] =
                    [b"ferry", SUBCOMMAND.as_bytes(), request.task.name().as_bytes(), argument];
                // Only for those who look at lists of processes.
                let _ = title.set(&words);
                std::process::exit(i32::from(!perform(request)));
            }
            Err(error) => {
                let _ = report(&request.socket, &Report::Failed { message: format!("fork: {error}") });
            }
        }
    }
}

/// In the new process: does what is asked; whether it could.
fn perform(request: Request) -> bool {
    let Request { task, argument, socket, complaints, lock } = request;
    let _ = rustix::stdio::dup2_stderr(&complaints);
    drop(complaints);
    // A terminal's hangup or interrupt is not meant for containers.
    let _ = rustix::process::setsid();
    // Whoever is in a container that a shim enters does not get at the host's binary through it.
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
    fn requests() {
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
