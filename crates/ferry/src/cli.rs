//! Command-line arguments.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::audit::AuditArgs;
use crate::log_flags::LogArgs;

/// Kubernetes in one binary.
///
/// `ferry up` starts a cluster on this machine; `ferry kubeconfig` makes kubectl use it.
#[derive(Debug, Parser)]
#[command(name = "ferry", version = crate::version::SHORT, propagate_version = false, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    #[command(flatten)]
    pub log: LogArgs,

    /// A set of key=value pairs that describe feature gates for alpha and experimental features.
    #[arg(long, value_name = "GATE=BOOL[,...]", value_delimiter = ',', global = true)]
    pub feature_gates: Vec<String>,

    /// Sample one allocation per this number of bytes from the start, so that `/debug/pprof/heap` has all memory in use;
    /// 524288 is the rate of Kubernetes' components.
    #[arg(long, value_name = "BYTES", global = true)]
    pub heap_profile_rate: Option<usize>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a cluster on this machine: control plane and node.
    #[command(alias = "start")]
    Up(Box<crate::up::UpArgs>),
    /// Stop the cluster that `ferry up` runs; its containers keep running.
    #[command(alias = "stop")]
    Down(crate::up::DownArgs),
    /// Remove a cluster from this machine: its containers, mounts, cgroups, links, packet rules and files.
    Reset(crate::reset::ResetArgs),
    /// Run the control plane without a node.
    Server(crate::serve_flags::ServeArgs),
    /// Run the scheduler alone, against any API server.
    Scheduler(crate::scheduler::SchedulerArgs),
    /// Run the API server alone.
    Apiserver(crate::serve_flags::ServeArgs),
    /// Serve the embedded store alone, with the part of etcd's v3 API that API servers use.
    Etcd(crate::etcd::EtcdArgs),
    /// Run an API server for operator tests, in a temporary directory, until the tests end.
    Envtest(Box<crate::envtest::EnvtestArgs>),
    /// Run a kubectl command; a link named `kubectl` to this binary does the same.
    #[command(disable_help_flag = true)]
    Kubectl(crate::kubectl::KubectlArgs),
    /// Run the controllers alone, against any API server.
    ControllerManager(crate::components::ControllerManagerArgs),
    /// Run the cloud controllers alone, against any API server: nodes, routes and load balancers.
    CloudControllerManager(crate::cloud::CloudControllerManagerArgs),
    /// Run a node alone: the kubelet, with a container runtime such as containerd, against any API server.
    Kubelet(Box<crate::node::KubeletArgs>),
    /// Join this machine to a cluster as a node: kubelet, container runtime, proxy and routes.
    Agent(Box<crate::agent::AgentArgs>),
    /// Show if the cluster runs, its version, nodes and pods.
    Status(crate::status::StatusArgs),
    /// List the nodes of the cluster.
    Nodes(crate::nodes_list::NodesArgs),
    /// Manage the bootstrap tokens that nodes join with.
    Token(crate::token::TokenArgs),
    /// Run the service proxy of this node alone, against any API server.
    Proxy(crate::services::ProxyArgs),
    /// Run cluster DNS alone, against any API server.
    Dns(crate::services::DnsArgs),
    /// Run the server of metrics.k8s.io alone, against any API server.
    MetricsServer(Box<crate::metrics_server::MetricsServerArgs>),
    /// Serve the series of kube-state-metrics alone, against any API server.
    StateMetrics(Box<crate::state_metrics::StateMetricsServerArgs>),
    /// Show the usage of pods and nodes over the last hours, with advice about requests.
    Top(crate::top::TopArgs),
    /// Run simulated nodes, which exist in the API only, to test and measure controllers at scale.
    Simulate(crate::components::SimulateArgs),
    /// Add the cluster to your kubeconfig, or print it.
    Kubeconfig(crate::kubeconfig::KubeconfigArgs),
    /// Write a backup of a running or stopped cluster: its objects and certificates.
    Backup(BackupArgs),
    /// Create a cluster from a backup, in an empty data directory.
    Restore(RestoreArgs),
    /// Search the audit log: who deleted this pod, who scaled that deployment, and why.
    Audit(AuditArgs),
    /// Manage the encryption of secrets and other resources at rest.
    #[command(subcommand)]
    Secrets(crate::secrets::SecretsCommand),
    /// Check if this machine can run a cluster, and print a remedy for each problem.
    Check(crate::check::CheckArgs),
    /// Run the container runtime alone, serving CRI on a socket.
    Runtime(crate::runtime::RuntimeArgs),
    /// Pull, import, list and remove images of the container runtime.
    Images(crate::images::ImagesArgs),
    /// Print version, commit, date and target of this build.
    Version(crate::version::VersionArgs),
    /// Print a completion script for a shell.
    ///
    /// bash: `source <(ferry completion bash)`; zsh: write it to a directory of `fpath` as `_ferry`; fish:
    /// `ferry completion fish | source`.
    Completion(crate::generate::CompletionArgs),
    /// Write the manual pages to a directory.
    #[command(hide = true)]
    Man(crate::generate::ManArgs),
    /// Print the flag reference as Markdown.
    #[command(hide = true)]
    Reference,
}

#[derive(Args, Debug)]
pub struct DataDir {
    /// Data directory: objects, certificates, the administrator's kubeconfig.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/ferry", global = true)]
    pub data_dir: PathBuf,
}

#[derive(Args, Debug)]
pub struct BackupArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Directory to write to; must be empty or not exist.
    pub target: PathBuf,
}

#[derive(Args, Debug)]
pub struct RestoreArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Directory written by `ferry backup`.
    pub source: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::time::Duration;

    #[test]
    fn clap_definition_passes_debug_assert() {
        Cli::command().debug_assert();
    }

    #[test]
    fn invalid_flag_value_returns_descriptive_error() {
        let cases = [
            (&["--listen", "nowhere"][..], "nowhere"),
            (&["--store", "paper"], "paper"),
            (&["--store", "etcd"], "--etcd-endpoints"),
            (&["--service-cluster-ip-range", "10.0.0.0/40"], "10.0.0.0/40"),
            (&["--request-timeout", "soon"], "soon"),
            (&["--tls-cert-file", "x"], "--tls-private-key-file"),
            (&["--no-such-flag"], "--no-such-flag"),
        ];
        for (arguments, want) in cases {
            let line = ["ferry", "apiserver"].into_iter().chain(arguments.iter().copied());
            let error = Cli::try_parse_from(line).expect_err("refused").to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn kubernetes_flag_syntax_is_accepted() {
        let line = ["ferry", "apiserver", "--anonymous-auth=false", "--v=3", "--request-timeout=90s"];
        let cli = Cli::try_parse_from(line).expect("parses");
        assert_eq!(cli.log.verbosity, Some(3));
        let Command::Apiserver(arguments) = cli.command else { panic!("another command") };
        assert_eq!(arguments.anonymous_auth, Some(false));
        assert_eq!(arguments.request_timeout, Duration::from_secs(90));
    }
}
