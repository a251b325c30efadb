//! Components that run alone, as clients of any API server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use base::clock::Clock;
use base::tasks::TaskGroup;
use base::zpages::PageSettings;
use clap::Args;
use cluster::{ComponentPort, Components, Fleet, SecurePort};

use crate::cli::DataDir;
use crate::flags::parse_duration;
use crate::serve::stop_on_signal;

#[derive(Args, Debug)]
pub struct SimulateArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Path to a kubeconfig file; by default the administrator's kubeconfig in the data directory.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

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

    /// Port at which the kubelets of all nodes serve /metrics/resource and /stats/summary, on loopback addresses: 0 is any
    /// free port; by default they are not served.
    #[arg(long, value_name = "PORT")]
    pub kubelet_port: Option<u16>,
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

/// Flags of the HTTPS port of a component: Kubernetes' names.
#[derive(clap::Args, Clone, Debug)]
pub struct SecurePortArgs {
    /// The IP address on which to listen for the --secure-port port.
    #[arg(long, value_name = "IP", default_value_t = IpAddr::from(Ipv4Addr::LOCALHOST))]
    pub bind_address: IpAddr,

    /// The port on which to serve `/healthz`, `/metrics` and `/debug/pprof` by HTTPS, with authentication and
    /// authorization by the API server. If 0, don't serve HTTPS at all [default: 10257 for controllers, 10259 for the
    /// scheduler, if it is free].
    #[arg(long, value_name = "PORT")]
    pub secure_port: Option<u16>,

    /// The directory where the TLS certs are located. If --tls-cert-file and --tls-private-key-file are provided, this
    /// flag will be ignored [default: a certificate in memory].
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,

    /// File containing the default x509 Certificate for HTTPS.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,

    /// File containing the default x509 private key matching --tls-cert-file.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,

    /// Enable profiling via web interface host:port/debug/pprof/ [default: true].
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true)]
    pub profiling: Option<bool>,
}

impl SecurePortArgs {
    /// The port, unless it is disabled. `profiling` is the setting without the flag.
    pub fn port(self, component: &'static str, usual: u16, profiling: bool) -> Vec<ComponentPort> {
        let needed = self.secure_port.is_some();
        let number = self.secure_port.unwrap_or(usual);
        if number == 0 {
            return Vec::new();
        }
        let port = SecurePort {
            listen: SocketAddr::new(self.bind_address, number),
            serving: self.tls_cert_file.zip(self.tls_private_key_file),
            cert_dir: self.cert_dir,
            pair_name: component,
        };
        let pages = PageSettings { profiling: self.profiling.unwrap_or(profiling) };
        vec![ComponentPort { component, port, needed, pages }]
    }
}

/// The HTTPS ports of controllers and scheduler inside the control plane's process.
pub fn ports_in_process(address: IpAddr, pages: PageSettings) -> Vec<ComponentPort> {
    let all: [(&'static str, u16); 2] = [("kube-controller-manager", 10257), ("kube-scheduler", 10259)];
    let open = |(component, number)| ComponentPort {
        component,
        port: SecurePort {
            listen: SocketAddr::new(address, number),
            serving: None,
            cert_dir: None,
            pair_name: component,
        },
        needed: false,
        pages,
    };
    all.into_iter().map(open).collect()
}

/// Adds the controllers that feature gates enable, if all controllers run.
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
        ports: arguments.secure_port.port("kube-controller-manager", 10257, true),
        ..Components::default()
    };
    add_gated(&mut components.controllers);
    arguments.controller.apply(&mut components)?;
    let read = |file: &std::path::Path| {
        std::fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))
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
        kubelet_port: arguments.kubelet_port,
    };
    let kubeconfig = arguments.kubeconfig.unwrap_or_else(|| arguments.data_dir.data_dir.join("kubeconfig"));
    cluster::run_simulation(fleet, &kubeconfig, &Clock::system(), &tasks).await?;
    Ok(ExitCode::SUCCESS)
}
