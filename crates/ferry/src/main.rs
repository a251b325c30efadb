//! The `ferry` binary: parse, build, run, drain.

mod agent;
mod audit;
mod audit_flags;
mod audit_webhook_flags;
mod check;
mod cli;
mod cloud;
mod components;
mod controller_flags;
mod end_pods;
mod envtest;
mod etcd;
mod etcd_flags;
mod flags;
mod generate;
mod images;
mod kubeconfig;
mod kubectl;
mod kubelet_file;
mod kubernetes_flags;
mod log_flags;
mod mark;
mod memory;
mod node;
mod nodes;
mod oidc_flags;
mod outbound_files;
mod reset;
mod runtime;
mod scheduler;
mod secrets;
mod serve;
mod services;
mod serving_flags;
mod signing_flags;
mod token;
mod traces;
mod up;
mod upkeep_flags;
mod upstream_flags;
mod version;

use std::process::ExitCode;

use anyhow::{Context, Result};
use base::features::FeatureGates;
use clap::Parser;

use cli::{Cli, Command};
use upstream_flags::CommandLine;

fn main() -> ExitCode {
    memory::return_at_once();
    // Huge pages would be mostly empty: without them an idle cluster has half the memory.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // What this binary is executed again for by itself comes before anything costs time or memory.
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some(container::shim::SUBCOMMAND) => return container::shim::main(),
        Some(container::network::SUBCOMMAND) => return network::cni::main(),
        _ => {}
    }
    if let Some(words) = kubectl::words(std::env::args_os()) {
        return kubectl::main(words);
    }
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => {
            eprintln!("ferry: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    // Namespaces are entered while there is one thread.
    let entered = match &cli.command {
        Command::Agent(arguments) => {
            arguments.network_namespace.as_deref().map_or(Ok(()), agent::enter_namespace)
        }
        _ => Ok(()),
    };
    let outcome = entered.and_then(|()| run(cli));
    base::logging::flush();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ferry: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The command line; what the configuration file of a kubelet says, and of a proxy about logging, counts as flags.
fn parse() -> Result<Cli> {
    let CommandLine { mut words, warnings } = CommandLine::new(std::env::args_os());
    let cli = Cli::parse_from(&words);
    for warning in warnings {
        eprintln!("ferry: {warning}");
    }
    let said = match &cli.command {
        Command::Kubelet(kubelet) => kubelet.config.as_deref().map(|file| kubelet_file::read(file, &words)),
        Command::Proxy(proxy) => proxy.config.as_deref().map(|file| kubelet_file::read_logging(file, &words)),
        _ => None,
    };
    let Some(said) = said.transpose().context("--config")? else {
        set_features(&cli)?;
        return Ok(cli);
    };
    if !said.without_effect.is_empty() {
        eprintln!("ferry: --config: without effect here: {}", said.without_effect.join(", "));
    }
    words.extend(said.flags);
    let cli = Cli::parse_from(words);
    set_features(&cli)?;
    Ok(cli)
}

/// Sets the feature gates of the process.
fn set_features(cli: &Cli) -> Result<()> {
    let gates =
        FeatureGates::parse(cli.feature_gates.iter().map(String::as_str)).context("--feature-gates")?;
    let without_effect = gates.without_effect();
    if !without_effect.is_empty() {
        eprintln!("ferry: --feature-gates: without effect here: {}", without_effect.join(", "));
    }
    api::pod_spec::disabled::set_cluster_trust_bundles(gates.enabled("ClusterTrustBundleProjection"));
    gates.install();
    Ok(())
}

fn run(cli: Cli) -> Result<ExitCode> {
    // The output of `ferry up` and of tests is read in a terminal: no line per request.
    let quiet = matches!(cli.command, Command::Up(_) | Command::Envtest(_));
    base::logging::init(cli.log.settings(u32::from(!quiet))?).context("starting the log")?;
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
        Command::Token(arguments) => on_runtime(token::run(arguments)),
        Command::Proxy(arguments) => on_runtime(services::proxy(arguments)),
        Command::Dns(arguments) => on_runtime(services::dns(arguments)),
        Command::Simulate(arguments) => on_runtime(components::simulate(arguments)),
        Command::Backup(arguments) => on_runtime(async {
            let revision = cluster::backup(&arguments.data_dir.data_dir, &arguments.target).await?;
            println!("backup of revision {revision} in {}", arguments.target.display());
            Ok(ExitCode::SUCCESS)
        }),
        Command::Restore(arguments) => on_runtime(async {
            let revision = cluster::restore(&arguments.source, &arguments.data_dir.data_dir).await?;
            println!(
                "restored to {}; revisions continue after {revision}",
                arguments.data_dir.data_dir.display()
            );
            Ok(ExitCode::SUCCESS)
        }),
    }
}

/// Room on a thread's stack. A request inside the process is answered on the asker's stack, and unoptimised builds keep
/// a lot there; what is not touched costs nothing.
const STACK: usize = 8 << 20;

/// One worker thread per core.
pub(crate) fn on_runtime(command: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    memory::return_later();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("ferry")
        .thread_stack_size(STACK)
        .on_thread_park(memory::return_if_due)
        .build()
        .context("starting the async runtime")?;
    let outcome = runtime.block_on(command);
    // A blocking task that hangs must not keep the process from ending.
    runtime.shutdown_background();
    outcome
}
