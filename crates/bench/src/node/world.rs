//! Namespaces for a benchmark that runs containers, and the processes in them.

use crate::process::Processes;
use anyhow::{Context, Result, bail};
use std::path::Path;
use sys::mounts::{MountFlags, MountPropagationFlags};
use sys::process::{Fork, Namespace};

/// Runs `work` as the first process of new network, mount and pid namespaces, and waits for it. Remaining processes
/// end with it, and its control group is removed.
pub fn in_own_world(work: impl FnOnce(&str) -> Result<()>) -> Result<()> {
    let cgroup = format!("/ferry-bench-{}", std::process::id());
    // Looked up now: the child's /proc is not this process' own.
    let group = sys::cgroups::Hierarchy::detect()?.group(&cgroup);
    sys::process::unshare(&[Namespace::Network, Namespace::Mount, Namespace::Pid])
        .context("failed to make namespaces")?;
    let child = match sys::process::fork().context("failed to start the first process")? {
        Fork::Child => {
            let outcome = prepare().and_then(|()| work(&cgroup));
            if let Err(error) = &outcome {
                eprintln!("bench: {error:#}");
            }
            std::process::exit(i32::from(outcome.is_err()));
        }
        Fork::Parent(child) => child,
    };
    let child = rustix::process::Pid::from_raw(child).context("no child")?;
    let ended = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
    if let Some(group) = group {
        group.remove().context("failed to remove the control groups")?;
    }
    match ended.context("failed to wait for the benchmark")? {
        Some((_, status)) if status.exit_status() == Some(0) => Ok(()),
        _ => bail!("the benchmark failed"),
    }
}

fn prepare() -> Result<()> {
    sys::mounts::propagate(Path::new("/"), MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("failed to make mounts private")?;
    sys::mounts::mount("proc", Path::new("/proc"), "proc", MountFlags::empty(), "")
        .context("failed to mount /proc")?;
    sys::netlink::Netlink::open()?.set_up("lo").context("failed to set up the loopback interface")
}

fn of_ferry() -> Result<Vec<(u32, bool)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut arguments = line.split(|byte| *byte == 0);
        let program = arguments.next().unwrap_or_default();
        if program == b"ferry" || program.ends_with(b"/ferry") {
            found.push((pid, arguments.next() == Some(b"shim")));
        }
    }
    Ok(found)
}

/// Ferry and its shims.
pub fn ferries() -> Result<Processes> {
    Ok(Processes::of(of_ferry()?.into_iter().map(|(pid, _)| pid).collect()))
}

/// Memory of shims, with shared pages divided among them.
pub fn shims_memory() -> Result<u64> {
    let shims = of_ferry()?.into_iter().filter(|(_, shim)| *shim);
    Ok(shims.filter_map(|(pid, _)| proportional(pid)).sum())
}

fn proportional(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find(|line| line.starts_with("Pss:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}
