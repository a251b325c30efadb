//! `ferry runtime`: the container runtime alone.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use base::tasks::TaskGroup;
use container::{Config, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::RuntimeArgs;
use crate::up::serve_runtime;

/// How long calls in flight may take when the runtime is told to stop; containers go on.
const GRACE: Duration = Duration::from_secs(5);

pub async fn run(arguments: RuntimeArgs) -> Result<ExitCode> {
    let data_dir = arguments.data_dir.data_dir;
    let socket = arguments.socket.unwrap_or_else(|| data_dir.join("runtime.sock"));
    let mut config = Config::new(data_dir.join("runtime"));
    config.pod_ranges = arguments.pod_cidr;
    config.cni_configurations = arguments.cni_conf_dir;
    config.cni_programs = vec![arguments.cni_bin_dir];
    config.registries = arguments.registries;
    let mut terminate = signal(SignalKind::terminate()).context("listening for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for signals")?;
    let tasks = TaskGroup::new();
    let runtime = Runtime::open(config, tasks.clone()).context("opening the container runtime")?;
    serve_runtime(runtime, &socket, &tasks)?;
    println!("container runtime: unix://{}", socket.display());
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let _ = tasks.drain(GRACE).await;
    let _ = std::fs::remove_file(&socket);
    Ok(ExitCode::SUCCESS)
}
