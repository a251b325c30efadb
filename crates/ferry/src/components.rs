//! Components that run alone, as clients of any API server.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use anyhow::{Context, Result};
use base::clock::Clock;
use base::tasks::TaskGroup;
use cluster::{Components, Fleet, StatusPort};

use crate::cli::{ControllerManagerArgs, SimulateArgs};
use crate::serve::stop_on_signal;

/// Where a component tells how it does: where it is told to, or at its usual port if nobody else has that.
pub fn status_port(asked: Option<SocketAddr>, usual: u16) -> StatusPort {
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, usual));
    StatusPort { address: asked.unwrap_or(usual), needed: asked.is_some() }
}

/// Adds the controllers that feature gates switch on, where all controllers run.
pub fn add_gated(controllers: &mut Vec<String>) {
    let name = "storage-version-migrator-controller";
    let wanted = controllers.iter().any(|one| one == "*") && !controllers.contains(&format!("-{name}"));
    if wanted && base::features::enabled("StorageVersionMigrator") {
        controllers.push(name.to_owned());
    }
}

/// `ferry controller-manager`.
pub async fn controller_manager(arguments: ControllerManagerArgs) -> Result<ExitCode> {
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    let mut components = Components {
        controllers: arguments.controllers,
        leader_election: arguments.leader_elect,
        cluster_cidrs: arguments.cluster_cidr,
        service_account_credentials: arguments.use_service_account_credentials,
        status: Some(status_port(arguments.metrics_bind_address, 10257)),
        ..Components::default()
    };
    add_gated(&mut components.controllers);
    arguments.controller.apply(&mut components)?;
    let read = |file: &std::path::Path| {
        std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
    };
    components.settings.root_ca = arguments.root_ca_file.as_deref().map(read).transpose()?;
    arguments.signing.apply(&mut components)?;
    if let Some(file) = arguments.service_account_private_key_file {
        let root_ca = components.settings.root_ca.clone().unwrap_or_default();
        components.legacy_tokens = Some(cluster::legacy_tokens(&file, root_ca)?);
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
