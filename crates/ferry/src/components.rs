//! Components that run alone, as clients of any API server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use base::clock::Clock;
use base::tasks::TaskGroup;
use base::zpages::PageSettings;
use cluster::{ComponentPort, Components, Fleet, SecurePort};

use crate::cli::{ControllerManagerArgs, SimulateArgs};
use crate::serve::stop_on_signal;

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
    };
    cluster::run_simulation(fleet, &arguments.kubeconfig, &Clock::system(), &tasks).await?;
    Ok(ExitCode::SUCCESS)
}
