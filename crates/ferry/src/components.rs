//! Components that run alone, as clients of any API server.

use std::process::ExitCode;

use anyhow::{Context, Result};
use base::clock::Clock;
use base::tasks::TaskGroup;
use cluster::{Components, Fleet};

use crate::cli::{ControllerManagerArgs, SimulateArgs};
use crate::serve::stop_on_signal;

/// `ferry controller-manager`.
pub async fn controller_manager(arguments: ControllerManagerArgs) -> Result<ExitCode> {
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    let mut components = Components {
        controllers: arguments.controllers,
        leader_election: arguments.leader_elect,
        cluster_cidrs: arguments.cluster_cidr,
        ..Components::default()
    };
    if let Some(file) = arguments.root_ca_file {
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        components.settings.root_ca = Some(text);
    }
    cluster::run_alone(&components, &arguments.kubeconfig, &Clock::system(), &tasks).await?;
    Ok(ExitCode::SUCCESS)
}

/// `ferry simulate`.
pub async fn simulate(arguments: SimulateArgs) -> Result<ExitCode> {
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    let fleet = Fleet {
        nodes: arguments.nodes,
        prefix: arguments.prefix,
        pods_per_node: arguments.pods_per_node,
        cpu: arguments.cpu,
        memory: arguments.memory,
        zones: arguments.zones,
        run_time: arguments.run_time,
    };
    cluster::run_simulation(fleet, &arguments.kubeconfig, &Clock::system(), &tasks).await?;
    Ok(ExitCode::SUCCESS)
}
