//! `ferry up`: a control plane and a node in one process, until a signal; `ferry down` sends it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base::tasks::TaskGroup;
use clap::Args;
use cluster::{ControlPlane, NodeBeside, NodeConfig};
use rustix::process::{Pid, Signal, geteuid, kill_process, test_kill_process};

use crate::cli::{DataDir, ServeArgs};
use crate::node::{self, NodeArgs};
use crate::serve::{configure, say, stop_on_signal};

/// Addresses of pods unless told otherwise.
const POD_RANGE: &str = "10.42.0.0/24";
const DEFAULT_DATA_DIR: &str = "/var/lib/ferry";
/// How long a cluster may take to end.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Args, Debug)]
pub struct UpArgs {
    #[command(flatten)]
    pub serve: ServeArgs,

    #[command(flatten)]
    pub node: NodeArgs,

    /// Another container runtime than Ferry's own, such as `unix:///run/containerd/containerd.sock`.
    #[arg(long, value_name = "URL", help_heading = "Node")]
    pub container_runtime_endpoint: Option<String>,
}

#[derive(Args, Debug)]
pub struct DownArgs {
    #[command(flatten)]
    pub data_dir: DataDir,
}

pub async fn run(arguments: UpArgs) -> Result<ExitCode> {
    let begin = Instant::now();
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    base::limits::raise_open_files();
    let asked = arguments.container_runtime_endpoint;
    let config = configure(arguments.serve)?;
    let data_dir = config.data_dir.clone();
    say(format_args!(
        "Starting the control plane in {}: certificates, store, API server ...",
        data_dir.display()
    ));
    let mut beside = NodeConfig::new(&data_dir);
    beside.cluster_domain.clone_from(&config.cluster_domain);
    beside.clock = config.clock.clone();
    node::configure(&mut beside, arguments.node);
    beside.static_pods.get_or_insert_with(|| data_dir.join("manifests"));
    let plane = ControlPlane::build(config, tasks.clone()).await?;
    let mark = Mark::write(&data_dir)?;
    let node = if geteuid().is_root() {
        beside.runtime = match asked {
            Some(asked) => asked,
            None => own_runtime(&beside, &data_dir, &tasks)?,
        };
        Some(plane.node(beside)?)
    } else {
        say(format_args!(
            "There will be no node: containers need root, and this is not root. Run it as root, or use `ferry server` for a control plane alone."
        ));
        None
    };
    let (url, kubeconfig) = (plane.certificates().url(), plane.kubeconfig());
    say(format_args!("Listening on {}; waiting for the objects every cluster has ...", plane.address()));
    let ready = move || {
        say(format_args!("Ready after {} ms: {url}", begin.elapsed().as_millis()));
        say(format_args!("Kubeconfig of the administrator: {}", kubeconfig.display()));
        match node {
            Some(node) => start(node, &tasks, begin, &kubeconfig),
            None => say(format_args!("Try:  kubectl --kubeconfig {} get namespaces", kubeconfig.display())),
        }
    };
    let outcome = plane.run(ready).await;
    drop(mark);
    outcome?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

fn start(node: NodeBeside, tasks: &TaskGroup, begin: Instant, kubeconfig: &Path) {
    say(format_args!("Waiting for the node ..."));
    let kubeconfig = kubeconfig.to_owned();
    node.start(tasks, move |address| {
        say(format_args!(
            "Node registered after {} ms; its kubelet listens on {address}",
            begin.elapsed().as_millis()
        ));
        say(format_args!(""));
        say(format_args!("Try:  kubectl --kubeconfig {} get nodes", kubeconfig.display()));
    });
}

/// Starts Ferry's own container runtime on a socket in the data directory; where that is.
fn own_runtime(node: &NodeConfig, data_dir: &Path, tasks: &TaskGroup) -> Result<String> {
    let mut config = container::Config::new(data_dir.join("runtime"));
    config.pod_ranges = vec![node.pod_cidr.clone().unwrap_or_else(|| POD_RANGE.to_owned())];
    if data_dir != Path::new(DEFAULT_DATA_DIR) {
        // Another cluster of this machine has a bridge of its own.
        config.bridge = format!("ferry{:08x}", fingerprint(data_dir));
    }
    let runtime = container::Runtime::open(config, tasks.clone()).context("opening the container runtime")?;
    let socket = data_dir.join("runtime.sock");
    let listener =
        cri::server::bind(&socket).with_context(|| format!("listening on {}", socket.display()))?;
    tasks.spawn(async move { runtime.serve(listener).await });
    Ok(format!("unix://{}", socket.display()))
}

/// A short number for a path (FNV-1a).
fn fingerprint(path: &Path) -> u32 {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// A file with the process' number, there as long as the cluster runs.
struct Mark(PathBuf);

impl Mark {
    fn path(data_dir: &Path) -> PathBuf {
        data_dir.join("ferry.pid")
    }

    fn write(data_dir: &Path) -> Result<Self> {
        let path = Self::path(data_dir);
        std::fs::write(&path, std::process::id().to_string())
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(Self(path))
    }

    /// The process that wrote it, if it still runs and is a ferry.
    fn running(data_dir: &Path) -> Option<Pid> {
        let text = std::fs::read_to_string(Self::path(data_dir)).ok()?;
        let number: i32 = text.trim().parse().ok()?;
        let name = std::fs::read_to_string(format!("/proc/{number}/comm")).ok()?;
        Pid::from_raw(number).filter(|_| name.trim() == "ferry")
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Ends the cluster of a data directory and waits until it has ended.
pub fn down(arguments: &DownArgs) -> Result<ExitCode> {
    let data_dir = &arguments.data_dir.data_dir;
    let Some(process) = Mark::running(data_dir) else {
        say(format_args!("No cluster runs in {}", data_dir.display()));
        return Ok(ExitCode::SUCCESS);
    };
    kill_process(process, Signal::TERM).context("sending SIGTERM")?;
    let begun = Instant::now();
    while test_kill_process(process).is_ok() {
        if begun.elapsed() > PATIENCE {
            bail!("process {} has not ended in {} s", process.as_raw_nonzero(), PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    say(format_args!("Stopped; its containers go on. `ferry up` takes them up again."));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_names_a_process_only_while_it_runs() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(Mark::running(directory.path()).is_none());
        let mark = Mark::write(directory.path()).expect("written");
        // This is a test, not a ferry.
        assert!(Mark::running(directory.path()).is_none());
        drop(mark);
        assert!(!Mark::path(directory.path()).exists());
    }
}
