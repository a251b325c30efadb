//! Runs one container until it exits.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use sys::apparmor::Procfs;
use sys::cgroups::detach::{self, Which};
use sys::cgroups::{Group, Hierarchy};
use sys::process::{self, Fork, Namespace};

use super::log::Log;
use super::rootfs::Users;
use super::spec::{self, PidNamespace, Spec};
use super::supervise::{Streams, listen, supervise};
use super::{
    Exit, GROUP, Identity, Lock, Report, ShimError, Started, Step, failure, identity, now, read_json, report,
    rootfs, start, user, write_whole,
};

/// Time limit for the remaining processes to exit after the first one.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(directory: &Path, socket: &UnixStream, lock: Option<Lock>) -> Result<(), ShimError> {
    let spec: Spec = read_json(&spec::private(directory).join("spec.json"))?;
    if directory.join("started").exists() {
        return Err(failure("start", "the container was started already"));
    }
    // On memory pressure the container is killed before its shim. Without the privilege this is skipped.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-998");
    // The container follows in cgroup hierarchies that only track processes. Failures are ignored.
    let _ = detach::leave(GROUP, Which::Tracking);
    // Opened before the start is reported, so that the log exists by then. An unwritable log does not stop the
    // container; its output is still read.
    let log = spec.log.as_deref().and_then(|path| Log::open(path).ok());
    let group = group(&spec.cgroup)?;
    group.create().step(|| "make the control group".to_owned())?;
    let outcome = limit(&group, &spec)
        .and_then(|()| listen(directory))
        .and_then(|listener| Ok((launch(directory, &spec, &group)?, listener)));
    let ((pid, streams, identity), listener) = match outcome {
        Ok(started) => started,
        Err(error) => {
            let _ = group.kill(KILL_TIMEOUT);
            let _ = group.remove();
            return Err(error);
        }
    };
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    let start_time = process::start_time(pid).unwrap_or(0);
    let started = Started {
        pid,
        start_time,
        shim_pid: me,
        shim_start_time: process::start_time(me).unwrap_or(0),
        boot_id: process::boot_id().unwrap_or_default(),
        at: now(),
        identity: Some(identity),
    };
    write_whole(&directory.join("started"), &started).step(|| "write the container's state".to_owned())?;
    drop(lock);
    // If the daemon is gone, a later one finds the container by its files.
    let _ = report(socket, &Report::Started { pid, start_time });
    let _ = socket.shutdown(std::net::Shutdown::Both);
    let _ = detach::leave(GROUP, Which::Limiting);
    let code = supervise(directory, &spec, pid, streams, log, &listener)?;
    // In a pid namespace of its own all processes are gone; elsewhere some may remain.
    let _ = group.kill(KILL_TIMEOUT);
    let exit = Exit { code, out_of_memory: group.out_of_memory_kills() > 0, at: now() };
    write_whole(&directory.join("exit"), &exit).step(|| "write the exit".to_owned())?;
    let _ = group.remove();
    Ok(())
}

pub(super) fn group(path: &str) -> Result<Group, ShimError> {
    let hierarchy = Hierarchy::detect().step(|| "find the control groups".to_owned())?;
    hierarchy
        .group(path)
        .ok_or_else(|| failure("find the control group", format!("{path} is not a cgroup path")))
}

fn limit(group: &Group, spec: &Spec) -> Result<(), ShimError> {
    group.limit(&spec.resources).step(|| "set limits".to_owned())?;
    if spec.privileged {
        return Ok(());
    }
    let extra: Vec<_> =
        spec.devices.iter().map(|device| (device.host.as_path(), device.permissions.as_str())).collect();
    group.allow_devices(&extra).step(|| "limit devices".to_owned())
}

/// Files of the namespaces to enter, opened while paths still refer to the host's filesystem.
struct Entered(Vec<(Namespace, File)>);

impl Entered {
    fn open(spec: &Spec) -> Result<Self, ShimError> {
        let mut found = Vec::new();
        let namespaces = &spec.namespaces;
        for (kind, path) in [
            (Namespace::Ipc, &namespaces.ipc),
            (Namespace::Uts, &namespaces.uts),
            (Namespace::Network, &namespaces.network),
        ] {
            if let Some(path) = path {
                let file = File::open(path).step(|| format!("open namespace {}", path.display()))?;
                if !process::is_namespace_file(path) {
                    return Err(failure("open namespace", format!("{} is not a namespace", path.display())));
                }
                found.push((kind, file));
            }
        }
        Ok(Self(found))
    }
}

/// Starts the first process; the container's program runs when this returns.
fn launch(directory: &Path, spec: &Spec, group: &Group) -> Result<(i32, Streams, Identity), ShimError> {
    let entered = Entered::open(spec)?;
    match &spec.namespaces.pid {
        PidNamespace::New => {
            process::unshare(&[Namespace::Pid]).step(|| "make a pid namespace".to_owned())?
        }
        PidNamespace::Of(path) => {
            let file = File::open(path).step(|| "open the pid namespace".to_owned())?;
            process::enter(file.as_fd(), Namespace::Pid).step(|| "enter the pid namespace".to_owned())?;
        }
        PidNamespace::OfProcess { pid, start_time } => {
            let file = namespace_of_process(*pid, *start_time)?;
            process::enter(file.as_fd(), Namespace::Pid).step(|| "enter the pid namespace".to_owned())?;
        }
        PidNamespace::Host => {}
    }
    let (mut streams, theirs) = Streams::new(spec).step(|| "make pipes".to_owned())?;
    // Carries the terminal, then the program's identity. Closed by a successful exec; otherwise carries the error.
    let (ours, link) = UnixStream::pair().step(|| "make a socket".to_owned())?;
    match process::fork().step(|| "fork".to_owned())? {
        Fork::Child => {
            drop((streams, ours));
            let Err(error) = enter_and_start(directory, spec, group, &entered, theirs, &link);
            let _ = sys::sockets::send(&link, error.to_string().as_bytes(), &[]);
            std::process::exit(127);
        }
        Fork::Parent(pid) => {
            drop((link, theirs, entered));
            let outcome = await_program(&ours, &mut streams, spec.process.terminal);
            let identity = outcome.inspect_err(|_| {
                let _ = process::kill(pid, 9);
                let _ = start::wait(pid);
            })?;
            Ok((pid, streams, identity))
        }
    }
}

/// Opens the pid namespace of a process. Its start time is checked after opening the file: if it is unchanged, the
/// pid had not been reused.
fn namespace_of_process(pid: i32, start_time: u64) -> Result<File, ShimError> {
    let file = process::namespace_of(pid, Namespace::Pid).step(|| "open the pid namespace".to_owned())?;
    if process::start_time(pid).ok() != Some(start_time) {
        return Err(failure("open the pid namespace", "the target container is not running"));
    }
    Ok(file)
}

fn await_program(link: &UnixStream, streams: &mut Streams, terminal: bool) -> Result<Identity, ShimError> {
    if terminal {
        let mut bytes = [0; 4096];
        let (count, mut files) =
            sys::sockets::receive(link, &mut bytes).step(|| "wait for the terminal".to_owned())?;
        match (files.pop(), &bytes[..count]) {
            (Some(file), b"t") => streams.use_terminal(file),
            (_, message) => return Err(failure("create container", String::from_utf8_lossy(message))),
        }
    }
    let mut payload = Vec::new();
    { link }.take(MAX_REPORT).read_to_end(&mut payload).step(|| "wait for the program".to_owned())?;
    parse_child_report(&payload)
}

/// Space for a line with many groups.
const MAX_REPORT: u64 = 2 << 20;

/// Report of the child before exec: the program's identity, or an error, with or without the identity.
fn parse_child_report(payload: &[u8]) -> Result<Identity, ShimError> {
    let mut parts = payload.splitn(2, |byte| *byte == b'\n');
    let first = parts.next().unwrap_or_default();
    let child_failure = |rest: &[u8]| failure("create container", String::from_utf8_lossy(rest));
    match (serde_json::from_slice(first), parts.next().unwrap_or_default()) {
        (Ok(who), []) => Ok(who),
        (Ok(_), rest) => Err(child_failure(rest)),
        (Err(_), _) if payload.is_empty() => {
            Err(child_failure(b"the container process exited without a report"))
        }
        (Err(_), _) => Err(child_failure(payload)),
    }
}

fn enter_and_start(
    directory: &Path,
    spec: &Spec,
    group: &Group,
    entered: &Entered,
    streams: Option<[OwnedFd; 3]>,
    link: &UnixStream,
) -> Result<std::convert::Infallible, ShimError> {
    let _ = rustix::process::setsid();
    group.join(0).step(|| "enter the control group".to_owned())?;
    let _ = std::fs::write("/proc/self/oom_score_adj", spec.out_of_memory_score.to_string());
    for (kind, file) in &entered.0 {
        process::enter(file.as_fd(), *kind).step(|| format!("enter namespace {}", kind.file_name()))?;
    }
    process::unshare(&[Namespace::Mount, Namespace::Cgroup]).step(|| "make namespaces".to_owned())?;
    let users = match &spec.namespaces.users {
        Some((map, path)) => {
            let namespace = File::open(path).step(|| "open the user namespace".to_owned())?;
            Some(Users { map, namespace })
        }
        None => None,
    };
    if let Some(profile) = &spec.process.apparmor {
        // While /proc is still the host's. It takes effect on exec.
        Procfs::open()
            .and_then(|procfs| procfs.confine_next_program(profile))
            .step(|| format!("apply AppArmor profile {profile}"))?;
    }
    rootfs::build(directory, spec, users.as_ref())?;
    if let Some(users) = &users {
        user::enter(&users.namespace)?;
        // The container's root may add mounts, but not remove existing ones.
        process::unshare(&[Namespace::Mount]).step(|| "make a mount namespace".to_owned())?;
    }
    match streams {
        Some([stdin, stdout, stderr]) => {
            start::standard(stdin.as_fd(), stdout.as_fd(), stderr.as_fd())
                .step(|| "set standard streams".to_owned())?;
        }
        None => {
            let ours = start::terminal()?;
            sys::sockets::send(link, b"t", &[ours.as_fd()]).step(|| "send the terminal".to_owned())?;
        }
    }
    die_with_parent().step(|| "set the parent death signal".to_owned())?;
    process::close_on_exec_from(3).step(|| "close descriptors".to_owned())?;
    let who = identity::resolve(&spec.process.user)?;
    let mut payload = serde_json::to_vec(&who).step(|| "report the program's user".to_owned())?;
    payload.push(b'\n');
    { link }.write_all(&payload).step(|| "report the program's user".to_owned())?;
    start::become_program(&spec.process, &who)
}

fn die_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_process_with_reused_pid_is_rejected() {
        let me = i32::try_from(std::process::id()).unwrap();
        let start_time = process::start_time(me).unwrap();
        assert!(namespace_of_process(me, start_time).is_ok());
        assert!(namespace_of_process(me, start_time + 1).is_err());
    }

    #[test]
    fn child_report_is_parsed() {
        let who = Identity { uid: 33, gid: 33, groups: vec![4, 33], home: "/var/www".to_owned() };
        let line = serde_json::to_string(&who).unwrap();
        assert_eq!(parse_child_report(format!("{line}\n").as_bytes()).unwrap(), who);
        for (payload, wanted) in [
            (format!("{line}\nexec: no such file\nreally"), "exec: no such file\nreally"),
            ("mount /proc: busy".to_owned(), "mount /proc: busy"),
            (String::new(), "exited without a report"),
        ] {
            let error = parse_child_report(payload.as_bytes()).unwrap_err().to_string();
            assert!(error.ends_with(wanted), "{error}");
        }
    }
}
