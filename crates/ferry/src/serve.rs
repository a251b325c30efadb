//! `ferry server` and `apiserver`: runs the control plane until a signal.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use base::tasks::TaskGroup;
use cluster::{
    CertificateFiles, Components, Config, ControlPlane, DnsConfig, EncryptionConfig, EtcdConfig,
    ServiceNetwork, StoreConfig,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{ServeArgs, StoreKind};
use crate::flags::parse_cidrs;

/// Addresses of services unless told otherwise: as kubeadm has it, and as an API server alone has it.
const SERVICES: &str = "10.96.0.0/12";
const SERVICES_ALONE: &str = "10.0.0.0/16";

/// Controllers of bootstrap tokens, which do not run by default.
const TOKEN_CONTROLLERS: [&str; 2] = ["bootstrap-signer-controller", "token-cleaner-controller"];
use crate::cloud;

/// What was asked for.
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
    let config = configure(arguments, role)?;
    let plane = ControlPlane::build(config, tasks).await?;
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

/// Prints a line. Nobody may be reading any more, which is no reason to stop.
pub fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

pub fn configure(arguments: ServeArgs, role: Role) -> Result<Config> {
    let mut config = Config::new(arguments.data_dir.data_dir);
    config.listen = arguments.listen;
    if let Some(address) = arguments.bind_address {
        config.listen.set_ip(address);
    }
    if let Some(port) = arguments.secure_port {
        config.listen.set_port(port);
    }
    config.advertise = arguments.advertise_address;
    config.cluster_domain = arguments.cluster_domain;
    config.store_quota_bytes = arguments.quota_backend_bytes;
    config.store = match arguments.store {
        Some(StoreKind::Embedded) => StoreConfig::Embedded,
        None if arguments.etcd_endpoints.is_empty() => StoreConfig::Embedded,
        Some(StoreKind::Etcd) | None => StoreConfig::Etcd(EtcdConfig {
            endpoints: arguments.etcd_endpoints,
            ca_file: arguments.etcd_cafile,
            identity_files: arguments.etcd_certfile.zip(arguments.etcd_keyfile),
            prefix: arguments.etcd_prefix,
            overrides: arguments.etcd_servers_overrides,
        }),
    };
    config.files = CertificateFiles {
        serving: (arguments.tls_cert_file.zip(arguments.tls_private_key_file))
            .or_else(|| serving_pair(arguments.cert_dir.as_deref()?)),
        client_ca: arguments.client_ca_file,
        front_proxy_ca: arguments.requestheader_client_ca_file,
        ..CertificateFiles::default()
    };
    config.encryption = EncryptionConfig {
        file: arguments.encryption_provider_config,
        reload: arguments.encryption_provider_config_automatic_reload,
    };
    let services = match (arguments.service_cluster_ip_range, role) {
        (Some(asked), _) => asked,
        (None, Role::Server) => parse_cidrs(SERVICES).map_err(anyhow::Error::msg)?,
        (None, Role::ApiServer) => parse_cidrs(SERVICES_ALONE).map_err(anyhow::Error::msg)?,
    };
    config.service_ip = services.first_address();
    let ranges = services.texts();
    config.api.services.set_cidrs(ranges.iter().map(String::as_str)).context("--service-cluster-ip-range")?;
    (config.api.services.node_ports.first, config.api.services.node_ports.last) =
        arguments.service_node_port_range;
    config.serving.drain_grace = arguments.shutdown_grace;
    config.api.chain.max_requests_in_flight = arguments.max_requests_inflight;
    config.api.chain.max_mutating_in_flight = arguments.max_mutating_requests_inflight;
    config.api.chain.request_timeout = arguments.request_timeout;
    let authentication = &mut config.api.authentication;
    authentication.anonymous = arguments.anonymous_auth;
    authentication.token_file = arguments.token_auth_file;
    authentication.bootstrap_tokens = arguments.enable_bootstrap_token_auth;
    let accounts = &mut authentication.service_accounts;
    if !arguments.service_account_issuer.is_empty() {
        accounts.issuers = arguments.service_account_issuer;
    }
    accounts.audiences = arguments.api_audiences;
    accounts.jwks_uri = arguments.service_account_jwks_uri;
    accounts.extend_expiration = arguments.service_account_extend_token_expiration;
    let longest = arguments.service_account_max_token_expiration;
    accounts.max_expiration_seconds =
        longest.map(|longest| i64::try_from(longest.as_secs()).unwrap_or(i64::MAX));
    config.components = Components {
        controllers: arguments.controllers,
        cluster_cidrs: arguments.cluster_cidr,
        // Only a store of its own is this process' alone.
        leader_election: config.store != StoreConfig::Embedded,
        load_balancers: cloud::load_balancers(&arguments.load_balancers, config.listen.port()),
        ..Components::default()
    };
    config.components.scheduler =
        Some(crate::scheduler::configuration(arguments.scheduler_config.as_deref())?);
    config.components.addons = true;
    // Nodes join by tokens, so whatever concerns tokens is on, unless it is switched off by name.
    let controllers = &mut config.components.controllers;
    for name in TOKEN_CONTROLLERS {
        if controllers.iter().any(|one| one == "*") && !controllers.contains(&format!("-{name}")) {
            controllers.push(name.to_owned());
        }
    }
    crate::components::add_gated(controllers);
    if !arguments.disable.iter().any(|part| part == "dns") {
        let service_ips: Vec<_> = services.name_service().into_iter().collect();
        let domain = config.cluster_domain.clone();
        let pods = config.components.cluster_cidrs.iter().cloned();
        let client_ranges = pods.chain(ranges).collect();
        config.components.dns = (!service_ips.is_empty()).then(|| DnsConfig {
            service_ips,
            domain,
            client_ranges,
            ..DnsConfig::default()
        });
    }
    arguments.kubernetes.apply(&mut config)?;
    arguments.serving.apply(&mut config)?;
    for warning in arguments.outbound.apply(&mut config)? {
        eprintln!("ferry: {warning}");
    }
    if role == Role::ApiServer {
        config.components = Components::default();
    }
    Ok(config)
}

/// The serving certificate and key in the directory `--cert-dir`, if both are there.
fn serving_pair(directory: &Path) -> Option<(PathBuf, PathBuf)> {
    let pair = (directory.join("apiserver.crt"), directory.join("apiserver.key"));
    (pair.0.is_file() && pair.1.is_file()).then_some(pair)
}

/// Takes out of a node's network what it is not to do.
pub fn without(network: &mut ServiceNetwork, disabled: &[String]) {
    let is_disabled = |part: &str| disabled.iter().any(|one| one == part);
    network.proxy = network.proxy.take().filter(|_| !is_disabled("proxy"));
    network.routes &= !is_disabled("routes");
    network.policies &= !is_disabled("network-policy");
}

/// The first SIGTERM or SIGINT begins the drain, the second ends the process.
pub fn stop_on_signal(tasks: &TaskGroup) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("handling SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("handling SIGINT")?;
    let tasks = tasks.clone();
    // Outside the group: it has to outlive what it stops.
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        next().await;
        tracing::info!("stopping: requests in flight may finish; a second signal ends at once");
        tasks.stop();
        next().await;
        tracing::warn!("stopping at once");
        base::logging::flush();
        std::process::exit(1);
    });
    Ok(())
}
