//! `ferry scheduler`: the scheduler alone, as a client of any API server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use base::clock::Clock;
use base::tasks::TaskGroup;
use clap::Args;
use cluster::{Components, SchedulerConfiguration};

use crate::serve::stop_on_signal;

#[derive(Args, Debug)]
pub struct SchedulerArgs {
    /// Path to kubeconfig file with authorization and master location information [default:
    /// `clientConnection.kubeconfig` of `--config`, or the configuration of the pod in which it runs].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The path to the configuration file: a KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Start a leader election client and gain leadership before executing the main loop [default: the value in
    /// `--config`, or true].
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub leader_elect: Option<bool>,

    #[command(flatten)]
    pub secure_port: crate::components::SecurePortArgs,
}

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
