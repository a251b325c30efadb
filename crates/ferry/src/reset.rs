//! `ferry reset`: removes a cluster from this machine, with everything it made here.

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
use crate::end_pods::{self, Then};
use crate::mark;
use crate::nodes;
use crate::serve::say;
use crate::traces::{TABLES, Traces};

#[derive(Args, Debug)]
pub struct ResetArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Do not ask.
    #[arg(long, short = 'y')]
    pub yes: bool,
}

pub async fn run(arguments: ResetArgs) -> Result<ExitCode> {
    let data_dir = &arguments.data_dir.data_dir;
    if !data_dir.exists() {
        say(format_args!("There is nothing in {}", data_dir.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let data_dir =
        std::fs::canonicalize(data_dir).with_context(|| format!("finding {}", data_dir.display()))?;
    ensure!(
        is_a_clusters(&data_dir),
        "{} does not look like the data directory of a cluster; nothing was removed",
        data_dir.display()
    );
    let traces = Traces::read(&data_dir)?;
    ensure!(
        traces.is_none() || geteuid().is_root(),
        "a node ran here: its containers, mounts and network can only be removed by root"
    );
    if !arguments.yes && !confirmed(&data_dir)? {
        bail!("nothing was removed");
    }
    if mark::stop(&data_dir)? {
        say(format_args!("Stopped the cluster"));
    }
    let socket = data_dir.join("runtime.sock");
    ensure!(
        std::os::unix::net::UnixStream::connect(&socket).is_err(),
        "a container runtime still serves {}: stop it (`ferry runtime` or `ferry agent`, perhaps), then reset again",
        socket.display()
    );
    if let Some(traces) = &traces {
        let mut pods = end_pods::run(&data_dir, traces, Then::Remove).await.context("ending its pods")?;
        for directory in nodes::directories(&data_dir) {
            if let Some(traces) = Traces::read(&directory)? {
                pods += end_pods::run(&directory, &traces, Then::Remove).await.context("ending its pods")?;
                remove_cgroups(&directory, &traces).context("removing control groups")?;
            }
        }
        say(format_args!("Removed {pods} pods"));
        let mounts = unmount_below(&data_dir)?;
        say(format_args!("Removed {mounts} mounts"));
        remove_cgroups(&data_dir, traces).context("removing control groups")?;
        remove_network(traces).context("removing links and packet rules")?;
        say(format_args!("Removed control groups, links and packet rules"));
    }
    std::fs::remove_dir_all(&data_dir).with_context(|| format!("removing {}", data_dir.display()))?;
    say(format_args!("Removed {}", data_dir.display()));
    Ok(ExitCode::SUCCESS)
}

/// What is removed recursively had better be ours.
fn is_a_clusters(data_dir: &Path) -> bool {
    let has = |name: &str| data_dir.join(name).exists();
    data_dir.components().count() > 1 && (has("pki") || has("machine.json") || has("runtime"))
}

fn confirmed(data_dir: &Path) -> Result<bool> {
    let stdin = std::io::stdin();
    ensure!(
        stdin.is_terminal(),
        "this removes the cluster in {}; say --yes if that is meant",
        data_dir.display()
    );
    print!("Remove the cluster in {}, its containers and all its data? [y/N] ", data_dir.display());
    std::io::stdout().flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Unmounts everything below a directory, what was mounted last first.
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

/// Removes the groups of this node's pods, and those above them unless another kubelet has pods there.
fn remove_cgroups(data_dir: &Path, traces: &Traces) -> Result<()> {
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
        remove_empty(&directory, DEEPEST_GROUP);
    }
    Ok(())
}

/// Levels of groups below that of all pods: class, pod, container, and what a container makes.
const DEEPEST_GROUP: usize = 6;

/// Removes a group and those below it, also of pods that nobody remembers. The kernel keeps those with somebody in them,
/// which are another kubelet's.
fn remove_empty(directory: &Path, levels: usize) {
    let below = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in below.filter(|entry| levels > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_empty(&entry.path(), levels - 1);
    }
    let _ = std::fs::remove_dir(directory);
}

fn remove_network(traces: &Traces) -> Result<()> {
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
    fn only_a_clusters_directory_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(!is_a_clusters(directory.path()));
        assert!(!is_a_clusters(Path::new("/")));
        std::fs::create_dir(directory.path().join("pki")).expect("a directory");
        assert!(is_a_clusters(directory.path()));
    }
}
