//! `ferry runtime`: the container runtime alone.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use base::tasks::TaskGroup;
use clap::Args;
use container::Config;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::DataDir;

#[derive(Args, Debug)]
pub struct RuntimeArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Path of the CRI socket; by default `runtime.sock` in the data directory.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// The CIDR to use for pod IP addresses until the kubelet sets another.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    pub pod_cidr: Vec<String>,

    /// Directory of CNI configuration files; without one the built-in network is used.
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub cni_conf_dir: PathBuf,

    /// Directory of CNI plugins.
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub cni_bin_dir: PathBuf,

    /// File with mirrors, credentials and certificate authorities of registries.
    #[arg(long, value_name = "FILE", default_value = "/etc/ferry/registries.yaml")]
    pub registries: PathBuf,
}

/// Grace period for calls in flight when the runtime stops; containers keep running.
const GRACE: Duration = Duration::from_secs(5);

pub async fn run(arguments: RuntimeArgs) -> Result<ExitCode> {
    let data_dir = arguments.data_dir.data_dir;
    let socket = arguments.socket.unwrap_or_else(|| data_dir.join("runtime.sock"));
    let mut config = Config::new(data_dir.join("runtime"));
    config.pod_ranges = arguments.pod_cidr;
    config.cni_configurations = arguments.cni_conf_dir;
    config.cni_programs = vec![arguments.cni_bin_dir];
    config.registries = arguments.registries;
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for signals")?;
    let tasks = TaskGroup::new();
    cluster::serve_container_runtime(config, &socket, &tasks)?;
    println!("container runtime: unix://{}", socket.display());
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let _ = tasks.drain(GRACE).await;
    let _ = std::fs::remove_file(&socket);
    Ok(ExitCode::SUCCESS)
}
