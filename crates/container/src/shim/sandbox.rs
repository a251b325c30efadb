//! Makes the namespaces of a pod and keeps them as files, so that they outlive every process.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path};

use sys::cgroups::apart::{self, Which};
use sys::mounts::{self, MountFlags};
use sys::process::{self, Fork, Namespace};

use super::spec::SandboxSpec;
use super::{GROUP, Lock, Report, ShimError, Step, failure, read_json, report, start, write_whole};

pub(super) fn run(directory: &Path, socket: &UnixStream, _lock: Lock) -> Result<(), ShimError> {
    let spec: SandboxSpec = read_json(&directory.join("spec.json"))?;
    let mut wanted = Vec::new();
    for (namespace, asked) in
        [(Namespace::Network, spec.network), (Namespace::Ipc, spec.ipc), (Namespace::Uts, spec.uts)]
    {
        if asked {
            wanted.push(namespace);
        }
    }
    process::unshare(&wanted).step(|| "make namespaces".to_owned())?;
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
    std::fs::create_dir_all(&spec.namespaces).step(|| "make a directory".to_owned())?;
    for namespace in &wanted {
        let file = spec.namespaces.join(namespace.file_name());
        pin(Path::new(&format!("/proc/self/ns/{}", namespace.file_name())), &file)
            .step(|| format!("keep namespace {}", namespace.file_name()))?;
    }
    if let Some((target, size)) = &spec.shared_memory {
        std::fs::create_dir_all(target).step(|| "make a directory".to_owned())?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mounts::mount("shm", target, "tmpfs", flags, &format!("mode=1777,size={size}"))
            .step(|| "mount shared memory".to_owned())?;
    }
    if !spec.pid {
        let me = i32::try_from(std::process::id()).unwrap_or(0);
        return report(socket, &Report::Started { pid: me, start_time: 0 }).step(|| "report".to_owned());
    }
    process::unshare(&[Namespace::Pid]).step(|| "make a pid namespace".to_owned())?;
    match process::fork().step(|| "fork".to_owned())? {
        Fork::Parent(pid) => {
            let started = process::start_time(pid).step(|| "look at the pod's first process".to_owned())?;
            // Whoever started this may be gone before it hears of the process.
            write_whole(&directory.join("holder"), &(pid, started)).step(|| "write a file".to_owned())?;
            pin(Path::new(&format!("/proc/{pid}/ns/pid")), &spec.namespaces.join("pid"))
                .step(|| "keep namespace pid".to_owned())?;
            report(socket, &Report::Started { pid, start_time: started }).step(|| "report".to_owned())
        }
        Fork::Child => {
            let _ = apart::leave(GROUP, Which::Tracking);
            let _ = apart::leave(GROUP, Which::Limiting);
            start::settle_in_background();
            reap()
        }
    }
}

/// As the first process of a pid namespace: waits for orphans until it is killed.
fn reap() -> Result<(), ShimError> {
    use rustix::process::{WaitOptions, wait};
    process::hold_back(process::CHILD_ENDED).step(|| "hold back signals".to_owned())?;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No children now: sleep until there is one to wait for.
            Err(rustix::io::Errno::CHILD) => {
                process::wait_for_signal(process::CHILD_ENDED).step(|| "wait".to_owned())?
            }
            Err(error) => return Err(failure("wait for children", error.to_string())),
        }
    }
}

fn pin(namespace: &Path, file: &Path) -> io::Result<()> {
    std::fs::File::create(file)?;
    mounts::bind(namespace, file, false)
}

fn sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = Path::new("/proc/sys").join(name.replace('.', "/"));
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    std::fs::write(path, value)
}
