//! `ferry scheduler`: the scheduler alone, as a client of any API server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use base::clock::Clock;
use base::tasks::TaskGroup;
use cluster::{Components, SchedulerConfiguration};

use crate::cli::SchedulerArgs;
use crate::serve::stop_on_signal;

/// Configuration from a file, or the default one.
pub fn configuration(file: Option<&Path>) -> Result<SchedulerConfiguration> {
    let Some(file) = file else { return Ok(SchedulerConfiguration::default()) };
    let text = std::fs::read(file).with_context(|| format!("failed to read {}", file.display()))?;
    SchedulerConfiguration::parse(&text).with_context(|| format!("failed to load {}", file.display()))
}

pub async fn run(arguments: SchedulerArgs) -> Result<ExitCode> {
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    let configuration = configuration(arguments.config.as_deref())?;
    let named = Some(&configuration.client_connection.kubeconfig).filter(|path| !path.is_empty());
    let kubeconfig = arguments.kubeconfig.or_else(|| named.map(PathBuf::from));
    // An empty path selects the in-cluster configuration.
    let kubeconfig = kubeconfig.unwrap_or_default();
    let profiling = configuration.enable_profiling;
    let components = Components {
        leader_election: arguments.leader_elect.unwrap_or(configuration.leader_election.leader_elect),
        scheduler: Some(configuration),
        ports: arguments.secure_port.port("kube-scheduler", 10259, profiling),
        ..Components::default()
    };
    cluster::run_alone(&components, &kubeconfig, &Clock::system(), &tasks).await?;
    Ok(ExitCode::SUCCESS)
}
