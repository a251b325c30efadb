//! `ferry server` and `apiserver`: runs the control plane until a signal.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use base::machine_network::Family;
use base::tasks::TaskGroup;
use base::zpages::PageSettings;
use cluster::{
    CertificateFiles, Components, Config, ControlPlane, DnsConfig, EncryptionConfig, EtcdConfig,
    ServiceNetwork, StoreConfig,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::cloud;
use crate::flags::{Cidrs, parse_cidrs};
use crate::serve_flags::{ServeArgs, StoreKind};

/// Default service CIDRs: kubeadm's, and kube-apiserver's for an API server alone.
const SERVICES: &str = "10.96.0.0/12";
const SERVICES_ALONE: &str = "10.0.0.0/16";

/// Controllers of bootstrap tokens, which do not run by default.
const TOKEN_CONTROLLERS: [&str; 2] = ["bootstrap-signer-controller", "token-cleaner-controller"];

/// Control plane configuration from the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Server,
    ApiServer,
}

pub async fn run(arguments: ServeArgs, role: Role) -> Result<ExitCode> {
    let begin = Instant::now();
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    base::limits::raise_open_files();
    let (data_dir, cert_dir) = (arguments.data_dir.data_dir.clone(), arguments.cert_dir.clone());
    let config = configure(arguments, role)?;
    let cert_dir = cert_dir.filter(|_| config.files.serving.is_none());
    let plane = ControlPlane::build(config, tasks).await?;
    if let Some(directory) = cert_dir {
        publish_certificate(&directory, &data_dir)
            .with_context(|| format!("failed to write apiserver.crt to {}", directory.display()))?;
    }
    let (url, kubeconfig) = (plane.certificates().url(), plane.kubeconfig());
    plane
        .run(Box::new(move || {
            say(format_args!("Ready after {} ms: {url}", begin.elapsed().as_millis()));
            say(format_args!("Kubeconfig of the administrator: {}", kubeconfig.display()));
        }))
        .await?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Prints a line. A closed standard output is not an error.
pub fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

pub fn configure(arguments: ServeArgs, role: Role) -> Result<Config> {
    let mut config = Config::new(arguments.data_dir.data_dir.clone());
    config.listen = arguments.listen;
    if let Some(address) = arguments.bind_address {
        config.listen.set_ip(address);
    }
    if let Some(port) = arguments.secure_port {
        config.listen.set_port(port);
    }
    config.advertise = arguments.advertise_address;
    config.cluster_domain.clone_from(&arguments.cluster_domain);
    config.store_quota_bytes = arguments.quota_backend_bytes;
    config.store = store(&arguments);
    config.files = certificate_files(&arguments);
    config.encryption = EncryptionConfig {
        file: arguments.encryption_provider_config.clone(),
        reload: arguments.encryption_provider_config_automatic_reload,
    };
    let services = match (&arguments.service_cluster_ip_range, role) {
        (Some(cidrs), _) => cidrs.clone(),
        (None, Role::Server) => parse_cidrs(SERVICES).map_err(anyhow::Error::msg)?,
        (None, Role::ApiServer) => parse_cidrs(SERVICES_ALONE).map_err(anyhow::Error::msg)?,
    };
    config.service_ip = services.first_address();
    let ranges = services.texts();
    config.families = Family::all_of(&ranges);
    config.api.services.set_cidrs(ranges.iter().map(String::as_str)).context("--service-cluster-ip-range")?;
    (config.api.services.node_ports.first, config.api.services.node_ports.last) =
        arguments.service_node_port_range;
    config.serving.drain_grace = arguments.shutdown_grace;
    config.api.chain.max_requests_in_flight = arguments.max_requests_inflight;
    config.api.chain.max_mutating_in_flight = arguments.max_mutating_requests_inflight;
    config.api.chain.request_timeout = arguments.request_timeout;
    configure_authentication(&mut config, &arguments);
    configure_components(&mut config, &arguments, &services)?;
    arguments.autoscaler.apply(&mut config.components.settings)?;
    let without_metrics = arguments.disable.iter().any(|part| part == "metrics-server");
    config.components.metrics = arguments.metrics.config(without_metrics, &config.data_dir)?;
    config.components.state_metrics = arguments.state_metrics.config()?;
    arguments.kubernetes.apply(&mut config)?;
    arguments.serving.apply(&mut config)?;
    arguments.outbound.apply(&mut config)?;
    if role == Role::ApiServer {
        config.components = Components::default();
    }
    Ok(config)
}

fn store(arguments: &ServeArgs) -> StoreConfig {
    match arguments.store {
        Some(StoreKind::Embedded) => StoreConfig::Embedded,
        None if arguments.etcd_endpoints.is_empty() => StoreConfig::Embedded,
        Some(StoreKind::Etcd) | None => StoreConfig::Etcd(EtcdConfig {
            endpoints: arguments.etcd_endpoints.clone(),
            ca_file: arguments.etcd_cafile.clone(),
            identity_files: arguments.etcd_certfile.clone().zip(arguments.etcd_keyfile.clone()),
            prefix: arguments.etcd_prefix.clone(),
            overrides: arguments.etcd_servers_overrides.clone(),
        }),
    }
}

fn certificate_files(arguments: &ServeArgs) -> CertificateFiles {
    let serving = arguments.tls_cert_file.clone().zip(arguments.tls_private_key_file.clone());
    CertificateFiles {
        serving: serving.or_else(|| serving_pair(arguments.cert_dir.as_deref()?)),
        client_ca: arguments.client_ca_file.clone(),
        front_proxy_ca: arguments.requestheader_client_ca_file.clone(),
        ..CertificateFiles::default()
    }
}

fn configure_authentication(config: &mut Config, arguments: &ServeArgs) {
    let authentication = &mut config.api.authentication;
    authentication.anonymous = arguments.anonymous_auth;
    authentication.token_file.clone_from(&arguments.token_auth_file);
    authentication.bootstrap_tokens = arguments.enable_bootstrap_token_auth;
    let accounts = &mut authentication.service_accounts;
    if !arguments.service_account_issuer.is_empty() {
        accounts.issuers.clone_from(&arguments.service_account_issuer);
    }
    accounts.audiences.clone_from(&arguments.api_audiences);
    accounts.jwks_uri.clone_from(&arguments.service_account_jwks_uri);
    accounts.extend_expiration = arguments.service_account_extend_token_expiration;
    let longest = arguments.service_account_max_token_expiration;
    accounts.max_expiration_seconds =
        longest.map(|longest| i64::try_from(longest.as_secs()).unwrap_or(i64::MAX));
}

/// Controllers, scheduler, add-ons and DNS.
fn configure_components(config: &mut Config, arguments: &ServeArgs, services: &Cidrs) -> Result<()> {
    config.components = Components {
        controllers: arguments.controllers.clone(),
        cluster_cidrs: arguments.cluster_cidr.clone(),
        // Only an embedded store belongs to this process alone.
        leader_election: config.store != StoreConfig::Embedded,
        load_balancers: cloud::load_balancers(&arguments.load_balancers, config.listen.port()),
        addons: true,
        ports: crate::components::ports_in_process(
            arguments.component_bind_address,
            PageSettings { profiling: arguments.kubernetes.profiling },
        ),
        ..Components::default()
    };
    arguments.masks.apply(&mut config.components)?;
    config.components.scheduler =
        Some(crate::scheduler::configuration(arguments.scheduler_config.as_deref())?);
    // Nodes join with tokens, so the token controllers are enabled unless disabled by name.
    let controllers = &mut config.components.controllers;
    for name in TOKEN_CONTROLLERS {
        if controllers.iter().any(|one| one == "*") && !controllers.contains(&format!("-{name}")) {
            controllers.push(name.to_owned());
        }
    }
    crate::components::add_gated(controllers);
    let is_disabled = |name: &str| arguments.disable.iter().any(|part| part == name);
    if !is_disabled("dns") {
        let service_ips: Vec<_> = services.name_service().into_iter().collect();
        let pods = config.components.cluster_cidrs.iter().cloned();
        let client_ranges = pods.chain(services.texts()).collect();
        config.components.dns = (!service_ips.is_empty()).then(|| DnsConfig {
            service_ips,
            domain: config.cluster_domain.clone(),
            client_ranges,
            ..DnsConfig::default()
        });
    }
    Ok(())
}

/// The serving certificate and key in the directory `--cert-dir`, if both exist.
fn serving_pair(directory: &Path) -> Option<(PathBuf, PathBuf)> {
    let pair = (directory.join("apiserver.crt"), directory.join("apiserver.key"));
    (pair.0.is_file() && pair.1.is_file()).then_some(pair)
}

/// Writes the cluster's own serving certificate and its authority to the directory `--cert-dir`, in which
/// kube-apiserver leaves its certificate for clients.
fn publish_certificate(directory: &Path, data_dir: &Path) -> std::io::Result<()> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let mut certificates = String::new();
    for name in ["apiserver.pem", "server-ca.crt"] {
        let text = std::fs::read_to_string(data_dir.join("pki").join(name))?;
        for block in text.split(BEGIN).skip(1) {
            let body = block.split(END).next().unwrap_or_default();
            certificates.extend([BEGIN, body, END, "\n"]);
        }
    }
    std::fs::create_dir_all(directory)?;
    base::file::create(&directory.join("apiserver.crt"), certificates.as_bytes(), 0o644)
}

/// Removes disabled components from a node's network configuration.
pub fn without(network: &mut ServiceNetwork, disabled: &[String]) {
    let is_disabled = |part: &str| disabled.iter().any(|one| one == part);
    network.proxy = network.proxy.take().filter(|_| !is_disabled("proxy"));
    network.routes &= !is_disabled("routes");
    network.policies &= !is_disabled("network-policy");
}

/// The first SIGTERM or SIGINT starts the drain, the second ends the process.
pub fn stop_on_signal(tasks: &TaskGroup) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to handle SIGINT")?;
    let tasks = tasks.clone();
    // Not part of the group: it must outlive the tasks that it stops.
    base::tasks::spawn_detached(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        next().await;
        tracing::info!("stopping: draining requests in flight; a second signal stops immediately");
        tasks.stop();
        next().await;
        tracing::warn!("stopping immediately");
        base::logging::flush();
        std::process::exit(1);
    });
    Ok(())
}
