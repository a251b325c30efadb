//! `ferry scheduler`: the scheduler alone, as a client of any API server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use base::clock::Clock;
use base::tasks::TaskGroup;
use cluster::{Components, SchedulerConfiguration};

use crate::cli::SchedulerArgs;
use crate::components::status_port;
use crate::serve::stop_on_signal;

/// The configuration in a file, or the default one.
pub fn configuration(file: Option<&Path>) -> Result<SchedulerConfiguration> {
    let Some(file) = file else { return Ok(SchedulerConfiguration::default()) };
    let text = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    SchedulerConfiguration::parse(&text).with_context(|| format!("using {}", file.display()))
}

pub async fn run(arguments: SchedulerArgs) -> Result<ExitCode> {
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    let configuration = configuration(arguments.config.as_deref())?;
    let named = Some(&configuration.client_connection.kubeconfig).filter(|path| !path.is_empty());
    let kubeconfig = arguments.kubeconfig.or_else(|| named.map(PathBuf::from));
    // An empty path is the configuration of a pod.
    let kubeconfig = kubeconfig.unwrap_or_default();
    let components = Components {
        leader_election: arguments.leader_elect.unwrap_or(configuration.leader_election.leader_elect),
        scheduler: Some(configuration),
        status: Some(status_port(arguments.metrics_bind_address, 10259)),
        ..Components::default()
    };
    cluster::run_alone(&components, &kubeconfig, &Clock::system(), &tasks).await?;
    Ok(ExitCode::SUCCESS)
}
