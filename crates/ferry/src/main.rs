//! The `ferry` binary: parse, build, run, drain.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod agent;
mod audit;
mod audit_flags;
mod audit_webhook_flags;
mod autoscaler_flags;
mod check;
mod claims;
mod cli;
mod cloud;
mod components;
mod controller_flags;
mod data_dir_lock;
mod envtest;
mod etcd;
mod etcd_flags;
mod failure;
mod flags;
mod flagz;
mod generate;
mod housekeeping_flags;
mod images;
mod kubeconfig;
mod kubectl;
mod kubelet_file;
mod kubernetes_flags;
mod log_flags;
mod machine_record;
mod memory;
mod metrics_flags;
mod metrics_server;
mod node;
mod nodes;
mod nodes_list;
mod oidc_flags;
mod outbound_files;
mod output;
mod registration_flags;
mod reset;
mod runtime;
mod scheduler;
mod secrets;
mod serve;
mod serve_flags;
mod services;
mod serving_flags;
mod short_help;
mod signing_flags;
mod state_metrics;
mod status;
mod stop_pods;
mod token;
mod top;
mod tracing_flags;
mod up;
mod upstream_flags;
mod upstream_node_flags;
mod upstream_version;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, Result};
use base::features::FeatureGates;
use clap::{CommandFactory, FromArgMatches};
use rustix::process::geteuid;

use cli::{Cli, Command};
use upstream_flags::CommandLine;
use upstream_version::VersionRequest;

fn main() -> ExitCode {
    memory::return_immediately();
    // Huge pages would be mostly empty: disabling them halves the memory of an idle cluster.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // Re-executions of this binary are handled before anything costs time or memory.
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some(container::shim::SUBCOMMAND) => return container::shim::main(),
        Some(container::network::SUBCOMMAND) => return network::cni::main(),
        _ => {}
    }
    base::version::set_build(version::BUILD);
    if let Some(words) = kubectl::words(std::env::args_os()) {
        return kubectl::main(words);
    }
    let line = CommandLine::new(std::env::args_os());
    match line.version {
        Ok(None) => {}
        Ok(Some(VersionRequest::Report(ref version))) => base::version::set_reported(version.clone()),
        Ok(Some(VersionRequest::Print(text))) => {
            println!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("ferry: {error}");
            return ExitCode::FAILURE;
        }
    }
    let cli = match parse(line) {
        Ok(cli) => cli,
        Err(error) => {
            eprintln!("ferry: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    // Namespaces must be entered while the process is single-threaded.
    let entered = match &cli.command {
        Command::Agent(arguments) => arguments
            .network_namespace
            .as_deref()
            .map_or(Ok(()), |path| agent::enter_namespace(path, arguments.node.hostname_override.as_deref())),
        _ => Ok(()),
    };
    let outcome = entered.and_then(|()| run(cli));
    base::logging::flush();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ferry: {}", failure::message(&error));
            if let Some(advice) = failure::advice(&error, geteuid().is_root()) {
                eprintln!("ferry: {advice}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Parses the command line; the kubelet's configuration file and the proxy's logging settings are merged as flags.
fn parse(CommandLine { mut words, warnings, .. }: CommandLine) -> Result<Cli> {
    let cli = parsed(&words, |_| None);
    for warning in warnings {
        eprintln!("ferry: {warning}");
    }
    let from_file = match &cli.command {
        Command::Kubelet(kubelet) => kubelet.config.as_deref().map(|file| kubelet_file::read(file, &words)),
        Command::Proxy(proxy) => proxy.config.as_deref().map(|file| kubelet_file::read_logging(file, &words)),
        _ => None,
    };
    let Some(from_file) = from_file.transpose().context("--config")? else {
        set_features(&cli)?;
        return Ok(cli);
    };
    if !from_file.without_effect.is_empty() {
        eprintln!("ferry: --config: no effect in this version: {}", from_file.without_effect.join(", "));
    }
    words.extend(from_file.flags);
    let cli = parsed(&words, kubelet_file::field_of);
    set_features(&cli)?;
    Ok(cli)
}

/// Parses words and keeps the flags for `/flagz`. Prints usage and exits on errors; `field_of` returns the field of the
/// configuration file that an error is about.
fn parsed(words: &[OsString], field_of: fn(&clap::Error) -> Option<String>) -> Cli {
    let mut command = short_help::shorten(Cli::command());
    let matches = command.try_get_matches_from_mut(words.iter().cloned());
    let mut matches = matches.unwrap_or_else(|error| {
        if let Some(field) = field_of(&error) {
            eprintln!("ferry: --config: invalid field {field}");
        }
        error.exit()
    });
    flagz::set(&command, &matches);
    Cli::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// Sets the feature gates of the process.
fn set_features(cli: &Cli) -> Result<()> {
    let gates =
        FeatureGates::parse(cli.feature_gates.iter().map(String::as_str)).context("--feature-gates")?;
    let without_effect = gates.without_effect();
    if !without_effect.is_empty() {
        eprintln!("ferry: --feature-gates: no effect in this version: {}", without_effect.join(", "));
    }
    api::pod_spec::disabled::set_cluster_trust_bundles(gates.enabled("ClusterTrustBundleProjection"));
    gates.install();
    Ok(())
}

fn run(cli: Cli) -> Result<ExitCode> {
    // The output of `ferry up` and of tests is read in a terminal: no line per request.
    let quiet = matches!(cli.command, Command::Up(_) | Command::Envtest(_));
    base::logging::init(cli.log.settings(u32::from(!quiet))?).context("failed to start logging")?;
    if let Some(rate) = cli.heap_profile_rate {
        memory::enable_heap_profiles();
        base::profile::heap::record_continuously(rate).context("--heap-profile-rate")?;
    }
    match cli.command {
        Command::Version(arguments) => Ok(version::run(&arguments)),
        Command::Completion(arguments) => generate::completion(&arguments),
        Command::Man(arguments) => generate::man(&arguments),
        Command::Reference => generate::reference(),
        Command::Kubectl(arguments) => Ok(kubectl::main(arguments.words)),
        Command::Kubeconfig(arguments) => kubeconfig::run(&arguments),
        Command::Audit(arguments) => audit::run(&arguments),
        Command::Secrets(command) => secrets::run(command),
        Command::Check(arguments) => check::run(&arguments),
        Command::Runtime(arguments) => on_runtime(runtime::run(arguments)),
        Command::Images(arguments) => on_runtime(images::run(arguments)),
        Command::Up(arguments) => on_runtime(up::run(*arguments)),
        Command::Down(arguments) => on_runtime(up::down(arguments)),
        Command::Reset(arguments) => on_runtime(reset::run(arguments)),
        Command::Scheduler(arguments) => on_runtime(scheduler::run(arguments)),
        Command::Server(arguments) => on_runtime(serve::run(arguments, serve::Role::Server)),
        Command::Apiserver(arguments) => on_runtime(serve::run(arguments, serve::Role::ApiServer)),
        Command::Etcd(arguments) => on_runtime(etcd::run(arguments)),
        Command::Envtest(arguments) => on_runtime(envtest::run(*arguments)),
        Command::ControllerManager(arguments) => on_runtime(components::controller_manager(arguments)),
        Command::CloudControllerManager(arguments) => on_runtime(cloud::run(arguments)),
        Command::Kubelet(arguments) => on_runtime(node::kubelet(*arguments)),
        Command::Agent(arguments) => on_runtime(agent::run(*arguments)),
        Command::Status(arguments) => on_runtime(status::run(arguments)),
        Command::Nodes(arguments) => Ok(nodes_list::run(arguments)),
        Command::Token(arguments) => on_runtime(token::run(arguments)),
        Command::Proxy(arguments) => on_runtime(services::proxy(arguments)),
        Command::Dns(arguments) => on_runtime(services::dns(arguments)),
        Command::MetricsServer(arguments) => on_one_thread(metrics_server::run(*arguments)),
        Command::StateMetrics(arguments) => on_runtime(state_metrics::run(*arguments)),
        Command::Top(arguments) => on_runtime(top::run(arguments)),
        Command::Simulate(arguments) => on_runtime(components::simulate(arguments)),
        Command::Backup(arguments) => on_runtime(async {
            let revision = cluster::backup(&arguments.data_dir.data_dir, &arguments.target).await?;
            println!("backup of revision {revision} in {}", arguments.target.display());
            Ok(ExitCode::SUCCESS)
        }),
        Command::Restore(arguments) => on_runtime(async {
            let revision = cluster::restore(&arguments.source, &arguments.data_dir.data_dir).await?;
            println!(
                "restored to {0}; revisions continue after {revision}. Start it with: ferry up --data-dir {0}",
                arguments.data_dir.data_dir.display()
            );
            Ok(ExitCode::SUCCESS)
        }),
    }
}

/// Stack size of a thread. In-process requests are served on the caller's stack, and debug builds use a lot of it;
/// untouched pages cost nothing.
const STACK: usize = 8 << 20;

/// Runs a command on one worker thread per core.
pub(crate) fn on_runtime(command: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    run_on(tokio::runtime::Builder::new_multi_thread(), command)
}

/// Runs a command with little work on one thread: no wakeups of other threads, and one heap.
fn on_one_thread(command: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    run_on(tokio::runtime::Builder::new_current_thread(), command)
}

fn run_on(
    mut builder: tokio::runtime::Builder,
    command: impl Future<Output = Result<ExitCode>>,
) -> Result<ExitCode> {
    memory::return_later();
    memory::enable_heap_profiles();
    let runtime = builder
        .enable_all()
        .thread_name("ferry")
        .thread_stack_size(STACK)
        .on_thread_park(memory::return_if_due)
        .build()
        .context("failed to start the async runtime")?;
    let outcome = runtime.block_on(command);
    // A blocked task must not delay the exit.
    runtime.shutdown_background();
    outcome
}
