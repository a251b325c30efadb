//! `ferry reset`: removes a cluster and everything it created from this machine.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::process::geteuid;
use sys::cgroups::Hierarchy;
use sys::netlink::Netlink;
use sys::nftables::{Batch, Family, Socket, TableFamily};

use crate::cli::DataDir;
use crate::data_dir_lock;
use crate::machine_record::{MachineRecord, TABLES};
use crate::nodes;
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
        say(format_args!("{} does not exist, nothing to remove", data_dir.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let data_dir = std::fs::canonicalize(data_dir)
        .with_context(|| format!("failed to resolve {}", data_dir.display()))?;
    ensure!(
        is_cluster_data_dir(&data_dir),
        "{} is not the data directory of a cluster; nothing was removed",
        data_dir.display()
    );
    let traces = MachineRecord::read(&data_dir)?;
    ensure!(
        traces.is_none() || geteuid().is_root(),
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
    if let Some(traces) = &traces {
        let mut pods =
            stop_pods::run(&data_dir, traces, Then::Remove).await.context("failed to stop the pods")?;
        for directory in nodes::directories(&data_dir) {
            if let Some(traces) = MachineRecord::read(&directory)? {
                pods += stop_pods::run(&directory, &traces, Then::Remove)
                    .await
                    .context("failed to stop the pods")?;
                remove_cgroups(&directory, &traces).context("failed to remove cgroups")?;
            }
        }
        say(format_args!("Removed {pods} pods"));
        let mounts = unmount_below(&data_dir)?;
        say(format_args!("Removed {mounts} mounts"));
        remove_cgroups(&data_dir, traces).context("failed to remove cgroups")?;
        remove_network(traces).context("failed to remove links and packet rules")?;
        say(format_args!("Removed cgroups, links and packet rules"));
    }
    std::fs::remove_dir_all(&data_dir).with_context(|| format!("removing {}", data_dir.display()))?;
    say(format_args!("Removed {}", data_dir.display()));
    Ok(ExitCode::SUCCESS)
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
        sys::mounts::unmount(target).with_context(|| format!("unmounting {}", target.display()))?;
    }
    Ok(targets.len())
}

/// Removes the cgroups of this node's pods, and their ancestors unless another kubelet has pods there.
fn remove_cgroups(data_dir: &Path, traces: &MachineRecord) -> Result<()> {
    let hierarchy = Hierarchy::detect()?;
    let root = &traces.cgroup_root;
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

fn remove_network(traces: &MachineRecord) -> Result<()> {
    for bridge in [&traces.bridge, &traces.node_bridge] {
        if !bridge.is_empty() {
            Netlink::open()?.remove(bridge)?;
        }
    }
    network::routes::remove()?;
    cluster::clean_up_services();
    let Ok(socket) = Socket::open() else { return Ok(()) };
    let own = network::table(&traces.bridge);
    for table in TABLES.iter().copied().chain([own.as_str()]) {
        for family in [Family::Ipv4.into(), Family::Ipv6.into(), TableFamily::Bridge] {
            let mut batch = Batch::new(family, table);
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
}
