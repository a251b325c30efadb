//! `ferry reset`: removes a cluster and everything it created from this machine.

use std::ffi::OsStr;
use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::process::geteuid;
use sys::cgroups::Hierarchy;
use sys::netlink::Netlink;
use sys::nftables::{Batch, Family, Socket, TableFamily};

use crate::claims::{self, Registry};
use crate::cli::DataDir;
use crate::data_dir_lock;
use crate::machine_record::MachineRecord;
use crate::nodes;
use crate::output;
use crate::serve::say;
use crate::stop_pods::{self, Then};

#[derive(Args, Debug)]
pub struct ResetArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Do not prompt for confirmation.
    #[arg(long, short = 'y')]
    pub yes: bool,
}

pub async fn run(arguments: ResetArgs) -> Result<ExitCode> {
    let data_dir = &arguments.data_dir.data_dir;
    if !data_dir.exists() {
        return reset_removed(data_dir);
    }
    let data_dir = std::fs::canonicalize(data_dir)
        .with_context(|| format!("failed to resolve {}", data_dir.display()))?;
    std::fs::read_dir(&data_dir).with_context(|| format!("failed to read {}", data_dir.display()))?;
    ensure!(
        is_cluster_data_dir(&data_dir),
        "{} is not the data directory of a cluster; nothing was removed",
        data_dir.display()
    );
    let record = MachineRecord::read(&data_dir)?;
    ensure!(
        record.is_none() || geteuid().is_root(),
        "a node ran here: root is required to remove its containers, mounts and network"
    );
    if !arguments.yes && !confirmed(&data_dir)? {
        bail!("nothing was removed");
    }
    if data_dir_lock::stop(&data_dir)? {
        say(format_args!("Stopped the cluster"));
    }
    let socket = data_dir.join("runtime.sock");
    ensure!(
        std::os::unix::net::UnixStream::connect(&socket).is_err(),
        "a container runtime still serves {}: stop it (perhaps `ferry runtime` or `ferry agent`), then reset again",
        socket.display()
    );
    if let Some(record) = &record {
        let mut pods =
            stop_pods::run(&data_dir, record, Then::Remove).await.context("failed to stop the pods")?;
        for directory in nodes::directories(&data_dir) {
            if let Some(record) = MachineRecord::read(&directory)? {
                pods += stop_pods::run(&directory, &record, Then::Remove)
                    .await
                    .context("failed to stop the pods")?;
                remove_cgroups(&directory, &record).context("failed to remove cgroups")?;
            }
        }
        say(format_args!("Removed {}", output::counted(pods, "pod")));
        let mounts = unmount_below(&data_dir)?;
        say(format_args!("Removed {}", output::counted(mounts, "mount")));
        remove_cgroups(&data_dir, record).context("failed to remove cgroups")?;
        remove_network(record).context("failed to remove links and packet rules")?;
        Registry::open(&data_dir)?.forget();
        say(format_args!("Removed cgroups, links and packet rules"));
    }
    remove_directory(&data_dir).with_context(|| format!("failed to remove {}", data_dir.display()))?;
    say(format_args!("Removed {}", data_dir.display()));
    Ok(ExitCode::SUCCESS)
}

/// Removes what is left of a cluster whose data directory was removed by hand: processes of its containers, mounts,
/// cgroups and the network.
fn reset_removed(data_dir: &Path) -> Result<ExitCode> {
    let nothing = || say(format_args!("{} does not exist, nothing to remove", data_dir.display()));
    let data_dir = claims::absolute(data_dir);
    if !geteuid().is_root() {
        nothing();
        return Ok(ExitCode::SUCCESS);
    }
    let processes = stop_processes(&data_dir)?;
    let mounts = unmount_below(&data_dir)?;
    let registry = Registry::open(&data_dir)?;
    if processes == 0 && mounts == 0 && !registry.is_known() {
        nothing();
        return Ok(ExitCode::SUCCESS);
    }
    let record = MachineRecord::names(&data_dir, None)?;
    let record = MachineRecord { node_bridge: nodes::bridge_of(&data_dir), ..record };
    remove_cgroups(&data_dir, &record).context("failed to remove cgroups")?;
    remove_network(&record).context("failed to remove links and packet rules")?;
    registry.forget();
    say(format_args!(
        "{} was removed before; stopped {processes} processes of its containers, removed {mounts} mounts, cgroups, links and packet rules",
        data_dir.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Kills the shims of the containers of a data directory and the descendants that they leave, and returns the number of
/// shims.
fn stop_processes(data_dir: &Path) -> Result<usize> {
    let shims = shims_of(data_dir);
    for shim in &shims {
        let children =
            std::fs::read_to_string(format!("/proc/{shim}/task/{shim}/children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        for pid in std::iter::once(*shim).chain(children) {
            match sys::process::kill(pid, SIGKILL) {
                Err(error) if error.raw_os_error() != Some(NO_SUCH_PROCESS) => {
                    return Err(error).with_context(|| format!("failed to kill process {pid}"));
                }
                _ => {}
            }
        }
    }
    let begun = Instant::now();
    while shims.iter().any(|shim| is_alive(*shim)) && begun.elapsed() < KILL_TIMEOUT {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(shims.len())
}

const SIGKILL: i32 = 9;
const NO_SUCH_PROCESS: i32 = 3;
/// Time limit for killed processes to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

fn is_alive(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status
        .rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']) && !rest.is_empty())
}

/// Shims whose command line names a path below `data_dir`.
fn shims_of(data_dir: &Path) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            is_shim_of(&line, data_dir)
        })
        .collect()
}

/// True if a command line is that of a shim with a path below `data_dir`.
fn is_shim_of(command_line: &[u8], data_dir: &Path) -> bool {
    let mut words = command_line.split(|byte| *byte == 0);
    words.nth(1) == Some(container::shim::SUBCOMMAND.as_bytes())
        && words.any(|word| Path::new(OsStr::from_bytes(word)).starts_with(data_dir))
}

/// Removes a directory with its content; of a mount point only the content.
fn remove_directory(directory: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() { std::fs::remove_dir_all(path)? } else { std::fs::remove_file(path)? }
    }
    match std::fs::remove_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => Ok(()),
        other => other,
    }
}

/// Guards against the recursive removal of other directories.
fn is_cluster_data_dir(data_dir: &Path) -> bool {
    let has = |name: &str| data_dir.join(name).exists();
    data_dir.components().count() > 1 && (has("pki") || has("machine.json") || has("runtime"))
}

fn confirmed(data_dir: &Path) -> Result<bool> {
    let stdin = std::io::stdin();
    ensure!(stdin.is_terminal(), "this removes the cluster in {}; confirm with --yes", data_dir.display());
    print!("Remove the cluster in {}, its containers and all its data? [y/N] ", data_dir.display());
    std::io::stdout().flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Unmounts everything below a directory, latest mount first.
fn unmount_below(directory: &Path) -> Result<usize> {
    let mut targets: Vec<PathBuf> = sys::mounts::list()?
        .into_iter()
        .map(|mount| mount.target)
        .filter(|target| target != directory && target.starts_with(directory))
        .collect();
    targets.reverse();
    for target in &targets {
        sys::mounts::unmount(target).with_context(|| format!("failed to unmount {}", target.display()))?;
    }
    Ok(targets.len())
}

/// Removes the cgroups of this node's pods, and their ancestors unless another kubelet has pods there.
fn remove_cgroups(data_dir: &Path, record: &MachineRecord) -> Result<()> {
    // Without cgroups there are none to remove.
    let Ok(hierarchy) = Hierarchy::detect() else { return Ok(()) };
    let root = &record.cgroup_root;
    let parents = [format!("{root}/burstable"), format!("{root}/besteffort"), root.clone()];
    let pods = std::fs::read_dir(data_dir.join("kubelet/pods")).ok();
    let uids = pods.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    for uid in uids {
        for parent in &parents {
            if let Some(group) = hierarchy.group(&format!("{parent}/pod{uid}")) {
                group.remove()?;
            }
        }
    }
    for directory in
        parents.iter().filter_map(|path| hierarchy.group(path)).flat_map(|group| group.directories())
    {
        remove_empty(&directory, MAX_CGROUP_DEPTH);
    }
    Ok(())
}

/// Cgroup levels below the root of all pods: QoS class, pod, container, and nested cgroups.
const MAX_CGROUP_DEPTH: usize = 6;

/// Removes a cgroup and its descendants, including those of unknown pods. The kernel keeps cgroups with processes,
/// which belong to another kubelet.
fn remove_empty(directory: &Path, levels: usize) {
    let below = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in below.filter(|entry| levels > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_empty(&entry.path(), levels - 1);
    }
    let _ = std::fs::remove_dir(directory);
}

fn remove_network(record: &MachineRecord) -> Result<()> {
    for bridge in [&record.bridge, &record.node_bridge] {
        if !bridge.is_empty() {
            Netlink::open()?.remove(bridge)?;
        }
    }
    network::routes::remove(record.instance)?;
    cluster::clean_up_services(record.instance);
    let Ok(socket) = Socket::open() else { return Ok(()) };
    for table in record.tables() {
        for family in [Family::Ipv4.into(), Family::Ipv6.into(), TableFamily::Bridge] {
            let mut batch = Batch::new(family, &table);
            batch.remove_table();
            match socket.apply(batch) {
                Err(error) if !error.is_missing() => return Err(error.into()),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_rejects_directory_without_cluster() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(!is_cluster_data_dir(directory.path()));
        assert!(!is_cluster_data_dir(Path::new("/")));
        std::fs::create_dir(directory.path().join("pki")).expect("a directory");
        assert!(is_cluster_data_dir(directory.path()));
    }

    #[test]
    fn shims_are_found_by_the_directory_in_their_command_line() {
        let line = |words: &[&str]| words.join("\0").into_bytes();
        let data_dir = Path::new("/srv/one");
        assert!(is_shim_of(&line(&["ferry", "shim", "container", "/srv/one/runtime/x", ""]), data_dir));
        for other in [
            &["ferry", "shim", "container", "/srv/one-more/runtime/x"][..],
            &["ferry", "up", "--data-dir", "/srv/one"],
            &["ferry", "shim"],
            &[],
        ] {
            assert!(!is_shim_of(&line(other), data_dir), "{other:?}");
        }
    }

    /// In a mount namespace of this thread, which disappears with it.
    #[test]
    fn data_directory_that_is_a_mount_point_is_emptied() {
        let worker = std::thread::spawn(|| {
            let parent = tempfile::tempdir().expect("a directory");
            let directory = parent.path().join("data");
            std::fs::create_dir(&directory).expect("a directory");
            if sys::process::unshare(&[sys::process::Namespace::Mount]).is_err() {
                return println!("skipped: no permission to create mount namespaces");
            }
            use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", private).expect("private mounts");
            mount("none", &directory, "tmpfs", MountFlags::empty(), None).expect("a mount");
            std::fs::create_dir_all(directory.join("a/b")).expect("directories");
            std::fs::write(directory.join("file"), "text").expect("a file");
            remove_directory(&directory).expect("emptied");
            assert_eq!(std::fs::read_dir(&directory).expect("the mount point").count(), 0);
            rustix::mount::unmount(&directory, rustix::mount::UnmountFlags::empty()).expect("unmounted");
            remove_directory(&directory).expect("removed");
            assert!(!directory.exists());
        });
        worker.join().expect("joined");
    }
}
