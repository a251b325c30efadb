//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::audit::AuditArgs;
use crate::etcd_flags;
use crate::flags::{parse_cidrs, parse_duration, parse_listen, parse_ports};
use crate::kubernetes_flags::KubernetesArgs;
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
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a cluster on this machine: control plane and node.
    Up(Box<crate::up::UpArgs>),
    /// Stop the cluster that `ferry up` runs; its containers go on.
    Down(crate::up::DownArgs),
    /// Remove a cluster from this machine: its containers, mounts, control groups, links, packet rules and files.
    Reset(crate::reset::ResetArgs),
    /// Run the control plane without a node.
    Server(ServeArgs),
    /// Run the scheduler alone, against any API server.
    Scheduler(SchedulerArgs),
    /// Run the API server alone.
    Apiserver(ServeArgs),
    /// Serve the embedded store alone, by the part of etcd's v3 API that API servers use.
    Etcd(crate::etcd::EtcdArgs),
    /// Run an API server for tests of operators: in a temporary directory, until the tests end.
    Envtest(Box<crate::envtest::EnvtestArgs>),
    /// Control a cluster by the verbs of kubectl, as a link named `kubectl` to this binary does.
    #[command(disable_help_flag = true)]
    Kubectl(crate::kubectl::KubectlArgs),
    /// Run the controllers alone, against any API server.
    ControllerManager(ControllerManagerArgs),
    /// Run the loops of a cloud alone, against any API server: its nodes, routes and load balancers.
    CloudControllerManager(crate::cloud::CloudControllerManagerArgs),
    /// Run a node alone: the kubelet, with a container runtime such as containerd, against any API server.
    Kubelet(Box<crate::node::KubeletArgs>),
    /// Join this machine to a cluster as a node: kubelet, container runtime, proxy and routes.
    Agent(Box<crate::agent::AgentArgs>),
    /// Tokens by which nodes join.
    Token(crate::token::TokenArgs),
    /// Serve services on this node, alone, against any API server.
    Proxy(crate::services::ProxyArgs),
    /// Serve the cluster's names, alone, against any API server.
    Dns(crate::services::DnsArgs),
    /// Run nodes that exist in the API only, to test and measure loops at scale.
    Simulate(SimulateArgs),
    /// Add the cluster to your kubeconfig, or print it.
    Kubeconfig(KubeconfigArgs),
    /// Write a backup of a cluster, running or stopped: its objects and its certificates.
    Backup(BackupArgs),
    /// Make a cluster out of a backup, in an empty data directory.
    Restore(RestoreArgs),
    /// Ask who did something, and why: who deleted this pod, who scaled that deployment.
    Audit(AuditArgs),
    /// What concerns the encryption of secrets, and of whatever else is encrypted at rest.
    #[command(subcommand)]
    Secrets(SecretsCommand),
    /// Look whether this machine is fit to run a cluster, and say what to do where it is not.
    Check(CheckArgs),
    /// Run the container runtime alone; it serves CRI on a socket.
    Runtime(RuntimeArgs),
    /// Pull, import, list and remove images of the container runtime.
    Images(ImagesArgs),
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
pub struct RuntimeArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// The socket to serve CRI on; by default `runtime.sock` in the data directory.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Address ranges of pods on this node, until the kubelet says others.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    pub pod_cidr: Vec<String>,

    /// Network configurations; without one the built-in network is used.
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub cni_conf_dir: PathBuf,

    /// Where network plugins are.
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub cni_bin_dir: PathBuf,

    /// Mirrors, credentials and trust for registries.
    #[arg(long, value_name = "FILE", default_value = "/etc/ferry/registries.yaml")]
    pub registries: PathBuf,
}

#[derive(Args, Debug)]
pub struct ImagesArgs {
    #[command(subcommand)]
    pub verb: ImagesVerb,

    #[command(flatten)]
    pub data_dir: DataDir,

    /// The runtime's socket; by default `runtime.sock` in the data directory.
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum ImagesVerb {
    /// Import images from an archive, as `docker save` writes it or in the OCI layout.
    Import { archive: PathBuf },
    /// Pull an image from its registry.
    Pull {
        image: String,
        /// Who asks; the password comes on standard input.
        #[arg(long, value_name = "NAME")]
        username: Option<String>,
    },
    /// List images.
    List,
    /// Remove images.
    Remove { images: Vec<String> },
}

#[derive(Args, Debug)]
pub struct DataDir {
    /// Where the cluster keeps its state: objects, certificates, the administrator's kubeconfig.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/ferry", global = true)]
    pub data_dir: PathBuf,
}

#[derive(Args, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Address and port of the API; port 0 takes a free one and prints it.
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:6443", value_parser = parse_listen)]
    pub listen: SocketAddr,

    /// The IP address on which to listen for the `--secure-port` port.
    #[arg(long, value_name = "IP", conflicts_with = "listen")]
    pub bind_address: Option<std::net::IpAddr>,

    /// The port on which to serve HTTPS with authentication and authorization.
    #[arg(long, value_name = "PORT", conflicts_with = "listen")]
    pub secure_port: Option<u16>,

    /// The address other machines and pods reach the API at; found out if not given.
    #[arg(long, value_name = "IP")]
    pub advertise_address: Option<std::net::IpAddr>,

    /// The cluster's domain.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,

    /// Parts not to run: dns, network-policy, proxy, routes.
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',',
          value_parser = ["dns", "network-policy", "proxy", "routes"])]
    pub disable: Vec<String>,

    /// Size limit of the embedded store in bytes; beyond it, writes other than deletes are refused.
    #[arg(long, value_name = "BYTES", default_value_t = cluster::DEFAULT_QUOTA_BYTES,
          value_parser = clap::value_parser!(u64).range(1..), help_heading = "Store")]
    pub quota_backend_bytes: u64,

    /// Store of the objects [default: embedded, or etcd if `--etcd-servers` is given].
    #[arg(long, value_name = "STORE", help_heading = "Store")]
    pub store: Option<StoreKind>,

    /// Members of the etcd cluster (also `--etcd-servers`).
    #[arg(
        long,
        value_name = "URL[,URL...]",
        value_delimiter = ',',
        alias = "etcd-servers",
        required_if_eq("store", "etcd"),
        help_heading = "Store"
    )]
    pub etcd_endpoints: Vec<String>,

    /// The prefix to prepend to all resource paths in etcd.
    #[arg(long, value_name = "PATH", default_value = "/registry", value_parser = etcd_flags::parse_prefix,
          requires = "etcd_endpoints", help_heading = "Store")]
    pub etcd_prefix: String,

    /// Per-resource etcd servers overrides, comma separated. The individual override format: group/resource#servers,
    /// where servers are URLs, semicolon separated.
    #[arg(long, value_name = "OVERRIDE[,...]", value_delimiter = ',', value_parser = etcd_flags::parse_override,
          requires = "etcd_endpoints", help_heading = "Store")]
    pub etcd_servers_overrides: Vec<cluster::EtcdOverride>,

    /// Authority of the members' certificates.
    #[arg(long, value_name = "FILE", requires = "etcd_endpoints", help_heading = "Store")]
    pub etcd_cafile: Option<PathBuf>,

    /// Client certificate for etcd.
    #[arg(
        long,
        value_name = "FILE",
        requires = "etcd_keyfile",
        requires = "etcd_cafile",
        help_heading = "Store"
    )]
    pub etcd_certfile: Option<PathBuf>,

    /// Key of `--etcd-certfile`.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile", help_heading = "Store")]
    pub etcd_keyfile: Option<PathBuf>,

    /// Address ranges of services; the first address of the first range is the API server's, the tenth the name
    /// service's [default: 10.96.0.0/12, of an API server alone 10.0.0.0/16].
    #[arg(long, value_name = "CIDR[,CIDR]", value_parser = parse_cidrs, help_heading = "API server")]
    pub service_cluster_ip_range: Option<crate::flags::Cidrs>,

    /// Ports that services of type NodePort get.
    #[arg(long, value_name = "PORT-PORT", default_value = "30000-32767", value_parser = parse_ports, help_heading = "API server")]
    pub service_node_port_range: (u16, u16),

    /// Reading requests served at once; more are told to come back.
    #[arg(long, value_name = "N", default_value_t = 400, help_heading = "API server")]
    pub max_requests_inflight: usize,

    /// Writing requests served at once; more are told to come back.
    #[arg(long, value_name = "N", default_value_t = 200, help_heading = "API server")]
    pub max_mutating_requests_inflight: usize,

    /// How long a request may take, watches and streams aside.
    #[arg(long, value_name = "DURATION", default_value = "1m0s", value_parser = parse_duration, help_heading = "API server")]
    pub request_timeout: Duration,

    /// Serves requests without credentials as `system:anonymous` instead of refusing them; true unless said
    /// otherwise. Not with an `anonymous` block in the authentication configuration.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "API server")]
    pub anonymous_auth: Option<bool>,

    /// A file of tokens: lines of `token,user,uid[,"group1,group2"]`.
    #[arg(long, value_name = "FILE", help_heading = "API server")]
    pub token_auth_file: Option<PathBuf>,

    /// Whether bootstrap tokens, kept as secrets in kube-system, are accepted.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "API server")]
    pub enable_bootstrap_token_auth: bool,

    /// Who issues service account tokens; the first one signs, all are accepted.
    #[arg(long, value_name = "URL", help_heading = "API server")]
    pub service_account_issuer: Vec<String>,

    /// Whom tokens for this server are meant for; by default the issuers.
    #[arg(long, value_name = "AUDIENCE", value_delimiter = ',', help_heading = "API server")]
    pub api_audiences: Vec<String>,

    /// Where the keys of service account tokens are said to be; by default at this server.
    #[arg(long, value_name = "URL", help_heading = "API server")]
    pub service_account_jwks_uri: Option<String>,

    /// The controllers to run: `*` is all that run by default, `name` that one, `-name` not that one.
    #[arg(
        long,
        value_name = "NAME[,NAME]",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true,
        help_heading = "Controllers"
    )]
    pub controllers: Vec<String>,

    /// Ranges of pod addresses; nodes get their part of each.
    #[arg(
        long,
        value_name = "CIDR[,CIDR]",
        value_delimiter = ',',
        default_value = "10.244.0.0/16",
        help_heading = "Controllers"
    )]
    pub cluster_cidr: Vec<String>,

    /// Where services of type LoadBalancer get addresses from: `nodes`, ranges such as `192.0.2.10-192.0.2.20` that a
    /// node answers for, or `none` if somebody else gives them.
    #[arg(
        long,
        value_name = "nodes|none|RANGE[,RANGE]",
        value_delimiter = ',',
        default_value = "nodes",
        help_heading = "Controllers"
    )]
    pub load_balancers: Vec<String>,

    /// A KubeSchedulerConfiguration, version kubescheduler.config.k8s.io/v1: profiles, plugins, extenders.
    #[arg(long, value_name = "FILE", help_heading = "Controllers")]
    pub scheduler_config: Option<PathBuf>,

    /// Longest life of a service account token.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "API server")]
    pub service_account_max_token_expiration: Option<Duration>,

    /// Whether tokens of pods live longer than asked for, for clients that do not read them again.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "API server")]
    pub service_account_extend_token_expiration: bool,

    #[command(flatten)]
    pub kubernetes: KubernetesArgs,

    #[command(flatten)]
    pub outbound: crate::outbound_files::OutboundArgs,

    #[command(flatten)]
    pub serving: crate::serving_flags::ServingArgs,

    /// An EncryptionConfiguration: which resources are encrypted in the store, and how; by default secrets are, with a
    /// key that the cluster makes for itself.
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    pub encryption_provider_config: Option<PathBuf>,

    /// Whether changes of `--encryption-provider-config` count while running.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "Store")]
    pub encryption_provider_config_automatic_reload: bool,

    /// Authorities of client certificates, besides the cluster's own.
    #[arg(long, value_name = "FILE", help_heading = "Certificates")]
    pub client_ca_file: Option<PathBuf>,

    /// Authorities of front proxies, besides the cluster's own.
    #[arg(long, value_name = "FILE", help_heading = "Certificates")]
    pub requestheader_client_ca_file: Option<PathBuf>,

    /// The directory where the TLS certs are located: `apiserver.crt` and `apiserver.key`, if they are there. If
    /// `--tls-cert-file` and `--tls-private-key-file` are provided, this flag will be ignored.
    #[arg(long, value_name = "DIR", help_heading = "Certificates")]
    pub cert_dir: Option<PathBuf>,

    /// Serving certificate to use instead of the cluster's own; reloaded when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file", help_heading = "Certificates")]
    pub tls_cert_file: Option<PathBuf>,

    /// Key of `--tls-cert-file`.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file", help_heading = "Certificates")]
    pub tls_private_key_file: Option<PathBuf>,

    /// How long requests in flight may take to finish after a signal to stop; a second signal ends at once.
    #[arg(long, value_name = "DURATION", default_value = "1m0s", value_parser = parse_duration)]
    pub shutdown_grace: Duration,
}

#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// How to reach the API server.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,

    /// How many nodes.
    #[arg(long, value_name = "N")]
    pub nodes: usize,

    /// Pods a node takes.
    #[arg(long, value_name = "N", default_value_t = 110)]
    pub pods_per_node: u32,

    /// CPUs of a node.
    #[arg(long, value_name = "QUANTITY", default_value = "32")]
    pub cpu: String,

    /// Memory of a node.
    #[arg(long, value_name = "QUANTITY", default_value = "256Gi")]
    pub memory: String,

    /// Zones the nodes are spread over.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub zones: usize,

    /// What the nodes' names begin with.
    #[arg(long, value_name = "TEXT", default_value = "sim-")]
    pub prefix: String,

    /// How long pods take that are meant to end.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub run_time: Duration,
}

#[derive(Args, Debug)]
pub struct ControllerManagerArgs {
    /// Path to kubeconfig file with authorization and master location information [default: the configuration of the
    /// pod in which it runs].
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub kubeconfig: PathBuf,

    /// The controllers to run: `*` is all that run by default, `name` that one, `-name` not that one.
    #[arg(
        long,
        value_name = "NAME[,NAME]",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    pub controllers: Vec<String>,

    /// Whether to wait for a lease before acting, so that of several managers one acts.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub leader_elect: bool,

    /// Ranges of pod addresses; nodes get their part of each.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,

    /// The authority that vouches for the API server: what pods find as `kube-root-ca.crt`.
    #[arg(long, value_name = "FILE")]
    pub root_ca_file: Option<PathBuf>,

    /// Whether each controller is a service account of its own, whose rights are all it has; else all of them are whom
    /// the kubeconfig says.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub use_service_account_credentials: bool,

    /// The private key that signs tokens kept in secrets.
    #[arg(long, value_name = "FILE")]
    pub service_account_private_key_file: Option<PathBuf>,

    #[command(flatten)]
    pub signing: crate::signing_flags::SigningArgs,

    /// Where `/healthz` and `/metrics` are served, in plain HTTP [default: 127.0.0.1:10257, if it is free].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_bind_address: Option<std::net::SocketAddr>,

    #[command(flatten)]
    pub controller: crate::controller_flags::ControllerArgs,
}

#[derive(Args, Debug)]
pub struct SchedulerArgs {
    /// Path to kubeconfig file with authorization and master location information [default:
    /// `clientConnection.kubeconfig` of `--config`, or the configuration of the pod in which it runs].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// A KubeSchedulerConfiguration, version kubescheduler.config.k8s.io/v1.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Whether to wait for a lease before acting, so that of several schedulers one acts [default: as `--config` says,
    /// or true].
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub leader_elect: Option<bool>,

    /// Where `/healthz` and `/metrics` are served, in plain HTTP [default: 127.0.0.1:10259, if it is free].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_bind_address: Option<std::net::SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    /// In the data directory.
    Embedded,
    /// In an etcd cluster.
    Etcd,
}

#[derive(Args, Debug)]
pub struct KubeconfigArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Print the kubeconfig instead of merging it.
    #[arg(long)]
    pub print: bool,

    /// The file to merge into; by default the first one of $KUBECONFIG, or ~/.kube/config.
    #[arg(long, value_name = "FILE", conflicts_with = "print")]
    pub into: Option<PathBuf>,

    /// The name of cluster and context in that file.
    #[arg(long, value_name = "NAME", default_value = "ferry")]
    pub name: String,
}

#[derive(Args, Debug)]
pub struct BackupArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// The directory to write to; it must not exist, or be empty.
    pub target: PathBuf,
}

#[derive(Args, Debug)]
pub struct RestoreArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// The directory `ferry backup` wrote.
    pub source: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum SecretsCommand {
    /// Write all objects of a resource again, so that the key in use now encrypts them. The server has to run.
    Reencrypt(ReencryptArgs),
    /// Add a new key to the cluster's own encryption configuration; it writes from then on, older keys still read.
    RotateKey(RotateKeyArgs),
}

#[derive(Args, Debug)]
pub struct ReencryptArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// How to reach the server; by default the administrator's kubeconfig in the data directory.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The resources to write again, such as `secrets` or `ingresses.networking.k8s.io`.
    #[arg(value_name = "RESOURCE", default_value = "secrets")]
    pub resources: Vec<String>,
}

#[derive(Args, Debug)]
pub struct RotateKeyArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// The configuration to add the key to; by default the cluster's own.
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// The address the API will be served at.
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:6443", value_parser = parse_listen)]
    pub listen: SocketAddr,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bad_values_are_refused_with_what_is_wrong() {
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
    fn kubernetes_ways_to_write_flags_work() {
        let line = ["ferry", "apiserver", "--anonymous-auth=false", "--v=3", "--request-timeout=90s"];
        let cli = Cli::try_parse_from(line).expect("parses");
        assert_eq!(cli.log.verbosity, Some(3));
        let Command::Apiserver(arguments) = cli.command else { panic!("another command") };
        assert_eq!(arguments.anonymous_auth, Some(false));
        assert_eq!(arguments.request_timeout, Duration::from_secs(90));
    }
}
