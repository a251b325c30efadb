//! Flags of `ferry up`, `server` and `apiserver`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::DataDir;
use crate::etcd_flags;
use crate::flags::{parse_cidrs, parse_duration, parse_listen, parse_ports};
use crate::kubernetes_flags::KubernetesArgs;

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

    #[command(flatten)]
    pub masks: crate::controller_flags::MaskArgs,

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    /// Store in the data directory.
    Embedded,
    /// Store in an etcd cluster.
    Etcd,
}
