//! Creates the namespaces of a pod and pins them as files, so that they outlive every process.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

use sys::cgroups::detach::{self, Which};
use sys::mounts::{self, MountFlags};
use sys::process::{self, Fork, Namespace};

use super::spec::SandboxSpec;
use super::{GROUP, Lock, Report, ShimError, Step, failure, read_json, report, start, user, write_whole};

pub(super) fn run(directory: &Path, socket: &UnixStream, _lock: Option<Lock>) -> Result<(), ShimError> {
    let spec: SandboxSpec = read_json(&directory.join("spec.json"))?;
    let mut wanted = Vec::new();
    for (namespace, requested) in
        [(Namespace::Network, spec.network), (Namespace::Ipc, spec.ipc), (Namespace::Uts, spec.uts)]
    {
        if requested {
            wanted.push(namespace);
        }
    }
    std::fs::create_dir_all(&spec.namespaces).step(|| "make a directory".to_owned())?;
    share_memory(&spec)?;
    if spec.pid {
        // The process that remains leaves the daemon's cgroup.
        let _ = detach::leave(GROUP, Which::Tracking);
        let _ = detach::leave(GROUP, Which::Limiting);
    }
    let Some(map) = &spec.users else {
        let holder = make(&spec, &wanted)?;
        let me = i32::try_from(std::process::id()).unwrap_or(0);
        return keep(directory, socket, &spec, &wanted, me, holder);
    };
    user::with_namespace(
        map,
        || make(&spec, &wanted),
        |child, holder| {
            let all = [&wanted[..], &[Namespace::User]].concat();
            keep(directory, socket, &spec, &all, child, holder)
        },
    )
}

/// Creates the namespaces for the calling process and sets them up; with a pid namespace, returns the process that
/// holds it.
fn make(spec: &SandboxSpec, wanted: &[Namespace]) -> Result<i32, ShimError> {
    process::unshare(wanted).step(|| "make namespaces".to_owned())?;
    if spec.uts {
        rustix::system::sethostname(spec.hostname.as_bytes()).step(|| "set the host name".to_owned())?;
    }
    if spec.network {
        sys::netlink::Netlink::open()
            .and_then(|mut netlink| netlink.set_up("lo"))
            .step(|| "bring up the loopback interface".to_owned())?;
    }
    for (name, value) in &spec.sysctls {
        sysctl(name, value).step(|| format!("set {name}"))?;
    }
    if !spec.pid {
        return Ok(0);
    }
    process::unshare(&[Namespace::Pid]).step(|| "make a pid namespace".to_owned())?;
    match process::fork().step(|| "fork".to_owned())? {
        Fork::Parent(pid) => Ok(pid),
        Fork::Child => {
            start::settle_in_background();
            let _ = reap();
            std::process::exit(1);
        }
    }
}

/// Pins the namespaces of a process as files, and reports to the daemon.
fn keep(
    directory: &Path,
    socket: &UnixStream,
    spec: &SandboxSpec,
    kinds: &[Namespace],
    of: i32,
    holder: i32,
) -> Result<(), ShimError> {
    let pin = |pid: i32, kind: Namespace| {
        let file = spec.namespaces.join(kind.file_name());
        std::fs::File::create(&file)
            .and_then(|_| {
                mounts::bind(&PathBuf::from(format!("/proc/{pid}/ns/{}", kind.file_name())), &file, false)
            })
            .step(|| format!("pin namespace {}", kind.file_name()))
    };
    for kind in kinds {
        pin(of, *kind)?;
    }
    let mut started = 0;
    if holder != 0 {
        started = process::start_time(holder).step(|| "read the pod's first process".to_owned())?;
        // The daemon may exit before it receives the report.
        write_whole(&directory.join("holder"), &(holder, started)).step(|| "write a file".to_owned())?;
        pin(holder, Namespace::Pid)?;
    }
    report(socket, &Report::Started { pid: holder, start_time: started }).step(|| "report".to_owned())
}

fn share_memory(spec: &SandboxSpec) -> Result<(), ShimError> {
    let Some((target, size)) = &spec.shared_memory else { return Ok(()) };
    std::fs::create_dir_all(target).step(|| "make a directory".to_owned())?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let mut options = format!("mode=1777,size={size}");
    if let Some(map) = &spec.users {
        let (uid, gid) = map.root()?;
        options.push_str(&format!(",uid={uid},gid={gid}"));
    }
    mounts::mount("shm", target, "tmpfs", flags, &options).step(|| "mount shared memory".to_owned())
}

/// Runs as the first process of a pid namespace: reaps orphans until it is killed.
fn reap() -> Result<(), ShimError> {
    use rustix::process::{WaitOptions, wait};
    process::hold_back(process::CHILD_ENDED).step(|| "block signals".to_owned())?;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No children now: sleep until SIGCHLD.
            Err(rustix::io::Errno::CHILD) => {
                process::wait_for_signal(process::CHILD_ENDED).step(|| "wait".to_owned())?
            }
            Err(error) => return Err(failure("wait for children", error.to_string())),
        }
    }
}

fn sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = Path::new("/proc/sys").join(name.replace('.', "/"));
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    std::fs::write(path, value)
}
