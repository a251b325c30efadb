//! Kernel features that containers need, tested in temporary namespaces.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use sys::cgroups::Hierarchy;
use sys::mounts::{MountFlags, MountPropagationFlags};
use sys::netlink::Netlink;
use sys::nftables::{Batch, Family, Socket};
use sys::process::{Namespace, unshare};

use super::Finding::{self, Fine, Weak, Wrong};
use super::Row;

pub fn all(data_dir: &Path) -> Vec<Row> {
    vec![
        control_groups_row(),
        ("namespaces", namespaces()),
        ("overlay file system", overlay(data_dir)),
        ("pod network", network()),
        ("packet rules", packet_rules()),
        ("seccomp", seccomp()),
    ]
}

/// Without control groups no node can run pods.
pub fn control_groups_row() -> Row {
    ("control groups", control_groups())
}

/// Runs a test in a thread with its own namespaces.
fn in_namespaces(
    namespaces: &'static [Namespace],
    work: impl FnOnce() -> io::Result<()> + Send,
) -> io::Result<()> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| unshare(namespaces).and_then(|()| work()));
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the check failed")))
    })
}

fn control_groups() -> Finding {
    let hierarchy = match Hierarchy::detect() {
        Ok(hierarchy) => hierarchy,
        Err(error) => return Wrong(format!("not mounted ({error}); mount cgroup2 on /sys/fs/cgroup")),
    };
    let present: Vec<String> = match &hierarchy {
        Hierarchy::V1(controllers) => controllers.keys().map(ToString::to_string).collect(),
        Hierarchy::V2(root) => std::fs::read_to_string(root.join("cgroup.controllers"))
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
    };
    let version = if hierarchy.is_v2() { "v2" } else { "v1" };
    let lacking: Vec<&str> =
        ["cpu", "memory", "pids"].into_iter().filter(|name| !present.iter().any(|one| one == name)).collect();
    if lacking.is_empty() {
        Fine(format!("{version} with {}", present.join(", ")))
    } else {
        Weak(format!("{version} without {}: these limits are not enforced", lacking.join(", ")))
    }
}

fn namespaces() -> Finding {
    let lacking: Vec<&str> = ["net", "pid", "ipc", "uts", "mnt"]
        .into_iter()
        .filter(|name| !Path::new("/proc/self/ns").join(name).exists())
        .collect();
    if !lacking.is_empty() {
        return Wrong(format!("the kernel lacks {}", lacking.join(", ")));
    }
    match in_namespaces(&[Namespace::Network, Namespace::Mount, Namespace::Ipc, Namespace::Uts], || Ok(())) {
        Ok(()) => Fine("network, mount, pid, ipc, uts".to_owned()),
        Err(error) => Wrong(format!("cannot be created: {error}; is this inside a restricted container?")),
    }
}

fn overlay(data_dir: &Path) -> Finding {
    let directory = data_dir.join(".check-overlay");
    let existed = data_dir.exists();
    let tried = in_namespaces(&[Namespace::Mount], || {
        sys::mounts::propagate(Path::new("/"), MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        for part in ["lower", "upper", "work", "root"] {
            std::fs::create_dir_all(directory.join(part))?;
        }
        let part = |name: &str| directory.join(name).display().to_string();
        let options =
            format!("lowerdir={},upperdir={},workdir={}", part("lower"), part("upper"), part("work"));
        sys::mounts::mount("overlay", &directory.join("root"), "overlay", MountFlags::empty(), &options)?;
        std::fs::write(directory.join("root/file"), "x")
    });
    let _ = std::fs::remove_dir_all(&directory);
    if !existed {
        let _ = std::fs::remove_dir(data_dir);
    }
    match tried {
        Ok(()) => Fine(format!("works in {}", data_dir.display())),
        Err(error) => Wrong(format!(
            "does not work in {}: {error}; containers need it: load the module `overlay`, or set --data-dir to another file system",
            data_dir.display()
        )),
    }
}

fn network() -> Finding {
    let tried = in_namespaces(&[Namespace::Network], || {
        let mut netlink = Netlink::open()?;
        netlink.add_bridge("check0", 1500)?;
        let own = std::fs::File::open("/proc/thread-self/ns/net")?;
        netlink.add_pair("check1", "check2", own.as_fd(), 1500)?;
        netlink.plug("check1", "check0")
    });
    match tried {
        Ok(()) => Fine("bridges and veth pairs work".to_owned()),
        Err(error) => Wrong(format!("no bridge or veth pair: {error}; load the modules `bridge` and `veth`")),
    }
}

fn packet_rules() -> Finding {
    let tried = in_namespaces(&[Namespace::Network], || {
        let mut batch = Batch::new(Family::Ipv4, "ferry-check");
        batch.add_table();
        Socket::open().and_then(|socket| socket.apply(batch)).map_err(io::Error::other)
    });
    match tried {
        Ok(()) => Fine("nftables works".to_owned()),
        Err(error) => {
            Weak(format!("no nftables: {error}; services and host ports need the module `nf_tables`"))
        }
    }
}

fn seccomp() -> Finding {
    if Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() {
        Fine("seccomp filters work".to_owned())
    } else {
        Wrong("the kernel has no seccomp filters, which every container uses".to_owned())
    }
}
