//! Command-line arguments.

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
    /// Stop the cluster that `ferry up` runs; its containers keep running.
    Down(crate::up::DownArgs),
    /// Remove a cluster from this machine: its containers, mounts, cgroups, links, packet rules and files.
    Reset(crate::reset::ResetArgs),
    /// Run the control plane without a node.
    Server(ServeArgs),
    /// Run the scheduler alone, against any API server.
    Scheduler(SchedulerArgs),
    /// Run the API server alone.
    Apiserver(ServeArgs),
    /// Serve the embedded store alone, with the part of etcd's v3 API that API servers use.
    Etcd(crate::etcd::EtcdArgs),
    /// Run an API server for operator tests, in a temporary directory, until the tests end.
    Envtest(Box<crate::envtest::EnvtestArgs>),
    /// Control a cluster with the commands of kubectl, like a link named `kubectl` to this binary.
    #[command(disable_help_flag = true)]
    Kubectl(crate::kubectl::KubectlArgs),
    /// Run the controllers alone, against any API server.
    ControllerManager(ControllerManagerArgs),
    /// Run the cloud controllers alone, against any API server: nodes, routes and load balancers.
    CloudControllerManager(crate::cloud::CloudControllerManagerArgs),
    /// Run a node alone: the kubelet, with a container runtime such as containerd, against any API server.
    Kubelet(Box<crate::node::KubeletArgs>),
    /// Join this machine to a cluster as a node: kubelet, container runtime, proxy and routes.
    Agent(Box<crate::agent::AgentArgs>),
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
    Simulate(SimulateArgs),
    /// Add the cluster to your kubeconfig, or print it.
    Kubeconfig(KubeconfigArgs),
    /// Write a backup of a running or stopped cluster: its objects and certificates.
    Backup(BackupArgs),
    /// Create a cluster from a backup, in an empty data directory.
    Restore(RestoreArgs),
    /// Search the audit log: who deleted this pod, who scaled that deployment, and why.
    Audit(AuditArgs),
    /// Manage the encryption of secrets and other resources at rest.
    #[command(subcommand)]
    Secrets(SecretsCommand),
    /// Check if this machine can run a cluster, and print a remedy for each problem.
    Check(CheckArgs),
    /// Run the container runtime alone, serving CRI on a socket.
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

    /// Path of the CRI socket; by default `runtime.sock` in the data directory.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// The CIDR to use for pod IP addresses until the kubelet sets another.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    pub pod_cidr: Vec<String>,

    /// Directory of CNI configuration files; without one the built-in network is used.
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub cni_conf_dir: PathBuf,

    /// Directory of CNI plugins.
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub cni_bin_dir: PathBuf,

    /// File with mirrors, credentials and certificate authorities of registries.
    #[arg(long, value_name = "FILE", default_value = "/etc/ferry/registries.yaml")]
    pub registries: PathBuf,
}

#[derive(Args, Debug)]
pub struct ImagesArgs {
    #[command(subcommand)]
    pub verb: ImagesVerb,

    #[command(flatten)]
    pub data_dir: DataDir,

    /// Path of the runtime's socket; by default `runtime.sock` in the data directory.
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum ImagesVerb {
    /// Import images from an archive in the format of `docker save` or the OCI layout.
    Import { archive: PathBuf },
    /// Pull an image from its registry.
    Pull {
        image: String,
        /// User name for the registry; the password is read from standard input.
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
    /// Data directory: objects, certificates, the administrator's kubeconfig.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/ferry", global = true)]
    pub data_dir: PathBuf,
}

#[derive(Args, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Address and port of the API server; port 0 selects a free port and prints it.
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:6443", value_parser = parse_listen)]
    pub listen: SocketAddr,

    /// The IP address on which to listen for the `--secure-port` port.
    #[arg(long, value_name = "IP", conflicts_with = "listen")]
    pub bind_address: Option<std::net::IpAddr>,

    /// The port on which to serve HTTPS with authentication and authorization.
    #[arg(long, value_name = "PORT", conflicts_with = "listen")]
    pub secure_port: Option<u16>,

    /// The IP address on which to advertise the apiserver to members of the cluster; by default it is detected.
    #[arg(long, value_name = "IP")]
    pub advertise_address: Option<std::net::IpAddr>,

    /// Domain for this cluster.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,

    /// The IP address of the HTTPS ports of controllers (10257) and scheduler (10259), which serve `/healthz`, `/metrics`
    /// and `/debug/pprof`. A port that another process uses is left out.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub component_bind_address: std::net::IpAddr,

    /// Components to disable: dns, metrics-server, network-policy, proxy, routes.
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',',
          value_parser = ["dns", "metrics-server", "network-policy", "proxy", "routes"])]
    pub disable: Vec<String>,

    /// Size limit of the embedded store in bytes; above it, writes other than deletes are rejected.
    #[arg(long, value_name = "BYTES", default_value_t = cluster::DEFAULT_QUOTA_BYTES,
          value_parser = clap::value_parser!(u64).range(1..), help_heading = "Store")]
    pub quota_backend_bytes: u64,

    /// Storage backend [default: embedded, or etcd if `--etcd-servers` is given].
    #[arg(long, value_name = "STORE", help_heading = "Store")]
    pub store: Option<StoreKind>,

    /// List of etcd servers to connect with (scheme://ip:port), comma separated (also `--etcd-servers`).
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

    /// SSL Certificate Authority file used to secure etcd communication.
    #[arg(long, value_name = "FILE", requires = "etcd_endpoints", help_heading = "Store")]
    pub etcd_cafile: Option<PathBuf>,

    /// SSL certification file used to secure etcd communication.
    #[arg(
        long,
        value_name = "FILE",
        requires = "etcd_keyfile",
        requires = "etcd_cafile",
        help_heading = "Store"
    )]
    pub etcd_certfile: Option<PathBuf>,

    /// SSL key file used to secure etcd communication.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile", help_heading = "Store")]
    pub etcd_keyfile: Option<PathBuf>,

    /// A CIDR notation IP range from which to assign service cluster IPs; at most two, of different families. The
    /// first address is the API server's, the tenth cluster DNS' [default: 10.96.0.0/12, of an API server alone
    /// 10.0.0.0/16].
    #[arg(long, value_name = "CIDR[,CIDR]", value_parser = parse_cidrs, help_heading = "API server")]
    pub service_cluster_ip_range: Option<crate::flags::Cidrs>,

    /// A port range to reserve for services with NodePort visibility.
    #[arg(long, value_name = "PORT-PORT", default_value = "30000-32767", value_parser = parse_ports, help_heading = "API server")]
    pub service_node_port_range: (u16, u16),

    /// The maximum number of non-mutating requests in flight, part of the total concurrency limit of priority and
    /// fairness; further requests are rejected with status code 429.
    #[arg(long, value_name = "N", default_value_t = 400, help_heading = "API server")]
    pub max_requests_inflight: usize,

    /// The maximum number of mutating requests in flight, part of the total concurrency limit of priority and
    /// fairness; further requests are rejected with status code 429.
    #[arg(long, value_name = "N", default_value_t = 200, help_heading = "API server")]
    pub max_mutating_requests_inflight: usize,

    /// The duration a handler must keep a request open before timing it out; watches and streams are exempt.
    #[arg(long, value_name = "DURATION", default_value = "1m0s", value_parser = parse_duration, help_heading = "API server")]
    pub request_timeout: Duration,

    /// Enables anonymous requests to the secure port of the API server, with the username `system:anonymous`
    /// [default: true]. Cannot be combined with an `anonymous` block in the authentication configuration.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "API server")]
    pub anonymous_auth: Option<bool>,

    /// If set, the file that will be used to secure the secure port of the API server via token authentication: lines
    /// of `token,user,uid[,"group1,group2"]`.
    #[arg(long, value_name = "FILE", help_heading = "API server")]
    pub token_auth_file: Option<PathBuf>,

    /// Enable to allow secrets of type 'bootstrap.kubernetes.io/token' in the 'kube-system' namespace to be used for
    /// TLS bootstrapping authentication.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "API server")]
    pub enable_bootstrap_token_auth: bool,

    /// Identifier of the service account token issuer. When this flag is specified multiple times, the first is used
    /// to generate tokens and all are used to determine which issuers are accepted.
    #[arg(long, value_name = "URL", help_heading = "API server")]
    pub service_account_issuer: Vec<String>,

    /// Identifiers of the API: tokens used against the API must be bound to at least one of these audiences; by
    /// default the issuers.
    #[arg(long, value_name = "AUDIENCE", value_delimiter = ',', help_heading = "API server")]
    pub api_audiences: Vec<String>,

    /// Overrides the URI for the JSON Web Key Set in the discovery doc served at /.well-known/openid-configuration.
    #[arg(long, value_name = "URL", help_heading = "API server")]
    pub service_account_jwks_uri: Option<String>,

    /// A list of controllers to enable. `*` enables all on-by-default controllers, `foo` enables the controller named
    /// `foo`, `-foo` disables the controller named `foo`.
    #[arg(
        long,
        value_name = "NAME[,NAME]",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true,
        help_heading = "Controllers"
    )]
    pub controllers: Vec<String>,

    /// CIDR Range for Pods in cluster; each node is allocated a part of every range.
    #[arg(
        long,
        value_name = "CIDR[,CIDR]",
        value_delimiter = ',',
        default_value = "10.244.0.0/16",
        help_heading = "Controllers"
    )]
    pub cluster_cidr: Vec<String>,

    /// Address source of services of type LoadBalancer: `nodes`, ranges such as `192.0.2.10-192.0.2.20` that a node
    /// announces, or `none` if another controller assigns addresses.
    #[arg(
        long,
        value_name = "nodes|none|RANGE[,RANGE]",
        value_delimiter = ',',
        default_value = "nodes",
        help_heading = "Controllers"
    )]
    pub load_balancers: Vec<String>,

    /// The path to the configuration file of the scheduler: a KubeSchedulerConfiguration of
    /// kubescheduler.config.k8s.io/v1 with profiles, plugins, extenders.
    #[arg(long, value_name = "FILE", help_heading = "Controllers")]
    pub scheduler_config: Option<PathBuf>,

    /// The maximum validity duration of a token created by the service account token issuer.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "API server")]
    pub service_account_max_token_expiration: Option<Duration>,

    /// Turns on projected service account expiration extension during token generation, for clients that do not
    /// reload tokens.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "API server")]
    pub service_account_extend_token_expiration: bool,

    #[command(flatten)]
    pub metrics: crate::metrics_flags::MetricsArgs,

    #[command(flatten)]
    pub state_metrics: crate::state_metrics::StateMetricsArgs,

    #[command(flatten)]
    pub autoscaler: crate::autoscaler_flags::AutoscalerArgs,

    #[command(flatten)]
    pub kubernetes: KubernetesArgs,

    #[command(flatten)]
    pub outbound: crate::outbound_files::OutboundArgs,

    #[command(flatten)]
    pub serving: crate::serving_flags::ServingArgs,

    /// The file containing configuration for encryption providers to be used for storing resources; by default
    /// secrets are encrypted with a generated key.
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    pub encryption_provider_config: Option<PathBuf>,

    /// Determines if the file set by `--encryption-provider-config` should be automatically reloaded if the disk
    /// contents change.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "Store")]
    pub encryption_provider_config_automatic_reload: bool,

    /// Certificate authorities for client certificates, in addition to the cluster's own.
    #[arg(long, value_name = "FILE", help_heading = "Certificates")]
    pub client_ca_file: Option<PathBuf>,

    /// Root certificate bundle to use to verify client certificates of front proxies, in addition to the cluster's
    /// own.
    #[arg(long, value_name = "FILE", help_heading = "Certificates")]
    pub requestheader_client_ca_file: Option<PathBuf>,

    /// The directory where the TLS certs are located: `apiserver.crt` and `apiserver.key`, if both exist. If
    /// `--tls-cert-file` and `--tls-private-key-file` are provided, this flag will be ignored.
    #[arg(long, value_name = "DIR", help_heading = "Certificates")]
    pub cert_dir: Option<PathBuf>,

    /// File containing the default x509 Certificate for HTTPS, instead of the cluster's own; reloaded when it
    /// changes.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file", help_heading = "Certificates")]
    pub tls_cert_file: Option<PathBuf>,

    /// File containing the default x509 private key matching `--tls-cert-file`.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file", help_heading = "Certificates")]
    pub tls_private_key_file: Option<PathBuf>,

    /// Grace period for requests in flight after a termination signal; a second signal stops immediately.
    #[arg(long, value_name = "DURATION", default_value = "1m0s", value_parser = parse_duration)]
    pub shutdown_grace: Duration,
}

#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// Path to a kubeconfig file, specifying how to connect to the API server.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,

    /// Number of nodes.
    #[arg(long, value_name = "N")]
    pub nodes: usize,

    /// Number of pods that can run on a node.
    #[arg(long, value_name = "N", default_value_t = 110)]
    pub pods_per_node: u32,

    /// CPU capacity of a node.
    #[arg(long, value_name = "QUANTITY", default_value = "32")]
    pub cpu: String,

    /// Memory capacity of a node.
    #[arg(long, value_name = "QUANTITY", default_value = "256Gi")]
    pub memory: String,

    /// Number of zones that the nodes are spread over.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub zones: usize,

    /// Prefix of node names.
    #[arg(long, value_name = "TEXT", default_value = "sim-")]
    pub prefix: String,

    /// Run time of pods that run to completion.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub run_time: Duration,
}

#[derive(Args, Debug)]
pub struct ControllerManagerArgs {
    /// Path to kubeconfig file with authorization and master location information [default: the configuration of the
    /// pod in which it runs].
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub kubeconfig: PathBuf,

    /// A list of controllers to enable. `*` enables all on-by-default controllers, `foo` enables the controller named
    /// `foo`, `-foo` disables the controller named `foo`.
    #[arg(
        long,
        value_name = "NAME[,NAME]",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    pub controllers: Vec<String>,

    /// Start a leader election client and gain leadership before executing the main loop. Enable this when running
    /// replicated components for high availability.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub leader_elect: bool,

    /// CIDR Range for Pods in cluster; each node is allocated a part of every range.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,

    /// Root certificate authority of the API server, published as the ConfigMap `kube-root-ca.crt` in every
    /// namespace.
    #[arg(long, value_name = "FILE")]
    pub root_ca_file: Option<PathBuf>,

    /// If true, use individual service account credentials for each controller; otherwise all use the kubeconfig's
    /// identity.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub use_service_account_credentials: bool,

    /// Filename containing a PEM-encoded private RSA or ECDSA key used to sign service account tokens.
    #[arg(long, value_name = "FILE")]
    pub service_account_private_key_file: Option<PathBuf>,

    #[command(flatten)]
    pub signing: crate::signing_flags::SigningArgs,

    #[command(flatten)]
    pub secure_port: crate::components::SecurePortArgs,

    #[command(flatten)]
    pub controller: crate::controller_flags::ControllerArgs,
}

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    /// Store in the data directory.
    Embedded,
    /// Store in an etcd cluster.
    Etcd,
}

#[derive(Args, Debug)]
pub struct KubeconfigArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Print the kubeconfig instead of merging it.
    #[arg(long)]
    pub print: bool,

    /// File to merge into; by default the first file of $KUBECONFIG, or ~/.kube/config.
    #[arg(long, value_name = "FILE", conflicts_with = "print")]
    pub into: Option<PathBuf>,

    /// Name of the cluster and context in that file.
    #[arg(long, value_name = "NAME", default_value = "ferry")]
    pub name: String,
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

#[derive(Debug, Subcommand)]
pub enum SecretsCommand {
    /// Rewrite all objects of a resource, so that they are encrypted with the current key. The server must be
    /// running.
    Reencrypt(ReencryptArgs),
    /// Add a new key to the cluster's own encryption configuration; it encrypts new writes, older keys remain for
    /// reading.
    RotateKey(RotateKeyArgs),
}

#[derive(Args, Debug)]
pub struct ReencryptArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Path to a kubeconfig file; by default the administrator's kubeconfig in the data directory.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Resources to rewrite, such as `secrets` or `ingresses.networking.k8s.io`.
    #[arg(value_name = "RESOURCE", default_value = "secrets")]
    pub resources: Vec<String>,
}

#[derive(Args, Debug)]
pub struct RotateKeyArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Encryption configuration to add the key to; by default the cluster's own.
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Address that the API server will listen on.
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:6443", value_parser = parse_listen)]
    pub listen: SocketAddr,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
