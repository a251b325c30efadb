//! Runs another process in a container.
//!
//! The daemon sends the descriptors of stdin, stdout and stderr with one byte, or requests a terminal and receives
//! its master.

use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use sys::apparmor::Procfs;
use sys::process::{self, Fork, Namespace};

use super::container::group;
use super::spec::ExecSpec;
use super::{Report, ShimError, Step, failure, identity, read_json, report, start, user};

pub(super) fn run(directory: &Path, socket: &UnixStream) -> Result<(), ShimError> {
    let spec: ExecSpec = read_json(directory)?;
    let _ = std::fs::remove_file(directory);
    let mut byte = [0];
    let (_, files) = sys::sockets::receive(socket, &mut byte).step(|| "receive descriptors".to_owned())?;
    if !spec.process.terminal && files.len() != 3 {
        return Err(failure("receive descriptors", format!("got {}", files.len())));
    }
    let group = group(&spec.cgroup)?;
    // All are opened before the first is entered; the pid must not have been reused since.
    let mut entered = Vec::new();
    for kind in [
        Namespace::Ipc,
        Namespace::Uts,
        Namespace::Network,
        Namespace::Pid,
        Namespace::Cgroup,
        Namespace::Mount,
    ] {
        entered.push((kind, process::namespace_of(spec.pid, kind).step(|| "find the container".to_owned())?));
    }
    let users = if user::is_another(spec.pid).step(|| "find the container".to_owned())? {
        Some(process::namespace_of(spec.pid, Namespace::User).step(|| "find the container".to_owned())?)
    } else {
        None
    };
    if process::start_time(spec.pid).ok() != Some(spec.start_time) {
        return Err(failure("find the container", "it is not running"));
    }
    let procfs = spec.process.apparmor.as_ref().map(|_| Procfs::open()).transpose();
    let procfs = procfs.step(|| "open /proc".to_owned())?;
    group.join(0).step(|| "enter the control group".to_owned())?;
    // Inherited by the program. Written before the container's /proc is this process's (CVE-2025-52881).
    let _ = std::fs::write("/proc/self/oom_score_adj", spec.out_of_memory_score.to_string());
    for (kind, file) in &entered {
        process::enter(file.as_fd(), *kind).step(|| format!("enter namespace {}", kind.file_name()))?;
    }
    drop(entered);
    if let Some(users) = users {
        user::enter(&users)?;
    }
    let (ours, link) = UnixStream::pair().step(|| "make a socket".to_owned())?;
    match process::fork().step(|| "fork".to_owned())? {
        Fork::Child => {
            drop(ours);
            let Err(error) = begin(&spec, procfs, &files, socket);
            let _ = sys::sockets::send(&link, error.to_string().as_bytes(), &[]);
            std::process::exit(127);
        }
        Fork::Parent(pid) => {
            drop((link, files, procfs));
            let mut message = Vec::new();
            (&ours).take(4096).read_to_end(&mut message).step(|| "wait for the program".to_owned())?;
            if !message.is_empty() {
                let _ = start::wait(pid);
                return Err(failure("start process", String::from_utf8_lossy(&message)));
            }
            report(socket, &Report::Started { pid, start_time: 0 }).step(|| "report".to_owned())?;
            let code = start::wait(pid).step(|| "wait for the process".to_owned())?;
            report(socket, &Report::Exited { code }).step(|| "report".to_owned())
        }
    }
}

fn begin(
    spec: &ExecSpec,
    procfs: Option<Procfs>,
    files: &[std::os::fd::OwnedFd],
    socket: &UnixStream,
) -> Result<std::convert::Infallible, ShimError> {
    let _ = rustix::process::setsid();
    // Closed before the program's working directory is entered.
    if let (Some(procfs), Some(profile)) = (procfs, &spec.process.apparmor) {
        procfs.confine_next_program(profile).step(|| format!("apply AppArmor profile {profile}"))?;
    }
    match files {
        [stdin, stdout, stderr] if !spec.process.terminal => {
            start::standard(stdin.as_fd(), stdout.as_fd(), stderr.as_fd())
                .step(|| "set standard streams".to_owned())?;
        }
        _ => {
            let ours = start::terminal()?;
            sys::sockets::send(socket, b"t", &[ours.as_fd()]).step(|| "send the terminal".to_owned())?;
        }
    }
    process::close_on_exec_from(3).step(|| "close descriptors".to_owned())?;
    start::become_program(&spec.process, &identity::resolve(&spec.process.user)?)
}
